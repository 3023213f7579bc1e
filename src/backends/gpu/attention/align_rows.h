#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backends/gpu/attention/attention_kernel.h"
#include "common/align_rows.h"
#include "tessera/attention.h"

// q, k, v and masks whose rows begin anywhere, for kernels that copy rows at multiples of 16 bytes alone: one
// of its own (common/align_rows.cu) copies them to such rows in the workspace first, and the attention kernel
// sees a problem with these. Not for pages, nor for tensors without elements. A mask's rows are its queries';
// what it has once for all heads or sequences is copied once, what it has for all queries for each.

namespace tessera::gpu {

/// Bits of KernelChoice::aligned_tensors.
enum AlignedTensors : int {
  kAlignedQ = 1,
  kAlignedK = 2,
  kAlignedV = 4,
  kAlignedAdditiveMask = 8,
  kAlignedBooleanMask = 16,
};

/// "q, k" and such.
std::string names_of_tensors(int tensors);

/// `problem` with the copies of `tensors` at `copies`.
AttentionProblem with_aligned_rows(AttentionProblem problem, int tensors, const std::byte* copies);

/// Bytes of these copies. Throws Error{kOutOfMemory} if broadcast ones are more than 64 bits can count.
std::size_t aligned_rows_bytes(const AttentionProblem& problem, int tensors);

/// Where a call's workspace has them; null: nothing is copied.
inline std::byte* aligned_rows_of(const KernelChoice& choice, std::byte* workspace) {
  return choice.aligned_rows_bytes > 0 ? workspace + choice.aligned_rows_begin : nullptr;
}

/// What copies them.
struct AlignRowsLaunch {
  LaunchShape shape;
  kernels::AlignRowsParams params;
};
AlignRowsLaunch align_rows_launch(const AttentionProblem& problem, int tensors, std::byte* copies);
ModuleSpec align_rows_module();
constexpr const char* kAlignRowsEntry = "align_rows";

}  // namespace tessera::gpu
