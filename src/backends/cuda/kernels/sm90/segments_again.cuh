#pragma once

#include "common/attention_segments.cuh"
#include "sm80/row_bases.cuh"
#include "sm90/attention_results.cuh"

// Rows of a batch-invariant problem a second time, with 0 in the place of values that are infinite or NaN:
// hidden ones spoil products, since 0 NaN is NaN. By mma.sync straight from memory, slow and short: 16 keys
// come after the other as in the tiles, so that the bits are theirs.

namespace tessera::kernels {

/// A warp's 16 rows of a query tile, and what this thread has to know of its own two.
struct AgainRows {
  const AttentionParams& p;
  const QueryTile& t;
  const T* q[2];
  KeyRange keys[2];
  KeyRange all_keys;  // that some row sees

  TESSERA_DEVICE AgainRows(const AttentionParams& params, const QueryTile& tile) : p(params), t(tile) {
    const int first = t.row + consumer_warp() * 16;
    const int last = t.sequence.len_q - 1;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = minimum(first + thread_x() % 32 / 4 + 8 * r, last);
      q[r] = static_cast<const T*>(p.q.data) + query_offset(p, p.q, t.sequence, t.b, t.head, row);
      keys[r] = keys_of_query(p, t.sequence, row);
    }
    all_keys = {keys_of_query(p, t.sequence, minimum(first, last)).begin,
                keys_of_query(p, t.sequence, minimum(first + 15, last)).end};
  }
  TESSERA_DEVICE bool sees(int r, int key) const { return key >= keys[r].begin && key < keys[r].end; }
  /// Two neighbours of a row's numbers, 0 behind its end.
  TESSERA_DEVICE static unsigned pair_of(const T* row, int column, int head_dim) {
    if (column >= head_dim) return 0;
    if (column + 1 == head_dim) return *reinterpret_cast<const unsigned short*>(row + column);
    return *reinterpret_cast<const unsigned*>(row + column);
  }
  /// Null behind the last key.
  TESSERA_DEVICE const T* row_of_key(const TensorArgument& x, int key) const {
    return key < t.sequence.len_kv ? kv_row<T>(p, x, t.sequence, t.b, t.kv_head, key) : nullptr;
  }
};

constexpr int kAgainKeys = 64;  // whose scores raise a base together

using AgainScores = float[1][kAgainKeys / 8][4];

/// scores = q k^T of 64 keys from `first` on, hidden ones -inf. 8 keys after the other, so that few registers
/// and little code do.
TESSERA_DEVICE void multiply_again(const AgainRows& rows, int first, AgainScores* scores) {
  const int column_of_lane = thread_x() % 4 * 2;
  const int head_dim = rows.p.head_dim_qk;
  TESSERA_UNROLL_BY(1)
  for (int n = 0; n < kAgainKeys / 8; ++n) {
    const T* key = rows.row_of_key(rows.p.k, first + n * 8 + thread_x() % 32 / 4);
    const int end = key != nullptr ? head_dim : 0;
    float products[4] = {};
    TESSERA_UNROLL_BY(1)
    for (int k = column_of_lane; k < kHeadDimQk; k += 16) {
      const unsigned q[4] = {rows.pair_of(rows.q[0], k, head_dim), rows.pair_of(rows.q[1], k, head_dim),
                             rows.pair_of(rows.q[0], k + 8, head_dim),
                             rows.pair_of(rows.q[1], k + 8, head_dim)};
      mma_m16n8k16<T>(products, q, rows.pair_of(key, k, end), rows.pair_of(key, k + 8, end));
    }
    TESSERA_UNROLL
    for (int e = 0; e < 4; ++e) {
      const bool seen = rows.sees(e / 2, first + n * 8 + column_of_lane + e % 2);
      (*scores)[0][n][e] = seen ? products[e] : -infinity();
    }
  }
}

/// o += weights v of 16 keys from `first` on. Bit n of the result: of the four keys that this thread has two
/// and two of (8 apart), some value of the nth was infinite or NaN, in some lane.
TESSERA_DEVICE unsigned add_values_again(const AgainRows& rows, int first, const unsigned (&weights)[4],
                                         float (&o)[1][kHeadDimV / 8][4]) {
  const T* values[4];
  TESSERA_UNROLL
  for (int n = 0; n < 4; ++n)
    values[n] = rows.row_of_key(rows.p.v, first + thread_x() % 4 * 2 + n % 2 + n / 2 * 8);
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int column = 0; column < kHeadDimV; column += 8) {
    float value[4];
    const int d = column + thread_x() % 32 / 4;
    TESSERA_UNROLL
    for (int n = 0; n < 4; ++n) {
      value[n] = values[n] != nullptr && d < rows.p.head_dim_v ? to_float(values[n][d]) : 0.0f;
      if (value[n] * 0.0f != 0.0f) {
        spoilt |= 1u << n;
        value[n] = 0.0f;
      }
    }
    mma_m16n8k16<T>(o[0][column / 8], weights, cvt_x2<T>(value[0], value[1]), cvt_x2<T>(value[2], value[3]));
  }
  TESSERA_UNROLL
  for (int lanes = 4; lanes < 32; lanes *= 2) spoilt |= __shfl_xor_sync(0xffffffffu, spoilt, lanes);
  return spoilt;
}

/// Bit n: the warp's row n of 16 sees a value that is infinite or NaN. is_doubtful: whether one is among this
/// thread's keys that its rows may see.
TESSERA_DEVICE unsigned find_spoilt_rows(const AttentionParams& p, const QueryTile& t,
                                         const bool (&is_doubtful)[2]) {
  const unsigned doubtful[2] = {__ballot_sync(0xffffffffu, is_doubtful[0]),
                                __ballot_sync(0xffffffffu, is_doubtful[1])};
  unsigned spoilt = 0;
  TESSERA_UNROLL_BY(1)
  for (int local = 0; local < 16; ++local) {
    const int row = t.row + consumer_warp() * 16 + local;
    if (row >= t.sequence.len_q) break;
    const unsigned lanes = (local < 8 ? doubtful[0] : doubtful[1]) >> local % 8 * 4;  // four have a row
    if ((lanes & 0xfu) == 0) continue;
    const KeyRange keys = keys_of_query(p, t.sequence, row);
    if (adds_spoilt_value_inlined<T, Kv, kTerms, true>(p, t.sequence, t.b, t.head, row, keys.begin, keys.end))
      spoilt |= 1u << local;
  }
  return spoilt;
}

/// Does the warp's rows again. Those that see a value which is infinite or NaN, or come out so, are left as
/// NaN, for redo_rows().
TESSERA_DEVICE void add_up_again(const AttentionParams& p, const QueryTile& t) {
  const AgainRows rows(p, t);
  const float scale = p.softmax_scale * kLog2E;
  struct Whole {
    float o[kHeadDimV / 8][4];
  } in_local = {};
  Whole* const whole = in_memory(&in_local);
  AgainScores scores_of_keys;
  AgainScores* const scores = in_memory(&scores_of_keys);
  JoinedRow joined_rows[2] = {{-infinity(), 0.0f}, {-infinity(), 0.0f}};
  bool is_spoilt[2] = {false, false};
  bool is_doubtful[2] = {false, false};  // the value may be that of a key whose score is -inf
  const SegmentRange segments = segments_of(p, rows.all_keys);
  TESSERA_UNROLL_BY(1)
  for (int segment = segments.begin; segment < segments.end; ++segment) {
    float o[1][kHeadDimV / 8][4] = {};
    float row_base[1][2] = {{kLowestBase, kLowestBase}};
    float row_sum[1][2] = {};
    const int begin = maximum(segment * p.keys_per_segment, rows.all_keys.begin / kAgainKeys * kAgainKeys);
    const int end = minimum((segment + 1) * p.keys_per_segment, rows.all_keys.end);
    TESSERA_UNROLL_BY(1)
    for (int first = begin; first < end; first += kAgainKeys) {
      multiply_again(rows, first, scores);
      unsigned weights_of_keys[kAgainKeys / 16][1][4];
      auto* const weights = in_memory(&weights_of_keys);
      raise_bases(scale, *scores, row_base, row_sum, o);
      TESSERA_UNROLL
      for (int k = 0; k < kAgainKeys / 16; ++k) {
        float part[1][2];
        weigh<T>(k, scale, *scores, row_base, part, (*weights)[k]);
        add_to_sums(part, row_sum);
      }
      TESSERA_UNROLL_BY(1)
      for (int k = 0; k < kAgainKeys / 16; ++k) {
        const int first_key = first + k * 16;
        const unsigned spoilt = add_values_again(rows, first_key, (*weights)[k][0], o);
        TESSERA_UNROLL
        for (int i = 0; i < 8; ++i) {
          const int n = i % 4;
          const int key = first_key + thread_x() % 4 * 2 + n % 2 + n / 2 * 8;
          if ((spoilt >> n & 1u) != 0 && rows.sees(i / 4, key)) is_doubtful[i / 4] = true;
        }
      }
    }
    float lse[1][2];
    const unsigned spoilt = close_rows(
        row_base, [&](int, int r) { return sum_of_lanes(row_sum[0][r]); }, 1.0f, o, lse);
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      is_spoilt[r] = is_spoilt[r] || (spoilt >> r & 1u) != 0;
      const JoinFactors f = join_row(lse[0][r], joined_rows[r]);
      TESSERA_UNROLL
      for (int n = 0; n < kHeadDimV / 8; ++n) {
        TESSERA_UNROLL
        for (int e = 2 * r; e < 2 * r + 2; ++e) whole->o[n][e] = joined(f, whole->o[n][e], o[0][n][e]);
      }
    }
  }
  const unsigned spoilt_rows = find_spoilt_rows(p, t, is_doubtful);
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int local = thread_x() % 32 / 4 + 8 * r;
    const int row = t.row + consumer_warp() * 16 + local;
    if ((spoilt_rows >> local & 1u) != 0) is_spoilt[r] = true;
    if (row >= t.sequence.len_q) continue;
    const RowNorm norm = joined_norm(joined_rows[r], sink_of_head(p, t.head));
    if (p.lse.data != nullptr && thread_x() % 4 == 0)
      p.lse.data[lse_offset(p, t.sequence, t.b, t.head, row)] = norm.lse;
    T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, t.sequence, t.b, t.head, row);
    const float factor = is_spoilt[r] ? float_of_bits(0x7fffffffu) : norm.factor;
    TESSERA_UNROLL
    for (int n = 0; n < kHeadDimV / 8; ++n) {
      const int d = n * 8 + thread_x() % 4 * 2;
      if (d < p.head_dim_v)
        store_pair(out + d, cvt_x2<T>(whole->o[n][2 * r] * factor, whole->o[n][2 * r + 1] * factor),
                   d + 1 < p.head_dim_v);
    }
  }
}

}  // namespace tessera::kernels
