#pragma once

#include <cstdint>

#include "backends/gpu/attention/attention_kernel.h"
#include "tessera/attention.h"

// How sm90/prefill shares a problem out among a GPU's multiprocessors, and how long that takes beside
// sm80/prefill: pure functions of a problem and a device.

namespace tessera::cuda {

/// Heads of a group whose queries share tiles of `block_m` rows: all or 1. has_mask_tiles: whether a mask's
/// tiles could be copied, as those of packed rows are not.
int packed_heads(const AttentionProblem& problem, int block_m, bool has_mask_tiles);

/// Parts of the keys that are worth it, for a choice whose rows are cut.
std::int64_t wanted_splits(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                           const gpu::KernelChoice& choice);

/// What copying tensors (AlignedTensors) to aligned rows takes, in us.
double us_of_aligning(const AttentionProblem& problem, int tensors);
/// The same of `bytes`.
double us_of_aligned_bytes(double bytes);

/// Whether a choice takes longer than sm80/prefill's. aligned: its tensors that are copied first.
bool is_slower_than_sm80(const AttentionProblem& problem, const gpu::DeviceProperties& device,
                         const gpu::KernelChoice& choice, int aligned, const gpu::KernelChoice& other);

}  // namespace tessera::cuda
