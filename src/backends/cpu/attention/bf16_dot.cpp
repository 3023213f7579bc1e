// Both products of attention on pairs of bf16, with the rows in the lanes: prefill-inl.h's ProductPanel with
// vdpbf16ps, which Highway does not offer. c += a.low b.low + a.high b.high for each 32-bit word, in fp32.
#include "backends/cpu/attention/bf16_dot.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "backends/cpu/attention/unroll.h"

#define TESSERA_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace tessera::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kRowBlock = 48;
constexpr int kColumns = 8;

TESSERA_BF16_TARGET inline __m512 load_floats(const float* address) { return _mm512_load_ps(address); }

TESSERA_BF16_TARGET inline __m512 add_dot_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

template <int kVectors, bool kAdjacent>
TESSERA_BF16_TARGET inline void product_panel(const ProductArguments& arguments, std::int64_t column,
                                              std::int64_t first, std::int64_t last) {
  const std::int64_t b_column = kAdjacent ? 1 : arguments.b_column;
  const std::int64_t b_depth = kAdjacent ? arguments.b_depth : 1;
  const std::uint32_t* a = arguments.a + first * kRowBlock;
  const std::uint32_t* b = arguments.b + column * b_column + first * b_depth;
  float* c = arguments.c + column * kRowBlock;
  __m512 sum[kColumns][kVectors];
  TESSERA_UNROLL
  for (int j = 0; j < kColumns; ++j) {
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) sum[j][i] = _mm512_setzero_ps();
  }
  for (std::int64_t t = first; t < last; ++t) {
    __m512i rows[kVectors];
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) rows[i] = _mm512_load_si512(a + i * kLanes);
    TESSERA_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const __m512i value = _mm512_set1_epi32(static_cast<int>(b[j * b_column]));
      TESSERA_UNROLL
      for (int i = 0; i < kVectors; ++i) sum[j][i] = add_dot_products(sum[j][i], rows[i], value);
    }
    a += kRowBlock;
    b += b_depth;
  }
  const bool adds = arguments.factor != nullptr || first > 0;
  TESSERA_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const __m512 factor = arguments.factor == nullptr || first > 0
                              ? _mm512_set1_ps(1.0f)
                              : load_floats(arguments.factor + i * kLanes);
    TESSERA_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      float* at = c + j * kRowBlock + i * kLanes;
      _mm512_store_ps(at, adds ? _mm512_fmadd_ps(load_floats(at), factor, sum[j][i]) : sum[j][i]);
    }
  }
}

template <int kVectors, bool kAdjacent>
TESSERA_BF16_TARGET inline void product_panels(const ProductArguments& arguments) {
  for (std::int64_t j = 0; j < arguments.columns; j += kColumns) {
    for (std::int64_t t = 0; t < arguments.depth; t += arguments.chunk) {
      const std::int64_t end = t + arguments.chunk < arguments.depth ? t + arguments.chunk : arguments.depth;
      product_panel<kVectors, kAdjacent>(arguments, j, t, end);
    }
  }
}

template <int kVectors>
TESSERA_BF16_TARGET void product(const ProductArguments& arguments) {
  if (arguments.b_column == 1) {
    product_panels<kVectors, true>(arguments);
  } else {
    product_panels<kVectors, false>(arguments);
  }
}

void product_of(int vectors, const ProductArguments& arguments) {
  switch (vectors) {
    case 1:
      return product<1>(arguments);
    case 2:
      return product<2>(arguments);
    default:
      return product<3>(arguments);
  }
}

TESSERA_BF16_TARGET void pair_probabilities(int vectors, const float* p, std::int64_t keys,
                                            std::uint32_t* pairs) {
  // The conversion of two vectors puts the first one's bf16 into the lower half; pairing takes turns.
  alignas(64) std::uint16_t turns[32];
  for (int i = 0; i < 32; ++i) turns[i] = static_cast<std::uint16_t>(i / 2 + 16 * (i % 2));
  const __m512i order = _mm512_load_si512(turns);
  for (std::int64_t n = 0; n < keys; n += 2) {
    for (int i = 0; i < vectors; ++i) {
      const __m512 even = load_floats(p + n * kRowBlock + i * kLanes);
      const __m512 odd = load_floats(p + (n + 1) * kRowBlock + i * kLanes);
      const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
      _mm512_store_si512(pairs + n / 2 * kRowBlock + i * kLanes, _mm512_permutexvar_epi16(order, both));
    }
  }
}

constexpr Bf16DotKernels kKernels = {product_of, pair_probabilities};

}  // namespace

const Bf16DotKernels* avx512_bf16_dot_kernels() { return &kKernels; }

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

const Bf16DotKernels* avx512_bf16_dot_kernels() { return nullptr; }

}  // namespace tessera::cpu

#endif
