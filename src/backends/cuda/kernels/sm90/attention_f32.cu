// Attention of fp32 by Hopper's products of fp16, three for each (attention_split_products.cuh), with copies
// and tiles as in attention_wgmma.cu.
//
//   o = softmax(softmax_scale q k^T + terms) v
//
// split_rows.cu has made two numbers of fp16 of each of q, k and v before. Of the first warpgroup one thread
// finds tiles of queries and one asks for copies; each of the others has 64 rows of a tile of queries and
// takes tiles of keys by itself:
//
//   scores   sums, cross = q k^T ; s = sums + 2^-11 cross              highs and lows: three products a step
//   softmax  w = exp2(s - base), and its highs and lows
//   values   sums, cross = w v, 64 columns at a time ; o += v_scale (sums + 2^-11 cross)
//
// The products of a tile take three times as long as those of 16 bits, and its softmax less than twice as
// long: what one warpgroup leaves of the tensor cores' time the other takes. With turns one has its softmax
// while the other has its products, from the values of a tile to the scores of the next.
//
// Rows whose results may have lost bits that count, or that met NaN, are done again by the plain loop.
//
// Compiled with: TESSERA_DTYPE (f32), and as attention_wgmma.cu TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V,
// TESSERA_BLOCK_M, TESSERA_BLOCK_N, TESSERA_STAGES, TESSERA_Q_BUFFERS, TESSERA_TURNS, TESSERA_TERMS,
// TESSERA_MASK_DTYPE; 0 for TESSERA_PAGED, TESSERA_STORED, TESSERA_COPIED_MASK.

#include "sm90/attention_copies.cuh"
#include "sm90/attention_modifier.cuh"
#include "sm90/attention_split_products.cuh"
#include "sm90/attention_split_results.cuh"
#include "sm90/attention_terms.cuh"

namespace tessera::kernels {

static_assert(kSplitQueries == kWarpgroupRows, "a warpgroup's rows have one scale");
static_assert(kIsSplit && !kPaged && !kInvariant && !kGathers && kCopiedMask == 0);

/// Columns of o that are multiplied at once.
constexpr int kPartColumns = kHeadDimV > 192 ? 32 : 64;

/// o += scale w v, columns from kFirst on.
template <int kFirst>
TESSERA_DEVICE void add_values(SplitWeights& weights, unsigned v, float scale, float (&o)[kHeadDimV / 2]) {
  if constexpr (kFirst < kHeadDimV) {
    constexpr int kColumns = kHeadDimV - kFirst < kPartColumns ? kHeadDimV - kFirst : kPartColumns;
    float sums[kColumns / 2], cross[kColumns / 2];
    start_w_v<kFirst, kColumns>(weights, v, sums, cross);
    wgmma_wait_group<0>();
    pin_registers(sums);
    pin_registers(cross);
    TESSERA_UNROLL
    for (int i = 0; i < kColumns / 2; ++i)
      o[kFirst / 2 + i] = fmaf(fmaf(cross[i], kUnlow, sums[i]), scale, o[kFirst / 2 + i]);
    add_values<kFirst + kPartColumns>(weights, v, scale, o);
  }
}

/// The tensor cores are this warpgroup's: from the values of a tile to the scores of the next.
TESSERA_DEVICE void take_turn() {
  if (kTakesTurns) named_barrier_sync(1 + consumer_index(), 256);
}
TESSERA_DEVICE void pass_turn() {
  if (kTakesTurns) named_barrier_arrive(1 + (consumer_index() + 1) % kConsumers, 256);
}

/// scores = q k^T, but for their scales. Passes the turn unless it is a row's first.
TESSERA_DEVICE void multiply_q_k(unsigned q, unsigned k, bool is_first, float (&scores)[kBlockN / 2]) {
  float cross[kBlockN / 2];
  start_q_k(q, k, scores, cross);
  if (!is_first) pass_turn();
  wgmma_wait_group<0>();
  pin_registers(scores);
  pin_registers(cross);
  TESSERA_UNROLL
  for (int i = 0; i < kBlockN / 2; ++i) scores[i] = fmaf(cross[i], kUnlow, scores[i]);
}

/// A note beside a tile, read by the lane that releases its buffer.
TESSERA_DEVICE SplitTile read_split_note(const SplitTile& note) {
  SplitTile read = {};
  if (thread_x() % 32 == 0) read = note;
  read.scale = __shfl_sync(0xffffffffu, read.scale, 0);
  read.least = __shfl_sync(0xffffffffu, read.least, 0);
  read.loses = __shfl_sync(0xffffffffu, read.loses, 0);
  return read;
}

/// Of a warpgroup's rows, some of which exist or none.
TESSERA_DEVICE float scale_of_queries(const WgmmaArguments& arguments, const QueryTile& t, int first_row) {
  const SplitTiles& tiles = arguments.q_tiles;
  const int tile = minimum(first_row / kSplitQueries, tiles.tiles_of_head - 1);
  return split_tile(tiles, t.b * arguments.params.num_heads + t.head, tile).scale;
}

/// What the warps of a warpgroup that computes do.
TESSERA_DEVICE void compute(const WgmmaArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  const ScoreFactors factors = score_factors(p);
  const unsigned q_smem = shared_address(smem.q) + consumer_index() * (64 * kPanelRowBytes);
  if (kTakesTurns && consumer_index() == kConsumers - 1) named_barrier_arrive(1, 256);
  int k_count = 0;  // tiles of keys before this one
  int last_spoilt = kNoTile;
  for (int count = 0;; ++count) {
    smem.tile_ring.wait_filled(count);
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    if (slot.index == kNoTile) break;
    TileView view = view_of(arguments.params, slot);
    const float q_scale = scale_of_queries(arguments, slot.tile, view.first_query);
    const unsigned q = q_smem + count % kQBuffers * static_cast<int>(sizeof smem.q[0]);
    float o[kHeadDimV / 2] = {};
    Rows rows;
    TileLosses losses;
    rows.clear();
    losses.clear();
    smem.q_ring.wait_filled(count);
    bool is_first = true;
    for (int tile = view.keys.end - 1;; --tile, ++k_count) {
      const int buffer = k_count % kStages;
      smem.k_ring.wait_filled(k_count);
      KeyTileNote note = {tile, is_first, tile == view.keys.begin, false};
      if (kHasModifier) note = read_note(k_count);
      tile = note.tile;
      view.score_scale = q_scale * read_split_note(split_notes().k[buffer]).scale;
      float scores[kBlockN / 2];
      multiply_q_k(q, shared_address(smem.k[buffer]), is_first, scores);
      smem.k_ring.release_by_warp(k_count);
      if (note.is_last) smem.q_ring.release_by_warp(count);
      losses.add_scale(p.softmax_scale * kLog2E * view.score_scale);

      apply_terms(p, factors, slot, view, tile * kBlockN, 0, scores);
      modify_scores(p, slot, count, k_count, view, tile * kBlockN, note.hides,
                    kScalesInModifier ? p.softmax_scale * view.score_scale : 1.0f, scores);
      hide_keys(p, view, tile * kBlockN, scores);
      weigh(kNaturalScores ? factors.log2 : positive_scale(factors.log2 * view.score_scale, scores), is_first,
            scores, rows);
      is_first = false;
      SplitWeights weights(scores);
      if (rows.shrinks) {
        TESSERA_UNROLL
        for (int i = 0; i < kHeadDimV / 2; ++i) o[i] *= rows.shrink[i / 2 % 2];
      }

      smem.v_ring.wait_filled(k_count);
      const SplitTile values = read_split_note(split_notes().v[buffer]);
      losses.add_values(values);
      take_turn();
      add_values<0>(weights, shared_address(smem.v[buffer]), values.scale, o);
      smem.v_ring.release_by_warp(k_count);
      if (note.is_last) break;
    }
    pass_turn();
    ++k_count;
    // Tiles that have to be done again form a list, from the last to the first.
    if (warp_any(store_rows(p, slot, rows, losses, o))) {
      const int index = slot.index;
      if (thread_x() % 32 == 0) arguments.spoilt[index * kConsumerWarps + consumer_warp()] = last_spoilt;
      last_spoilt = index;
    }
    smem.tile_ring.release_by_warp(count);
  }
  sync_warp();
  while (last_spoilt != kNoTile) {
    redo_rows(p, query_tile<kBlockM>(p, last_spoilt));
    last_spoilt = arguments.spoilt[last_spoilt * kConsumerWarps + consumer_warp()];
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    attention_f32(const __grid_constant__ WgmmaArguments arguments) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(shared_bytes);
  if (thread_x() == 0) {
    smem.tile_ring.start(kConsumerWarps + 1);
    smem.q_ring.start(kConsumerWarps);
    smem.k_ring.start(kConsumerWarps);
    smem.v_ring.start(kConsumerWarps);
    fence_mbarrier_init();
  }
  sync_threads();
  const int warpgroup = __shfl_sync(0xffffffffu, thread_x() / 128, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<kCopyRegisters>();
    if (thread_x() < (kHasModifier ? 32 : 1)) copy_tiles(arguments, smem);
    if (thread_x() >= 32 && thread_x() < (kHasModifier ? 64 : 33)) find_tiles(arguments, smem);
  } else {
    setmaxnreg_inc<kComputeRegisters>();
    compute(arguments, smem);
  }
}
