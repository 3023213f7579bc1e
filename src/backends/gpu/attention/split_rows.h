#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "attention/tensor_extents.h"
#include "backends/gpu/attention/attention_kernel.h"
#include "common/split_rows.h"
#include "tessera/attention.h"

// q, k and v of fp32 as two numbers of fp16 each, for kernels that multiply these: one of its own
// (common/split_rows.cu) writes them to the workspace first, keys and values in pages as padded sequences.

namespace tessera::gpu {

/// q, k or v, split: (outer, heads, tokens, row_elements) of f16.
struct SplitTensor {
  TensorExtents extents;
  std::byte* data;  // null without a workspace
  kernels::SplitTile* tiles;
  int tiles_of_head;
  int row_elements;
};

/// q, k and v of a call whose kernel has the tiles of `config`. copies: null for what follows from the
/// problem's description.
std::array<SplitTensor, 3> split_tensors(const AttentionProblem& problem, const AttentionConfig& config,
                                         std::byte* copies);

/// Bytes of all. Throws Error{kOutOfMemory} if those of broadcast tensors are more than 64 bits can count.
std::size_t split_rows_bytes(const AttentionProblem& problem, const AttentionConfig& config);

/// Where a call's workspace has them; null: nothing is split.
inline std::byte* split_rows_of(const KernelChoice& choice, std::byte* workspace) {
  return choice.split_rows_bytes > 0 ? workspace + choice.split_rows_begin : nullptr;
}

/// Blocks of the launch that splits them.
std::int64_t num_split_blocks(const AttentionProblem& problem, const AttentionConfig& config);

/// What splits them.
struct SplitRowsLaunch {
  LaunchShape shape;
  kernels::SplitRowsParams params;
};
SplitRowsLaunch split_rows_launch(const kernels::AttentionParams& params, const AttentionProblem& problem,
                                  const KernelChoice& choice, std::byte* copies);
ModuleSpec split_rows_module();
std::string split_rows_entry(const AttentionProblem& problem, const AttentionConfig& config);

}  // namespace tessera::gpu
