// Multi-head latent attention on Hopper: few queries of many heads over keys of 576 elements, the first 512
// of which are the values. DeepSeek-V2 (2024); keys are shared out as in decode_parts.h.
//
// Grid: parts of the work times groups of 64 packed (query, head) rows, one block a multiprocessor; two
// groups make a cluster, whose blocks bring tiles to each other. o of 64 rows is 64 x 512: each of two
// warpgroups has half of its columns in registers. Tiles of 64 keys alternate: warpgroup n % 2 multiplies
// tile n with the queries and passes the weights on through shared memory (FlashMLA, DeepSeek 2025):
//
//   warpgroup 0   s0 = q k0^T, softmax, left half of o += w0 v0, then of w1 v1, s2 = q k2^T
//   warpgroup 1                         right half of o += w0 v0, s1 = q k1^T, softmax, o += w1 v1
//
// A row's base, 2^base being what its weights are divided by, goes from tile to tile with the weights, and
// rises only where a score is 2^8 times as large.
//
// Compiled with: TESSERA_DTYPE (f16, bf16), TESSERA_HEAD_DIM_QK 576, TESSERA_HEAD_DIM_V 512, and
// TESSERA_TERMS, TESSERA_MASK_DTYPE, TESSERA_PAGED as in sm80/attention_mma.cu.

#include "sm90/decode_merge.cuh"
#include "sm90/decode_tiles.cuh"
#include "sm90/latent_copies.cuh"
#include "sm90/latent_results.cuh"

namespace tessera::kernels {

constexpr float kBaseSlack = 8.0f;  // weights are at most 2^8, which f16 holds

/// Brings a group's rows to shared memory, zeros behind them, by both warpgroups.
TESSERA_DEVICE void load_queries(const AttentionParams& p, const Piece& piece, const RowGroup& rows,
                                 SharedStorage& smem) {
  constexpr int kChunks = kHeadDimQk / 8;  // of 16 bytes, of a row
  const int pack = p.num_heads / p.num_kv_heads;
  for (int i = thread_x(); i < kLatentRows * kChunks; i += 256) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const RowIndex index =
        packed_row_index(rows.begin + minimum(row, rows.count - 1), pack, piece.kv_head * pack);
    const T* from = static_cast<const T*>(p.q.data) +
                    query_offset(p, p.q, piece.sequence, piece.b, index.h, index.i) + chunk * 8;
    cp_async_16(shared_address(smem.q[chunk / 8]) + row * 128 + (chunk % 8 ^ row % 8) * 16, from,
                row < rows.count);
  }
  cp_async_commit();
  cp_async_wait<0>();
  fence_proxy_async();
  meet_other_warpgroup();
}

/// Starts scores = q k^T of tile n as its halves come.
TESSERA_DEVICE void start_q_k(SharedStorage& smem, int n, float (&scores)[kBlockN / 2]) {
  const unsigned long long q = descriptor_of_rows(shared_address(smem.q));
  const unsigned long long k = descriptor_of_rows(shared_address(smem.tiles[n % 2].panels));
  pin_registers(scores);
  wait_filled(smem, n, 0);
  wgmma_fence();
  TESSERA_UNROLL
  for (int step = 0; step < kHeadDimQk / 16; ++step) {
    if (step == kHalfV / 16) {
      wait_filled(smem, n, 1);
      wgmma_fence();
    }
    const int offset = step / 4 * kLatentPanelBytes + step % 4 * 32;
    Wgmma<T, kBlockN>::rows_rows(scores, further(q, offset), further(k, offset), step > 0);
  }
  wgmma_commit_group();
}

TESSERA_DEVICE unsigned values_of(SharedStorage& smem, int n, int half) {
  return shared_address(smem.tiles[n % 2].panels[half * kHalfPanels]);
}

/// Starts o += weights v with the other warpgroup's weights, from the tile's last panel.
TESSERA_DEVICE void start_other_w_v(unsigned weights, unsigned v, float (&o)[kHalfV / 2]) {
  pin_registers(o);
  wgmma_fence();
  const unsigned long long rows = descriptor_of_rows(weights);
  const unsigned long long values = descriptor_of_columns(v, kLatentPanelBytes);
  TESSERA_UNROLL
  for (int step = 0; step < kBlockN / 16; ++step)
    Wgmma<T, kHalfV>::rows_columns(o, further(rows, step * 32), further(values, step * 2048), true);
  wgmma_commit_group();
}

/// Makes o and the sums those of another base.
TESSERA_DEVICE void change_base(RowSums& rows, const float (&base)[2], float (&o)[kHalfV / 2]) {
  float shrink[2];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    shrink[r] = rows.base[r] == base[r] ? 1.0f : ex2(rows.base[r] - base[r]);
    rows.base[r] = base[r];
    rows.sum[r] *= shrink[r];
  }
  if (warp_any(shrink[0] != 1.0f || shrink[1] != 1.0f)) {
    TESSERA_UNROLL
    for (int i = 0; i < kHalfV / 2; ++i) o[i] *= shrink[i / 2 % 2];
  }
}

/// o += w v of a tile whose weights are the other warpgroup's.
TESSERA_DEVICE void attend_others_tile(const LatentArguments& arguments, SharedStorage& smem, int n, int half,
                                       RowSums& sums, float (&o)[kHalfV / 2]) {
  const int row = first_row_of_thread();
  await_weights(n);
  const float base[2] = {smem.base[row], smem.base[row + 8]};
  change_base(sums, base, o);
  start_other_w_v(shared_address(smem.tiles[n % 2].panels[kLatentPanels - 1]), values_of(smem, n, half), o);
  wgmma_wait_group<0>();
  pin_registers(o);
  release(arguments, smem, n, half);
}

/// Turns scores to weights in place. The thread's sums of them.
TESSERA_DEVICE void softmax(const AttentionParams& p, const Piece& piece, const Rows& rows, int first_key,
                            bool is_partly_seen, const float (&old_base)[2], float (&scores)[kBlockN / 2],
                            float (&base)[2], float (&sum)[2]) {
  const float scale = score_scale(p);
  if constexpr (kOnlyCaps) {
    cap_scores(p, true, scores);
  } else if constexpr (kHasTerms) {
    modify_scores(p, piece, rows, first_key, true, scores);
  }
  if (is_partly_seen) hide_scores(rows, first_key, scores);
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const float top = top_score(scores, r) * scale;
    base[r] = top > old_base[r] + kBaseSlack ? top : old_base[r];
    const float subtracted = base[r] == -infinity() ? 0.0f : base[r];
    sum[r] = 0.0f;
    weigh_scores(scale, subtracted, r, scores, sum[r]);
  }
}

struct Work {
  const LatentArguments& arguments;
  SharedStorage& smem;
  const Piece& piece;
  const Rows& rows;
  int full_begin;  // keys that all rows see
  int full_end;
  bool has_rows;  // the warp
};

/// All of a tile that is this warpgroup's to multiply with the queries. Before it come the tiles before it,
/// whoever's they are: their values' place is what the next copy waits for.
TESSERA_DEVICE void attend_own_tile(const Work& w, int n, int tile, int half, RowSums& sums,
                                    float (&o)[kHalfV / 2]) {
  SharedStorage& smem = w.smem;
  const int first_key = tile * kBlockN;
  float scores[kBlockN / 2];
  start_q_k(smem, n, scores);
  wgmma_wait_group<0>();
  pin_registers(scores);
  named_barrier_sync(4 + half, 128);  // all warps have read panel 8, where the weights go
  float base[2] = {sums.base[0], sums.base[1]};
  float sum[2] = {0.0f, 0.0f};
  unsigned weights[kBlockN / 4];
  if (w.has_rows) {
    softmax(w.arguments.params, w.piece, w.rows, first_key,
            first_key < w.full_begin || first_key + kBlockN > w.full_end, sums.base, scores, base, sum);
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) weights[i] = cvt_x2<T>(scores[2 * i], scores[2 * i + 1]);
  } else {
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) weights[i] = 0;
  }
  const int row = first_row_of_thread();
  store_weights(weights, shared_address(smem.tiles[n % 2].panels[kLatentPanels - 1]), row);
  if (thread_x() % 4 == 0) {
    smem.base[row] = base[0];
    smem.base[row + 8] = base[1];
  }
  fence_proxy_async();
  if (first_key + kBlockN > w.piece.sequence.len_kv)
    clear_values(smem.tiles[n % 2].panels[0], kLatentPanelBytes,
                 maximum(w.piece.sequence.len_kv - first_key, 0), 4 + half);
  pass_weights_on(n);
  change_base(sums, base, o);
  sums.sum[0] += sum[0];
  sums.sum[1] += sum[1];
  start_weights_values<kHalfV>(weights, values_of(smem, n, half), kLatentPanelBytes, o);
  wgmma_wait_group<0>();
  pin_registers(o);
  release(w.arguments, smem, n, half);
}

/// What the two warpgroups do.
TESSERA_DEVICE void compute(const LatentArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  const int lane = thread_x() % 32;
  const int half = warp_of_block() / 4;
  const int warp = warp_of_block() % 4;
  const int pack = p.num_heads / p.num_kv_heads;
  int n = 0;
  for_each_piece_of_group(
      arguments, smem.part, [&](const Piece& piece, const RowGroup& group, GroupTiles& tiles) {
        const Sequence& s = piece.sequence;
        if (piece.is_first && thread_x() == 0 && group.begin == 0) {
          arguments.parts.pieces[piece.b * p.num_kv_heads + piece.kv_head] = {smem.part.index,
                                                                              piece.num_pieces};
        }
        load_queries(p, piece, group, smem);
        Rows rows;
        TESSERA_UNROLL
        for (int r = 0; r < 2; ++r) {
          const int row = warp * 16 + lane / 4 + 8 * r;
          rows.exists[r] = row < group.count;
          rows.packed[r] = group.begin + minimum(row, group.count - 1);
          rows.index[r] = {rows.packed[r] / pack, piece.kv_head * pack + rows.packed[r] % pack};
          const KeyRange keys = keys_of_query(p, s, rows.index[r].i);
          rows.keys_begin[r] = keys.begin;
          rows.keys_end[r] = keys.end;
        }
        const int full_begin = keys_of_query(p, s, (group.begin + group.count - 1) / pack).begin;
        const int full_end = keys_of_query(p, s, group.begin / pack).end;
        const Work work = {arguments, smem, piece, rows, full_begin, full_end, warp * 16 < group.count};
        RowSums sums = {{-infinity(), -infinity()}, {0.0f, 0.0f}};
        float o[kHalfV / 2];
        TESSERA_UNROLL
        for (int i = 0; i < kHalfV / 2; ++i) o[i] = 0.0f;
        const auto attend_others = [&] {
          attend_others_tile(arguments, smem, n++, half, sums, o);
          tiles.advance();
        };
        const auto attend_own = [&] {
          attend_own_tile(work, n, tiles.tile(), half, sums, o);
          ++n;
          tiles.advance();
        };
        if (n % 2 != half) attend_others();  // the first tile
        while (tiles.has_two()) {
          attend_own();
          attend_others();
        }
        if (tiles.has_tile()) attend_own();
        const int64 first_partial = partial_row_of_piece(p, smem.part.index, piece.b, piece.kv_head);
        store_rows(p, piece, rows, smem, sums, first_partial, o);
        redo_rows(p, piece, group, minimum(tiles.end(), piece.tile_end), smem, first_partial);
      });
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kLatentThreads, 1)
    attention_latent(const __grid_constant__ LatentArguments arguments) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(shared_bytes);
  const int warp = warp_of_block();
  if (thread_x() == 0) {
    for (int i = 0; i < kLatentBuffers; ++i) {
      for (int half = 0; half < 2; ++half) {
        mbarrier_init(shared_address(&smem.filled[i][half]), 1);
        mbarrier_init(shared_address(&smem.emptied[i][half]), 4 * arguments.blocks_of_cluster);
      }
    }
    fence_mbarrier_init();
  }
  wait_for_prior_kernels();
  if (warp == 0) {
    const Part part = find_part(arguments.params, arguments.parts, block_x() / arguments.row_groups);
    if (thread_x() == 0) smem.part = part;
  }
  cluster_barrier();  // also: the other block's barriers are ready
  if (warp >= 8) {
    setmaxnreg_dec<kCopyRegisters>();
    if (warp == 8) {
      copy_tiles(arguments, smem);
      allow_next_kernel();
    }
  } else {
    setmaxnreg_inc<kComputeRegisters>();
    compute(arguments, smem);
  }
  cluster_barrier();  // nobody writes into a block that has ended
}

/// Grid: (groups of rows, kv heads, sequences), 4 warps a block, warps_of_row of them a row.
extern "C" __global__ void __launch_bounds__(128)
    attention_latent_combine(const __grid_constant__ DecodeCombineArguments arguments) {
  allow_next_kernel();
  combine_pieces(arguments);
}
