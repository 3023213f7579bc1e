#include "backends/cpu/ops/bf16_streams.h"

#if defined(__x86_64__)

#include "backends/cpu/bf16_pairs.h"
#include "backends/cpu/fetch_ahead.h"
#include "backends/cpu/ops/gemm_columns.h"
#include "backends/cpu/ops/streamed_x.h"
#include "backends/cpu/unroll.h"

namespace tessera::cpu {
namespace {

constexpr int kSums = 2;  // of a row of x: a dot product doesn't wait for the one before
constexpr std::int64_t kStep = kSums * kStreamLanes;

/// products[r] = a row of w, k elements, times row r of x.
template <int kRows>
TESSERA_BF16_TARGET inline void multiply_row(const BFloat16* w, std::int64_t k,
                                             const BFloat16* const (&x)[kRows], const FetchAhead& distances,
                                             float (&products)[kRows]) {
  __m512 sums[kRows][kSums];
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TESSERA_UNROLL
    for (int s = 0; s < kSums; ++s) sums[r][s] = _mm512_setzero_ps();
  }
  std::int64_t i = 0;
  for (; i + kStep <= k; i += kStep) {
    fetch_ahead<kStep * sizeof(BFloat16)>(w + i, distances);
    TESSERA_UNROLL
    for (int s = 0; s < kSums; ++s) {
      const __m512i weights = _mm512_loadu_si512(w + i + s * kStreamLanes);
      TESSERA_UNROLL
      for (int r = 0; r < kRows; ++r)
        sums[r][s] = add_dot_products(sums[r][s], weights, _mm512_loadu_si512(x[r] + i + s * kStreamLanes));
    }
  }
  for (; i < k; i += kStreamLanes) {
    const __m512i weights = load_x(w, i, k);
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) sums[r][0] = add_dot_products(sums[r][0], weights, load_x(x[r], i, k));
  }
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) products[r] = _mm512_reduce_add_ps(_mm512_add_ps(sums[r][0], sums[r][1]));
}

/// products[r][n] = row n of w times row r of x.
template <int kRows>
TESSERA_BF16_TARGET void multiply_rows(const RowsOfW& w, const BFloat16* const (&x)[kRows],
                                       const FetchAhead& distances, float* products) {
  const unsigned char* row = w.first;
  for (std::int64_t n = 0; n < w.rows; ++n, row += w.row_bytes) {
    float of_row[kRows];
    multiply_row<kRows>(reinterpret_cast<const BFloat16*>(row), w.k, x, distances, of_row);
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) products[r * w.rows + n] = of_row[r];
  }
}

TESSERA_BF16_TARGET bool is_row_in_range(const BFloat16* x, std::int64_t k) {
  __m512i magnitudes = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < k; i += kStreamLanes)
    magnitudes = larger_magnitudes(magnitudes, load_x(x, i, k));
  return is_in_range(magnitudes);
}

template <int kRows>
bool multiply_columns(const GemmArguments& a) {
  const BFloat16* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = static_cast<const BFloat16*>(a.x.data) + r * a.x.row_stride;
  const std::int64_t k = a.x.columns;
  for (const BFloat16* row : x) {
    if (!is_row_in_range(row, k)) return false;
  }
  const FetchAhead distances = fetch_ahead_distances();
  stream_rows_of_w(
      a, [&](const RowsOfW& w, float* products) { multiply_rows<kRows>(w, x, distances, products); });
  return true;
}

}  // namespace

bool gemm_bf16_streams(const GemmArguments& a) {
  using MultiplyColumns = decltype(&multiply_columns<1>);
  constexpr MultiplyColumns kRows[kMostBf16StreamRows] = {multiply_columns<1>, multiply_columns<2>,
                                                          multiply_columns<3>, multiply_columns<4>};
  return kRows[a.x.rows - 1](a);
}

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

bool gemm_bf16_streams(const GemmArguments&) { return false; }

}  // namespace tessera::cpu

#endif
