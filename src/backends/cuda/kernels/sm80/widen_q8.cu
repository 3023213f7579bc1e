// Q8_0 weights as bf16, rounded to nearest, for products by a library.
//
// Grid: a thread for each 8 columns.

#include "common/rows.cuh"
#include "sm80/gemm_q8_traits.h"

using namespace tessera::kernels;

constexpr int kBlockGroups = Q8_0::kElements / kGroupSize;

TESSERA_KERNEL(widen_q8_bf16, kWidenThreads)(const void* blocks, void* out, int64 groups) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 group = static_cast<int64>(block_x()) * kWidenThreads + thread_x();
  if (group >= groups) return;
  const unsigned short* block =
      static_cast<const unsigned short*>(blocks) + group / kBlockGroups * (Q8_0::kBytes / 2);
  float v[kGroupSize];
  load_q8_group(block, group % kBlockGroups, v);
  PackedGroup<bf16> packed;
  packed.set(v);
  packed.store(out, group);
}
