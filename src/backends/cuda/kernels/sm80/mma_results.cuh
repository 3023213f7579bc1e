#pragma once

#include "sm80/mma_softmax.cuh"

// From the accumulators of attention_mma.cu to o and lse, or to the partial results of a split.

namespace tessera::kernels {

/// Where a split's results of a row are.
TESSERA_DEVICE int64 partial_of(const AttentionParams& p, const BlockWork& w, const RowIndex& index) {
  return static_cast<int64>(w.split) * p.batch * p.num_heads * p.seq_len_q +
         partial_row(p, w.b, index.h, index.i);
}

/// What the rows' o is multiplied by: 1 / sum, with a sink's part if there is one. Writes lse where it is
/// wanted.
TESSERA_DEVICE void norm_rows(const AttentionParams& p, const BlockWork& w,
                              const float (&row_base)[kRowTiles][2], const float (&sums)[kRowTiles][2],
                              float (&factors)[kRowTiles][2]) {
  const int lane = thread_x() % 32;
  const bool is_partial = p.num_splits > 1;
  const bool plain = !is_partial && p.lse.data == nullptr && p.sinks == nullptr;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float max = row_base[m][r] * kLn2;
      factors[m][r] = row_norm(max, sums[m][r], nullptr).factor;
      if (plain) continue;
      const int row = w.row_begin + warp_first_row() + m * 16 + r * 8 + lane / 4;
      const RowIndex index = row_index(w, minimum(row, w.num_rows - 1));
      const RowNorm norm = row_norm(max, sums[m][r], sink_of_head(p, index.h));
      factors[m][r] = norm.factor;
      if (row >= w.num_rows || lane % 4 != 0 || warp_column() != 0) continue;
      if (is_partial) {
        p.lse_partial[partial_of(p, w, index)] = norm.lse;
      } else if (p.lse.data != nullptr) {
        p.lse.data[lse_offset(p, w.sequence, w.b, index.h, index.i)] = norm.lse;
      }
    }
  }
}

/// Leaves the finished rows in shared memory. Bit m * 2 + r of the result: some value of the row is NaN, or
/// infinite, which the plain loop then finds again.
TESSERA_DEVICE unsigned stage_rows(T* o_smem, const float (&factors)[kRowTiles][2],
                                   const float (&o)[kRowTiles][kOutTiles][4]) {
  const int lane = thread_x() % 32;
  T* to = o_smem + (warp_first_row() + lane / 4) * kStrideO + warp_column() * kWarpDims + lane % 4 * 2;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      unsigned probe = 0;  // stays zeros of either sign
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        const unsigned pair = cvt_x2<T>(o[m][n][2 * r] * factors[m][r], o[m][n][2 * r + 1] * factors[m][r]);
        probe = fma_x2<T>(pair, 0, probe);
        *reinterpret_cast<unsigned*>(to + (m * 16 + r * 8) * kStrideO + n * 8) = pair;
      }
      if ((probe & 0x7fff7fffu) != 0) spoilt |= 1u << (m * 2 + r);
    }
  }
  return spoilt;
}

/// From shared memory to the tensor.
TESSERA_DEVICE void copy_rows(const AttentionParams& p, const BlockWork& w, const T* o_smem) {
  constexpr int kChunks = kWarpDims / 8;
  const int lane = thread_x() % 32;
  const int warp_row = warp_first_row();
  const int first_column = warp_column() * kWarpDims;
  if (kVector && 32 % kChunks == 0 && w.pack == 1) {
    const int column = first_column + lane % kChunks * 8;
    const int first_row = warp_row + lane / kChunks;
    const int valid_rows = column < p.head_dim_v ? w.num_rows - w.row_begin : 0;
    T* out = row_of(p, p.o, w, first_row) + column;
    const T* from = o_smem + first_row * kStrideO + column;
    TESSERA_UNROLL
    for (int r = 0; r < kWarpRows; r += 32 / kChunks) {
      if (first_row + r < valid_rows) {
        *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from + r * kStrideO);
      }
      out += 32 / kChunks * p.o.seq_stride;
    }
    return;
  }
  for (int c = lane; c < kWarpRows * kChunks; c += 32) {
    const int local_row = warp_row + c / kChunks;
    const int column = first_column + c % kChunks * 8;
    const int row = w.row_begin + local_row;
    if (row >= w.num_rows || column >= p.head_dim_v) continue;
    T* out = row_of(p, p.o, w, local_row) + column;
    const T* from = o_smem + local_row * kStrideO + column;
    if (kVector) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int e = 0; e < 8 && column + e < p.head_dim_v; ++e) out[e] = from[e];
    }
  }
}

/// Writes the rows of a split of the keys; the result is that of stage_rows.
TESSERA_DEVICE unsigned store_partial_rows(const AttentionParams& p, const BlockWork& w,
                                           const float (&factors)[kRowTiles][2],
                                           const float (&o)[kRowTiles][kOutTiles][4]) {
  const int lane = thread_x() % 32;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = w.row_begin + warp_first_row() + m * 16 + r * 8 + lane / 4;
      if (row >= w.num_rows) continue;
      float* out = p.o_partial + partial_of(p, w, row_index(w, row)) * p.head_dim_v;
      float probe = 0.0f;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int d = warp_column() * kWarpDims + n * 8 + lane % 4 * 2 + e;
          const float value = o[m][n][2 * r + e] * factors[m][r];
          probe += value * 0.0f;
          if (d < p.head_dim_v) out[d] = value;
        }
      }
      if (probe != probe) spoilt |= 1u << (m * 2 + r);
    }
  }
  return spoilt;
}

/// The rows' sums over the lanes and warps that have parts of them.
TESSERA_DEVICE void join_sums(RowValues* row_values, const float (&row_sum)[kRowTiles][2],
                              float (&sums)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      sums[m][r] = sum_of_lanes(row_sum[m][r]);
    }
  }
  if (kSharesRows) share_with_rows(row_values, sums, [](float a, float b) { return a + b; });
}

/// The spoilt rows of the warps that share them, for the first of these; 0 for the others.
TESSERA_DEVICE unsigned share_spoilt(RowValues* row_values, unsigned spoilt) {
  if (!kSharesRows) return spoilt;
  if (!rows_any(spoilt != 0)) return 0;
  // Each warp has looked at its own columns; one of them does the rows again.
  spoilt = join_found(spoilt);
  float bits[kRowTiles][2];
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) bits[i / 2][i % 2] = (spoilt >> i & 1u) != 0 ? 1.0f : 0.0f;
  share_with_rows(row_values, bits, [](float a, float b) { return fmaxf(a, b); });
  if (warp_column() != 0) return 0;
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) spoilt |= bits[i / 2][i % 2] != 0.0f ? 1u << i : 0u;
  return spoilt;
}

/// Writes rows to the tensor; the result is that of stage_rows.
TESSERA_DEVICE unsigned write_rows(const AttentionParams& p, const BlockWork& w, T* o_smem,
                                   const float (&factors)[kRowTiles][2],
                                   const float (&o)[kRowTiles][kOutTiles][4]) {
  // o goes where q was: the warp's own rows, or if the rows have another length, others' too.
  if (kStrideQk == kStrideO) {
    sync_warp();
  } else {
    sync_threads();
  }
  const unsigned spoilt = stage_rows(o_smem, factors, o);
  sync_warp();
  copy_rows(p, w, o_smem);
  return spoilt;
}

/// Writes the normalised rows, or the partial results if the keys are split. Bit m * 2 + r of the result: the
/// row came out as NaN or infinite although its own keys may be finite (a hidden key's value was not). Of
/// warps that share rows the first alone says so.
TESSERA_DEVICE unsigned store_rows(const AttentionParams& p, const BlockWork& w, T* o_smem,
                                   RowValues* row_values, const float (&row_base)[kRowTiles][2],
                                   const float (&row_sum)[kRowTiles][2],
                                   const float (&o)[kRowTiles][kOutTiles][4]) {
  float sums[kRowTiles][2];
  join_sums(row_values, row_sum, sums);
  float factors[kRowTiles][2];
  norm_rows(p, w, row_base, sums, factors);
  if constexpr (kIsNarrow) {
    const float v_scale = scale_of_head(p, p.kv_scales.v, w.b, w.kv_head);
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kRowTiles; ++i) factors[i / 2][i % 2] *= v_scale;
  }
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    if (is_off_base(row_base[i / 2][i % 2], sums[i / 2][i % 2]))
      factors[i / 2][i % 2] = float_of_bits(0x7fffffffu);  // NaN, so that the row is found spoilt
  }
  const unsigned spoilt =
      p.num_splits > 1 ? store_partial_rows(p, w, factors, o) : write_rows(p, w, o_smem, factors, o);
  return share_spoilt(row_values, spoilt);
}

}  // namespace tessera::kernels
