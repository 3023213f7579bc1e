// Attention of queries, keys and values of 8 bits (e4m3) by Hopper's products of them, with twice the rate of
// 16-bit ones.
//
//   o = v_scale softmax(softmax_scale q_scale k_scale q k^T) v         FlashAttention-3 (Shah et al.,
//   2024), 3.3; https://arxiv.org/abs/2407.08608
//
// The pipeline is attention_wgmma.cu's: a block takes one tile of queries after the other; warpgroups that
// compute multiply q with the next tile of keys while the tensor cores still add up the last tile's values,
// and take turns. Of the first warpgroup one warp asks for copies, and the others transpose the values
// (attention_transposing.cuh), since operands of 8 bits need k along their rows.
//
//   copies       q | k 0, k 1, v 0, k 2, v 1, ...
//   transposing  v 0, v 1, ...
//   products     s = q k(n + 1)^T ; o += w v(n)           w: weights of tile n in e4m3, in registers
//   softmax      w = exp2(s - base), sum                  after the first, beside the second
//
// Weights are rounded to four bits; their sum isn't. Scores have no terms but a diagonal.
//
// Compiled with: TESSERA_DTYPE (of o: f16, bf16), TESSERA_Q_DTYPE and TESSERA_KV_DTYPE (f8e4m3),
// TESSERA_STORED (buffers for values that wait to be transposed), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V
// (multiples of 32 and of 16: what is above the problem's is filled up with zeros), TESSERA_BLOCK_M,
// TESSERA_BLOCK_N (a multiple of 32), TESSERA_STAGES, TESSERA_Q_BUFFERS, TESSERA_TURNS, TESSERA_PAGED, and 0
// for TESSERA_TERMS, TESSERA_MASK_DTYPE, TESSERA_COPIED_MASK.

#include "sm90/attention_copies.cuh"
#include "sm90/attention_results.cuh"
#include "sm90/attention_transposing.cuh"
#include "sm90/wgmma.cuh"

namespace tessera::kernels {

static_assert(kIsE4M3 && sizeof(Kv) == 1 && kTerms == 0 && kCopiedMask == 0);
static_assert(kHeadDimQk % kNarrowStep == 0 && kBlockN % kNarrowStep == 0, "whole steps of k");

/// Starts scores = q k^T.
TESSERA_DEVICE void start_q_k(unsigned q, unsigned k, float (&scores)[kBlockN / 2]) {
  constexpr int kStepsOfPanel = kPanelRowBytes / kNarrowStep;
  pin_registers(scores);
  wgmma_fence();
  const unsigned long long rows = descriptor_of_rows(q), keys = descriptor_of_rows(k);
  TESSERA_UNROLL
  for (int step = 0; step < kHeadDimQk / kNarrowStep; ++step) {
    const int in_panel = step % kStepsOfPanel * kNarrowStep;
    Wgmma<Q, kBlockN>::rows_rows(scores, further(rows, step / kStepsOfPanel * kQPanelBytes + in_panel),
                                 further(keys, step / kStepsOfPanel * kKvPanelBytes + in_panel), step > 0);
  }
  wgmma_commit_group();
}

using Weights = unsigned[kBlockN / 8];

/// Starts o += weights v, or o = weights v.
TESSERA_DEVICE void start_w_v(Weights& weights, unsigned v, bool accumulate, float (&o)[kHeadDimV / 2]) {
  pin_registers(o);
  pin_registers(weights);
  wgmma_fence();
  const unsigned long long values = descriptor_of_groups(v, kHeadDimV * 16, 128);
  TESSERA_UNROLL
  for (int step = 0; step < kBlockN / kNarrowStep; ++step) {
    Wgmma<Q, kHeadDimV>::registers_rows(
        o, weights + 4 * step, further(values, step * (kNarrowStep * kHeadDimV)), accumulate || step > 0);
  }
  wgmma_commit_group();
}

/// The weights of keys [8 i, 8 i + 16) of the thread's row r of two, as an operand has them.
TESSERA_DEVICE unsigned weights_of_scores(const float (&scores)[kBlockN / 2], int i, int r) {
  const float* s = scores + 4 * i + 2 * r;
  return cvt_e4m3x4(s[0], s[1], s[4], s[5]);
}

/// What the warps of a warpgroup that computes do.
TESSERA_DEVICE void compute(const WgmmaArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  const int consumer = consumer_index();
  const unsigned q_smem = shared_address(smem.q) + consumer * (64 * kPanelRowBytes);
  smem.tile_ring.wait_filled(0);
  if (smem.tiles[0].index == kNoTile) return;
  if (kTakesTurns && consumer == kConsumers - 1) named_barrier_arrive(1, 256);

  float scores[kBlockN / 2];
  float o[kHeadDimV / 2];
  Weights weights;
  Rows rows;
  int count = 0;    // tiles of queries before this one
  int k_count = 0;  // tiles of keys before the one whose scores come next; of values one less
  int last_spoilt = kNoTile;
  const auto start_scores = [&] {
    start_q_k(q_smem + count % kQBuffers * static_cast<int>(sizeof smem.q[0]),
              shared_address(smem.k) + k_count % kStages * static_cast<int>(sizeof smem.k[0]), scores);
  };
  const auto start_values = [&](int v_count, bool accumulate) {
    start_w_v(weights, shared_address(smem.v) + v_count % kStages * static_cast<int>(sizeof smem.v[0]),
              accumulate, o);
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
  // Those of this tile of keys become weights.
  const auto weigh_scores = [&] {
    hide_keys(p, view, tile * kBlockN, scores);
    const float log2 = positive_scale(p.softmax_scale * kLog2E * view.score_scale, scores);
    weigh(log2, tile == view.keys.end - 1, scores, rows);
  };
  const auto round_weights = [&] {
    TESSERA_UNROLL
    for (int n = 0; n < kBlockN / 8; ++n) weights[n] = weights_of_scores(scores, n / 2 * 2, n % 2);
  };
  smem.q_ring.wait_filled(0);
  smem.k_ring.wait_filled(0);
  start_scores();
  wgmma_wait_group<0>();
  pin_registers(scores);
  smem.k_ring.release_by_warp(0);
  if (tile == view.keys.begin) smem.q_ring.release_by_warp(0);
  rows.clear();
  weigh_scores();
  round_weights();
  bool accumulate = false;
  for (;;) {
    // Key tile `tile` has its weights. Its values are multiplied beside the next scores, maybe of other
    // queries.
    const bool ends = tile == view.keys.begin;
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
      smem.k_ring.wait_filled(k_count);
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
      smem.k_ring.wait_filled(k_count);
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
    pin_registers(scores);
    smem.k_ring.release_by_warp(k_count);
    if (tile == view.keys.begin) smem.q_ring.release_by_warp(count);
    weigh_scores();
    wgmma_wait_group<0>();
    pin_registers(o);
    if (!ends) smem.v_ring.release_by_warp(k_count - 1);
    round_weights();
    if (rows.shrinks) {
      TESSERA_UNROLL
      for (int i = 0; i < kHeadDimV / 2; ++i) o[i] *= rows.shrink[i / 2 % 2];
    }
  }
  smem.v_ring.wait_filled(k_count);
  start_values(k_count, accumulate);
  wgmma_wait_group<0>();
  pin_registers(o);
  finish(smem.tiles[count % kTileSlots]);
  sync_warp();
  while (last_spoilt != kNoTile) {
    const QueryTile t = query_tile<kBlockM>(p, last_spoilt);
    AttentionParams scaled = p;  // by what all of the tile's queries are, which needs no look at each key
    scaled.softmax_scale *= q_scale(p, t.b, t.kv_head);
    scaled.q_scales.q = nullptr;
    redo_rows(scaled, t);
    last_spoilt = arguments.spoilt[last_spoilt * kConsumerWarps + consumer_warp()];
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    attention_e4m3(const __grid_constant__ WgmmaArguments arguments) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(shared_bytes);
  if (thread_x() == 0) {
    smem.tile_ring.start(kConsumerWarps + 1 + kTransposingWarps);
    smem.q_ring.start(kConsumerWarps);
    smem.k_ring.start(kConsumerWarps);
    smem.v_ring.start(kConsumerWarps, kTransposingWarps);
    smem.stored_ring.start(kTransposingWarps);
    fence_mbarrier_init();
  }
  sync_threads();
  const int warpgroup = __shfl_sync(0xffffffffu, thread_x() / 128, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<kCopyRegisters>();
    if (thread_x() < (kPaged ? 32 : 1)) copy_tiles<kFirstTransposingWarp == 1>(arguments, smem);
    if (kFirstTransposingWarp == 2 && thread_x() == 32) find_tiles(arguments, smem);
    if (thread_x() >= 32 * kFirstTransposingWarp) transpose_tiles(smem);
  } else {
    setmaxnreg_inc<kComputeRegisters>();
    compute(arguments, smem);
  }
}
