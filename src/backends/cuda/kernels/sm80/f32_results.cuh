#pragma once

#include "sm80/attention_f32_traits.h"
#include "sm80/joined_rows.cuh"
#include "sm80/split_f32.cuh"

// What a block of attention_f32.cu is, and how it gets from accumulators to o and lse, to the partial results
// of a split, or to those of a segment of a batch-invariant problem's keys.

namespace tessera::kernels {

constexpr int kBlockM = TESSERA_BLOCK_M;
constexpr int kBlockN = TESSERA_BLOCK_N;
constexpr int kNumWarps = TESSERA_NUM_WARPS;
constexpr int kThreads = kNumWarps * 32;
constexpr int kRowTiles = kBlockM / kNumWarps / 16;  // 16-row tiles of a warp
constexpr int kScoreTiles = kBlockN / 8;             // 8-key tiles of a score row
constexpr int kKeySteps = kBlockN / 16;
constexpr int kOutTiles = kHeadDimV / 8;
constexpr int kWarpRows = kBlockM / kNumWarps;
constexpr int kWarpKeys = kBlockN / kNumWarps;              // keys that a warp loads and splits
constexpr int kKeysAtOnce = kWarpKeys < 8 ? kWarpKeys : 8;  // as many as their registers allow
constexpr int kBytesQk = kSplitRowBytes<kHeadDimQk>;        // of a row
constexpr int kBytesV = kSplitRowBytes<kHeadDimV>;

static_assert(kHeadDimQk % 16 == 0 && kHeadDimV % 16 == 0, "head_dims are padded to the mma's k");
static_assert(kBlockM % (16 * kNumWarps) == 0 && kBlockN % 16 == 0, "tiles are whole mma tiles");
static_assert(kBlockN % kNumWarps == 0 && 32 % kKeysAtOnce == 0, "warps share a tile's keys evenly");

/// A tile of keys and values, split, and what their rows are scaled by.
struct Stage {
  alignas(16) unsigned char k[kBlockN * kBytesQk];
  alignas(16) unsigned char v[kBlockN * kBytesV];
  float k_power[kBlockN];  // 2^e of the key
  float v_power[kBlockN];  // 2^e of the value
  int is_scaled;           // some e is not 0, here or in an earlier tile of this buffer
};

struct SharedStorage {
  alignas(16) unsigned char q[kBlockM * kBytesQk];
  Stage stages[kF32Stages];
  float q_factor[kBlockM];  // what turns products into scores: 2^(e - 2 kRowShift), without terms times
                            // softmax_scale log2(e)
  KeyRange row_keys[kBlockM];
  unsigned large_rows[(kBlockM + 31) / 32];  // a bit a row: see note_large_products
  unsigned small_values;  // bit g: columns 8 g to 8 g + 7 of v have a number that lost more than it should
};
static_assert(sizeof(SharedStorage) == f32_shared_bytes({kBlockM, kBlockN, kNumWarps}, kHeadDimQk, kHeadDimV),
              "the host asks for as much");

/// A thread's rows so far: o = sum 2^(s - max - shift) v and sum = sum 2^(s - max), s being the scores in
/// units of log2. max and shift are whole numbers, so that rescaling by them is exact: max is the largest s
/// rounded up, max + shift the largest s + e, with e of the value's row. shift is 0 while every e is 0.
struct RowStates {
  float max[kRowTiles][2];
  float shift[kRowTiles][2];
  float sum[kRowTiles][2];
};

/// Two neighbouring columns of a row, as far as it has them.
TESSERA_DEVICE void write_pair(float* row, int d, int head_dim, float2 value) {
  if (kVector) {
    if (d < head_dim) *reinterpret_cast<float2*>(row + d) = value;
  } else {
    if (d < head_dim) row[d] = value.x;
    if (d + 1 < head_dim) row[d + 1] = value.y;
  }
}

/// Writes the normalised rows, or the partial results if the keys are split. Bit m * 2 + r of the result: the
/// row is to be done again, because it came out as NaN or infinite although its own keys may be finite (a
/// hidden key's value was not), or because its numbers may have lost more than fp32's would.
TESSERA_DEVICE unsigned store_rows(const AttentionParams& p, const BlockWork& w, const RowStates& rows,
                                   const SharedStorage& shared, float (&o)[kRowTiles][kOutTiles][4]) {
  const bool is_scaled = shared.stages[0].is_scaled != 0 || shared.stages[1].is_scaled != 0;
  const int lane = thread_x() % 32;
  const bool is_partial = p.num_splits > 1;
  const int64 partial_base = static_cast<int64>(w.split) * p.batch * p.num_heads * p.seq_len_q;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float sum = sum_of_lanes(rows.sum[m][r]);
      const int row = w.row_begin + thread_x() / 32 * kWarpRows + m * 16 + r * 8 + lane / 4;
      if (row >= w.num_rows) continue;
      const RowIndex index = row_index(w, row);
      const float max = rows.max[m][r];
      const bool has_keys = max != -infinity() && sum != 0.0f;
      const RowNorm norm = row_norm(max * kLn2, sum, sink_of_head(p, index.h));
      const float factor = has_keys ? norm.factor * ex2(rows.shift[m][r] - (kRowShift + kWeightShift)) : 0.0f;
      const int64 partial = partial_base + partial_row(p, w.b, index.h, index.i);
      float* out = is_partial ? p.o_partial + partial * p.head_dim_v
                              : static_cast<float*>(p.o.data) +
                                    query_offset(p, p.o, w.sequence, w.b, index.h, index.i);
      // Scaled weights are at most 1; of how many keys is not known here.
      const float weights = is_scaled ? fmaxf(sum, static_cast<float>(w.sequence.len_kv)) : sum;
      const int local_row = row - w.row_begin;
      bool is_bad = sum != sum || (shared.large_rows[local_row / 32] >> (local_row % 32) & 1u) != 0;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        const int d = n * 8 + lane % 4 * 2;
        float2 value = {o[m][n][2 * r], o[m][n][2 * r + 1]};
        if ((shared.small_values >> n & 1u) != 0 && has_keys)
          is_bad = is_bad || !is_faithful(value.x, weights) || !is_faithful(value.y, weights);
        value.x = has_keys ? value.x * factor : 0.0f;
        value.y = has_keys ? value.y * factor : 0.0f;
        is_bad = is_bad || value.x * 0.0f != 0.0f || value.y * 0.0f != 0.0f;  // NaN or infinite
        write_pair(out, d, p.head_dim_v, value);
      }
      if (is_bad) spoilt |= 1u << (m * 2 + r);
      if (lane % 4 != 0) continue;
      if (is_partial) {
        p.lse_partial[partial] = norm.lse;
      } else if (p.lse.data != nullptr) {
        p.lse.data[lse_offset(p, w.sequence, w.b, index.h, index.i)] = norm.lse;
      }
    }
  }
  return spoilt;
}

using BlockRows = JoinedRows<kRowTiles, kOutTiles>;

/// From a segment's accumulators to its results: o is normalised, lse in units of log2. The result is that of
/// store_rows. Whether tiles that a row shares with others hold scaled or small values is no matter of it:
/// its own shift has to do.
TESSERA_DEVICE unsigned close_segment(const RowStates& rows, const SharedStorage& shared,
                                      float (&o)[kRowTiles][kOutTiles][4], float (&lse)[kRowTiles][2]) {
  const int lane = thread_x() % 32;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float sum = sum_of_lanes(rows.sum[m][r]);
      const int local_row = thread_x() / 32 * kWarpRows + m * 16 + r * 8 + lane / 4;
      const bool has_keys = rows.max[m][r] != -infinity() && sum != 0.0f;
      const bool has_small_values = has_keys && rows.shift[m][r] != 0.0f;
      lse[m][r] = has_keys ? rows.max[m][r] + log2f(sum) : -infinity();
      const float factor = has_keys ? ex2(rows.shift[m][r] - (kRowShift + kWeightShift)) / sum : 0.0f;
      bool is_bad = sum != sum || (shared.large_rows[local_row / 32] >> (local_row % 32) & 1u) != 0;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          is_bad = is_bad || (has_small_values && !is_faithful(o[m][n][e], sum));
          o[m][n][e] = has_keys ? o[m][n][e] * factor : 0.0f;
          is_bad = is_bad || o[m][n][e] * 0.0f != 0.0f;  // NaN or infinite
        }
      }
      if (is_bad) spoilt |= 1u << (m * 2 + r);
    }
  }
  return spoilt;
}

/// Calls write(row's query and head, m, r) for the thread's rows.
template <class Write>
TESSERA_DEVICE void for_own_rows(const BlockWork& w, Write write) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = w.row_begin + thread_x() / 32 * kWarpRows + m * 16 + r * 8 + thread_x() % 32 / 4;
      if (row < w.num_rows) write(row_index(w, row), m, r);
    }
  }
}

/// Writes a segment's results, for attention_join.cu.
TESSERA_DEVICE void store_segment(const AttentionParams& p, const BlockWork& w, int segment, unsigned spoilt,
                                  const float (&lse)[kRowTiles][2],
                                  const float (&o)[kRowTiles][kOutTiles][4]) {
  const int lane = thread_x() % 32;
  spoilt = join_found(spoilt);
  for_own_rows(w, [&](const RowIndex& index, int m, int r) {
    const int64 partial = static_cast<int64>(segment) * p.batch * p.num_heads * p.seq_len_q +
                          partial_row(p, w.b, index.h, index.i);
    TESSERA_UNROLL
    for (int n = 0; n < kOutTiles; ++n) {
      write_pair(p.o_partial + partial * p.head_dim_v, n * 8 + lane % 4 * 2, p.head_dim_v,
                 {o[m][n][2 * r], o[m][n][2 * r + 1]});
    }
    if (lane % 4 == 0)
      p.lse_partial[partial] = (spoilt >> (m * 2 + r) & 1u) != 0 ? lse_of_spoilt_row() : lse[m][r];
  });
}

/// Joins a segment to the block's earlier ones; after the last writes the rows. The result is that of
/// store_rows: rows that came out as NaN or infinite, as sums of finite segments may.
TESSERA_DEVICE unsigned join_block_segment(const AttentionParams& p, const BlockWork& w, BlockRows* before,
                                           bool is_first, bool is_last, const float (&lse)[kRowTiles][2],
                                           float (&o)[kRowTiles][kOutTiles][4]) {
  JoinedRow rows[kRowTiles][2];
  join_segment(before, is_first, is_last, lse, o, rows);
  if (!is_last) return 0;
  float factors[kRowTiles][2];
  norm_joined_rows(p, w, own_first_row<kRowTiles>(), true, rows, factors);
  unsigned spoilt = 0;
  for_own_rows(w, [&](const RowIndex& index, int m, int r) {
    float* out = static_cast<float*>(p.o.data) + query_offset(p, p.o, w.sequence, w.b, index.h, index.i);
    TESSERA_UNROLL
    for (int n = 0; n < kOutTiles; ++n) {
      const float2 value = {o[m][n][2 * r] * factors[m][r], o[m][n][2 * r + 1] * factors[m][r]};
      if (!is_finite_as<float>(value.x) || !is_finite_as<float>(value.y)) spoilt |= 1u << (m * 2 + r);
      write_pair(out, n * 8 + thread_x() % 4 * 2, p.head_dim_v, value);
    }
  });
  return spoilt;
}

}  // namespace tessera::kernels
