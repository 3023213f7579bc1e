#pragma once

#include "sm90/decode_copies.cuh"
#include "sm90/decode_masks.cuh"
#include "sm90/decode_results.cuh"

// What a block of a decode kernel is beside its products: its part, its warps' roles, and how the pieces of a
// cluster are merged.

namespace tessera::kernels {

/// compute(arguments, smem) is what the second warpgroup does, which has still to wait for the kernels
/// before.
template <class Compute>
TESSERA_DEVICE void run_decode_block(const DecodeArguments& arguments, Compute compute) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(shared_bytes);
  const int warp = __shfl_sync(0xffffffffu, thread_x() / 32, 0);
  if (thread_x() == 0) {
    for (int i = 0; i < kSlots; ++i) {
      mbarrier_init(shared_address(&smem.filled[i]), 1);
      mbarrier_init(shared_address(&smem.emptied[i]), kDecodeWarps);
    }
    init_mask_barriers(smem);
    fence_mbarrier_init();
  }
  // Which keys a block reads is known here unless other kernels may write that.
  const bool is_settled = has_settled_keys(arguments.params);
  const bool knows_keys = is_settled || (!kHidesTiles && !kPaged && is_uniform(arguments.params));
  if (!knows_keys) wait_for_prior_kernels();
  if (warp == 0) {
    const Part part = find_part(arguments.params, arguments.parts, block_x());
    if (thread_x() == 0) {
      smem.part = part;
      prefetch_tensormap(&arguments.k);
      prefetch_tensormap(&arguments.v);
      if (knows_keys && !is_settled) prefetch_tiles(arguments, part);
    }
  }
  sync_threads();
  if (warp < 4) {
    if (kBlocksOfMultiprocessor > 1) setmaxnreg_dec<kCopyRegisters>();
    if (warp == 0) {
      if (!is_settled) wait_for_prior_kernels();
      // Early where all keys but the newest are on their way: else the next kernel's copies would be ahead.
      if (is_settled && smem.part.end - smem.part.begin <= kSlots / 2) allow_next_kernel();
      copy_tiles(arguments, smem);
      allow_next_kernel();
    } else if constexpr (kHasMasks) {
      copy_masks(arguments, smem, warp - 1);
    }
  } else {
    if (kBlocksOfMultiprocessor > 1) setmaxnreg_inc<kComputeRegisters>();
    compute(arguments, smem);
    const int blocks = cluster_size();
    if (blocks > 1) {
      wait_for_prior_kernels();  // if the block had no keys
      cluster_barrier();
      merge_pieces_of_cluster(arguments.params, smem, blocks);
    }
  }
}

}  // namespace tessera::kernels
