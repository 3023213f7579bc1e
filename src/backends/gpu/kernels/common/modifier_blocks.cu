// The least and the largest of each kModifierBlock elements of the tensors that a modifier's mask reads, from
// which kernels tell what tiles of keys it hides (score_modifier.cuh). Time and memory in O(elements) a call.
//
// Grid: (blocks of any tensor, tensors); a warp a block of elements.

#include "common/modifier_blocks.h"
#include "common/types.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

TESSERA_DEVICE int element_of(const void* data, int dtype, long long at) {
  if (dtype == kModifierI32) return static_cast<const int*>(data)[at];
  const int byte = static_cast<int>(as_word(static_cast<const unsigned char*>(data)[at]));
  return dtype == kModifierBool ? (byte != 0 ? 1 : 0) : byte;
}

}  // namespace tessera::kernels

TESSERA_KERNEL(modifier_blocks, kModifierBlockThreads)(const ModifierBlocksParams p) {
  const ModifierBlockedTensor& t = p.tensors[block_y()];
  const int block = block_x() * (kModifierBlockThreads / kWarpSize) + thread_x() / kWarpSize;
  if (block >= t.rows * t.blocks_of_row) return;
  const int row = block / t.blocks_of_row;
  const int first = (block - row * t.blocks_of_row) * kModifierBlock;
  const int last_dimension = t.rank - 1;
  long long at = 0;
  int rest = row;
  for (int d = last_dimension - 1; d >= 0; --d) {
    at += static_cast<long long>(rest % t.tensor.sizes[d]) * t.tensor.strides[d];
    rest /= t.tensor.sizes[d];
  }
  int lo = 2147483647;
  int hi = -2147483647 - 1;
  for (int i = first + thread_x() % kWarpSize; i < first + kModifierBlock; i += kWarpSize) {
    if (i >= t.tensor.sizes[last_dimension]) break;
    const int x = element_of(t.tensor.data, t.dtype, at + i * t.tensor.strides[last_dimension]);
    lo = minimum(lo, x);
    hi = maximum(hi, x);
  }
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    lo = minimum(lo, shuffle_xor(lo, mask));
    hi = maximum(hi, shuffle_xor(hi, mask));
  }
  if (thread_x() % kWarpSize == 0) t.bounds[block] = {lo, hi};
}
