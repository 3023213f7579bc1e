// o = softmax(softmax_scale * q k^T + terms) v with mma.m16n8k16 and cp.async, for fp16 and bf16.
// FlashAttention-2: Dao (2023), algorithm 1; bottom-right masks and packed query heads as in its section 3.
//
// Grid: (row tiles * heads_at_once, groups of heads_at_once heads counted through all sequences, splits), as
// block_work() of common/attention_block.cuh reads it. A block of kNumWarps warps takes kBlockM rows; a row
// is a query of one head, or with pack_heads a (query, head of the group) pair, so that a group's heads read
// K and V once. Each warp has its own rows and all keys, or with large heads two or four warps share their
// rows (kSharesRows). K and V tiles pass through kStages buffers each.
//
// Defined by the build: TESSERA_DTYPE (bf16, f16), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 16;
// the tensors' own may be smaller), TESSERA_BLOCK_M, TESSERA_BLOCK_N, TESSERA_NUM_WARPS, TESSERA_STAGES,
// TESSERA_MIN_BLOCKS, TESSERA_TERMS (ScoreTermFlags), TESSERA_MASK_DTYPE (of an additive mask),
// TESSERA_PAGED, TESSERA_VECTOR (1: rows are 16-byte aligned and head_dims multiples of 16 bytes; else
// TESSERA_PIECE_BYTES says by what they are, row_pieces.cuh), and for batch-invariant problems
// TESSERA_INVARIANT. TESSERA_KV_DTYPE=f8e4m3: keys and values of 8 bits, which are widened to TESSERA_DTYPE
// in shared memory (mma_narrow.cuh); their scales, one a head at most, join the scores and the results.

#include "sm80/mma_copies.cuh"
#include "sm80/mma_narrow.cuh"
#include "sm80/mma_results.cuh"
#include "sm80/mma_segments.cuh"
#include "sm80/mma_softmax.cuh"

namespace tessera::kernels {

/// scores[m][n] (16 x 8 each) = q k^T of this warp's rows and its keys among those at k_smem.
TESSERA_DEVICE void multiply_q_k(const T* q_smem, const T* k_smem,
                                 float (&scores)[kRowTiles][kScoreTiles][4]) {
  const int lane = thread_x() % 32;
  const unsigned q_base =
      shared_address(q_smem) +
      static_cast<unsigned>((warp_first_row() + lane % 16) * kStrideQk + lane / 16 * 8) * 2;
  const int first_key = warp_column() * kWarpKeys;
  const unsigned k_base =
      shared_address(k_smem) +
      static_cast<unsigned>((first_key + lane % 8 + lane / 16 * 8) * kStrideQk + lane / 8 % 2 * 8) * 2;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < kScoreTiles; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) scores[m][n][e] = 0.0f;
    }
  }
  TESSERA_UNROLL
  for (int k = 0; k < kHeadDimQk / 16; ++k) {
    unsigned a[kRowTiles][4];
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) ldmatrix_x4(a[m], q_base + (m * 16 * kStrideQk + k * 16) * 2);
    TESSERA_UNROLL
    for (int n = 0; n < kScoreTiles / 2; ++n) {
      unsigned b[4];
      ldmatrix_x4(b, k_base + (n * 16 * kStrideQk + k * 16) * 2);
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        mma_m16n8k16<T>(scores[m][2 * n], a[m], b[0], b[1]);
        mma_m16n8k16<T>(scores[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

TESSERA_DEVICE void multiply_scores(float factor, float (&scores)[kRowTiles][kScoreTiles][4]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < kScoreTiles; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) scores[m][n][e] *= factor;
    }
  }
}

/// o += weights v for 16 keys. v_address: of this lane's part of the first of them.
TESSERA_DEVICE void multiply_p_v(const unsigned (&weights)[kRowTiles][4], unsigned v_address,
                                 float (&o)[kRowTiles][kOutTiles][4]) {
  TESSERA_UNROLL
  for (int n = 0; n < kOutTiles / 2; ++n) {
    unsigned b[4];
    ldmatrix_x4_trans(b, v_address + n * 32);
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      mma_m16n8k16<T>(o[m][2 * n], weights[m], b[0], b[1]);
      mma_m16n8k16<T>(o[m][2 * n + 1], weights[m], b[2], b[3]);
    }
  }
}

/// Leaves this warp's weights for the other warps of its rows.
TESSERA_DEVICE void store_weights(const unsigned (&weights)[kScoreTiles / 2][kRowTiles][4], T* p_smem) {
  const int lane = thread_x() % 32;
  T* own = p_smem + (warp_first_row() + lane / 4) * kStrideP + warp_column() * kWarpKeys + lane % 4 * 2;
  TESSERA_UNROLL
  for (int k = 0; k < kScoreTiles / 2; ++k) {
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<unsigned*>(own + (m * 16 + i % 2 * 8) * kStrideP + k * 16 + i / 2 * 8) =
            weights[k][m][i];
      }
    }
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kThreads, TESSERA_MIN_BLOCKS)
    attention_mma(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  T* q_smem = reinterpret_cast<T*>(shared_bytes);
  T* k_smem = q_smem + kLayout.q;
  T* v_smem = k_smem + kStages * kLayout.k;
  T* p_smem = v_smem + kStages * kLayout.v;
  BlockState& state = *reinterpret_cast<BlockState*>(p_smem + kLayout.p);
  KeyRange* row_keys = reinterpret_cast<KeyRange*>(&state + 1);
  RowValues* row_values = reinterpret_cast<RowValues*>(row_keys + kBlockM);

  const BlockWork w = block_work<kBlockM>(p);
  if (w.row_begin >= w.num_rows) return;
  const int warp_row = w.row_begin + warp_first_row();
  const int num_rows = w.num_rows;

  // Keys that the block's rows see, in whole tiles counted from key 0, and of these the split's share.
  const int last_row = minimum(w.row_begin + kBlockM, w.num_rows) - 1;
  const TileRows block_rows = rows_of_block(w, kBlockM);
  const KeyRange share = share_of_block(p, w, block_rows, kBlockN, kInvariant);
  const KeyRange first_keys = keys_of_query(p, w.sequence, block_rows.first_query);
  const KeyRange last_keys = keys_of_query(p, w.sequence, block_rows.last_query);
  const int first_tile = maximum(first_keys.begin, share.begin) / kBlockN;
  const int last_tile = (minimum(last_keys.end, share.end) + kBlockN - 1) / kBlockN;
  if (kInvariant && p.num_splits > 1 && first_tile >= last_tile) return;  // attention_join.cu knows
  // Tiles within [full_begin, full_end) keys are seen whole by every row.
  const int full_begin = maximum(last_keys.begin, share.begin);
  const int full_end = minimum(first_keys.end, share.end);

  const BlockSegments segments(p, kBlockN, first_tile, last_tile);
  BlockRows joined_rows;
  BlockRows* const earlier = kInvariant ? in_memory(&joined_rows) : nullptr;
  // Of the tile that comes `tile`th.
  const auto first_key_of = [&](int tile) {
    return (kDescends ? first_tile + last_tile - 1 - tile : tile) * kBlockN;
  };
  TileLoader<kHeadDimQk, kStrideQk> k_loader(p, p.k, w.sequence, w.b, w.kv_head, p.head_dim_qk, k_smem,
                                             first_key_of(first_tile), last_tile * kBlockN);
  TileLoader<kHeadDimV, kStrideV> v_loader(p, p.v, w.sequence, w.b, w.kv_head, p.head_dim_v, v_smem,
                                           first_key_of(first_tile), last_tile * kBlockN);
  VisibleTiles visible(p, block_rows, kBlockN);
  unsigned spoilt_rows = 0;
  bool is_loaded = false;  // the next tile, or on its way
  int steps_before = 0;    // tiles of the segments before
  for (int segment = segments.begin; segment < segments.end; ++segment) {
    const int tile_begin = segments.first_tile(segment, first_tile);
    const int tile_end = segments.last_tile(segment, last_tile);
    const int tile_of_start = visible.next(tile_begin, tile_end);
    unsigned first_spoilt = 0;
    for (int pass = 0; pass < kMostPasses; ++pass) {
      const bool is_start = pass == 0 && segment == segments.begin;
      const auto buffer_of = [&](int step) { return kStages == 2 ? (steps_before + step) & 1 : 0; };
      const auto load_k = [&](int step, int tile) {
        k_loader.load(buffer_of(step) * (kLayout.k * 2), first_key_of(tile));
        cp_async_commit();
      };
      const auto load_v = [&](int step, int tile) {
        if (kInvariant && pass > 0) {
          load_finite_values(p, state.work, v_smem + buffer_of(step) * kLayout.v, tile * kBlockN,
                             tile_end * kBlockN);
        } else {
          v_loader.load(buffer_of(step) * (kLayout.v * 2), first_key_of(tile));
        }
        cp_async_commit();
      };
      const auto widen_v = [&](int stage) {
        if (!kInvariant || pass == 0) v_loader.widen(stage * (kLayout.v * 2));
      };
      // Both of the tile after that of `step`, into the buffer of the one before it.
      const auto load_next = [&](int step, int next) {
        const int buffer = (step + 1) & 1;
        if (kBufferBarriers && step > 0) wait_for_use(state.buffers.emptied[buffer], (step - 1) >> 1);
        load_k(step + 1, next);
        load_v(step + 1, next);
        if (kBufferBarriers) arrive_when_copied(state.buffers.filled[buffer]);
      };

      float o[kRowTiles][kOutTiles][4];
      float row_base[kRowTiles][2];
      float row_sum[kRowTiles][2];
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        row_base[m][0] = row_base[m][1] = kLowestBase;
        row_sum[m][0] = row_sum[m][1] = 0.0f;
        TESSERA_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          TESSERA_UNROLL
          for (int e = 0; e < 4; ++e) o[m][n][e] = 0.0f;
        }
      }
      const float product_scale = kIsNarrow ? product_scale_of_head(p, w.b, w.kv_head) : 1.0f;
      // With terms the scores come in natural units times log2(e) already.
      const float scale = kHasTerms ? 1.0f : p.softmax_scale * kLog2E;

      const int local_row = warp_first_row();
      const int lane = thread_x() % 32;
      const auto v_lane =
          static_cast<unsigned>(lane % 16 * kStrideV + warp_column() * kWarpDims + lane / 16 * 8) * 2;
      const auto p_lane = static_cast<unsigned>((local_row + lane % 16) * kStrideP + lane / 16 * 8) * 2;
      // With 0 in place of some values a segment is taken by itself, else the next one's first tile follows.
      const int load_end = kInvariant && pass == 0 ? last_tile : tile_end;
      if (is_start && first_tile < last_tile) load_q(p, w, q_smem);
      if (tile_of_start < tile_end && !is_loaded) {
        load_k(0, tile_of_start);
        if (kStages == 2) load_v(0, tile_of_start);
      }
      if (thread_x() == 0 && is_start) {
        state.work = w;
        for (int buffer = 0; kBufferBarriers && buffer < 2; ++buffer) {
          mbarrier_init(shared_address(&state.buffers.filled[buffer]), kThreads);
          mbarrier_init(shared_address(&state.buffers.emptied[buffer]), kThreads);
        }
      }
      for (int r = thread_x(); is_start && r < kBlockM; r += kThreads) {
        const KeyRange keys =
            keys_of_query(p, w.sequence, row_index(w, minimum(w.row_begin + r, last_row)).i);
        row_keys[r] = {maximum(keys.begin, share.begin), minimum(keys.end, share.end)};
      }
      sync_threads();
      if (kBufferBarriers) arrive_when_copied(state.buffers.filled[0]);
      int tile = tile_of_start;
      int step = 0;
      for (int next; tile < tile_end; tile = next, ++step) {
        next = visible.next(tile + 1, load_end);
        const int stage = buffer_of(step);
        if (kBufferBarriers) {
          wait_for_use(state.buffers.filled[stage], step >> 1);
        } else {
          // Two buffers: K and V of this tile are there, and everyone has finished with the tile before. One:
          // K is there, and everyone has finished with V of the tile before.
          cp_async_wait<0>();
          k_loader.widen(stage * (kLayout.k * 2));
          if (kStages == 2) widen_v(stage);
          sync_threads();
        }
        if (kStages == 1) {
          load_v(step, tile);
        } else if (!kLoadsLate && next < load_end) {
          load_next(step, next);
        }
        TESSERA_UNROLL
        for (int chunk = 0; chunk < kBlockN; chunk += kChunkKeys) {
          const int key_begin = first_key_of(tile) + chunk;
          const bool whole = key_begin >= full_begin && key_begin + kChunkKeys <= full_end;
          // Near a diagonal some warps' rows see nothing of these keys, and of few rows some warps have none.
          // The warps that share rows agree.
          bool seen = warp_row < num_rows && (whole || (key_begin < row_keys[local_row + kWarpRows - 1].end &&
                                                        key_begin + kChunkKeys > row_keys[local_row].begin));
          Sight sight = {true, true};
          if (kHidesTiles && seen) {
            sight = sight_of(p, tile_rows(w, warp_row, kWarpRows), key_begin, key_begin + kChunkKeys);
            seen = sight.some;
          }
          float scores[kRowTiles][kScoreTiles][4];
          unsigned weights[kScoreTiles / 2][kRowTiles][4];
          float part[kRowTiles][2];
          const int own_key = key_begin + warp_column() * kWarpKeys;
          WarpMasks<TESSERA_TERMS, TESSERA_MASK_DTYPE, kRowTiles, kScoreTiles> masks;
          constexpr bool kLoadsMasks = kAddsTerms && kRowTiles * kScoreTiles <= kMostEarlyMaskTiles;
          if (kLoadsMasks && seen) masks.load(p, w, warp_row, own_key);
          if (kAddsTerms && !kLoadsMasks && seen) masks.prefetch(p, w, warp_row, own_key);
          if (seen) multiply_q_k(q_smem, k_smem + stage * kLayout.k + chunk * kStrideQk, scores);
          // Behind the last tile there are no keys, of which nothing is read; before the first there may be.
          if (kLoadsLate && ((!kInvariant && !kDescends) || next < load_end)) load_next(step, next);
          if (seen) {
            if (kIsNarrow) multiply_scores(product_scale, scores);
            if (kHasTerms) apply_terms<kLoadsMasks>(p, w, warp_row, own_key, masks, scores);
            if (kMasksOnly && !sight.all) hide_masked(p, w, warp_row, own_key, scores);
            if (!whole) hide_keys(row_keys, own_key, scores, local_row);
            if (kSharesRows) {
              raise_shared_base(scale, scores, row_values, row_base, row_sum, o);
              TESSERA_UNROLL
              for (int k = 0; k < kScoreTiles / 2; ++k) {
                weigh<T>(k, scale, scores, row_base, part, weights[k]);
                add_to_sums(part, row_sum);
              }
              store_weights(weights, p_smem);
            } else {
              if (kInvariant) raise_bases(scale, scores, row_base, row_sum, o);
              weigh<T>(0, scale, scores, row_base, part, weights[0]);
            }
          }
          if (kStages == 1) {
            // V of this tile is there, and everyone has finished with its K and left their weights.
            cp_async_wait<0>();
            widen_v(0);
            sync_threads();
            if (next < load_end) load_k(step + 1, next);
          } else if (kSharesRows) {
            sync_rows();
          }
          if (!seen) continue;
          const unsigned v_address = shared_address(v_smem + stage * kLayout.v + chunk * kStrideV) + v_lane;
          TESSERA_UNROLL
          for (int k = 0; k < kScoreTiles / 2; ++k) {
            if (!kSharesRows) {
              if (kInvariant) {
                add_to_sums(part, row_sum);
              } else {
                settle<T>(k, scale, scores, part, weights[k], row_base, row_sum, o);
              }
              // The weights of the next 16 keys are computed while the products of these are under way.
              if (k + 1 < kScoreTiles / 2) weigh<T>(k + 1, scale, scores, row_base, part, weights[k + 1]);
            }
            multiply_p_v(weights[k], v_address + (warp_column() * kWarpKeys + k * 16) * kStrideV * 2, o);
          }
          if (kSharesRows) {
            TESSERA_UNROLL
            for (int other = 1; other < kWarpColumns; ++other) {
              const int others_keys = (warp_column() + other) % kWarpColumns * kWarpKeys;
              const unsigned p_address = shared_address(p_smem) + p_lane + others_keys * 2;
              TESSERA_UNROLL
              for (int k = 0; k < kScoreTiles / 2; ++k) {
                unsigned others[kRowTiles][4];
                TESSERA_UNROLL
                for (int m = 0; m < kRowTiles; ++m)
                  ldmatrix_x4(others[m], p_address + (m * 16 * kStrideP + k * 16) * 2);
                multiply_p_v(others, v_address + (others_keys + k * 16) * kStrideV * 2, o);
              }
            }
          }
        }
        if (kBufferBarriers) mbarrier_arrive(shared_address(&state.buffers.emptied[stage]));
      }
      if (kHidesTiles && step == 0) {
        // Nobody has waited for q's copies, of no group yet, which come to where o goes.
        cp_async_commit();
        cp_async_wait<0>();
        sync_threads();
      }
      if constexpr (!kInvariant) {
        cp_async_wait<0>();
        const unsigned spoilt = store_rows(p, state.work, q_smem, row_values, row_base, row_sum, o);
        redo_rows<T, kRowTiles, Kv>(p, state.work, spoilt, row_keys, local_row);
      } else {
        float lse[kRowTiles][2];
        unsigned spoilt = close_segment(p, state.work, row_values, row_base, row_sum, o, lse);
        if (step > 0) is_loaded = pass == 0 && tile < last_tile;
        if (pass == 0) {
          first_spoilt = spoilt;
          if (__syncthreads_or(spoilt != 0) != 0) {  // again, from the segment's first tile on
            cp_async_wait<0>();
            sync_threads();
            k_loader.skip(tile_begin - tile_end - is_loaded);
            v_loader.skip(kStages == 2 ? -int{is_loaded} : 0);
            is_loaded = false;
            continue;
          }
        } else {
          spoilt |= find_spoilt_rows<T, kRowTiles, Kv>(p, state.work, first_spoilt & ~join_found(spoilt),
                                                       tile_begin * kBlockN, tile_end * kBlockN, local_row);
          sync_threads();  // all have read the last tile
        }
        if (p.num_splits > 1) {
          store_segment(p, state.work, segment, spoilt, lse, o);
        } else {
          const bool is_last = segment + 1 == segments.end;
          spoilt_rows |= spoilt | join_block_segment(p, state.work, row_values, earlier,
                                                     segment == segments.begin, is_last, lse, o, q_smem);
          if (is_last) redo_rows<T, kRowTiles, Kv>(p, state.work, spoilt_rows, row_keys, local_row);
        }
        steps_before += step;
        break;
      }
    }
  }
}
