#pragma once

// Rows of x in the order in which blocks' elements leave them (stream_formats.h).

#include "backends/cpu/ops/stream_formats.h"

#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/ops/scratch.h"
#include "core/rounding.h"
#include "ops/arguments.h"

namespace tessera::cpu {

/// Rows of x in the order in which w's elements leave their blocks, zeros behind the last, and what else of x
/// products with blocks need.
struct StreamedX {
  std::int64_t spans = 0;
  std::int64_t chunks = 0;  // of a row
  std::int64_t starts_of_row = 0;
  Scratch vectors{0, ""};  // [row][chunk][kStreamVectors] of bf16
  Scratch starts{0, ""};   // [row][chunk][sum][kStreamSteps], where weights have a bias
  Scratch sums{0, ""};     // [row][span][kStreamSteps], where blocks have offsets
  bool is_in_range = true;

  std::byte* vectors_of(std::int64_t row) const {
    return static_cast<std::byte*>(vectors.data()) + row * chunks * kStreamChunk * 2;
  }
  /// Only where there are some.
  float* starts_of(std::int64_t row) const { return starts.floats() + row * starts_of_row; }
  float* sums_of(std::int64_t row) const { return sums.floats() + row * spans * kStreamSteps; }
};

/// 32 of k elements from `first` on, zeros past the last.
TESSERA_BF16_TARGET inline __m512i load_x(const BFloat16* x, std::int64_t first, std::int64_t k) {
  const std::int64_t left = k - first;
  if (left >= kStreamLanes) return _mm512_loadu_si512(x + first);
  if (left <= 0) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16((__mmask32{1} << left) - 1, x + first);
}

template <class Stream>
inline constexpr auto kElementsOfX = [] {
  std::array<Words, kStreamVectors> words{};
  for (int v = 0; v < kStreamVectors; ++v) {
    words[static_cast<std::size_t>(v)] = array_of<Words>([v](int lane) { return Stream::element(v, lane); });
  }
  return words;
}();

/// The largest magnitude's bits in each word.
TESSERA_BF16_TARGET inline __m512i larger_magnitudes(__m512i magnitudes, __m512i x) {
  return _mm512_max_epu16(magnitudes, _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)));
}

/// Whether sums of products with integers are finite, and none of weight too small for fp32: the largest
/// magnitude is 0 or from 2^-60 to 2^100.
TESSERA_BF16_TARGET inline bool is_in_range(__m512i magnitudes) {
  constexpr int kLeast = (127 - 60) << 7, kMost = (127 + 100) << 7;
  alignas(64) std::uint16_t values[kStreamLanes];
  _mm512_store_si512(values, magnitudes);
  const int largest = *std::max_element(values, values + kStreamLanes);
  return largest == 0 || (largest >= kLeast && largest <= kMost);
}

template <class Stream>
TESSERA_BF16_TARGET inline bool stream_row_of_x(const BFloat16* x, std::int64_t k, std::int64_t chunks,
                                                std::byte* vectors) {
  __m512i magnitudes = _mm512_setzero_si512();
  for (std::int64_t c = 0; c < chunks; ++c) {
    __m512i in[kStreamVectors];
    TESSERA_UNROLL
    for (int v = 0; v < kStreamVectors; ++v) {
      in[v] = load_x(x, c * kStreamChunk + v * kStreamLanes, k);
      magnitudes = larger_magnitudes(magnitudes, in[v]);
    }
    TESSERA_UNROLL
    for (int v = 0; v < kStreamVectors; ++v, vectors += sizeof(__m512i)) {
      const __m512i from = load_array(kElementsOfX<Stream>[static_cast<std::size_t>(v)]);
      const __m512i lower = _mm512_permutex2var_epi16(in[0], from, in[1]);
      const __m512i upper = _mm512_permutex2var_epi16(in[2], from, in[3]);
      const __mmask32 is_upper = _mm512_test_epi16_mask(from, _mm512_set1_epi16(2 * kStreamLanes));
      _mm512_store_si512(vectors, _mm512_mask_blend_epi16(is_upper, lower, upper));
    }
  }
  return is_in_range(magnitudes);
}

/// A row's x in the lanes of its products' sums, chunk by chunk: factor(v) times what vector v brings there.
template <class Stream, class Factor>
TESSERA_BF16_TARGET void sum_lanes(const std::byte* vectors, std::int64_t chunks, Factor factor,
                                   float* lanes) {
  constexpr int kWeightsOfVector = Stream::kWeights / kStreamVectors;
  for (std::int64_t c = 0; c < chunks; ++c) {
    __m512 sums[Stream::kSums] = {};
    for (int v = 0; v < kStreamVectors; ++v, vectors += sizeof(__m512i)) {
      const __m512i times = _mm512_set1_epi16(static_cast<short>(bf16_bits(factor(v))));
      __m512& sum = sums[Stream::sum_of(v * kWeightsOfVector)];
      sum = add_dot_products(sum, times, _mm512_load_si512(vectors));
    }
    for (int s = 0; s < Stream::kSums; ++s, lanes += kStreamSteps) _mm512_store_ps(lanes, sums[s]);
  }
}

/// What a span's steps and offsets are multiplied by, unless offsets are spread: an offset by the sum of its
/// group's x.
template <class Stream>
TESSERA_BF16_TARGET void sum_groups(const BFloat16* x, std::int64_t k, std::int64_t spans, float* sums) {
  constexpr int kGroup = Stream::kChunks * kStreamChunk / Stream::kOffsets;
  static_assert(kGroup == kStreamLanes || kGroup == kStreamLanes / 2);
  const __m512i ones = _mm512_set1_epi16(static_cast<short>(bf16_bits(1)));
  for (std::int64_t span = 0; span < spans; ++span, sums += kStreamSteps) {
    std::fill_n(sums, kStreamSteps, 0.0f);
    for (int g = 0; g < Stream::kOffsets; ++g) {
      const std::int64_t first = (span * Stream::kOffsets + g) * kGroup;
      const __m512i group = load_x(x, first, std::min(k, first + kGroup));
      const float sum = _mm512_reduce_add_ps(add_dot_products(_mm512_setzero_ps(), group, ones));
      sums[Stream::offset_of(g)] = Stream::kOffsetSign * sum;
    }
  }
}

template <class Stream>
StreamedX stream_x(const Matrix& x) {
  StreamedX streamed;
  streamed.spans = divide_up(x.columns, std::int64_t{Stream::kChunks} * kStreamChunk);
  streamed.chunks = streamed.spans * Stream::kChunks;
  streamed.vectors = scratch_floats(x.rows, streamed.chunks * kStreamChunk / 2, "gemm's x in vectors");
  constexpr bool kHasOffsets = Stream::kOffsets != 0;
  streamed.starts_of_row = streamed.chunks * Stream::kSums * kStreamSteps;
  if (kHasBias<Stream>)
    streamed.starts = scratch_floats(x.rows, streamed.starts_of_row, "starts of gemm's sums");
  if (kHasOffsets) streamed.sums = scratch_floats(x.rows, streamed.spans * kStreamSteps, "sums of gemm's x");
  for (std::int64_t row = 0; row < x.rows; ++row) {
    const BFloat16* from = static_cast<const BFloat16*>(x.data) + row * x.row_stride;
    auto* vectors = streamed.vectors_of(row);
    if (!stream_row_of_x<Stream>(from, x.columns, streamed.chunks, vectors)) streamed.is_in_range = false;
    if constexpr (kHasBias<Stream>) {
      // So that sums end without the weights' bias.
      const auto less_bias = [](int v) { return -Stream::bias_of(v); };
      sum_lanes<Stream>(vectors, streamed.chunks, less_bias, streamed.starts_of(row));
    }
    if constexpr (kSpreadsOffsets<Stream>) {
      const auto sign = [](int) { return static_cast<int>(Stream::kOffsetSign); };
      sum_lanes<Stream>(vectors, streamed.chunks, sign, streamed.sums_of(row));
    } else if constexpr (kHasOffsets) {
      sum_groups<Stream>(from, x.columns, streamed.spans, streamed.sums_of(row));
    }
  }
  return streamed;
}

}  // namespace tessera::cpu

#endif
