// out = x w^T as dot products along k, which both x and w have contiguous: a tile of kRows rows of x and
// kColumns rows of w keeps one vector of partial sums for each pair. For few rows of x (decode) it is bound
// by reading w; threads take ranges of w's rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/ops/gemm_kernel.cpp"
#include "backends/cpu/highway_targets.h"
// After the list of targets.
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "backends/cpu/ops/gemm_kernel.h"
#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/select_kernels.h"
#include "backends/cpu/ops/vector_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace {

/// A Q8_0 weight's block; only its size is used for pointer arithmetic.
struct Q8Block {
  std::byte bytes[kQ8BlockBytes];
};

/// How a row of weights advances by a step of kGemmStep elements, and its vectors.
template <class T>
struct WeightRow {
  const T* p;
  HWY_INLINE explicit WeightRow(const void* row) : p(static_cast<const T*>(row)) {}
  HWY_INLINE void begin_step([[maybe_unused]] F32 d) {}
  HWY_INLINE VecF32 vector(F32 d, std::size_t element) const { return load_vector(d, p + element); }
  HWY_INLINE void advance() { p += kGemmStep; }
};

template <>
struct WeightRow<Q8Block> {
  const Q8Block* p;
  VecF32 scale;
  HWY_INLINE explicit WeightRow(const void* row)
      : p(static_cast<const Q8Block*>(row)), scale(hn::Zero(F32())) {}
  HWY_INLINE void begin_step(F32 d) { scale = hn::Set(d, q8_scale(p->bytes)); }
  HWY_INLINE VecF32 vector(F32 d, std::size_t element) const {
    return hn::Mul(scale, load_vector(d, q8_values(p->bytes) + element));  // exact: 11 + 8 bits
  }
  HWY_INLINE void advance() { ++p; }
};

std::size_t row_bytes_of(const GemmPanel& p) {
  return dtype_bytes(p.weight->dtype, static_cast<std::size_t>(p.k));
}

/// How far ahead of its use a weight is fetched: a whole number of tiles, so that the streams of a tile's
/// rows fetch every line once.
std::size_t prefetch_distance(std::size_t tile_bytes) {
  constexpr std::size_t kLeast = std::size_t{32} << 10;  // enough to hide memory, little enough to stay in L2
  return (kLeast + tile_bytes - 1) / tile_bytes * tile_bytes;
}

/// Fetches what the step `distance_bytes` ahead reads. A row of weights is a stream of a few kilobytes, too
/// short for the hardware to fetch it in time.
template <class T>
HWY_INLINE void prefetch_step(const T* p, std::size_t distance_bytes) {
  constexpr std::size_t kLineBytes = 64;
  constexpr std::size_t kStepBytes = std::is_same_v<T, Q8Block> ? sizeof(Q8Block) : kGemmStep * sizeof(T);
  for (std::size_t i = 0; i < kStepBytes; i += kLineBytes) {
    hwy::Prefetch(reinterpret_cast<const std::byte*>(p) + distance_bytes + i);
  }
}

/// Adds the products of one step to the sums.
template <class T, int kRows, int kColumns>
HWY_INLINE void step(F32 d, const float* HWY_RESTRICT x, std::int64_t x_stride, WeightRow<T> (&w)[kColumns],
                     std::size_t prefetch_bytes, VecF32 (&sums)[kRows][kColumns]) {
  for (int c = 0; c < kColumns; ++c) {
    w[c].begin_step(d);
    prefetch_step(w[c].p, prefetch_bytes);
  }
  for (std::size_t e = 0; e < static_cast<std::size_t>(kGemmStep); e += hn::Lanes(d)) {
    VecF32 wv[kColumns];
    for (int c = 0; c < kColumns; ++c) wv[c] = w[c].vector(d, e);
    for (int r = 0; r < kRows; ++r) {
      const VecF32 xv = hn::LoadU(d, x + r * x_stride + e);
      for (int c = 0; c < kColumns; ++c) sums[r][c] = hn::MulAdd(xv, wv[c], sums[r][c]);
    }
  }
  for (int c = 0; c < kColumns; ++c) w[c].advance();
}

/// One tile of sums; rows of w past the last valid one repeat it.
template <class T, int kRows, int kColumns>
HWY_INLINE void tile(const GemmPanel& p, std::int64_t row, const void* const (&w_rows)[kColumns],
                     float (&out)[kRows][kColumns]) {
  const F32 d;
  VecF32 sums[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) sums[r][c] = hn::Zero(d);
  }
  WeightRow<T> w[kColumns] = {WeightRow<T>(w_rows[0]), WeightRow<T>(w_rows[1]), WeightRow<T>(w_rows[2]),
                              WeightRow<T>(w_rows[3])};
  const float* x = p.x + row * p.x_stride;
  const std::size_t prefetch_bytes = prefetch_distance(kColumns * row_bytes_of(p));
  std::int64_t k = 0;
  for (; k + kGemmStep <= p.k; k += kGemmStep) step<T, kRows>(d, x + k, p.x_stride, w, prefetch_bytes, sums);
  if constexpr (!std::is_same_v<T, Q8Block>) {
    if (k < p.k) {  // the last weights with zeros behind them
      T rest[kColumns][kGemmStep] = {};
      for (int c = 0; c < kColumns; ++c) {
        std::memcpy(rest[c], w[c].p, static_cast<std::size_t>(p.k - k) * sizeof(T));
        w[c].p = rest[c];
      }
      step<T, kRows>(d, x + k, p.x_stride, w, prefetch_bytes, sums);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) out[r][c] = hn::GetLane(hn::SumOfLanes(d, sums[r][c]));
  }
}

/// Adds bias and what out held, rounds and stores `count` columns of one row.
inline void finish_row(const GemmPanel& p, std::int64_t row, std::int64_t column, int count,
                       const float* sums) {
  alignas(64) float values[kRowPadding];
  alignas(64) float addend[kRowPadding];
  std::copy(sums, sums + count, values);
  const std::int64_t offset = row * p.out.row_stride + column;
  if (p.bias != nullptr) {
    load_as_f32(p.bias->data, p.bias->dtype, column, static_cast<std::size_t>(count), addend);
    for (int i = 0; i < count; ++i) values[i] += addend[i];
  }
  if (p.accumulate) {
    load_as_f32(p.out.data, p.out.dtype, offset, static_cast<std::size_t>(count), addend);
    for (int i = 0; i < count; ++i) values[i] += addend[i];
  }
  store_from_f32(values, static_cast<std::size_t>(count), p.out.data, p.out.dtype, offset);
}

template <class T, int kRows, int kColumns>
HWY_INLINE void tile_rows(const GemmPanel& p, std::int64_t row, std::int64_t column, int count,
                          const void* const (&w_rows)[kColumns]) {
  float sums[kRows][kColumns];
  tile<T, kRows>(p, row, w_rows, sums);
  for (int r = 0; r < kRows; ++r) finish_row(p, row + r, column, count, sums[r]);
}

template <class T>
void dot_products_of(const GemmPanel& p, std::int64_t begin, std::int64_t end) {
  constexpr int kRows = 4;
  constexpr int kColumns = 4;
  const std::size_t row_bytes = row_bytes_of(p);
  for (std::int64_t n = begin; n < end; n += kColumns) {
    const int count = static_cast<int>(std::min<std::int64_t>(kColumns, end - n));
    const void* w_rows[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      const std::size_t index = static_cast<std::size_t>(n + std::min(c, count - 1));
      w_rows[c] = static_cast<const std::byte*>(p.weight->data) + index * row_bytes;
    }
    std::int64_t m = 0;
    for (; m + kRows <= p.m; m += kRows) tile_rows<T, kRows>(p, m, n, count, w_rows);
    switch (p.m - m) {
      case 3:
        tile_rows<T, 3>(p, m, n, count, w_rows);
        break;
      case 2:
        tile_rows<T, 2>(p, m, n, count, w_rows);
        break;
      case 1:
        tile_rows<T, 1>(p, m, n, count, w_rows);
        break;
      default:
        break;
    }
  }
}

void dot_products(const GemmPanel& p, std::int64_t begin, std::int64_t end) {
  switch (p.weight->dtype) {
    case DType::kF16:
      return dot_products_of<Half>(p, begin, end);
    case DType::kBF16:
      return dot_products_of<BFloat16>(p, begin, end);
    case DType::kQ8_0:
      return dot_products_of<Q8Block>(p, begin, end);
    default:
      return dot_products_of<float>(p, begin, end);
  }
}

}  // namespace

extern const GemmKernels kGemmKernels;
const GemmKernels kGemmKernels = {dot_products};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

const GemmKernels& gemm_kernels() { return TESSERA_SELECT_KERNELS(kGemmKernels); }

}  // namespace tessera::cpu
#endif
