#pragma once

#include <cstdint>

#include "backends/gpu/attention/attention_kernel.h"
#include "tessera/attention.h"

// How sm90/prefill and sm90/prefill_wide share a problem out among a GPU's multiprocessors, and how long that
// takes beside sm80/prefill: pure functions of a problem and a device.

namespace tessera::cuda {

/// What a tile of 128 queries and `keys` keys takes in a block that has its multiprocessor for itself, in us:
/// a start for each, and the products. The larger head_dim counts.
struct TileUs {
  std::int64_t keys;
  double start, of_128_dims;
};
// Fitted to an H200's times: of 17 to 128 queries (docs/kernels/hopper_attention.md), and of tiles of 64
// queries (docs/kernels/hopper_wide.md).
inline constexpr TileUs kSm90TileUs = {128, 0.6, 0.9};
inline constexpr TileUs kWideTileUs = {64, 1.2, 0.75};

/// Heads of a group whose queries share tiles of `block_m` rows: all or 1. has_mask_tiles: whether a mask's
/// tiles could be copied, as those of packed rows are not.
int packed_heads(const AttentionProblem& problem, int block_m, bool has_mask_tiles);

/// Parts of the keys that are worth it, for a choice whose rows are cut.
std::int64_t wanted_splits(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                           const gpu::KernelChoice& choice, const TileUs& tile = kSm90TileUs);

/// What a choice's tiles take with so many splits of the keys and the merge of these, in us. share:
/// share_of_pairs().
double us_with_splits(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                      const gpu::KernelChoice& choice, const TileUs& tile, double share, std::int64_t splits);

/// What copying tensors (AlignedTensors) to aligned rows takes, in us.
double us_of_aligning(const AttentionProblem& problem, int tensors);
/// The same of `bytes`.
double us_of_aligned_bytes(double bytes);

/// Whether a choice takes longer than sm80/prefill's. aligned: its tensors that are copied first.
bool is_slower_than_sm80(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                         const gpu::KernelChoice& choice, int aligned, const gpu::KernelChoice& other);

}  // namespace tessera::cuda
