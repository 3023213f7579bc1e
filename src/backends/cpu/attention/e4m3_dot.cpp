// Steps of attention on e4m3 keys and values beside bf16 queries. A bf16 holds every e4m3, so that numbers
// meet as pairs of bf16 and no product is rounded; scales multiply scores and weights. 64 numbers take two
// look-ups of bytes, the upper and the lower ones of their bf16, where conversion to fp32 takes some thirty
// instructions.
#include "backends/cpu/attention/e4m3_dot.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/cpu/attention/bf16_rows.h"
#include "backends/cpu/bf16_pairs.h"
#include "backends/cpu/unroll.h"

#define TESSERA_E4M3_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,f16c")))

namespace tessera::cpu {
namespace {

constexpr int kLanes = 16;
constexpr std::int64_t kGroup = 64;  // numbers of a vector of bytes

/// The bf16 of an e4m3 without its sign.
constexpr std::uint16_t bf16_of(unsigned e4m3) {
  constexpr unsigned kBias = 127 - 7;
  unsigned exponent = e4m3 >> 3;
  unsigned mantissa = e4m3 & 7;
  if (e4m3 == 0) return 0;
  if (e4m3 == 0x7f) return 0x7fc0;
  if (exponent > 0) return static_cast<std::uint16_t>((exponent + kBias) << 7 | mantissa << 4);
  // Subnormal ones, which bf16 has as normal ones.
  unsigned shift = 0;
  for (; mantissa < 8; ++shift) mantissa *= 2;
  return static_cast<std::uint16_t>((kBias + 1 - shift) << 7 | (mantissa & 7) << 4);
}

/// Byte `byte` of the bf16 of each e4m3 without its sign.
constexpr std::array<std::uint8_t, 128> bytes_of_bf16(int byte) {
  std::array<std::uint8_t, 128> bytes{};
  for (unsigned i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(bf16_of(i) >> 8 * byte);
  return bytes;
}

alignas(64) constexpr std::array<std::uint8_t, 128> kLowBytes = bytes_of_bf16(0);
alignas(64) constexpr std::array<std::uint8_t, 128> kHighBytes = bytes_of_bf16(1);

/// Numbers 0 to 7 of each 16 in one vector, 8 to 15 in another.
struct Widened {
  __m512i first, second;
};

class Widen {
 public:
  TESSERA_E4M3_TARGET Widen()
      : low_{_mm512_load_si512(kLowBytes.data()), _mm512_load_si512(kLowBytes.data() + 64)},
        high_{_mm512_load_si512(kHighBytes.data()), _mm512_load_si512(kHighBytes.data() + 64)} {}

  TESSERA_E4M3_TARGET Widened operator()(__m512i numbers) const {
    // A look-up takes seven bits of its index; sign: high | (numbers & 0x80).
    const __m512i low = _mm512_permutex2var_epi8(low_[0], numbers, low_[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(high_[0], numbers, high_[1]);
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, numbers, _mm512_set1_epi8(-128), 0xf8);
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  }

 private:
  __m512i low_[2];
  __m512i high_[2];
};

/// Of a vector of bytes from `begin` on, those before `end`.
inline __mmask64 bytes_before(std::int64_t begin, std::int64_t end) {
  return end - begin >= kGroup ? ~__mmask64{0} : (__mmask64{1} << (end - begin)) - 1;
}

TESSERA_E4M3_TARGET void widen_row(const std::byte* source, std::int64_t count, std::uint32_t* words) {
  const Widen widen;
  // Eight numbers at a time, so that either vector holds neighbours.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  auto* out = reinterpret_cast<std::uint16_t*>(words);
  if (count < 32) {
    const auto present = static_cast<__mmask32>(bytes_before(0, count));
    const __m256i numbers = _mm256_maskz_loadu_epi8(present, source);
    _mm512_storeu_si512(out, widen(_mm512_permutexvar_epi64(order, _mm512_castsi256_si512(numbers))).first);
    return;
  }
  // Whole vectors, the last of which begins within the one before: masked stores take tens of cycles on Zen
  // 4, and masked loads wait for lines of which they take nothing.
  for (std::int64_t i = 0; i < count; i += kGroup) {
    const std::int64_t first = std::min(i, count - 32);
    const std::int64_t second = std::min(i + 32, count - 32);
    const auto half = [&](std::int64_t at) TESSERA_E4M3_TARGET {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
    };
    const __m512i numbers = _mm512_inserti64x4(_mm512_castsi256_si512(half(first)), half(second), 1);
    const Widened wide = widen(_mm512_permutexvar_epi64(order, numbers));
    _mm512_storeu_si512(out + first, wide.first);
    _mm512_storeu_si512(out + second, wide.second);
  }
  if (count % 2 != 0) out[count] = 0;
}

/// E4m3DotKernels::arrange_query.
void arrange_query(std::int64_t head_dim, std::uint32_t* words) {
  for (std::int64_t i = 0; i < head_dim; i += kGroup) {
    std::uint32_t group[32];
    std::memcpy(group, words + i / 2, sizeof(group));
    for (std::int64_t eight = 0; eight < 8; ++eight)
      std::memcpy(words + i / 2 + (eight % 2 * 4 + eight / 2) * 4, group + 4 * eight, 16);
  }
}

template <int kRows>
TESSERA_E4M3_TARGET void decode_dot(const DecodeDotArguments& arguments, std::int64_t first,
                                    StreamReader& reader) {
  constexpr int kKeys = 4;
  constexpr int kParts = kRows == 4 ? 1 : 2;  // sums of a score: enough to be added to side by side
  const Widen widen;
  StreamReader ahead = reader;
  const std::int64_t past = arguments.keys.count - first;
  const std::byte* key[kKeys];
  TESSERA_UNROLL
  for (int n = 0; n < kKeys; ++n) key[n] = arguments.keys[first + (n < past ? n : past - 1)];
  __m512 sum[kKeys * kRows][kParts];
  TESSERA_UNROLL
  for (int i = 0; i < kKeys * kRows; ++i) {
    TESSERA_UNROLL
    for (int part = 0; part < kParts; ++part) sum[i][part] = _mm512_setzero_ps();
  }
  for (std::int64_t t = 0; t < arguments.head_dim; t += kGroup) {
    const __mmask64 present = bytes_before(t, arguments.head_dim);
    ahead.advance<kKeys>();
    TESSERA_UNROLL
    for (int n = 0; n < kKeys; ++n) {
      const Widened k = widen(_mm512_maskz_loadu_epi8(present, key[n] + t));
      TESSERA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const std::uint32_t* q = arguments.q + r * arguments.q_stride + t / 2;
        __m512(&score)[kParts] = sum[n * kRows + r];
        score[0] = add_dot_products(score[0], k.first, _mm512_load_si512(q));
        score[kParts - 1] = add_dot_products(score[kParts - 1], k.second, _mm512_load_si512(q + kLanes));
      }
    }
  }
  reader = ahead;
  const auto total = [&](int i) TESSERA_E4M3_TARGET {
    return kParts == 1 ? sum[i][0] : _mm512_add_ps(sum[i][0], sum[i][kParts - 1]);
  };
  float* const s = arguments.s + first * kRows;
  TESSERA_UNROLL
  for (int i = 0; i < kKeys * kRows; i += 4)
    _mm_storeu_ps(s + i, sum_lanes_of_four(total(i), total(i + 1), total(i + 2), total(i + 3)));
}

void decode_dot_of(const DecodeDotArguments& arguments, std::int64_t first, StreamReader& reader) {
  with_rows(arguments.rows, [&]<int kRows>() { decode_dot<kRows>(arguments, first, reader); });
}

/// decode_weigh for 64 dimensions from `column` on, as far as there are any. Of 16 dimensions the first four
/// have an accumulator, the next four another, and so on.
template <int kRows, bool kSkipsHidden>
TESSERA_E4M3_TARGET inline void weigh_columns(const DecodeWeighArguments& arguments, std::int64_t first,
                                              std::int64_t last, std::int64_t column, StreamReader& reader) {
  const Widen widen;
  StreamReader ahead = reader;
  const __mmask64 present = bytes_before(column, arguments.head_dim);
  float* const o = arguments.o + column;
  const std::byte* const* rows = arguments.values.rows + first;
  const std::int64_t offset = arguments.values.offset + column;
  const std::uint32_t* weights = arguments.p + first / 2 * kRows;
  __m512 sum[kRows][4];
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) sum[r][i] = _mm512_load_ps(o + r * arguments.o_stride + i * kLanes);
  }
  const auto load = [&](const std::byte* row)
                        TESSERA_E4M3_TARGET { return _mm512_maskz_loadu_epi8(present, row + offset); };
  // One row's values beside zeros, or two rows': `shift` and `mask` make the pair of weights.
  const auto add = [&](__m512i even, __m512i odd, int shift, std::uint32_t mask) TESSERA_E4M3_TARGET {
    const Widened low = widen(_mm512_unpacklo_epi8(even, odd));
    const Widened high = widen(_mm512_unpackhi_epi8(even, odd));
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const std::uint32_t pair = weights[r] >> shift & mask;
      if (kSkipsHidden && pair == 0) continue;
      const __m512i w = _mm512_set1_epi32(static_cast<int>(pair));
      sum[r][0] = add_dot_products(sum[r][0], low.first, w);
      sum[r][1] = add_dot_products(sum[r][1], low.second, w);
      sum[r][2] = add_dot_products(sum[r][2], high.first, w);
      sum[r][3] = add_dot_products(sum[r][3], high.second, w);
    }
  };
  const __m512i none = _mm512_setzero_si512();
  for (; first + 1 < last; first += 2) {
    ahead.advance<2>();
    if (kSkipsHidden && hides_a_key<kRows>(weights)) {
      add(load(rows[0]), none, 0, 0xffffu);
      add(load(rows[1]), none, 16, 0xffffu);
    } else {
      add(load(rows[0]), load(rows[1]), 0, ~0u);
    }
    rows += 2;
    weights += kRows;
  }
  if (first < last) add(load(rows[0]), none, 0, 0xffffu);
  reader = ahead;
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) _mm512_store_ps(o + r * arguments.o_stride + i * kLanes, sum[r][i]);
  }
}

void decode_weigh(const DecodeWeighArguments& arguments, std::int64_t first, std::int64_t last,
                  StreamReader& reader) {
  with_rows(arguments.rows, [&]<int kRows>() {
    for (std::int64_t column = 0; column < arguments.head_dim; column += kGroup) {
      if (arguments.skips_hidden) {
        weigh_columns<kRows, true>(arguments, first, last, column, reader);
      } else {
        weigh_columns<kRows, false>(arguments, first, last, column, reader);
      }
    }
  });
}

/// E4m3DotKernels::order_dimensions.
void order_dimensions(const float* o, std::int64_t head_dim, float* ordered) {
  for (std::int64_t i = 0; i < head_dim; ++i)
    ordered[i] = o[i / kGroup * kGroup + i % kLanes / 4 * kLanes + i % kGroup / kLanes * 4 + i % 4];
}

constexpr E4m3DotKernels kKernels = {widen_row, arrange_query, decode_dot_of, decode_weigh, order_dimensions};

}  // namespace

const E4m3DotKernels* avx512_e4m3_dot_kernels() {
  static const bool has_bytes = __builtin_cpu_supports("avx512vbmi") != 0;
  return has_bytes ? &kKernels : nullptr;
}

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

const E4m3DotKernels* avx512_e4m3_dot_kernels() { return nullptr; }

}  // namespace tessera::cpu

#endif
