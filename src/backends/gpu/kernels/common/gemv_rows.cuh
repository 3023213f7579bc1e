#pragma once

#include "common/rows.cuh"

// What products of few rows of x share (gemv.cu, gemv_blocks.cu): which rows of w a block takes, and how the
// sums of its threads meet.

namespace tessera::kernels {

constexpr int kGemvWarps = kGemvThreads / kWarpSize;

/// Row r of the block from `first_row` on. Gated: the first half of a block's rows is from w1, the second
/// from w2.
TESSERA_DEVICE int64 weight_row(const GemmParams& p, int64 first_row, int r) {
  constexpr int kHalf = kGemvRows / 2;
  if (p.gated == 0) return first_row + r;
  return first_row + r % kHalf + r / kHalf * (p.n / 2);
}

/// The first row of this block.
TESSERA_DEVICE int64 first_row_of_block(const GemmParams& p) {
  return static_cast<int64>(block_x()) * (p.gated == 0 ? kGemvRows : kGemvRows / 2);
}

/// Adds up the sums of the threads of a block of `warps` warps, value r * kM + m of each being that of row r
/// of w and row m of x, and writes them.
template <int kM>
TESSERA_DEVICE void finish_rows(const GemmParams& p, int64 first_row, float (&sum)[kGemvRows * kM],
                                int warps = kGemvWarps) {
  TESSERA_SHARED(partial, float[kGemvWarps][kGemvRows * kM]);
  int index;
  const float value = reduce_values(sum, index);
  partial[thread_x() / kWarpSize][index] = value;  // lanes with the same index have the same value
  sync_threads();
  const int m = thread_x() % kM;
  const int r = thread_x() / kM;
  if (r >= (p.gated == 0 ? kGemvRows : kGemvRows / 2)) return;
  const int64 column = first_row + r;
  if (column >= (p.gated == 0 ? p.n : p.n / 2) || m >= p.m) return;
  const auto total_of = [&](int block_row, int64 row) {
    float total = 0.0f;
    for (int warp = 0; warp < warps; ++warp) total += partial[warp][block_row * kM + m];
    return p.bias.data != nullptr ? total + load_scalar(p.bias, row) : total;
  };
  float total = total_of(r, column);
  if (p.gated != 0) {
    const int other = r + kGemvRows / 2;
    total = gated(p.gated - 1, total, total_of(other, weight_row(p, first_row, other)));
  }
  const int64 offset = m * p.out.row_stride + column;
  if (p.accumulate) total += load_scalar(p.out, offset);
  store_scalar(p.out, offset, total);
}

/// Row m of x; beyond the last, the last.
template <class X>
TESSERA_DEVICE const X* row_of_x(const GemmParams& p, int64 m) {
  return static_cast<const X*>(p.x.data) + minimum(m, p.m - 1) * p.x.row_stride;
}

}  // namespace tessera::kernels
