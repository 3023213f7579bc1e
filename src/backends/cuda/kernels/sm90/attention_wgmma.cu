// Attention on Hopper's own instructions: wgmma, the copy engine and mbarriers, registers moved between
// warps.
//
//   o = softmax(softmax_scale q k^T + terms) v       FlashAttention-3 (Shah et al., 2024);
//   https://arxiv.org/abs/2407.08608
//
// A block has a multiprocessor for itself and computes one tile of queries after the other (query_tiles.cuh).
// Its first warpgroup finds out which, and asks for copies (attention_copies.cuh). Each of the others has 64
// rows of the tile. A warpgroup multiplies q with the next tile of keys while the tensor cores still add up
// the last tile's values; the warpgroups take turns, so that the softmax of one runs beside the products of
// the other. The first product of the next queries runs beside the last one of these, and beside their way
// out.
//
//   copies      q | k 0, k 1, v 0, k 2, v 1, ...         into rings of kStages tiles, kQBuffers of q
//   products    s = q k(n + 1)^T ; o += w v(n)           w: weights of tile n, in registers
//   softmax     w = exp2(s - base), sum                  after the first, beside the second
//
// Keys and values of 8 bits pass through one warpgroup more on their way (attention_widening.cuh). Those in
// pages of few keys, or that the copy engine does not take, are gathered by warps (attention_gathering.cuh).
//
// Compiled with: TESSERA_DTYPE (f16, bf16), TESSERA_KV_DTYPE (the same, or f8e4m3), TESSERA_STORED (buffers
// for tiles that are widened, else 0), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 16: what is
// above the problem's is filled up with zeros), TESSERA_BLOCK_M (64 for each warpgroup), TESSERA_BLOCK_N,
// TESSERA_STAGES, TESSERA_Q_BUFFERS, TESSERA_TURNS, TESSERA_PAGED, TESSERA_TERMS (ScoreTermFlags),
// TESSERA_MASK_DTYPE (of an additive mask), TESSERA_COPIED_MASK (which of the masks' flags the copy engine
// brings: kTermAdditiveMask, kTermBooleanMask or 0), TESSERA_GATHERS for such pages, and TESSERA_INVARIANT
// for batch-invariant problems (attention_segments.cuh), TESSERA_PACKS for tiles of packed heads and splits
// (query_tiles.cuh).

#include "sm90/attention_copies.cuh"
#include "sm90/attention_gathering.cuh"
#include "sm90/attention_modifier.cuh"
#include "sm90/attention_products.cuh"
#include "sm90/attention_results.cuh"
#include "sm90/attention_segments.cuh"
#include "sm90/attention_terms.cuh"
#include "sm90/attention_widening.cuh"

namespace tessera::kernels {

/// Whether the first tile's softmax stands before the loop, a second time. Without that the longer ones of
/// terms compile in two thirds of the time, as fast, but masks are 1 % slower and three warpgroups spill.
constexpr bool kRepeatsSoftmax = kTerms == 0;

/// What the warps of a warpgroup that computes do.
TESSERA_DEVICE void compute(const WgmmaArguments& arguments, SharedStorage& smem, MaskStorage& masks) {
  const AttentionParams& p = arguments.params;
  const int consumer = consumer_index();
  const ScoreFactors factors = score_factors(p);
  const unsigned q_smem = shared_address(smem.q) + consumer * (64 * 128);
  smem.tile_ring.wait_filled(0);
  if (smem.tiles[0].index == kNoTile) return;
  if (kTakesTurns && consumer == kConsumers - 1) named_barrier_arrive(1, 256);

  float scores[kBlockN / 2];
  float o[kHeadDimV / 2];
  unsigned weights[kBlockN / 4];
  Rows rows;
  int count = 0;    // tiles of queries before this one
  int k_count = 0;  // tiles of keys before the one whose scores come next; of values one less
  int last_spoilt = kNoTile;
  const auto start_scores = [&] {
    start_q_k(q_smem + count % kQBuffers * static_cast<int>(sizeof smem.q[0]),
              shared_address(smem.k) + k_count % kStages * static_cast<int>(sizeof smem.k[0]), scores);
  };
  const auto start_values = [&](int v_count, bool accumulate) {
    fence_gathered();
    start_w_v(weights, shared_address(smem.v) + v_count % kStages * static_cast<int>(sizeof smem.v[0]),
              accumulate, o);
  };
  const auto weights_of_scores = [&] {
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) weights[i] = cvt_x2<T>(scores[2 * i], scores[2 * i + 1]);
  };
  // Tiles that have to be done again form a list, from the last to the first.
  const auto finish = [&](const TileSlot& slot) {
    if (!warp_any(store_rows(p, slot, rows, o))) return;
    const int index = slot.index;
    if (thread_x() % 32 == 0) arguments.spoilt[index * kConsumerWarps + consumer_warp()] = last_spoilt;
    last_spoilt = index;
  };

  TileView view = view_of(arguments.params, smem.tiles[0]);
  int tile = view.keys.end - 1;
  // With a modifier only tiles that are seen come, each with a note.
  KeyTileNote note = {};
  const auto is_first = [&] { return kHasModifier ? note.is_first : tile == view.keys.end - 1; };
  const auto is_last = [&] { return kHasModifier ? note.is_last : tile == view.keys.begin; };
  const auto wait_for_keys = [&](int count_of_keys) {
    smem.k_ring.wait_filled(count_of_keys);
    fence_gathered();
    if (!kHasModifier) return;
    note = read_note(count_of_keys);
    tile = note.tile;
  };
  // Those of this tile of keys become weights.
  const auto weigh_scores = [&] {
    if (kCopiedMask != 0) {
      masks.rings[consumer].wait_filled(k_count);
      sync_warp();
    }
    apply_terms(p, factors, smem.tiles[count % kTileSlots], view, tile * kBlockN,
                shared_address(masks.tiles[consumer]), scores);
    modify_scores(p, smem.tiles[count % kTileSlots], count, k_count, view, tile * kBlockN, note.hides,
                  kScalesInModifier ? p.softmax_scale * view.score_scale : 1.0f, scores);
    hide_keys(p, view, tile * kBlockN, scores);
    const float log2 =
        kWidens && !kNaturalScores ? positive_scale(factors.log2 * view.score_scale, scores) : factors.log2;
    weigh(log2, is_first(), scores, rows);
    // Not before: weigh() has voted on all scores, so that the warp's loads of the mask are done. An arrival
    // may overtake loads, which products of the other warpgroup keep from shared memory for long.
    if (kCopiedMask != 0) masks.rings[consumer].release_by_warp(k_count);
  };
  bool accumulate = false;
  // The products of key tile `tile` become weights, beside o += w v of the tile before it, if there is one.
  const auto weigh_tile = [&](bool is_block_start) {
    pin_registers(scores);
    smem.k_ring.release_by_warp(k_count);
    if (is_last()) smem.q_ring.release_by_warp(count);
    weigh_scores();
    if (!is_block_start) {
      wgmma_wait_group<0>();
      pin_registers(o);
      if (accumulate) smem.v_ring.release_by_warp(k_count - 1);
    }
    weights_of_scores();
    if (!is_block_start && rows.shrinks) {
      TESSERA_UNROLL
      for (int i = 0; i < kHeadDimV / 2; ++i) o[i] *= rows.shrink[i / 2 % 2];
    }
  };
  smem.q_ring.wait_filled(0);
  wait_for_keys(0);
  start_scores();
  wgmma_wait_group<0>();
  rows.clear();
  if (kRepeatsSoftmax) weigh_tile(true);
  for (;;) {
    if (!kRepeatsSoftmax) weigh_tile(false);
    // Key tile `tile` has its weights. Its values are multiplied beside the next scores, maybe of other
    // queries.
    const bool ends = is_last();
    if (ends) {
      smem.tile_ring.wait_filled(count + 1);
      const TileSlot& next = smem.tiles[(count + 1) % kTileSlots];
      if (next.index == kNoTile) break;
      view = view_of(arguments.params, next);
      tile = view.keys.end;
    }
    --tile;
    ++k_count;
    if (!ends) {
      wait_for_keys(k_count);
      if (kTakesTurns) named_barrier_sync(1 + consumer, 256);
      start_scores();
      smem.v_ring.wait_filled(k_count - 1);
      start_values(k_count - 1, accumulate);
      if (kTakesTurns) named_barrier_arrive(1 + (consumer + 1) % kConsumers, 256);
      accumulate = true;
      wgmma_wait_group<1>();
    } else {
      // The other way round, so that the rows leave while the next scores are multiplied.
      const TileSlot& slot = smem.tiles[count % kTileSlots];
      smem.v_ring.wait_filled(k_count - 1);
      if (kTakesTurns) named_barrier_sync(1 + consumer, 256);
      start_values(k_count - 1, accumulate);
      smem.q_ring.wait_filled(count + 1);
      wait_for_keys(k_count);
      ++count;
      start_scores();
      if (kTakesTurns) named_barrier_arrive(1 + (consumer + 1) % kConsumers, 256);
      accumulate = false;
      wgmma_wait_group<1>();
      pin_registers(o);
      smem.v_ring.release_by_warp(k_count - 1);
      finish(slot);
      smem.tile_ring.release_by_warp(count - 1);
      rows.clear();
      wgmma_wait_group<0>();
    }
    if (kRepeatsSoftmax) weigh_tile(false);
  }
  smem.v_ring.wait_filled(k_count);
  start_values(k_count, accumulate);
  wgmma_wait_group<0>();
  pin_registers(o);
  finish(smem.tiles[count % kTileSlots]);
  sync_warp();
  while (last_spoilt != kNoTile) {
    redo_rows(p, query_tile<kBlockM>(p, last_spoilt));
    last_spoilt = arguments.spoilt[last_spoilt * kConsumerWarps + consumer_warp()];
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma(const __grid_constant__ WgmmaArguments arguments) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(shared_bytes);
  MaskStorage& masks = *reinterpret_cast<MaskStorage*>(shared_bytes + kMaskOffset);
  if (thread_x() == 0) {
    constexpr int kWriters = kGathers  ? 32 * kGatheringWarps
                             : kWidens ? kWideningWarps
                                       : 1;  // of keys and values
    // Who reads a slot: warps that compute, widen or gather, and threads that copy queries and masks.
    const int gathering = kGathers ? kGatheringWarps - (kFirstGatheringWarp == 0 ? 1 : 0) : 0;
    smem.tile_ring.start(kConsumerWarps + (kCopiedMask != 0 ? 2 : 1) + kWideningWarps + gathering);
    smem.q_ring.start(kConsumerWarps);
    smem.k_ring.start(kConsumerWarps, kWriters);
    smem.v_ring.start(kConsumerWarps, kWriters);
    smem.stored_ring.start(larger_of(kWideningWarps, 1));
    for (int i = 0; kCopiedMask != 0 && i < kConsumers; ++i) masks.rings[i].start(4);
    fence_mbarrier_init();
  }
  if (kPacks) {
    clear_rows_without_queries(arguments.params, smem);
    allow_next_kernel();  // that merges splits
  }
  sync_threads();
  const int warpgroup = __shfl_sync(0xffffffffu, thread_x() / 128, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<kCopyRegisters>();
    if constexpr (kGathers) {
      if (kFirstGatheringWarp > 0 && thread_x() == 0) copy_queries(arguments, smem);
      if (thread_x() >= 32 * kFirstGatheringWarp) gather_tiles(arguments, smem);
    } else {
      if (thread_x() < (kPaged || kHasModifier ? 32 : 1)) copy_tiles(arguments, smem);
      if (thread_x() >= 32 && thread_x() < (kHasModifier ? 64 : 33)) find_tiles(arguments, smem);
    }
    if (kCopiedMask != 0 && thread_x() == (kGathers ? 32 : 64)) copy_masks(arguments, smem, masks);
  } else if (kWidens && warpgroup == kConsumers + 1) {
    setmaxnreg_dec<kCopyRegisters>();
    widen_tiles(smem);
  } else {
    setmaxnreg_inc<kComputeRegisters>();
    if constexpr (kInvariant) {
      compute_segments(arguments, smem);
    } else {
      compute(arguments, smem, masks);
    }
  }
}
