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

#include "common/attention_block.cuh"
#include "matrix/attention_prefill_traits.h"
#include "matrix/key_tiles.hip.h"

#ifndef TESSERA_INVARIANT
#define TESSERA_INVARIANT 0
#endif

namespace tessera::kernels {

constexpr int kBlockM = TESSERA_BLOCK_M;
constexpr int kBlockN = TESSERA_BLOCK_N;
constexpr int kNumWaves = TESSERA_NUM_WARPS;
constexpr int kMinWaves = TESSERA_MIN_WAVES;
constexpr bool kPadded = TESSERA_PADDED != 0;
constexpr bool kSharedQ = TESSERA_SHARED_Q != 0;
constexpr bool kPrefetch = TESSERA_PREFETCH != 0;
// A row's bits may not depend on what it doesn't see. So infinities and NaN in values become 0 on their way,
// and where a workgroup has met some, the plain loop looks which rows see them.
constexpr bool kInvariant = TESSERA_INVARIANT != 0;

constexpr MatrixPrefillTiles kTiles = {kBlockM, kBlockN, kNumWaves, kMinWaves, kSharedQ, kPrefetch};
constexpr MatrixPrefillShape kShape = {kHeadDimQk, kHeadDimV, sizeof(T)};
constexpr MatrixPrefillLayout kLayout = matrix_prefill_layout(kTiles, kMatrixUnit, kShape);

constexpr int kTile = kLargestTile;
constexpr int kThreads = kNumWaves * kWarpSize;
constexpr int kWaveRows = kBlockM / kNumWaves;
constexpr int kColumnTiles = kWaveRows / kTile;
constexpr int kKeyTiles = kBlockN / kTile;
constexpr int kDimTiles = (kHeadDimV + kTile - 1) / kTile;
constexpr int kStepsQk = kHeadDimQk / kOperandK;
constexpr int kStepsOfTile = kTile / kOperandK;     // operands that a tile of scores becomes
constexpr int kScores = kTile * kTile / kWarpSize;  // of a tile, a lane's
constexpr int kSlotElements = 16 / int{sizeof(T)};

using QkRows = SlotRows<kHeadDimQk / kSlotElements>;  // a key's or query's elements
using VRows = SlotRows<kBlockN / kSlotElements>;      // a dim's keys
using Fragment = Operand<T, kTile>;
using Tile = Accumulator<kTile>;
using KeyPart = TilePart<T, Kv, kBlockN, kHeadDimQk, 1, kThreads, kVector, kPadded, kPaged>;
using ValuePart = TilePart<T, Kv, kBlockN, kHeadDimV, 4, kThreads, kVector, kPadded, kPaged>;

struct SharedStorage {
  Word4 slots[kLayout.k + kLayout.v + kLayout.q];

  TESSERA_DEVICE Word4* k() { return slots; }
  TESSERA_DEVICE Word4* v() { return slots + kLayout.k; }
  TESSERA_DEVICE Word4* q() { return slots + kLayout.k + kLayout.v; }
};

static_assert(kHasMatrixInstructions<T>,
              "RDNA multiplies fp32 on no matrix unit: common/attention_generic.cu does");
static_assert(kHeadDimQk % kOperandK == 0 && kHeadDimV % kOperandK == 0,
              "head_dims are padded to the operands' k");
static_assert(kBlockM % (kNumWaves * kTile) == 0 && kBlockN % kTile == 0, "tiles are whole matrix tiles");
static_assert(sizeof(SharedStorage) == kLayout.shared_bytes() && sizeof(SharedStorage) <= kSharedBytes,
              "the tiles do not fit in LDS");
constexpr int kPrefetchRegisters = kPrefetch ? int{sizeof(KeyPart) + sizeof(ValuePart)} / 4 : 0;
constexpr int kQueryRegisters = kSharedQ ? 0 : kColumnTiles * kStepsQk * Fragment::kWords;
constexpr int kLoopRegisters =
    kColumnTiles * (kDimTiles + kKeyTiles) * kScores + kQueryRegisters + kPrefetchRegisters;
static_assert(kIsNarrow ? kLoopRegisters <= matrix_prefill_registers(kTiles, kMatrixUnit, kShape)
                        : kLoopRegisters == matrix_prefill_registers(kTiles, kMatrixUnit, kShape),
              "the host counts the registers that these are");
static_assert(kLoopRegisters < registers_of_wave(kMatrixUnit, kMinWaves),
              "the tiles do not fit in a wave's registers");

/// How far (in powers of two) a row's scores may rise above its base, what exponents are taken against:
/// weights up to 2^8 lose nothing, f16 holds them, and sums are fp32. Then the row's largest score becomes
/// its base, and sums and o are rescaled. Each row decides for itself, so that its bits do not depend on the
/// rows beside it.
constexpr float kMostWeights = 256.0f;
/// A row's base before its first key: the weight of any score above it is infinite.
constexpr float kLowestBase = -3.402823466e+38f;

/// A lane's rows.
struct RowSums {
  float base[kColumnTiles];  // in units of log2
  float sum[kColumnTiles];   // of this lane's keys' weights
  Tile o[kColumnTiles][kDimTiles];
};

/// The wave's number, the same in all its lanes for the compiler as well.
TESSERA_DEVICE int wave_index() { return __builtin_amdgcn_readfirstlane(thread_x() / kWarpSize); }

/// This workgroup's row r of q or o, or its last one.
TESSERA_DEVICE T* row_of(const AttentionParams& p, const TensorArgument& x, const BlockWork& w, int r) {
  const RowIndex index = row_index(w, minimum(w.row_begin + r, w.num_rows - 1));
  return static_cast<T*>(x.data) + query_offset(p, x, w.sequence, w.b, index.h, index.i);
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
    const bool raise =
        max_over_groups<kTile>(part[n]) > kMostWeights || exp2_of(top - rows.base[n]) > kMostWeights;
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

/// Where a split's results of a row are.
TESSERA_DEVICE int64 partial_of(const AttentionParams& p, const BlockWork& w, const RowIndex& index) {
  return static_cast<int64>(w.split) * p.batch * p.num_heads * p.seq_len_q +
         partial_row(p, w.b, index.h, index.i);
}

/// Writes dims [16 step, 16 step + 16) of a row of o, as far as they are below head_dim_v. values: the lane's
/// part, a tile's rows from 16 * half on.
TESSERA_DEVICE void store_dims(const AttentionParams& p, T* row, int step, const Tile& values, int half) {
#if defined(__GFX11__)
  // All 16 are in both groups after the exchange, which needs both: each writes half of them, or none.
  const Fragment all = operand_of<T, kTile>(values);
  const int first = lane_group<kTile>() * 8;
  constexpr int kRun = 8;
  constexpr int kRuns = 1;
  Word4 words[1];
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) words[0][i] = opaque(first == 0 ? all.words[i] : all.words[4 + i]);
#else
  // Elements that stand side by side in the row: 4 on CDNA, 8 on RDNA4.
  const Fragment own = operand_of<T, kTile>(values, half);
  constexpr int kRun = TESSERA_MFMA ? 4 : 8;
  constexpr int kRuns = Fragment::kElements / kRun;
  const int first = lane_group<kTile>() * kRun;
  Words<kRun* int{sizeof(T)} / 4> words[kRuns];
  TESSERA_UNROLL
  for (int i = 0; i < Fragment::kWords; ++i)
    words[i * kRuns / Fragment::kWords][i % (Fragment::kWords / kRuns)] = own.words[i];
#endif
  TESSERA_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    const int dim = step * kOperandK + run * 8 + first;
    if (dim >= p.head_dim_v) continue;
    if constexpr (kVector) {
      *reinterpret_cast<decltype(&words[0])>(row + dim) = words[run];
    } else {
      TESSERA_UNROLL
      for (int e = 0; e < kRun; ++e) {
        if (dim + e >= p.head_dim_v) continue;
        row[dim + e] = element_of<T, kRun* int{sizeof(T)} / 4>(words[run], e);
      }
    }
  }
}

/// Writes the normalised rows, or the partial results if the keys are split. Bit n of the result: row n of
/// the lane came out as NaN, infinite or without weights although its own keys may be finite (a hidden key's
/// value was not, or its scores are huge).
TESSERA_DEVICE unsigned store_rows(const AttentionParams& p, const BlockWork& w, int first_row,
                                   RowSums& rows) {
  const bool is_partial = p.num_splits > 1;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    const float sum = sum_over_groups<kTile>(rows.sum[n]);
    const int row = first_row + n * kTile + operand_row<kTile>();
    const RowIndex index = row_index(w, minimum(row, w.num_rows - 1));
    const RowNorm norm = row_norm(rows.base[n] * kLn2, sum, sink_of_head(p, index.h));
    float factor = norm.factor;
    if constexpr (kIsNarrow) factor *= kWidenedUnit<Kv> * scale_of_head(p, p.kv_scales.v, w.b, w.kv_head);
    float probe = 0.0f;  // stays 0
    TESSERA_UNROLL
    for (int d = 0; d < kDimTiles; ++d) {
      rows.o[n][d] *= factor;
      TESSERA_UNROLL
      for (int i = 0; i < kScores; ++i) {
        const float value = rows.o[n][d][i];
        const bool is_dim =
            !kPadded && kHeadDimV % kTile == 0 || d * kTile + accumulator_row<kTile>(i) < p.head_dim_v;
        probe = is_dim ? __builtin_fmaf(value, 0.0f, probe) : probe;
      }
    }
    if (row >= w.num_rows) continue;
    // NaN; or a base above 2^24, off by rounding so much that even the largest score's weight, else 1, is
    // small.
    if (probe != 0.0f || (sum < 0.5f && rows.base[n] != kLowestBase)) spoilt |= 1u << n;
    if (is_partial) {
      const int64 partial = partial_of(p, w, index);
      float* out = p.o_partial + partial * p.head_dim_v;
      if (lane_group<kTile>() == 0) p.lse_partial[partial] = norm.lse;
      TESSERA_UNROLL
      for (int d = 0; d < kDimTiles; ++d) {
        TESSERA_UNROLL
        for (int i = 0; i < kScores; ++i) {
          const int dim = d * kTile + accumulator_row<kTile>(i);
          if (dim < p.head_dim_v) out[dim] = rows.o[n][d][i];
        }
      }
    } else {
      T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, w.sequence, w.b, index.h, index.i);
      if (p.lse.data != nullptr && lane_group<kTile>() == 0)
        p.lse.data[lse_offset(p, w.sequence, w.b, index.h, index.i)] = norm.lse;
      TESSERA_UNROLL
      for (int d = 0; d < kDimTiles; ++d) {
        TESSERA_UNROLL
        for (int half = 0; half < kStepsOfTile; ++half)
          store_dims(p, out, d * kStepsOfTile + half, rows.o[n][d], half);
      }
    }
  }
  return spoilt;
}

/// Does the wave's spoilt rows again by the plain loop, which never reads a hidden key's value. `looks`: at
/// the others too, of which those are replaced that see an infinity or NaN.
TESSERA_DEVICE void redo_rows(const AttentionParams& p, const BlockWork& w, int first_row, unsigned spoilt,
                              bool looks, const KeyRange& share) {
  for (int mask = kTile; mask < kWarpSize; mask *= 2) spoilt |= shuffle_xor(spoilt, mask);
  if (!looks && !warp_any(spoilt != 0)) return;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE,
                         "workgroup");  // what other lanes have written of these rows comes first
  for (int r = 0; r < kWaveRows && first_row + r < w.num_rows; ++r) {
    const bool is_spoilt = (shuffle(spoilt, r % kTile) >> (r / kTile) & 1u) != 0;
    if (!warp_any(is_spoilt || looks)) continue;
    const RowIndex index = row_index(w, first_row + r);
    const KeyRange keys = keys_of_query(p, w.sequence, index.i);
    RowState state;
    attend_row<T, Kv>(p, w.sequence, w.b, index.h, index.i, maximum(keys.begin, share.begin),
                      minimum(keys.end, share.end), state);
    if (is_spoilt || has_overflown(state)) store_row<T>(p, w.sequence, w.b, index.h, index.i, w.split, state);
  }
}

/// Whether `value` holds in any thread of the workgroup. `word`: of LDS that nobody uses any more.
TESSERA_DEVICE bool block_any(bool value, unsigned& word) {
  sync_threads();
  if (thread_x() == 0) word = 0;
  sync_threads();
  if (warp_any(value)) word = 1;
  sync_threads();
  return word != 0;
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
  const KeyRange share = keys_of_split(p, w.sequence, w.split);
  const auto keys_of_row = [&](int row) {
    const KeyRange keys = keys_of_query(p, w.sequence, row_index(w, minimum(row, last_row)).i);
    return KeyRange{maximum(keys.begin, share.begin), minimum(keys.end, share.end)};
  };
  const int tile_begin = keys_of_row(w.row_begin).begin / kBlockN;
  const int tile_end = (keys_of_row(last_row).end + kBlockN - 1) / kBlockN;
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
  TESSERA_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    rows.base[n] = kLowestBase;
    rows.sum[n] = 0.0f;
    TESSERA_UNROLL
    for (int d = 0; d < kDimTiles; ++d) rows.o[n][d] = Tile(0.0f);
  }
  // With terms the scores come in natural units times log2(e) already.
  float k_unit = 1.0f;
  if constexpr (kIsNarrow) k_unit = kWidenedUnit<Kv> * product_scale_of_head(p, w.b, w.kv_head);
  const float scale = kHasTerms ? 1.0f : p.softmax_scale * kLog2E * k_unit;
  bool has_met_infinity = false;
  bool is_first = true;

  if (tile_begin < tile_end) {
    if (kPrefetch) fetch(tile_begin);
    q.load(p, w, shared);
  }
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    if (!kPrefetch) fetch(tile);
    if (kInvariant) has_met_infinity |= next_v.clean();
    sync_threads();  // everyone has finished with the tile before
    next_k.store<QkRows>(shared.k());
    next_v.store_transposed<VRows, kTile>(shared.v());
    sync_threads();
    if (kPrefetch && tile + 1 < tile_end) fetch(tile + 1);

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

  const unsigned spoilt = store_rows(p, w, first_row, rows);
  const bool looks = kInvariant && block_any(has_met_infinity, *reinterpret_cast<unsigned*>(&shared));
  redo_rows(p, w, first_row, spoilt, looks, share);
}
