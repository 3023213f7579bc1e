#include "backends/cpu/ops/block_streams.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cstring>

#include "backends/cpu/fetch_ahead.h"
#include "backends/cpu/ops/block_dots.h"
#include "backends/cpu/ops/gemm_columns.h"
#include "backends/cpu/ops/stream_codebooks.h"
#include "backends/cpu/ops/stream_formats.h"
#include "backends/cpu/ops/streamed_x.h"

namespace tessera::cpu {
namespace {

template <class Stream, int kChunk, int kSum>
inline constexpr Places kStepPlaces = array_of<Places>([](int lane) {
  return Stream::step_of(kChunk, kSum, lane);
});

template <class Stream>
inline constexpr Places kOffsetPlaces = array_of<Places>([](int lane) {
  return Stream::offset_of(lane * Stream::kOffsets / kStreamSteps);
});

/// Rows of x beside a row of w, from a span on.
template <int kRows>
struct XRows {
  const std::byte* vectors[kRows];
  const float* starts[kRows];
  const float* sums[kRows];
};

template <class Stream, int kRows>
struct StreamSums {
  static constexpr int kEach = Stream::kSums + (Stream::kOffsets != 0 && !kSpreadsOffsets<Stream> ? 1 : 0);
  __m512 at[kRows][kEach];
};

/// Adds the products of one chunk.
template <class Stream, int kChunk, int kRows>
TESSERA_STREAM_TARGET inline void multiply_chunk(const unsigned char* span, __m512 steps,
                                                 const XRows<kRows>& x, StreamSums<Stream, kRows>& sums) {
  constexpr int kVectorBytes = sizeof(__m512i);
  __m512i weights[Stream::kWeights];
  Stream::weights(span, kChunk, weights);
  __m512 step[Stream::kSums];
  step[0] = _mm512_permutexvar_ps(load_array(kStepPlaces<Stream, kChunk, 0>), steps);
  if constexpr (Stream::kSums == 2) {
    step[1] = _mm512_permutexvar_ps(load_array(kStepPlaces<Stream, kChunk, 1>), steps);
  }
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const std::byte* vectors = x.vectors[r] + kChunk * kStreamVectors * kVectorBytes;
    __m512 group[Stream::kSums];
    TESSERA_UNROLL
    for (int s = 0; s < Stream::kSums; ++s) {
      constexpr int kFirst = kChunk * Stream::kSums;
      if constexpr (kHasBias<Stream>) {
        group[s] = _mm512_load_ps(x.starts[r] + (kFirst + s) * kStreamSteps);
      } else {
        group[s] = _mm512_setzero_ps();
      }
    }
    TESSERA_UNROLL
    for (int i = 0; i < Stream::kWeights; ++i) {
      const __m512i xv = _mm512_load_si512(vectors + i * kStreamVectors / Stream::kWeights * kVectorBytes);
      group[Stream::sum_of(i)] = add_dot_products(group[Stream::sum_of(i)], weights[i], xv);
    }
    TESSERA_UNROLL
    for (int s = 0; s < Stream::kSums; ++s) {
      sums.at[r][s] = _mm512_fmadd_ps(group[s], step[s], sums.at[r][s]);
    }
  }
}

/// A span's offsets in the lanes of x's sums.
template <class Stream>
TESSERA_STREAM_TARGET inline __m512 offsets_of(const unsigned char* span, __m512 steps) {
  if constexpr (requires { Stream::offsets(span); }) {
    return Stream::offsets(span);
  } else if constexpr (kSpreadsOffsets<Stream>) {
    return _mm512_permutexvar_ps(load_array(kOffsetPlaces<Stream>), steps);
  } else {
    return steps;
  }
}

/// Adds the products of one span and goes on to the next one of x.
template <class Stream, int kRows>
TESSERA_STREAM_TARGET inline void multiply_span(const unsigned char* span, XRows<kRows>& x,
                                                StreamSums<Stream, kRows>& sums) {
  const __m512 steps = Stream::steps(span);
  multiply_chunk<Stream, 0>(span, steps, x, sums);
  if constexpr (Stream::kChunks == 2) multiply_chunk<Stream, 1>(span, steps, x, sums);
  const __m512 offsets = offsets_of<Stream>(span, steps);
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if constexpr (Stream::kOffsets != 0) {
      __m512& sum = sums.at[r][sums.kEach - 1];
      sum = _mm512_fmadd_ps(offsets, _mm512_load_ps(x.sums[r]), sum);
      x.sums[r] += kStreamSteps;
    }
    x.vectors[r] += Stream::kChunks * kStreamChunk * 2;
    if constexpr (kHasBias<Stream>) x.starts[r] += Stream::kChunks * Stream::kSums * kStreamSteps;
  }
}

/// products[r] = a row of w, k elements, times row r of x.
template <class Format, int kRows>
[[gnu::always_inline]] TESSERA_STREAM_TARGET inline void multiply_row(const unsigned char* w, std::int64_t k,
                                                                      XRows<kRows> x,
                                                                      const FetchAhead& distances,
                                                                      float (&products)[kRows]) {
  using Stream = StreamFormat<Format>;
  constexpr int kSpanBytes = Stream::kBlocks * Format::kBytes;
  constexpr std::int64_t kSpan = Stream::kChunks * kStreamChunk;
  StreamSums<Stream, kRows> sums;
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TESSERA_UNROLL
    for (int s = 0; s < sums.kEach; ++s) sums.at[r][s] = _mm512_setzero_ps();
  }
  std::int64_t left = k;
  for (; left >= kSpan; left -= kSpan, w += kSpanBytes) {
    fetch_ahead<kSpanBytes>(w, distances);
    multiply_span<Stream>(w, x, sums);
  }
  if (left > 0) {  // steps of 0 behind the last block
    unsigned char last[kSpanBytes] = {};
    std::memcpy(last, w, static_cast<std::size_t>(left / Format::kElements * Format::kBytes));
    multiply_span<Stream>(last, x, sums);
  }
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    __m512 sum = sums.at[r][0];
    TESSERA_UNROLL
    for (int s = 1; s < sums.kEach; ++s) sum = _mm512_add_ps(sum, sums.at[r][s]);
    products[r] = _mm512_reduce_add_ps(sum);
  }
}

/// products[r][n] = row n of w times row r of x. Tables stay in registers from one row of w to the next.
template <class Format, int kRows>
TESSERA_STREAM_TARGET void multiply_rows(const RowsOfW& w, const XRows<kRows>& x, const FetchAhead& distances,
                                         float* products) {
  const unsigned char* row = w.first;
  for (std::int64_t n = 0; n < w.rows; ++n, row += w.row_bytes) {
    float of_row[kRows];
    multiply_row<Format, kRows>(row, w.k, x, distances, of_row);
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) products[r * w.rows + n] = of_row[r];
  }
}

/// multiply_rows for kRows rows of x from `first` on.
template <class Format, int kRows>
void multiply_rows_of_x(const RowsOfW& w, const StreamedX& x, std::int64_t first, float* products) {
  XRows<kRows> rows;
  for (int r = 0; r < kRows; ++r) {
    rows.vectors[r] = x.vectors_of(first + r);
    rows.starts[r] = kHasBias<StreamFormat<Format>> ? x.starts_of(first + r) : nullptr;
    rows.sums[r] = StreamFormat<Format>::kOffsets != 0 ? x.sums_of(first + r) : nullptr;
  }
  // Those that follow find w in the second-level cache.
  const FetchAhead distances = first == 0 ? fetch_ahead_distances() : FetchAhead{};
  multiply_rows<Format, kRows>(w, rows, distances, products + first * w.rows);
}

/// Rows of x, of k elements each, that stay in the first-level cache beside w.
template <class Stream>
std::int64_t rows_in_cache(std::int64_t k) {
  constexpr std::int64_t kCacheBytes = std::int64_t{34} << 10;
  constexpr std::int64_t kStartBytes = kHasBias<Stream> ? Stream::kSums * kStreamSteps * 4 : 0;
  constexpr std::int64_t kSumBytes = Stream::kOffsets != 0 ? kStreamSteps * 4 / Stream::kChunks : 0;
  return kCacheBytes / std::max<std::int64_t>(k * 2 + k / kStreamChunk * (kStartBytes + kSumBytes), 1);
}

/// Rows of x to be multiplied at a time: as many as stay in the cache, if these are several and w is not
/// looked up in codebooks, which takes longer than x from the second-level cache.
template <class Format>
std::int64_t rows_at_once(std::int64_t k) {
  const std::int64_t cached = rows_in_cache<StreamFormat<Format>>(k);
  return cached >= 2 && !Format::kHasCodebook ? std::min(cached, kMostBlockStreamRows) : kMostBlockStreamRows;
}

}  // namespace

bool has_block_streams(DType weight) {
  // Processors that have block dots have GFNI, too, but nothing says that all will.
  static const bool has_instructions = has_block_dots() && __builtin_cpu_supports("gfni") != 0;
  return has_instructions && with_weight_of<StreamFormat>(weight, []<class>() { return true; });
}

std::int64_t block_stream_rows_in_cache(DType weight, std::int64_t k) {
  std::int64_t rows = 0;
  with_weight_of<StreamFormat>(weight, [&]<class Format>() {
    rows = rows_in_cache<StreamFormat<Format>>(k);
    return true;
  });
  return rows;
}

bool gemm_block_streams(const GemmArguments& a) {
  return with_weight_of<StreamFormat>(a.weight.dtype, [&]<class Format>() {
    const StreamedX x = stream_x<StreamFormat<Format>>(a.x);
    if (!x.is_in_range) return false;
    using Multiply = decltype(&multiply_rows_of_x<Format, 1>);
    constexpr Multiply kMultiply[kMostBlockStreamRows] = {
        multiply_rows_of_x<Format, 1>, multiply_rows_of_x<Format, 2>, multiply_rows_of_x<Format, 3>,
        multiply_rows_of_x<Format, 4>};
    const std::int64_t groups = divide_up(a.x.rows, rows_at_once<Format>(a.weight.columns));
    stream_rows_of_w(a, [&](const RowsOfW& w, float* products) {
      for (std::int64_t i = 0; i < groups; ++i) {
        const std::int64_t first = a.x.rows * i / groups;
        kMultiply[a.x.rows * (i + 1) / groups - first - 1](w, x, first, products);
      }
    });
    return true;
  });
}

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

bool has_block_streams(DType) { return false; }
std::int64_t block_stream_rows_in_cache(DType, std::int64_t) { return 0; }
bool gemm_block_streams(const GemmArguments&) { return false; }

}  // namespace tessera::cpu

#endif
