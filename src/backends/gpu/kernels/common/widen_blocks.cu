// Weights of blocks (TESSERA_BLOCKS) as bf16, rounded to nearest, for products by a library.
//
// Grid: a thread for each 8 columns.

#include "common/rows.cuh"

using namespace tessera::kernels;

using Format = tessera::formats::TESSERA_BLOCKS;

TESSERA_KERNEL(widen_blocks_bf16, kWidenThreads)(const void* blocks, void* out, int64 groups) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 group = static_cast<int64>(block_x()) * kWidenThreads + thread_x();
  if (group >= groups) return;
  float v[kGroupSize];
  if constexpr (is_same<Format, tessera::formats::Q8_0>) {
    constexpr int kBlockGroups = Format::kElements / kGroupSize;
    const unsigned short* block =
        static_cast<const unsigned short*>(blocks) + group / kBlockGroups * (Format::kBytes / 2);
    load_q8_group(block, group % kBlockGroups, v);
  } else {
    decode_blocks(blocks, group * kGroupSize, v, Format());
  }
  PackedGroup<bf16> packed;
  packed.set(v);
  packed.store(out, group);
}
