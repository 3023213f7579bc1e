#include "backends/cpu/ops/byte_streams.h"

#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/cpu/fetch_ahead.h"
#include "backends/cpu/ops/byte_formats.h"
#include "backends/cpu/ops/gemm_columns.h"
#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/scratch.h"
#include "backends/cpu/unroll.h"
#include "core/rounding.h"

namespace tessera::cpu {
namespace {

constexpr int kParts = 3;  // digits of a number of x, a byte each

/// What a digit is worth in the one before. From -128 to 127; or, where integers' signs go over to them,
/// -127.
template <class Bytes>
inline constexpr std::int32_t kBase = Bytes::kHasSigns ? 255 : 256;

/// A vector of x as whole numbers: kParts digits each, from the lowest on; and where sums of integers that
/// have a bias start, for four elements each.
template <int kBias>
struct alignas(32) ByteVector {
  std::int8_t parts[kParts][kByteLanes];
  std::int32_t starts[kByteLanes / 4];
};
template <>
struct alignas(32) ByteVector<0> {
  std::int8_t parts[kParts][kByteLanes];
};

/// x, zeros behind the last.
template <class Bytes>
struct ByteX {
  Scratch vectors{0, ""};  ///< [span][kByteVectors]
  Scratch steps{0, ""};    ///< [span][group]
  Scratch sums{0, ""};     ///< of groups, likewise
  bool is_in_range = true;
};

/// Where a span of it is.
template <class Bytes>
struct SpanOfX {
  const ByteVector<Bytes::kBias>* vectors;
  const float* steps;
  const float* sums;
};

/// The largest magnitude's bits; more than infinity's are NaN's.
TESSERA_AVX2_TARGET std::uint32_t largest_bits(const float* x, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  }
  return largest;
}

bool is_in_range(std::uint32_t largest_bits) {
  const float largest = std::bit_cast<float>(largest_bits);
  return largest == 0 || (largest >= 0x1p-60f && largest <= 0x1p100f);  // false for NaN
}

/// A group of x as whole numbers of 24 bits, from a lane of a vector on. Their step is a power of two, so
/// that 16-bit numbers lose nothing unless they are 2^-12 of the group's largest or less.
template <class Bytes>
TESSERA_AVX2_TARGET void cut_group(const float* x, ByteVector<Bytes::kBias>& vector, std::int64_t lane,
                                   float& step, float& sum) {
  constexpr int kCount = kByteSpan / Bytes::kGroups;
  constexpr std::int32_t kB = kBase<Bytes>;
  constexpr float kMost = 127 * (kB * kB + kB + 1);
  // Next to a row whose largest number is 2^-60 or more, smaller ones than this are nothing.
  constexpr float kLeast = 0x1p-100f;
  constexpr std::uint32_t kExponent = 0x7f800000;
  const std::uint32_t largest = largest_bits(x, kCount);
  float per_step = 0;
  step = 0;
  if (std::bit_cast<float>(largest) >= kLeast) {
    const float power = std::bit_cast<float>(largest & kExponent);  // the largest one's, rounded down
    per_step = 0x1p22f / power;
    if (std::bit_cast<float>(largest) * per_step > kMost) per_step /= 2;
    step = 1 / per_step;
  }
  std::int32_t integers[kCount];
  std::int32_t total = 0;
  for (int i = 0; i < kCount; ++i) {
    integers[i] = static_cast<std::int32_t>(std::lrintf(x[i] * per_step));
    total += integers[i];
  }
  if constexpr (Bytes::kBias != 0) {
    for (int i = 0; i < kCount; i += 4) {
      vector.starts[(lane + i) / 4] =
          -Bytes::kBias * (integers[i] + integers[i + 1] + integers[i + 2] + integers[i + 3]);
    }
  }
  for (int part = 0; part < kParts; ++part) {
    for (int i = 0; i < kCount; ++i) {
      constexpr std::int32_t kAbove = 1 << 15;  // digits, so that numbers above 0 are divided
      const auto shifted = static_cast<std::uint32_t>(integers[i] + kB / 2 + kAbove * kB);
      const std::int32_t rest = static_cast<std::int32_t>(shifted / kB) - kAbove;
      vector.parts[part][lane + i] = static_cast<std::int8_t>(integers[i] - rest * kB);
      integers[i] = rest;
    }
  }
  sum = static_cast<float>(total) * step;
}

template <class Bytes>
ByteX<Bytes> cut_x(const Matrix& x) {
  using Vector = ByteVector<Bytes::kBias>;
  constexpr int kGroup = kByteSpan / Bytes::kGroups;
  ByteX<Bytes> cut;
  const std::int64_t spans = divide_up(x.columns, std::int64_t{kByteSpan});
  const std::int64_t padded = spans * kByteSpan;
  const Scratch row = scratch_floats(1, padded + static_cast<std::int64_t>(kRowPadding), "gemm's x in fp32");
  float* numbers = row.floats();
  row_kernels().load_as_f32(x.data, x.dtype, 0, static_cast<std::size_t>(x.columns), numbers);
  cut.is_in_range = is_in_range(largest_bits(numbers, x.columns));
  if (!cut.is_in_range) return cut;
  std::fill(numbers + x.columns, numbers + padded, 0.0f);
  cut.vectors = Scratch(static_cast<std::size_t>(padded / kByteLanes) * sizeof(Vector), "gemm's x in bytes");
  cut.steps = scratch_floats(spans, Bytes::kGroups, "steps of gemm's x");
  cut.sums = scratch_floats(spans, Bytes::kGroups, "sums of gemm's x");
  auto* vectors = static_cast<Vector*>(cut.vectors.data());
  for (std::int64_t first = 0; first < padded; first += kGroup) {
    const std::int64_t group = first / kGroup;
    cut_group<Bytes>(numbers + first, vectors[first / kByteLanes], first % kByteLanes,
                     cut.steps.floats()[group], cut.sums.floats()[group]);
  }
  return cut;
}

TESSERA_AVX2_TARGET inline __m256i load_vector(const void* p) {
  return _mm256_load_si256(static_cast<const __m256i*>(p));
}

/// Sums of two neighbouring integers times a digit of x.
template <class Bytes>
TESSERA_AVX2_TARGET inline __m256i multiply_digits(__m256i integers,
                                                   const std::int8_t (&digits)[kByteLanes]) {
  if constexpr (Bytes::kHasSigns) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(integers), _mm256_sign_epi8(load_vector(digits), integers));
  } else {
    return _mm256_maddubs_epi16(integers, load_vector(digits));
  }
}

/// Sums of four neighbouring integers, less their bias, times x: exact but for one rounding to fp32.
template <class Bytes>
TESSERA_AVX2_TARGET inline __m256 multiply_vector(__m256i integers, const ByteVector<Bytes::kBias>& x) {
  constexpr auto kB = kBase<Bytes>;
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i base = _mm256_set1_epi16(kB);
  const __m256i low = _mm256_madd_epi16(multiply_digits<Bytes>(integers, x.parts[0]), ones);
  const __m256i middle = _mm256_madd_epi16(multiply_digits<Bytes>(integers, x.parts[1]), base);
  const __m256i lower = _mm256_add_epi32(low, middle);
  const __m256i high = multiply_digits<Bytes>(integers, x.parts[2]);
  if constexpr (Bytes::kHasSigns) {  // whose products take more than 32 bits
    const __m256 upper = _mm256_cvtepi32_ps(_mm256_madd_epi16(high, ones));
    return _mm256_fmadd_ps(upper, _mm256_set1_ps(kB * kB), _mm256_cvtepi32_ps(lower));
  } else {
    static_assert(kB == 1 << 8);
    const __m256i upper = _mm256_slli_epi32(_mm256_madd_epi16(high, base), 8);
    __m256i sum = _mm256_add_epi32(lower, upper);
    if constexpr (Bytes::kBias != 0) sum = _mm256_add_epi32(sum, load_vector(x.starts));
    return _mm256_cvtepi32_ps(sum);
  }
}

/// A vector's steps in the lanes of its sums.
template <int kGroups>
TESSERA_AVX2_TARGET inline __m256 steps_of_vector(const float* steps, int vector) {
  if constexpr (kGroups == kByteVectors) return _mm256_broadcast_ss(steps + vector);
  return _mm256_blend_ps(_mm256_broadcast_ss(steps + 2 * vector), _mm256_broadcast_ss(steps + 2 * vector + 1),
                         0xf0);
}

// Of vectors of even and of odd numbers, so that additions needn't wait for each other.
constexpr int kSums = 2;

template <class Bytes, int kPair>
TESSERA_AVX2_TARGET inline void multiply_pair(const unsigned char* span, const SpanOfX<Bytes>& x,
                                              const float (&steps)[Bytes::kGroups], __m256 (&sums)[kSums]) {
  __m256i integers[2];
  Bytes::template pair<kPair>(span, integers[0], integers[1]);
  TESSERA_UNROLL
  for (int i = 0; i < 2; ++i) {
    sums[i] = _mm256_fmadd_ps(multiply_vector<Bytes>(integers[i], x.vectors[2 * kPair + i]),
                              steps_of_vector<Bytes::kGroups>(steps, 2 * kPair + i), sums[i]);
  }
}

/// Adds the products of one span and goes on to the next one of x.
template <class Bytes>
[[gnu::always_inline]] TESSERA_AVX2_TARGET inline void multiply_span(const unsigned char* span,
                                                                     SpanOfX<Bytes>& x,
                                                                     __m256 (&sums)[kSums]) {
  constexpr int kGroups = Bytes::kGroups;
  const ByteSteps<kGroups> of_w = Bytes::steps(span);
  alignas(32) float steps[kGroups];  // from memory one of them in all lanes costs nothing
  TESSERA_UNROLL
  for (int i = 0; i < kGroups / 8; ++i) {
    _mm256_store_ps(steps + 8 * i, _mm256_mul_ps(of_w.step[i], _mm256_load_ps(x.steps + 8 * i)));
    if constexpr (Bytes::kHasOffsets) {
      sums[0] = _mm256_fmadd_ps(of_w.offset[i], _mm256_load_ps(x.sums + 8 * i), sums[0]);
    }
  }
  multiply_pair<Bytes, 0>(span, x, steps, sums);
  multiply_pair<Bytes, 1>(span, x, steps, sums);
  multiply_pair<Bytes, 2>(span, x, steps, sums);
  multiply_pair<Bytes, 3>(span, x, steps, sums);
  x.vectors += kByteVectors;
  x.steps += kGroups;
  x.sums += kGroups;
}

TESSERA_AVX2_TARGET inline float sum_of_lanes(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/// products[n] = row n of w times x.
template <class Format>
TESSERA_AVX2_TARGET void multiply_rows(const RowsOfW& w, const SpanOfX<ByteFormat<Format>>& x,
                                       const FetchAhead& distances, float* products) {
  using Bytes = ByteFormat<Format>;
  constexpr int kSpanBytes = Bytes::kBlocks * Format::kBytes;
  const unsigned char* row = w.first;
  for (std::int64_t n = 0; n < w.rows; ++n, row += w.row_bytes) {
    SpanOfX<Bytes> of_span = x;
    __m256 sums[kSums] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    const unsigned char* span = row;
    std::int64_t left = w.k;
    for (; left >= kByteSpan; left -= kByteSpan, span += kSpanBytes) {
      fetch_ahead<kSpanBytes>(span, distances);
      multiply_span<Bytes>(span, of_span, sums);
    }
    if (left > 0) {  // x is 0 behind the last block
      unsigned char last[kSpanBytes] = {};
      std::memcpy(last, span, static_cast<std::size_t>(left / Format::kElements * Format::kBytes));
      multiply_span<Bytes>(last, of_span, sums);
    }
    products[n] = sum_of_lanes(_mm256_add_ps(sums[0], sums[1]));
  }
}

}  // namespace

bool has_byte_streams(DType weight) {
  return with_weight_of<ByteFormat>(weight, []<class>() { return true; });
}

bool gemm_byte_streams(const GemmArguments& a) {
  return with_weight_of<ByteFormat>(a.weight.dtype, [&]<class Format>() {
    using Bytes = ByteFormat<Format>;
    const ByteX<Bytes> x = cut_x<Bytes>(a.x);
    if (!x.is_in_range) return false;
    const SpanOfX<Bytes> first = {static_cast<const ByteVector<Bytes::kBias>*>(x.vectors.data()),
                                  x.steps.floats(), x.sums.floats()};
    const FetchAhead distances = fetch_ahead_distances();
    stream_rows_of_w(
        a, [&](const RowsOfW& w, float* products) { multiply_rows<Format>(w, first, distances, products); });
    return true;
  });
}

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

bool has_byte_streams(DType) { return false; }
bool gemm_byte_streams(const GemmArguments&) { return false; }

}  // namespace tessera::cpu

#endif
