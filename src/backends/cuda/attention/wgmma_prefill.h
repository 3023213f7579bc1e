#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "backends/cuda/attention/mapped_tokens.h"
#include "backends/gpu/attention/attention_kernel.h"
#include "sm90/attention_arguments.h"
#include "tessera/attention.h"

// What Hopper's kernels for long prompts (sm90_prefill.cpp, sm90_prefill_e4m3.cpp, sm90_prefill_f32.cpp,
// sm90_prefill_wide.cpp)
// share: blocks that stay and take tile after tile, what they keep in the workspace, and tensor maps.

namespace tessera::cuda {

/// Tiles of queries of `batch` sequences.
std::int64_t num_tiles(const gpu::KernelChoice& choice, std::int64_t batch);

/// The share of all pairs of the longest sequences' queries and keys whose tiles there are, or are seen:
/// about, since lengths may be known to the device alone.
double share_of_pairs(const AttentionProblem& problem);

/// Fills in num_row_tiles and num_head_blocks, of queries of pack_heads heads a tile.
void cut_query_rows(const AttentionProblem& problem, gpu::KernelChoice& choice);

/// Fills in all that follows from a choice's tiles, and from its splits if it has some: rows, heads at once,
/// what is in the workspace.
/// column_groups: warpgroups that share rows.
void cut_query_tiles(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                     gpu::KernelChoice& choice, int column_groups = 1);

/// Whether a choice has tiles of packed heads or of splits, which have a module of their own.
bool packs_rows(const gpu::KernelChoice& choice);

/// AttentionKernel::has_whole_keys of those that never split keys.
bool always_whole_keys(const AttentionProblem& problem);

/// Empty if the copy engine can bring q, k and v; otherwise why not.
std::string reason_against_tensors(const AttentionProblem& problem);

/// Empty if the copy engine brings the problem's pages in boxes that make up tiles of `block_n` keys;
/// otherwise why not.
std::string reason_against_pages(const AttentionProblem& problem, int block_n);

/// Empty if a choice's tiles can be counted and fit into shared memory; otherwise why not.
std::string reason_against_tiles(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                                 const gpu::KernelChoice& choice);

std::int64_t all_sequences_at_once(const gpu::KernelChoice& choice);
gpu::LaunchShape staying_shape(const gpu::KernelChoice& choice, std::int64_t sequences, unsigned warp_size);

/// What a map says of a tensor of four dimensions, innermost first, and of the boxes that are copied.
struct MappedTensor {
  const void* data;
  DType dtype;
  std::array<std::int64_t, 4> sizes;
  std::array<std::int64_t, 3> strides;  // elements, of all but the innermost
  int box_columns, box_rows;
  int box_depth = 1;  // of the third dimension
};

void encode_map(kernels::TensorMap& map, const MappedTensor& tensor);

/// All of a call's arguments but the mask's map.
kernels::WgmmaArguments wgmma_arguments(const kernels::AttentionParams& params,
                                        const AttentionProblem& problem, const gpu::KernelChoice& choice,
                                        std::byte* workspace);

/// The same with o_partial and lse_partial, if the choice's keys are split.
kernels::AttentionParams with_partials(kernels::AttentionParams params, const AttentionProblem& problem,
                                       const gpu::KernelChoice& choice, std::byte* workspace);

/// AttentionKernel::combine of those.
gpu::CombineLaunch combine_splits(const kernels::AttentionParams& params, const AttentionProblem& problem,
                                  const gpu::KernelChoice& choice, std::byte* workspace,
                                  std::int64_t sequences);

/// Where tickets and lists of tiles are.
void set_workspace(kernels::WgmmaArguments& arguments, const gpu::KernelChoice& choice, std::byte* workspace);

/// Of a tensor map's address and strides.
constexpr std::int64_t kMapAlignment = 16;  // bytes

}  // namespace tessera::cuda
