// o = softmax(softmax_scale * q k^T + terms) v in fp32, each product by three of mma.m16n8k16 in fp16
// (split_f32.cuh) and cp.async. FlashAttention-2: Dao (2023), algorithm 1.
//
// Grid and rows as in attention_mma.cu. K and V tiles have two buffers each. A warp loads and splits its own
// share of a tile's rows, and does so for the next tile between its two products, when other warps keep the
// tensor cores busy; so there is one barrier a tile.
//
// Defined by the build: TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 16; the tensors' own may be
// smaller), TESSERA_BLOCK_M, TESSERA_BLOCK_N, TESSERA_NUM_WARPS, TESSERA_MIN_BLOCKS, TESSERA_TERMS,
// TESSERA_MASK_DTYPE, TESSERA_PAGED, TESSERA_VECTOR and TESSERA_PIECE_BYTES (row_pieces.cuh), and for
// batch-invariant problems TESSERA_INVARIANT.

#include "sm80/dense_rows.cuh"
#include "sm80/f32_results.cuh"
#include "sm80/paged_rows.cuh"

namespace tessera::kernels {

/// Loads rows into shared memory, padded with zeros to kColumns, by one warp. row_of(r) is the address of row
/// r, or null for zeros.
template <int kRows, int kColumns, class RowOf>
TESSERA_DEVICE void load_rows(unsigned char* smem, int head_dim, RowOf row_of) {
  constexpr int kElements = kPieceBytes<float> / 4;
  constexpr int kPieces = kColumns / kElements;
  const unsigned base = shared_address(smem);
  copy_pieces<kPieceBytes<float>, kRows * kPieces>(thread_x() % 32, 32, [&](int c) -> PieceCopy {
    const int r = c / kPieces;
    const int column = c % kPieces * kElements;
    const float* row = row_of(r);
    return {base + static_cast<unsigned>(r * kSplitRowBytes<kColumns> + column * 4),
            row != nullptr && column < head_dim ? row + column : nullptr};
  });
}

/// Where a sequence's keys or values of one kv head are.
struct RowsOfKeys {
  const AttentionParams& p;
  const TensorArgument& x;
  const float* base;  // key 0 if not paged, else page 0
  const int* block_table;
  int len_kv;

  TESSERA_DEVICE RowsOfKeys(const AttentionParams& params, const TensorArgument& tensor, const BlockWork& w)
      : p(params), x(tensor), len_kv(w.sequence.len_kv) {
    base = static_cast<const float*>(x.data) + w.kv_head * x.head_stride;
    block_table = kPaged ? p.block_table + w.b * p.block_table_stride : nullptr;
    if (!kPaged)
      base += (p.cu_seqlens_kv != nullptr ? 0 : w.b * x.batch_stride) + w.sequence.kv_begin * x.seq_stride;
  }
};

/// Loads this warp's keys or values of a tile.
template <int kColumns>
TESSERA_DEVICE void load_own_keys(unsigned char* smem, const RowsOfKeys& keys, int head_dim, int first_key) {
  constexpr int kStrideBytes = kSplitRowBytes<kColumns>;
  const TensorArgument& x = keys.x;
  if constexpr (kPaged) {
    constexpr int kAtOnce = kWarpKeys < 32 ? kWarpKeys : 32;
    TESSERA_UNROLL
    for (int first = 0; first < kWarpKeys; first += kAtOnce) {
      const int key = first_key + first + thread_x() % kAtOnce;
      const int page = look_up_page(keys.p, keys.block_table, key, keys.len_kv);
      load_paged_rows<float, kAtOnce, kColumns, kStrideBytes, kPieceBytes<float>, false>(
          shared_address(smem + first * kStrideBytes), head_dim,
          keys.base + page * x.batch_stride + token_in_page(keys.p, key) * x.seq_stride,
          keys.len_kv - first_key - first);
    }
  } else if constexpr (kVector && kHasRegularChunks<float, kWarpKeys, kColumns>) {
    load_dense_rows<float, kWarpKeys, kColumns, kStrideBytes>(smem, head_dim, keys.base, x.seq_stride,
                                                              first_key, keys.len_kv);
  } else {
    load_rows<kWarpKeys, kColumns>(smem, head_dim, [&](int r) -> const float* {
      const int key = first_key + r;
      return key < keys.len_kv ? keys.base + key * x.seq_stride : nullptr;
    });
  }
}

/// Puts 0 in place of infinities and NaN in this warp's values of a tile, which it has loaded.
TESSERA_DEVICE void clean_values(Stage& stage) {
  unsigned char* rows = stage.v + thread_x() / 32 * kWarpKeys * kBytesV;
  for (int c = thread_x() % 32; c < kWarpKeys * kHeadDimV; c += 32) {
    float& x = *reinterpret_cast<float*>(rows + c / kHeadDimV * kBytesV + c % kHeadDimV * 4);
    if (x * 0.0f != 0.0f) x = 0.0f;
  }
  sync_warp();
}

/// Splits this warp's keys of a tile, which it has loaded.
TESSERA_DEVICE void split_keys(Stage& stage, unsigned& small_values) {
  const int warp_key = thread_x() / 32 * kWarpKeys;
  bool is_scaled = false;
  TESSERA_UNROLL
  for (int first = warp_key; first < warp_key + kWarpKeys; first += kKeysAtOnce) {
    split_rows<kKeysAtOnce, kHeadDimQk>(stage.k + first * kBytesQk, [&](int row, int e, unsigned) {
      stage.k_power[first + row] = power_of_two(e);
      is_scaled = is_scaled || e != 0;
    });
    split_rows<kKeysAtOnce, kHeadDimV, true>(stage.v + first * kBytesV, [&](int row, int e, unsigned small) {
      stage.v_power[first + row] = power_of_two(e);
      is_scaled = is_scaled || e != 0;
      if (small != 0) atomicOr(&small_values, small);
    });
  }
  if (is_scaled) stage.is_scaled = 1;
}

/// scores[m][n] (16 x 8 each) = q k^T of this warp's rows, as the split numbers are. The sum of every 16
/// products leaves the tensor cores before it is added.
TESSERA_DEVICE void multiply_q_k(const unsigned char* q_smem, const unsigned char* k_smem,
                                 float (&scores)[kRowTiles][kScoreTiles][4]) {
  const int lane = thread_x() % 32;
  const int warp_row = thread_x() / 32 * kWarpRows;
  const unsigned q_base =
      shared_address(q_smem) + static_cast<unsigned>((warp_row + lane % 16) * kBytesQk + lane / 16 * 32);
  const unsigned k_base = shared_address(k_smem) +
                          static_cast<unsigned>((lane % 8 + lane / 16 * 8) * kBytesQk + lane / 8 % 2 * 32);
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < kScoreTiles; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) scores[m][n][e] = 0.0f;
    }
  }
  // The small products have sums of their own until the end; of two row tiles for half of the keys at a time,
  // because those of all would need too many registers.
  constexpr int kPairs = kScoreTiles / 2;
  constexpr int kPairsAtOnce = kRowTiles > 1 && kPairs % 2 == 0 ? kPairs / 2 : kPairs;
  TESSERA_UNROLL
  for (int first = 0; first < kPairs; first += kPairsAtOnce) {
    float cross[kPairsAtOnce][kRowTiles][2][4] = {};
    TESSERA_UNROLL_BY(kRowTiles > 1 ? 1 : 2)  // all at once would need more registers
    for (int k = 0; k < kHeadDimQk / 16; ++k) {
      unsigned a_high[kRowTiles][4];
      unsigned a_low[kRowTiles][4];
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        ldmatrix_x4(a_high[m], q_base + m * 16 * kBytesQk + k * 64);
        ldmatrix_x4(a_low[m], q_base + m * 16 * kBytesQk + k * 64 + 16);
      }
      TESSERA_UNROLL
      for (int n = 0; n < kPairsAtOnce; ++n) {
        unsigned high[4];
        unsigned low[4];
        ldmatrix_x4(high, k_base + (first + n) * 16 * kBytesQk + k * 64);
        ldmatrix_x4(low, k_base + (first + n) * 16 * kBytesQk + k * 64 + 16);
        float sum[kRowTiles][2][4] = {};
        multiply_split<kRowTiles>(a_high, a_low, high, low, sum, cross[n]);
        TESSERA_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          TESSERA_UNROLL
          for (int e = 0; e < 4; ++e) {
            scores[m][2 * (first + n)][e] += sum[m][0][e];
            scores[m][2 * (first + n) + 1][e] += sum[m][1][e];
          }
        }
      }
    }
    TESSERA_UNROLL
    for (int n = 0; n < kPairsAtOnce; ++n) {
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        TESSERA_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& even = scores[m][2 * (first + n)][e];
          float& odd = scores[m][2 * (first + n) + 1][e];
          even = fmaf(cross[n][m][0][e], kUnlow, even);
          odd = fmaf(cross[n][m][1][e], kUnlow, odd);
        }
      }
    }
  }
}

/// The softmax's weights, split, as the A operand of p v.
struct Weights {
  unsigned high[kKeySteps][kRowTiles][4];
  unsigned low[kKeySteps][kRowTiles][4];
};

TESSERA_DEVICE void split_weights(const float (&p)[kRowTiles][kScoreTiles][4], Weights& weights) {
  constexpr float kScale = 1 << kWeightShift;
  TESSERA_UNROLL
  for (int k = 0; k < kKeySteps; ++k) {
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int part = 0; part < 4; ++part) {
        const float(&tile)[4] = p[m][2 * k + part / 2];
        const int e = part % 2 * 2;
        split_pair(tile[e] * kScale, tile[e + 1] * kScale, weights.high[k][m][part], weights.low[k][m][part]);
      }
    }
  }
}

/// o += p v. A tile's sum leaves the tensor cores before it is added.
TESSERA_DEVICE void multiply_p_v(const Weights& p, const unsigned char* v_smem,
                                 float (&o)[kRowTiles][kOutTiles][4]) {
  const int lane = thread_x() % 32;
  const unsigned v_base =
      shared_address(v_smem) + static_cast<unsigned>(lane % 16 * kBytesV + lane / 16 * 32);
  TESSERA_UNROLL
  for (int n = 0; n < kOutTiles / 2; ++n) {
    float sum[kRowTiles][2][4] = {};
    float cross[kRowTiles][2][4] = {};
    TESSERA_UNROLL
    for (int k = 0; k < kKeySteps; ++k) {
      unsigned high[4];
      unsigned low[4];
      ldmatrix_x4_trans(high, v_base + k * 16 * kBytesV + n * 64);
      ldmatrix_x4_trans(low, v_base + k * 16 * kBytesV + n * 64 + 16);
      multiply_split<kRowTiles>(p.high[k], p.low[k], high, low, sum, cross);
    }
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        o[m][2 * n][e] += fmaf(cross[m][0][e], kUnlow, sum[m][0][e]);
        o[m][2 * n + 1][e] += fmaf(cross[m][1][e], kUnlow, sum[m][1][e]);
      }
    }
  }
}

/// Turns scores into weights 2^(s - max - shift + e), updates the rows' states and rescales o.
TESSERA_DEVICE void online_softmax_step(const float (&q_factor)[kRowTiles][2], const Stage& stage,
                                        bool is_scaled, float (&scores)[kRowTiles][kScoreTiles][4],
                                        RowStates& rows, float (&o)[kRowTiles][kOutTiles][4]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float scale = kHasTerms ? 1.0f : q_factor[m][r];  // with terms it is in the scores already
      float max = scores[m][0][2 * r];
      TESSERA_UNROLL
      for (int n = 0; n < kScoreTiles; ++n)
        max = fmaxf(max, fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
      max = fmaxf(rows.max[m][r], ceilf(max * scale));
      // A row that has seen no key yet keeps -inf; its exponents are taken against 0 and come to 0.
      const float base = max == -infinity() ? 0.0f : max;
      // Exactly 1 if the maximum stays: a tile that hides all keys leaves every bit of the row as it was.
      const float moved = rows.max[m][r] == max ? 0.0f : max - rows.max[m][r];
      float rescale = ex2(-moved);
      rows.max[m][r] = max;
      float sum = rows.sum[m][r] * rescale;
      TESSERA_UNROLL
      for (int n = 0; n < kScoreTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = scores[m][n][2 * r + e];
          score = ex2(score * scale - base);
          sum += score;
        }
      }
      rows.sum[m][r] = sum;
      if (is_scaled) rescale = scale_weights(stage.v_power, m, r, moved, rows.shift[m][r], scores);
      if (warp_any(rescale != 1.0f)) {  // seldom after the first tiles
        TESSERA_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          o[m][n][2 * r] *= rescale;
          o[m][n][2 * r + 1] *= rescale;
        }
      }
    }
  }
}

/// Notes the rows whose products with some key that they see are so large that what the split numbers have
/// lost counts. scores: hidden ones are -inf.
TESSERA_DEVICE void note_large_products(const AttentionParams& p, const float (&q_factor)[kRowTiles][2],
                                        const float* k_power,
                                        const float (&scores)[kRowTiles][kScoreTiles][4],
                                        unsigned* large_rows) {
  const float unit = kHasTerms ? fabsf(p.softmax_scale) * kLog2E : 1.0f;
  const int lane = thread_x() % 32;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      bool is_large = false;
      TESSERA_UNROLL
      for (int n = 0; n < kScoreTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float factor = q_factor[m][r] * unit * k_power[n * 8 + lane % 4 * 2 + e];
          is_large = is_large || (fabsf(factor) > kMostScale && scores[m][n][2 * r + e] != -infinity());
        }
      }
      const int row = thread_x() / 32 * kWarpRows + m * 16 + r * 8 + lane / 4;
      if (is_large) atomicOr(&large_rows[row / 32], 1u << (row % 32));
    }
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kThreads, TESSERA_MIN_BLOCKS)
    attention_f32(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedStorage& shared = *reinterpret_cast<SharedStorage*>(shared_bytes);
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;

  const BlockWork w = block_work<kBlockM>(p);
  if (w.row_begin >= w.num_rows) return;
  const int warp_row = w.row_begin + warp * kWarpRows;

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

  const RowsOfKeys k_row(p, p.k, w);
  const RowsOfKeys v_row(p, p.v, w);
  const auto load_keys = [&](int step, int tile) {
    Stage& stage = shared.stages[step & 1];
    const int own = warp * kWarpKeys;
    const int first_key = tile * kBlockN + own;
    load_own_keys<kHeadDimQk>(stage.k + own * kBytesQk, k_row, p.head_dim_qk, first_key);
    load_own_keys<kHeadDimV>(stage.v + own * kBytesV, v_row, p.head_dim_v, first_key);
    cp_async_commit();
  };

  const BlockSegments segments(p, kBlockN, first_tile, last_tile);
  BlockRows joined_rows;
  BlockRows* const earlier = kInvariant ? in_memory(&joined_rows) : nullptr;
  VisibleTiles visible(p, block_rows, kBlockN);
  unsigned spoilt_rows = 0;
  for (int segment = segments.begin; segment < segments.end; ++segment) {
    const int tile_begin = segments.first_tile(segment, first_tile);
    const int tile_end = segments.last_tile(segment, last_tile);
    const int tile_of_start = visible.next(tile_begin, tile_end);
    unsigned first_spoilt = 0;
    for (int pass = 0; pass < kMostPasses; ++pass) {
      for (int r = thread_x(); r < kBlockM; r += kThreads) {
        const KeyRange keys =
            keys_of_query(p, w.sequence, row_index(w, minimum(w.row_begin + r, last_row)).i);
        shared.row_keys[r] = {maximum(keys.begin, share.begin), minimum(keys.end, share.end)};
      }
      if (thread_x() < 2) shared.stages[thread_x()].is_scaled = 0;
      if (thread_x() == 0) shared.small_values = 0;
      if (thread_x() < (kBlockM + 31) / 32) shared.large_rows[thread_x()] = 0;
      sync_threads();

      float o[kRowTiles][kOutTiles][4];
      RowStates rows;
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        TESSERA_UNROLL
        for (int r = 0; r < 2; ++r) {
          rows.max[m][r] = -infinity();
          rows.shift[m][r] = rows.sum[m][r] = 0.0f;
        }
        TESSERA_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          TESSERA_UNROLL
          for (int e = 0; e < 4; ++e) o[m][n][e] = 0.0f;
        }
      }

      // A warp's rows of q are its own business: no barrier.
      float q_factor[kRowTiles][2] = {};
      if (tile_of_start < tile_end) {
        unsigned char* q_smem = shared.q + warp * kWarpRows * kBytesQk;
        load_rows<kWarpRows, kHeadDimQk>(q_smem, p.head_dim_qk, [&](int r) -> const float* {
          if (warp_row + r >= w.num_rows) return nullptr;
          const RowIndex index = row_index(w, warp_row + r);
          return static_cast<const float*>(p.q.data) +
                 query_offset(p, p.q, w.sequence, w.b, index.h, index.i);
        });
        load_keys(0, tile_of_start);
        cp_async_wait<0>();
        sync_warp();
        const float unit = kHasTerms ? 1.0f : p.softmax_scale * kLog2E;
        for (int first = 0; first < kWarpRows; first += 8) {
          split_rows<8, kHeadDimQk>(q_smem + first * kBytesQk, [&](int row, int e, unsigned) {
            shared.q_factor[warp * kWarpRows + first + row] = power_of_two(e - 2 * kRowShift) * unit;
          });
        }
        if (kInvariant && pass > 0) clean_values(shared.stages[0]);
        split_keys(shared.stages[0], shared.small_values);
        sync_warp();
        TESSERA_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          TESSERA_UNROLL
          for (int r = 0; r < 2; ++r)
            q_factor[m][r] = shared.q_factor[warp * kWarpRows + m * 16 + r * 8 + lane / 4];
        }
      }

      // Also if q's rows have factors that large products come from.
      bool is_scaled = false;
      TESSERA_UNROLL
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        const float unit = kHasTerms ? p.softmax_scale * kLog2E : 1.0f;
        is_scaled = is_scaled || fabsf(q_factor[i / 2][i % 2] * unit) > kMostScale;
      }
      int step = 0;
      for (int tile = tile_of_start, next; tile < tile_end; tile = next, ++step) {
        next = visible.next(tile + 1, tile_end);
        Stage& stage = shared.stages[step & 1];
        sync_threads();  // this tile is split, and everyone has finished with the other buffer
        if (next < tile_end) load_keys(step + 1, next);
        is_scaled = is_scaled || stage.is_scaled != 0;

        float scores[kRowTiles][kScoreTiles][4];
        multiply_q_k(shared.q, stage.k, scores);
        if (is_scaled) scale_scores(stage.k_power, scores);
        const int key_begin = tile * kBlockN;
        if (kHasTerms) {
          TESSERA_UNROLL
          for (int m = 0; m < kRowTiles; ++m) {
            TESSERA_UNROLL
            for (int n = 0; n < kScoreTiles; ++n) {
              TESSERA_UNROLL
              for (int e = 0; e < 4; ++e) scores[m][n][e] *= q_factor[m][e / 2];
            }
          }
          WarpMasks<TESSERA_TERMS, TESSERA_MASK_DTYPE, kRowTiles, kScoreTiles> masks;
          apply_terms<false>(p, w, warp_row, key_begin, masks, scores);
        }
        if (kMasksOnly && warp_row < w.num_rows) {
          const Sight sight = sight_of(p, tile_rows(w, warp_row, kWarpRows), key_begin, key_begin + kBlockN);
          if (!sight.all) hide_masked(p, w, warp_row, key_begin, scores);
        }
        if (key_begin < full_begin || key_begin + kBlockN > full_end) {
          hide_keys(shared.row_keys, key_begin, scores);
        }
        if (is_scaled) note_large_products(p, q_factor, stage.k_power, scores, shared.large_rows);
        online_softmax_step(q_factor, stage, is_scaled, scores, rows, o);
        Weights weights;
        split_weights(scores, weights);

        if (next < tile_end) {
          cp_async_wait<0>();
          sync_warp();
          if (kInvariant && pass > 0) clean_values(shared.stages[(step + 1) & 1]);
          split_keys(shared.stages[(step + 1) & 1], shared.small_values);
        }
        multiply_p_v(weights, stage.v, o);
      }
      sync_threads();  // all values have been split
      // What the block's work is gets computed again: kept through the loop it would cost registers there.
      const BlockWork own = block_work<kBlockM>(p);
      if constexpr (!kInvariant) {
        const unsigned spoilt = store_rows(p, own, rows, shared, o);
        redo_rows<float, kRowTiles>(p, own, spoilt, shared.row_keys);
      } else {
        float lse[kRowTiles][2];
        unsigned spoilt = close_segment(rows, shared, o, lse);
        if (pass == 0) {
          first_spoilt = spoilt;
          if (__syncthreads_or(spoilt != 0) != 0) continue;
        } else {
          spoilt |= find_spoilt_rows<float, kRowTiles>(p, own, first_spoilt & ~join_found(spoilt),
                                                       tile_begin * kBlockN, tile_end * kBlockN);
          sync_threads();  // all have read the last tile
        }
        if (p.num_splits > 1) {
          store_segment(p, own, segment, spoilt, lse, o);
        } else {
          const bool is_last = segment + 1 == segments.end;
          spoilt_rows |=
              spoilt | join_block_segment(p, own, earlier, segment == segments.begin, is_last, lse, o);
          if (is_last) redo_rows<float, kRowTiles>(p, own, spoilt_rows, shared.row_keys);
        }
        break;
      }
    }
  }
}
