#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "backends/gpu/attention/attention_kernel.h"
#include "sm90/attention_arguments.h"
#include "tessera/attention.h"

// What the hosts of Hopper's kernels that share keys out in parts (common/decode_parts.h), sm90/decode and
// sm90/latent, have in common: what bounds them, the map of the keys, the workspace, the combination.

namespace tessera::cuda {

inline constexpr std::int64_t kMostListedSequences = 4096;  // whose lengths each block adds up
inline constexpr int kMostParts = 4096;
inline constexpr int kPieceCost = 2;  // tiles

/// Whether all sequences have the problem's lengths, so that nothing of the cut is the device's to find out.
bool has_uniform_keys(const AttentionProblem& problem);

/// sequences * kv heads, at least 1.
std::int64_t kv_heads_of_all(const AttentionProblem& problem);

/// Tiles of seq_len_kv keys, at least 1.
std::int64_t tiles_of_head(const AttentionProblem& problem, int tile_keys);

/// Why a device has no copies by tensor maps and no wgmma; empty if it has.
std::string reason_against_device(const gpu::DeviceProperties& device);

/// Why keys can't be copied by tiles of so many, or their tiles not be counted; empty if they can.
/// maps_values: values have a map of their own.
std::string reason_against_keys(const AttentionProblem& problem, int tile_keys, bool maps_values);

/// Throws Error{kInvalidArgument} for forced tiles that `config` doesn't have, of a kernel named so.
void require_tiles(const AttentionConfig& forced, const AttentionConfig& config, std::string_view kernel);

/// How many parts forced values ask for, 0: none. Throws Error{kInvalidArgument} for more than there can be.
std::int64_t forced_parts(const AttentionProblem& problem, const AttentionConfig& forced, int tile_keys);

/// Fills in num_parts, and num_splits with the parts of a head.
void set_parts(const AttentionProblem& problem, std::int64_t parts, AttentionConfig& config);

/// A kernel's module: what all are compiled with, but nothing about vectors, which maps make superfluous.
gpu::ModuleSpec part_module(std::string source, const AttentionProblem& problem);

/// How a tensor's rows are cut into boxes.
struct KeyBoxes {
  int row_elements;  // of the first dimension: a panel's, or a row's whose last panel is filled up with zeros
  int panel_elements;  // that are copied side by side
  int panels;          // of the third dimension: that a row has, or 1
  int panels_of_box;
  int tokens_of_box;
};

/// Writes the map of k or v: row_elements, tokens, panels, heads, sequences or pages.
void encode_key_map(const AttentionProblem& problem, const AttentionInput& tensor, const KeyBoxes& boxes,
                    kernels::TensorMap& map);

/// Of the pieces' list, and of partial results if there can be any.
std::size_t part_workspace_bytes(const AttentionProblem& problem, const gpu::KernelChoice& choice,
                                 bool has_partials);

/// Parts over such a workspace; tells params where partial results are.
kernels::DecodeParts parts_in_workspace(const AttentionProblem& problem, const gpu::KernelChoice& choice,
                                        std::byte* workspace, kernels::AttentionParams& params);

/// Grids of parts, each of them of all row tiles side by side.
gpu::LaunchShape part_shape(const gpu::KernelChoice& choice, std::int64_t sequences, unsigned warp_size);
std::int64_t part_sequences_at_once(const gpu::KernelChoice& choice);

/// The launch of the kernel that merges pieces.
gpu::CombineLaunch combine_parts(const kernels::AttentionParams& params, const AttentionProblem& problem,
                                 const gpu::KernelChoice& choice, const kernels::DecodeParts& parts,
                                 std::int64_t sequences);

}  // namespace tessera::cuda
