// Attention of heads above 256 elements on Hopper's own instructions: wgmma, the copy engine and mbarriers.
//
//   o = softmax(softmax_scale q k^T + terms) v
//
// A block has a multiprocessor for itself and takes one tile of 64 queries, or of (query, head) pairs over a
// part of the keys, after the other (query_tiles.cuh), as attention_wgmma.cu does. o of 64 rows fills the
// registers of two warpgroups, which have half of its columns each. Tiles of 64 keys alternate between them,
// as in attention_latent.cu: warpgroup n % 2 multiplies tile n with the queries and passes the weights on
// through shared memory.
//
//   warpgroup 0   s0 = q k0^T, softmax, left half of o += w0 v0, then of w1 v1, s2 = q k2^T
//   warpgroup 1                         right half of o += w0 v0, s1 = q k1^T, softmax, o += w1 v1
//
// Keys and values come in halves of a tile through one ring of buffers: a half of keys is empty again while
// the other is multiplied.
//
// Compiled with: TESSERA_DTYPE (f16, bf16), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 64: what is
// above the problem's is filled up with zeros), TESSERA_PAGED, TESSERA_TERMS (ScoreTermFlags),
// TESSERA_MASK_DTYPE (of an additive mask), TESSERA_O_PIECE, TESSERA_PACKS as attention_wgmma.cu; 64 for
// TESSERA_BLOCK_M and TESSERA_BLOCK_N, 2 for TESSERA_COLUMN_GROUPS, 1 for TESSERA_STAGES and
// TESSERA_Q_BUFFERS, 0 for TESSERA_TURNS, TESSERA_STORED and TESSERA_COPIED_MASK.

#include "sm90/attention_operands.cuh"
#include "sm90/attention_results.cuh"
#include "sm90/attention_terms.cuh"
#include "sm90/passed_weights.cuh"
#include "sm90/wide_copies.cuh"

namespace tessera::kernels {

static_assert(!kWidens && !kIsSplit && !kInvariant && !kGathers && !kHasModifier && kCopiedMask == 0);

/// Of the block's rows the thread's first; the other is 8 further.
TESSERA_DEVICE int local_row() { return row_warp() * 16 + thread_x() % 32 / 4; }

/// Starts scores = q k^T of tile n as its halves come, each a group of products.
TESSERA_DEVICE void start_q_k(SharedStorage& smem, int n, float (&scores)[kBlockN / 2]) {
  const unsigned q = shared_address(smem.q);
  pin_registers(scores);
  TESSERA_UNROLL
  for (int half = 0; half < 2; ++half) {
    const unsigned k = half_address(smem, keys_of_tile(n, half));
    const int first = half * kFirstKeyPanels;
    smem.ring.wait_filled(keys_of_tile(n, half));
    wgmma_fence();
    TESSERA_UNROLL
    for (int panel = 0; panel < (half == 0 ? kFirstKeyPanels : kSecondKeyPanels); ++panel) {
      TESSERA_UNROLL
      for (int step = 0; step < 4; ++step) {
        Wgmma<T, kBlockN>::rows_rows(scores, rows_at(q, (first + panel) * kQPanelBytes + step * 32),
                                     rows_at(k, panel * kKvPanelBytes + step * 32), first + panel + step > 0);
      }
    }
    wgmma_commit_group();
  }
}

/// Starts o += w v, or o = w v, of this warpgroup's own weights, from registers.
template <int kColumns>
TESSERA_DEVICE void start_own_w_v(unsigned (&weights)[kBlockN / 4], unsigned v, bool accumulate,
                                  float (&o)[kOwnColumns / 2]) {
  auto& columns = *reinterpret_cast<float(*)[kColumns / 2]>(o);
  pin_registers(o);
  pin_registers(weights);
  wgmma_fence();
  TESSERA_UNROLL
  for (int step = 0; step < kBlockN / 16; ++step) {
    Wgmma<T, kColumns>::registers_columns(columns, weights + 4 * step, columns_at(v, step * 2048),
                                          accumulate || step > 0);
  }
  wgmma_commit_group();
}

/// The same of the other warpgroup's weights, from shared memory.
template <int kColumns>
TESSERA_DEVICE void start_other_w_v(unsigned weights, unsigned v, bool accumulate,
                                    float (&o)[kOwnColumns / 2]) {
  auto& columns = *reinterpret_cast<float(*)[kColumns / 2]>(o);
  pin_registers(o);
  wgmma_fence();
  TESSERA_UNROLL
  for (int step = 0; step < kBlockN / 16; ++step) {
    Wgmma<T, kColumns>::rows_columns(columns, rows_at(weights, step * 32), columns_at(v, step * 2048),
                                     accumulate || step > 0);
  }
  wgmma_commit_group();
}

/// Leaves tile n's weights and bases for the other warpgroup.
TESSERA_DEVICE void leave_weights(SharedStorage& smem, int n, const unsigned (&weights)[kBlockN / 4],
                                  const Rows& rows) {
  const int row = local_row();
  store_weights(weights, shared_address(smem.weights[n % 2]), row);
  if (thread_x() % 4 == 0) {
    smem.base[n % 2][row] = rows.base[0];
    smem.base[n % 2][row + 8] = rows.base[1];
  }
  fence_proxy_async();
  pass_weights_on(n);
}

/// Gives the rows the bases of the other warpgroup's weights of tile n.
TESSERA_DEVICE void take_bases(const SharedStorage& smem, int n, Rows& rows) {
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const float base = smem.base[n % 2][local_row() + 8 * r];
    rows.shrink[r] = rows.base[r] == base ? 1.0f : ex2(rows.base[r] - base);
    rows.base[r] = base;
    rows.sum[r] *= rows.shrink[r];
  }
  rows.shrinks = warp_any(rows.shrink[0] != 1.0f || rows.shrink[1] != 1.0f);
}

TESSERA_DEVICE void shrink_rows(const Rows& rows, float (&o)[kOwnColumns / 2]) {
  if (!rows.shrinks) return;
  TESSERA_UNROLL
  for (int i = 0; i < kOwnColumns / 2; ++i) o[i] *= rows.shrink[i / 2 % 2];
}

/// Makes the rows' sums those of both warpgroups' weights, a row's in one lane of its four: the same bits in
/// both.
TESSERA_DEVICE void join_sums(SharedStorage& smem, int count, Rows& rows) {
  const int lane = thread_x() % 32;
  auto& sums = smem.sum[count % 2];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane % 4 == 0) sums[consumer_warp() / 4][local_row() + 8 * r] = sum;
  }
  meet_other_warpgroup();
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = local_row() + 8 * r;
    rows.sum[r] = lane % 4 == 0 ? sums[0][row] + sums[1][row] : 0.0f;
  }
}

/// Does the rows in a list of tiles again that are spoilt. list: of WgmmaArguments::spoilt that of which
/// warp.
TESSERA_DEVICE void redo_tiles(const WgmmaArguments& arguments, int last, int list) {
  while (last != kNoTile) {
    redo_rows(arguments.params, query_tile<kBlockM>(arguments.params, last));
    last = arguments.spoilt[last * kConsumerWarps + list];
  }
}

/// What the warps of a warpgroup with kColumns columns of o do.
template <int kColumns>
TESSERA_DEVICE void compute(const WgmmaArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  const int own = consumer_index();
  const ScoreFactors factors = score_factors(p);
  float o[kOwnColumns / 2] = {};  // columns that there are not stay 0
  Rows rows;
  int n = 0;  // tiles of keys before this one
  int last_spoilt = kNoTile;
  for (int count = 0;; ++count) {
    smem.tile_ring.wait_filled(count);
    const TileSlot& slot = smem.tiles[count % kTileSlots];
    if (slot.index == kNoTile) break;
    const TileView view = view_of(arguments.params, slot);
    rows.clear();
    smem.q_ring.wait_filled(count);
    for (int tile = view.keys.end - 1; tile >= view.keys.begin; --tile, ++n) {
      const bool is_first = tile == view.keys.end - 1;
      const int values = values_of_tile(n, own);
      if (n % 2 == own) {
        float scores[kBlockN / 2];
        start_q_k(smem, n, scores);
        wgmma_wait_group<1>();
        smem.ring.release_by_warp(keys_of_tile(n, 0));
        wgmma_wait_group<0>();
        pin_registers(scores);
        smem.ring.release_by_warp(keys_of_tile(n, 1));
        if (tile - 2 < view.keys.begin) smem.q_ring.release_by_warp(count);
        apply_terms(p, factors, slot, view, tile * kBlockN, 0, scores);
        hide_keys(p, view, tile * kBlockN, scores);
        weigh(factors.log2, is_first, scores, rows);
        unsigned weights[kBlockN / 4];
        TESSERA_UNROLL
        for (int i = 0; i < kBlockN / 4; ++i) weights[i] = cvt_x2<T>(scores[2 * i], scores[2 * i + 1]);
        leave_weights(smem, n, weights, rows);
        shrink_rows(rows, o);
        smem.ring.wait_filled(values);
        start_own_w_v<kColumns>(weights, half_address(smem, values), !is_first, o);
      } else {
        if (is_first && tile == view.keys.begin) smem.q_ring.release_by_warp(count);
        await_weights(n);
        take_bases(smem, n, rows);
        shrink_rows(rows, o);
        smem.ring.wait_filled(values);
        start_other_w_v<kColumns>(shared_address(smem.weights[n % 2]), half_address(smem, values), !is_first,
                                  o);
      }
      wgmma_wait_group<0>();
      pin_registers(o);
      smem.ring.release_by_warp(values);
    }
    join_sums(smem, count, rows);
    if (warp_any(store_rows(p, slot, rows, o))) {
      if (thread_x() % 32 == 0) arguments.spoilt[slot.index * kConsumerWarps + consumer_warp()] = last_spoilt;
      last_spoilt = slot.index;
    }
    smem.tile_ring.release_by_warp(count);
  }
  // A row is done again by one warp, when both warpgroups have stored it.
  if (own == 1 && thread_x() % 32 == 0) smem.last_spoilt[row_warp()] = last_spoilt;
  sync_warp();
  meet_other_warpgroup();
  if (own == 1) return;
  redo_tiles(arguments, last_spoilt, row_warp());
  redo_tiles(arguments, smem.last_spoilt[row_warp()], 4 + row_warp());
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kWideThreads, 1)
    attention_wide(const __grid_constant__ WgmmaArguments arguments) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(shared_bytes);
  if (thread_x() == 0) {
    smem.tile_ring.start(kConsumerWarps + 1);
    smem.q_ring.start(kConsumerWarps);
    smem.ring.start(4);
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
    if (thread_x() < (kPaged ? 32 : 1)) copy_tiles(arguments, smem);
    if (thread_x() == 32) find_tiles(arguments, smem);
  } else {
    setmaxnreg_inc<kComputeRegisters>();
    if (kLeftPanels == kRightPanels || warpgroup == 1) {
      compute<kLeftPanels * kPanelElements>(arguments, smem);
    } else {
      compute<kRightPanels * kPanelElements>(arguments, smem);
    }
  }
}
