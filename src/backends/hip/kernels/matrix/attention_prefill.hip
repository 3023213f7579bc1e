// o = softmax(softmax_scale * q k^T + terms) v by tiles on AMD's matrix units: MFMA (CDNA) and WMMA (RDNA3,
// RDNA4), for fp16 and bf16, on CDNA for fp32 as well. FlashAttention-2: Dao (2023), algorithm 1.
//
//   S^T = K Q^T,  P^T = exp2(scale S^T - base),  O^T += V^T P^T
//
// Transposed, a lane has scores of one query alone (of kColumnTiles queries kTile apart): base, sum and
// rescaling are numbers of the lane's own, and P^T is the second product's operand where it stands
// (matrix.hip.h).
//
// Grid: (row tiles * heads_at_once, groups of heads_at_once heads counted through all sequences, splits), as
// block_work() of common/attention_block.cuh reads it. A workgroup of kNumWaves waves takes kBlockM rows,
// each wave its own and all keys. A row is a query of one head, or with pack_heads a (query, head of the
// group) pair.
//
// Defined by the build: TESSERA_DTYPE (bf16, f16, float), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples
// of 16), TESSERA_PADDED (1: the tensors' own may be smaller), TESSERA_BLOCK_M, TESSERA_BLOCK_N,
// TESSERA_NUM_WARPS, TESSERA_MIN_WAVES (of a SIMD, among which its registers are divided), TESSERA_SHARED_Q
// (1: queries stay in LDS, not in registers), TESSERA_PREFETCH (1: registers hold the next tile meanwhile),
// TESSERA_TERMS (ScoreTermFlags), TESSERA_MASK_DTYPE (of an additive mask), TESSERA_PAGED, TESSERA_VECTOR (1:
// rows are 16-byte aligned and head_dims multiples of 16 bytes), and for batch-invariant problems
// TESSERA_INVARIANT. TESSERA_KV_DTYPE=f8e4m3: keys and values of 8 bits, widened to TESSERA_DTYPE on their
// way to LDS (narrow.hip.h); their scales, one a head at most, join softmax_scale and the results.

#include "matrix/prefill_segments.hip.h"

namespace tessera::kernels {

/// How far (in powers of two) a row's scores may rise above its base, what exponents are taken against:
/// weights up to 2^8 lose nothing, f16 holds them, and sums are fp32. Then the row's largest score becomes
/// its base, and sums and o are rescaled. Each row decides for itself, so that its bits do not depend on the
/// rows beside it.
constexpr float kMostWeights = 256.0f;

TESSERA_DEVICE void start_rows(RowSums& rows) {
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    rows.base[n] = kLowestBase;
    rows.sum[n] = 0.0f;
    TESSERA_UNROLL
    for (int d = 0; d < kDimTiles; ++d) rows.o[n][d] = Tile(0.0f);
  }
}

/// The queries of a wave, in its registers or its part of LDS.
struct Queries {
  Fragment fragment[kSharedQ ? 1 : kColumnTiles][kSharedQ ? 1 : kStepsQk];

  TESSERA_DEVICE void load(const AttentionParams& p, const BlockWork& w, SharedStorage& shared) {
    const int first_row = wave_index() * kWaveRows;
    if constexpr (kSharedQ) {
      constexpr int kPieces = kHeadDimQk / kSlotElements;
      for (int c = thread_x() % kWarpSize; c < kWaveRows * kPieces; c += kWarpSize) {
        const int r = first_row + c / kPieces;
        const int slot = c % kPieces;
        const auto* row = reinterpret_cast<const char*>(row_of(p, p.q, w, r));
        shared.q()[QkRows::at(r, slot)] =
            load_piece<T, kSlotElements, kVector, kPadded>(row, slot * kSlotElements, p.head_dim_qk);
      }
      sync_warp();
    } else {
      TESSERA_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) {
        const auto* row =
            reinterpret_cast<const char*>(row_of(p, p.q, w, first_row + n * kTile + operand_row<kTile>()));
        TESSERA_UNROLL
        for (int step = 0; step < kStepsQk; ++step) {
          const int column = step * kOperandK + operand_position<T, kTile>();
          TESSERA_UNROLL
          for (int word = 0; word < Fragment::kWords; word += 4) {
            const Word4 piece = load_piece<T, kSlotElements, kVector, kPadded>(
                row, column + word / 4 * kSlotElements, p.head_dim_qk);
            TESSERA_UNROLL
            for (int i = 0; i < 4; ++i) fragment[n][step].words[word + i] = piece[i];
          }
        }
      }
    }
  }

  /// offset: of the wave's first query in LDS, if they are there.
  TESSERA_DEVICE Fragment get(SharedStorage& shared, unsigned offset, int n, int step) const {
    if constexpr (!kSharedQ) return fragment[n][step];
    return load_operand<T, kTile, QkRows>(shared.q(), offset, n * kTile, step * kOperandK);
  }
};

using Scores = Tile[kColumnTiles][kKeyTiles];

/// scores = k q^T.
TESSERA_DEVICE void multiply_k_q(SharedStorage& shared, const Queries& q, Scores& scores) {
  // Addresses of many steps would wait in registers that large heads need.
  unsigned key = operand_offset<T, kTile, QkRows>(operand_row<kTile>());
  unsigned query =
      kSharedQ ? operand_offset<T, kTile, QkRows>(wave_index() * kWaveRows + operand_row<kTile>()) : 0;
  if (kHeadDimQk > 128 || kHasTerms) {
    key = opaque(key);
    query = opaque(query);
  }
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    TESSERA_UNROLL
    for (int t = 0; t < kKeyTiles; ++t) scores[n][t] = Tile(0.0f);
  }
  TESSERA_UNROLL
  for (int step = 0; step < kStepsQk; ++step) {
    Fragment b[kColumnTiles];
    TESSERA_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) b[n] = q.get(shared, query, n, step);
    TESSERA_UNROLL
    for (int t = 0; t < kKeyTiles; ++t) {
      const Fragment a = load_operand<T, kTile, QkRows>(shared.k(), key, t * kTile, step * kOperandK);
      TESSERA_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) scores[n][t] = multiply_add_all(a, b[n], scores[n][t]);
    }
  }
  if constexpr (kHasTerms) {  // whose branches the compiler would otherwise put between the products
    TESSERA_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) {
      TESSERA_UNROLL
      for (int t = 0; t < kKeyTiles; ++t) scores[n][t] = opaque(scores[n][t]);
    }
  }
  // The loads of values would otherwise come before the scores are weighed, and cost registers.
  __builtin_amdgcn_sched_barrier(0);
}

/// Replaces scores by what the terms make of them, in units of log2, and hides what they hide. k_unit: of
/// products with keys.
TESSERA_DEVICE void apply_terms(const AttentionParams& p, const BlockWork& w, int first_row, int first_key,
                                float k_unit, Scores& scores) {
  // Counted from a key that is not known before the loop: offsets of all keys would wait in registers.
  const int lane_key = opaque(first_key + accumulator_row<kTile>(0));
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    const RowIndex index =
        row_index(w, minimum(first_row + n * kTile + operand_row<kTile>(), w.num_rows - 1));
    TESSERA_UNROLL
    for (int t = 0; t < kKeyTiles; ++t) {
      TESSERA_UNROLL
      for (int i = 0; i < kScores; ++i) {
        const int key = lane_key + t * kTile + accumulator_step<kTile>(i);
        const int j = minimum(key, w.sequence.len_kv - 1);
        scores[n][t][i] = kLog2E * modified_score<kTerms, TESSERA_MASK_DTYPE>(
                                       p, w.sequence, scores[n][t][i] * k_unit, w.b, index.h, index.i, j);
      }
    }
  }
}

/// Hides what each row does not see of the tile from first_key on.
TESSERA_DEVICE void hide_keys(const KeyRange (&keys)[kColumnTiles], int first_key, Scores& scores) {
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    // Here, not in front of the loop over a tile's scores, where whole tiles would pay for the comparisons,
    // too.
    const int lane_key = first_key + accumulator_row<kTile>(0);
    const int begin = opaque(keys[n].begin - lane_key);
    const int end = opaque(keys[n].end - lane_key);
    TESSERA_UNROLL
    for (int t = 0; t < kKeyTiles; ++t) {
      TESSERA_UNROLL
      for (int i = 0; i < kScores; ++i) {
        const int j = t * kTile + accumulator_step<kTile>(i);
        if (j < begin || j >= end) scores[n][t][i] = -infinity();
      }
    }
  }
}

/// Makes the largest score the base of the rows whose weights are too large. part: those of the lane's keys
/// by the present base, as far as they are known.
TESSERA_DEVICE void raise_bases(float scale, const Scores& scores, const float (&part)[kColumnTiles],
                                RowSums& rows) {
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    float top = scores[n][0][0];
    TESSERA_UNROLL
    for (int t = 0; t < kKeyTiles; ++t) {
      TESSERA_UNROLL
      for (int i = 0; i < kScores; ++i) top = __builtin_fmaxf(top, scores[n][t][i]);
    }
    top = max_over_groups<kTile>(top) * scale;
    // Batch-invariant rows, which must not move because others do, look at part alone once they have a base:
    // top's weight may be rounded to a larger one than it has there.
    const bool raise = max_over_groups<kTile>(part[n]) > kMostWeights ||
                       (kInvariant ? rows.base[n] == kLowestBase && top > kLowestBase
                                   : exp2_of(top - rows.base[n]) > kMostWeights);
    const float base = raise ? top : rows.base[n];
    const float rescale = raise ? exp2_of(rows.base[n] - base) : 1.0f;
    rows.base[n] = base;
    rows.sum[n] *= rescale;
    TESSERA_UNROLL
    for (int d = 0; d < kDimTiles; ++d) rows.o[n][d] *= rescale;
  }
}

/// Halves added to halves: two numbers an instruction where there are such.
template <int kCount>
TESSERA_DEVICE float sum_of(Floats<kCount> x) {
  if constexpr (kCount == 2) {
    return x[0] + x[1];
  } else {
    return sum_of<kCount / 2>(x.lo + x.hi);
  }
}

/// Replaces scores by their weights, exp2(scores * scale - base), and sums the lane's.
TESSERA_DEVICE void weigh(float scale, const RowSums& rows, Scores& scores, float (&part)[kColumnTiles]) {
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    Tile sums(0.0f);
    TESSERA_UNROLL
    for (int t = 0; t < kKeyTiles; ++t) {
      Tile x = __builtin_elementwise_fma(scores[n][t], Tile(scale), Tile(-rows.base[n]));
      TESSERA_UNROLL
      for (int i = 0; i < kScores; ++i) x[i] = exp2_of(x[i]);
      sums = t == 0 ? x : sums + x;
      scores[n][t] = x;
    }
    part[n] = sum_of<kScores>(sums);
  }
}

/// o += v^T weights.
TESSERA_DEVICE void multiply_v_p(SharedStorage& shared, const Scores& weights, RowSums& rows) {
  // Computed for each tile, since many addresses for all tiles cost registers.
  const unsigned first =
      opaque(operand_offset<T, kTile, VRows>(operand_row<kTile>(), 0, operand_row<kTile>() / kSlotElements));
  TESSERA_UNROLL
  for (int t = 0; t < kKeyTiles; ++t) {
    TESSERA_UNROLL
    for (int half = 0; half < kStepsOfTile; ++half) {
      Operand<Weight<T>, kTile> b[kColumnTiles];
      TESSERA_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) b[n] = operand_of<Weight<T>, kTile>(weights[n][t], half);
      TESSERA_UNROLL
      for (int d = 0; d < kDimTiles; ++d) {
        const Fragment a = load_operand<T, kTile, VRows>(
            shared.v(), first, d * kTile, t * kTile + half * kOperandK, d * kTile / kSlotElements);
        TESSERA_UNROLL
        for (int n = 0; n < kColumnTiles; ++n) rows.o[n][d] = multiply_add_all(a, b[n], rows.o[n][d]);
      }
    }
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __attribute__((global, amdgpu_flat_work_group_size(kThreads, kThreads),
                          amdgpu_waves_per_eu(kMinWaves))) void
attention_prefill(const AttentionParams p) {
  TESSERA_SHARED(shared, SharedStorage);
  const BlockWork w = block_work<kBlockM>(p);
  if (w.row_begin >= w.num_rows) return;

  // Keys that the block's rows see, in whole tiles counted from key 0, and of these the split's share.
  const int last_row = minimum(w.row_begin + kBlockM, w.num_rows) - 1;
  const TileRows tile_rows = rows_of_block(w, kBlockM);
  const KeyRange share = share_of_block(p, w, tile_rows, kBlockN, kInvariant);
  const auto keys_of_row = [&](int row) {
    const KeyRange keys = keys_of_query(p, w.sequence, row_index(w, minimum(row, last_row)).i);
    return KeyRange{maximum(keys.begin, share.begin), minimum(keys.end, share.end)};
  };
  const int tile_begin = keys_of_row(w.row_begin).begin / kBlockN;
  const int tile_end = (keys_of_row(last_row).end + kBlockN - 1) / kBlockN;
  if (kInvariant && p.num_splits > 1 && tile_begin >= tile_end) return;  // attention_join.cu knows
  // The wave's rows see [wave_keys] at most, and all of [whole_keys].
  const int first_row = w.row_begin + wave_index() * kWaveRows;
  const KeyRange first_keys = keys_of_row(first_row);
  const KeyRange last_keys = keys_of_row(first_row + kWaveRows - 1);
  const KeyRange wave_keys = {first_keys.begin, last_keys.end};
  const KeyRange whole_keys = {last_keys.begin, first_keys.end};
  KeyRange row_keys[kColumnTiles];
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n)
    row_keys[n] = keys_of_row(first_row + n * kTile + operand_row<kTile>());

  const KeyRows k_rows = rows_of_head<Kv>(p, p.k, w.sequence, w.b, w.kv_head, p.head_dim_qk);
  const KeyRows v_rows = rows_of_head<Kv>(p, p.v, w.sequence, w.b, w.kv_head, p.head_dim_v);
  KeyPart next_k;
  ValuePart next_v;
  const auto fetch = [&](int tile) {
    next_k.fetch(k_rows, tile * kBlockN);
    next_v.fetch(v_rows, tile * kBlockN);
  };
  Queries q;
  RowSums rows;
  start_rows(rows);
  // With terms the scores come in natural units times log2(e) already.
  float k_unit = 1.0f;
  if constexpr (kIsNarrow) k_unit = kWidenedUnit<Kv> * product_scale_of_head(p, w.b, w.kv_head);
  const float scale = kHasTerms ? 1.0f : p.softmax_scale * kLog2E * k_unit;
  bool has_met_infinity = false;

  VisibleTiles visible(p, tile_rows, kBlockN);
  int next_tile = visible.next(tile_begin, tile_end);
  if (next_tile < tile_end) {
    if (kPrefetch) fetch(next_tile);
    q.load(p, w, shared);
  }
  // All keys at once, or segment by segment.
  unsigned spoilt = 0;
  int first_tile = tile_begin;
  JoinedRows joined_rows;
  do {
    const int segment = kInvariant ? first_tile / (p.keys_per_segment / kBlockN) : 0;
    const int segment_end =
        kInvariant ? minimum((segment + 1) * (p.keys_per_segment / kBlockN), tile_end) : tile_end;
    bool is_first = true;
    while (next_tile < segment_end) {
      const int tile = next_tile;
      next_tile = visible.next(tile + 1, tile_end);
      if (!kPrefetch) fetch(tile);
      if (kInvariant) has_met_infinity |= next_v.clean();
      sync_threads();  // everyone has finished with the tile before
      next_k.store<QkRows>(shared.k());
      next_v.store_transposed<VRows, kTile>(shared.v());
      sync_threads();
      if (kPrefetch && next_tile < tile_end) fetch(next_tile);

      const int first_key = tile * kBlockN;
      // Near a diagonal some waves' rows see nothing of these keys.
      if (first_key >= wave_keys.end || first_key + kBlockN <= wave_keys.begin) continue;
      const bool whole = first_key >= whole_keys.begin && first_key + kBlockN <= whole_keys.end;
      Scores scores;
      float part[kColumnTiles] = {};
      // Weights are taken against the present base. If some are too large, which is seldom after the first
      // tile, the scores are computed once more: that they need not be kept saves registers.
      for (bool raises = is_first;; raises = true) {
        multiply_k_q(shared, q, scores);
        if (kHasTerms) apply_terms(p, w, first_row, first_key, k_unit, scores);
        if (!whole) hide_keys(row_keys, first_key, scores);
        if (raises) raise_bases(scale, scores, part, rows);
        weigh(scale, rows, scores, part);
        bool too_large = false;
        TESSERA_UNROLL
        for (int n = 0; n < kColumnTiles; ++n) too_large = too_large || part[n] > kMostWeights;
        if (raises || !warp_any(too_large)) break;
      }
      is_first = false;
      TESSERA_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) rows.sum[n] += part[n];
      multiply_v_p(shared, scores, rows);
    }
    if constexpr (kInvariant) {
      const SegmentEnd here(p, first_row);
      float lse[kColumnTiles];
      const unsigned spoilt_here = close_segment(p, w, here, rows, lse);
      if (p.num_splits > 1) {
        store_segment(p, w, here, segment, spoilt_here, lse, rows);
      } else {
        join_segment(first_tile == tile_begin, lse, rows, joined_rows);
        spoilt |= spoilt_here;
      }
      start_rows(rows);
      first_tile = segment_end;
    }
  } while (kInvariant && first_tile < tile_end);

  if constexpr (!kInvariant) {
    spoilt = store_rows(p, w, first_row, rows);
  } else if (p.num_splits == 1) {
    spoilt |= store_joined_rows(p, w, SegmentEnd(p, first_row), joined_rows);
  }
  const bool looks = kInvariant && block_any(has_met_infinity, *reinterpret_cast<unsigned*>(&shared));
  redo_rows(p, w, first_row, spoilt, looks, share);
}
