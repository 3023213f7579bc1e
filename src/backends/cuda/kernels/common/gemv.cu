// out = x w^T (+ bias) (+ out) for up to 8 rows of x, bound by reading w once: a warp takes two rows of w,
// its lanes groups of 8 columns; sums stay in registers and meet in shuffles. Where w has few rows, several
// warps of a block share a row's columns.
//
// Grid: (row groups of w). Each row of x is summed in the same order whatever m is, so that results are
// batch-invariant.

#include "common/rows.cuh"

using namespace tessera::kernels;

constexpr int kGemvThreads = 256;

namespace tessera::kernels {

constexpr int kGemvWarps = kGemvThreads / kWarpSize;
constexpr int kGemvRows = 2;  // rows of w that a warp takes

struct q8 {};

/// 8 elements of a weight's row as read, and as floats.
template <class W>
struct WeightGroup {
  Vector<W, 16 / sizeof(W)> part[kGroupSize * sizeof(W) / 16];

  TESSERA_DEVICE void load(const void* row, int64 group) {
    constexpr int kParts = kGroupSize * sizeof(W) / 16;
    TESSERA_UNROLL
    for (int n = 0; n < kParts; ++n)
      part[n] = static_cast<const Vector<W, 16 / sizeof(W)>*>(row)[group * kParts + n];
  }
  TESSERA_DEVICE void get(float (&v)[kGroupSize]) const {
    constexpr int kLanes = 16 / sizeof(W);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) v[i] = to_float(part[i / kLanes].element[i % kLanes]);
  }
};

/// A quarter of a Q8_0 block, which is aligned to 2 bytes only.
template <>
struct WeightGroup<q8> {
  unsigned short scale;
  unsigned short pair[4];

  TESSERA_DEVICE void load(const void* row, int64 group) {
    const unsigned short* block = static_cast<const unsigned short*>(row) + group / 4 * 17;
    scale = block[0];
    TESSERA_UNROLL
    for (int n = 0; n < 4; ++n) pair[n] = block[1 + group % 4 * 4 + n];
  }
  TESSERA_DEVICE void get(float (&v)[kGroupSize]) const {
    f16 stored;
    stored.bits = scale;
    const float step = to_float(stored);
    TESSERA_UNROLL
    for (int n = 0; n < 4; ++n) {
      v[2 * n] = step * static_cast<float>(static_cast<signed char>(pair[n] & 0xff));
      v[2 * n + 1] = step * static_cast<float>(static_cast<signed char>(pair[n] >> 8));
    }
  }
};

template <class W>
TESSERA_DEVICE const void* weight_row(const GemmParams& p, int64 row) {
  return static_cast<const W*>(p.weight.data) + row * p.k;
}
template <>
TESSERA_DEVICE const void* weight_row<q8>(const GemmParams& p, int64 row) {
  return static_cast<const unsigned char*>(p.weight.data) + row * (p.k / 32) * 34;
}

/// Adds the products of one group of columns to the sums.
template <class X, class W, int kM>
TESSERA_DEVICE void add_products(const X* const (&x)[kM], const WeightGroup<W> (&w)[kGemvRows], int64 group,
                                 float (&sum)[kGemvRows][kM]) {
  float weight[kGemvRows][kGroupSize];
  TESSERA_UNROLL
  for (int r = 0; r < kGemvRows; ++r) w[r].get(weight[r]);
  TESSERA_UNROLL
  for (int m = 0; m < kM; ++m) {
    float value[kGroupSize];
    load_typed<X>(x[m], group * kGroupSize, kGroupSize, true, value);
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) sum[r][m] = fmaf(weight[r][i], value[i], sum[r][m]);
    }
  }
}

/// This lane's share of groups [begin, end).
template <class X, class W, int kM>
TESSERA_DEVICE void sum_groups(const X* const (&x)[kM], const void* const (&row)[kGemvRows], int64 begin,
                               int64 end, float (&sum)[kGemvRows][kM]) {
  // Loads in flight: enough to cover the memory's latency.
  constexpr int kUnroll = kM <= 2 ? 4 : 2;
  int64 group = begin + thread_x() % kWarpSize;
  for (; group + (kUnroll - 1) * kWarpSize < end; group += kUnroll * kWarpSize) {
    WeightGroup<W> w[kUnroll][kGemvRows];
    TESSERA_UNROLL
    for (int n = 0; n < kUnroll; ++n) {
      TESSERA_UNROLL
      for (int r = 0; r < kGemvRows; ++r) w[n][r].load(row[r], group + n * kWarpSize);
    }
    TESSERA_UNROLL
    for (int n = 0; n < kUnroll; ++n) add_products<X, W, kM>(x, w[n], group + n * kWarpSize, sum);
  }
  for (; group < end; group += kWarpSize) {
    WeightGroup<W> w[kGemvRows];
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) w[r].load(row[r], group);
    add_products<X, W, kM>(x, w, group, sum);
  }
}

/// The same without alignment: single elements of columns [begin, end).
template <class X, int kM>
TESSERA_DEVICE void sum_elements(const GemmParams& p, const X* const (&x)[kM], const int64 (&row)[kGemvRows],
                                 int64 begin, int64 end, float (&sum)[kGemvRows][kM]) {
  for (int64 column = begin + thread_x() % kWarpSize; column < end; column += kWarpSize) {
    for (int r = 0; r < kGemvRows; ++r) {
      const float weight = load_scalar(p.weight, row[r] * p.k + column);
      TESSERA_UNROLL
      for (int m = 0; m < kM; ++m) sum[r][m] = fmaf(weight, to_float(x[m][column]), sum[r][m]);
    }
  }
}

template <class X, class W, int kM>
TESSERA_DEVICE void gemv(const GemmParams& p) {
  TESSERA_SHARED(partial, float[kGemvWarps][kGemvRows * kM]);
  const int warp = thread_x() / kWarpSize;
  const int lane = thread_x() % kWarpSize;
  const int part = warp % p.splits;
  const int64 first_row =
      (static_cast<int64>(block_x()) * (kGemvWarps / p.splits) + warp / p.splits) * kGemvRows;

  const X* x[kM];
  TESSERA_UNROLL
  for (int m = 0; m < kM; ++m)
    x[m] = static_cast<const X*>(p.x.data) + minimum<int64>(m, p.m - 1) * p.x.row_stride;
  float sum[kGemvRows][kM] = {};
  const int64 groups = (p.k + kGroupSize - 1) / kGroupSize;
  const int64 groups_a_part = (groups + p.splits - 1) / p.splits;
  const int64 begin = minimum(part * groups_a_part, groups);
  const int64 end = minimum(begin + groups_a_part, groups);
  if (p.weight.vector && p.x.vector) {
    const void* row[kGemvRows];
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) row[r] = weight_row<W>(p, minimum(first_row + r, p.n - 1));
    sum_groups<X, W, kM>(x, row, begin, end, sum);
  } else {
    int64 row[kGemvRows];
    for (int r = 0; r < kGemvRows; ++r) row[r] = minimum(first_row + r, p.n - 1);
    sum_elements<X, kM>(p, x, row, begin * kGroupSize, minimum(end * kGroupSize, p.k), sum);
  }

  // Lane r * kM + m of the warp gets the whole sum of its row and column.
  float mine = 0.0f;
  TESSERA_UNROLL
  for (int r = 0; r < kGemvRows; ++r) {
    TESSERA_UNROLL
    for (int m = 0; m < kM; ++m) {
      float total = sum[r][m];
      for (int mask = kWarpSize / 2; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
      if (lane == r * kM + m) mine = total;
    }
  }
  if (p.splits > 1) {
    if (lane < kGemvRows * kM) partial[warp][lane] = mine;
    sync_threads();
    if (part != 0) return;
    if (lane < kGemvRows * kM) {
      for (int other = 1; other < p.splits; ++other) mine += partial[warp + other][lane];
    }
  }
  const int64 column = first_row + lane / kM;
  const int64 m = lane % kM;
  if (lane >= kGemvRows * kM || column >= p.n || m >= p.m) return;
  if (p.bias.data != nullptr) mine += load_scalar(p.bias, column);
  const int64 offset = m * p.out.row_stride + column;
  if (p.accumulate) mine += load_scalar(p.out, offset);
  store_scalar(p.out, offset, mine);
}

}  // namespace tessera::kernels

#define TESSERA_GEMV(name, X, W)                                                          \
  TESSERA_KERNEL(gemv_##name##_1, kGemvThreads)(const GemmParams p) { gemv<X, W, 1>(p); } \
  TESSERA_KERNEL(gemv_##name##_2, kGemvThreads)(const GemmParams p) { gemv<X, W, 2>(p); } \
  TESSERA_KERNEL(gemv_##name##_4, kGemvThreads)(const GemmParams p) { gemv<X, W, 4>(p); } \
  TESSERA_KERNEL(gemv_##name##_8, kGemvThreads)(const GemmParams p) { gemv<X, W, 8>(p); }
TESSERA_GEMV(f32_f32, float, float)
TESSERA_GEMV(f32_f16, float, f16)
TESSERA_GEMV(f32_bf16, float, bf16)
TESSERA_GEMV(f32_q8_0, float, q8)
TESSERA_GEMV(f16_f16, f16, f16)
TESSERA_GEMV(f16_q8_0, f16, q8)
TESSERA_GEMV(bf16_bf16, bf16, bf16)
TESSERA_GEMV(bf16_q8_0, bf16, q8)
