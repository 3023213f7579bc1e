// Both products of attention on pairs of bf16, with the rows in the lanes: prefill-inl.h's ProductPanel with
// vdpbf16ps.
#include "backends/cpu/attention/bf16_dot.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <type_traits>

#include "backends/cpu/attention/bf16_rows.h"
#include "backends/cpu/bf16_pairs.h"
#include "backends/cpu/unroll.h"

namespace tessera::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kRowBlock = 48;
constexpr int kColumns = 8;

TESSERA_BF16_TARGET inline __m512 load_floats(const float* address) { return _mm512_load_ps(address); }

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

/// Bf16DotKernels::pair_decode_probabilities.
TESSERA_BF16_TARGET void pair_decode_probabilities(int rows, const float* p, std::int64_t keys,
                                                   std::uint32_t* pairs) {
  alignas(64) std::uint16_t turns[16];
  for (int i = 0; i < 16; ++i) {
    const int pair = i / 2 / rows;
    const int row = i / 2 % rows;
    turns[i] = static_cast<std::uint16_t>((2 * pair + i % 2) * rows + row);
  }
  const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(turns));
  for (std::int64_t i = 0; i < keys * rows; i += 16) {
    const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(load_floats(p + i)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs + i / 2), _mm256_permutexvar_epi16(order, rounded));
  }
}

template <int kRows>
TESSERA_BF16_TARGET void decode_dot(const DecodeDotArguments& arguments, std::int64_t first,
                                    StreamReader& reader) {
  constexpr int kKeys = 4;
  StreamReader ahead = reader;
  const std::int64_t q_stride = arguments.q_stride;
  const std::int64_t head_dim = arguments.head_dim;
  const std::uint32_t* const q = arguments.q;
  const std::int64_t past = arguments.keys.count - first;
  const std::byte* key[kKeys];
  TESSERA_UNROLL
  for (int n = 0; n < kKeys; ++n) {
    key[n] = arguments.keys.rows[first + (n < past ? n : past - 1)] + arguments.keys.offset;
  }
  __m512 sum[kKeys * kRows];
  TESSERA_UNROLL
  for (int i = 0; i < kKeys * kRows; ++i) sum[i] = _mm512_setzero_ps();
  const __mmask32 rest = ~(~__mmask32{0} << head_dim % 32);
  const auto add = [&](std::int64_t t, auto is_last) TESSERA_BF16_TARGET {
    __m512i row[kRows];
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) row[r] = _mm512_load_si512(q + r * q_stride + t / 2);
    if (is_last && head_dim % 32 <= 16) {
      ahead.advance<kKeys / 2>();
    } else {
      ahead.advance<kKeys>();
    }
    TESSERA_UNROLL
    for (int n = 0; n < kKeys; ++n) {
      const __m512i k =
          is_last ? _mm512_maskz_loadu_epi16(rest, key[n] + 2 * t) : _mm512_loadu_si512(key[n] + 2 * t);
      TESSERA_UNROLL
      for (int r = 0; r < kRows; ++r) sum[n * kRows + r] = add_dot_products(sum[n * kRows + r], row[r], k);
    }
  };
  std::int64_t t = 0;
  for (; t + 32 <= head_dim; t += 32) add(t, std::false_type());
  if (t < head_dim) add(t, std::true_type());
  reader = ahead;
  float* const s = arguments.s + first * kRows;
  TESSERA_UNROLL
  for (int i = 0; i < kKeys * kRows; i += 4) {
    _mm_storeu_ps(s + i, sum_lanes_of_four(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]));
  }
}

void decode_dot_of(const DecodeDotArguments& arguments, std::int64_t first, StreamReader& reader) {
  with_rows(arguments.rows, [&]<int kRows>() { decode_dot<kRows>(arguments, first, reader); });
}

/// words[w] = word w of each of 16 rows, from a 128-bit block of each.
TESSERA_BF16_TARGET inline void transpose_blocks(const std::byte* const* rows, std::int64_t offset_bytes,
                                                 __m512i (&words)[4]) {
  __m512i x[4];
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) {
    const auto block = [&](int row) TESSERA_BF16_TARGET {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset_bytes));
    };
    x[i] = _mm512_castsi128_si512(block(i));
    x[i] = _mm512_inserti32x4(x[i], block(i + 4), 1);
    x[i] = _mm512_inserti32x4(x[i], block(i + 8), 2);
    x[i] = _mm512_inserti32x4(x[i], block(i + 12), 3);
  }
  const __m512i low01 = _mm512_unpacklo_epi32(x[0], x[1]);
  const __m512i high01 = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(x[2], x[3]);
  const __m512i high23 = _mm512_unpackhi_epi32(x[2], x[3]);
  words[0] = _mm512_unpacklo_epi64(low01, low23);
  words[1] = _mm512_unpackhi_epi64(low01, low23);
  words[2] = _mm512_unpacklo_epi64(high01, high23);
  words[3] = _mm512_unpackhi_epi64(high01, high23);
}

/// Keys in the lanes, so that a score's pairs are added up in the order of product_panel.
template <int kRows>
TESSERA_BF16_TARGET void decode_dot_in_order(const DecodeDotArguments& arguments, std::int64_t first,
                                             std::int64_t chunk, FarStreamReader& reader) {
  FarStreamReader ahead = reader;
  const std::int64_t past = arguments.keys.count - first;
  const std::byte* rows[kLanes];
  for (int n = 0; n < kLanes; ++n) rows[n] = arguments.keys[first + (n < past ? n : past - 1)];
  const std::int64_t words = arguments.head_dim / 2;
  __m512 sum[kRows];
  for (std::int64_t begin = 0; begin < words; begin += chunk) {
    const std::int64_t end = begin + chunk < words ? begin + chunk : words;
    __m512 part[kRows];
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) part[r] = _mm512_setzero_ps();
    for (std::int64_t t = begin; t < end; t += 4) {
      ahead.advance<4>();
      __m512i k[4];
      transpose_blocks(rows, 4 * t, k);
      TESSERA_UNROLL
      for (int w = 0; w < 4; ++w) {
        TESSERA_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const std::uint32_t pair = arguments.q[r * arguments.q_stride + t + w];
          part[r] = add_dot_products(part[r], _mm512_set1_epi32(static_cast<int>(pair)), k[w]);
        }
      }
    }
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) sum[r] = begin == 0 ? part[r] : _mm512_add_ps(sum[r], part[r]);
  }
  reader = ahead;
  alignas(64) float scores[kRows][kLanes];
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) _mm512_store_ps(scores[r], sum[r]);
  float* const s = arguments.s + first * kRows;
  for (int n = 0; n < kLanes; ++n) {
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) s[n * kRows + r] = scores[r][n];
  }
}

void decode_dot_in_order_of(const DecodeDotArguments& arguments, std::int64_t first, std::int64_t chunk,
                            FarStreamReader& reader) {
  with_rows(arguments.rows,
            [&]<int kRows>() { decode_dot_in_order<kRows>(arguments, first, chunk, reader); });
}

/// sum += the products of two rows' values (of one, if `odd` is null) and a pair of weights per row.
template <int kRows, int kGroups, bool kSkipsHidden>
TESSERA_BF16_TARGET inline void add_pair(const std::byte* even, const std::byte* odd,
                                         const std::uint32_t* weights, std::uint32_t mask, int shift,
                                         __mmask32 present, __m512 (&sum)[kRows][2 * kGroups]) {
  __m512i pairs[2 * kGroups];
  TESSERA_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    const auto load = [&](const std::byte* row) TESSERA_BF16_TARGET {
      return kGroups == 1 ? _mm512_maskz_loadu_epi16(present, row) : _mm512_loadu_si512(row + 64 * g);
    };
    const __m512i a = load(even);
    const __m512i b = odd == nullptr ? _mm512_setzero_si512() : load(odd);
    pairs[2 * g] = _mm512_unpacklo_epi16(a, b);
    pairs[2 * g + 1] = _mm512_unpackhi_epi16(a, b);
  }
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    __m512i w;
    if (odd == nullptr) {
      const std::uint32_t weight = weights[r] >> shift & mask;
      if (kSkipsHidden && weight == 0) continue;
      w = _mm512_set1_epi32(static_cast<int>(weight));
    } else {
      w = _mm512_set1_epi32(static_cast<int>(weights[r]));
    }
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kGroups; ++i) sum[r][i] = add_dot_products(sum[r][i], pairs[i], w);
  }
}

/// decode_weigh for 32 * kGroups dimensions from `column` on, of fewer if kGroups is 1. A group of 32
/// dimensions has two accumulators: the instructions that pair two rows leave each fourth four dimensions to
/// the one and the next four to the other.
template <int kRows, int kGroups, bool kSkipsHidden, class Reader>
TESSERA_BF16_TARGET inline void weigh_columns(const DecodeWeighArguments& arguments, std::int64_t first,
                                              std::int64_t last, std::int64_t column, Reader& reader) {
  Reader ahead = reader;
  const std::int64_t missing = column + 32 - arguments.head_dim;
  const __mmask32 present = missing > 0 ? ~__mmask32{0} >> missing : ~__mmask32{0};
  const std::int64_t o_stride = arguments.o_stride;
  float* const o = arguments.o + column;
  const std::byte* const* rows = arguments.values.rows + first;
  const std::int64_t offset = arguments.values.offset + 2 * column;
  const std::uint32_t* weights = arguments.p + first / 2 * kRows;
  __m512 sum[kRows][2 * kGroups];
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kGroups; ++i) sum[r][i] = load_floats(o + r * o_stride + i * kLanes);
  }
  const std::byte* const* const rows_end = rows + (last - first);
  for (; rows + 1 < rows_end; rows += 2) {
    if (kGroups == 1 && missing >= 16) {
      ahead.template advance<1>();
    } else {
      ahead.template advance<2 * kGroups>();
    }
    if (kSkipsHidden && hides_a_key<kRows>(weights)) {
      add_pair<kRows, kGroups, true>(rows[0] + offset, nullptr, weights, 0xffffu, 0, present, sum);
      add_pair<kRows, kGroups, true>(rows[1] + offset, nullptr, weights, 0xffffu, 16, present, sum);
    } else {
      add_pair<kRows, kGroups, false>(rows[0] + offset, rows[1] + offset, weights, 0, 0, present, sum);
    }
    weights += kRows;
  }
  if (rows < rows_end) {
    add_pair<kRows, kGroups, kSkipsHidden>(rows[0] + offset, nullptr, weights, 0xffffu, 0, present, sum);
  }
  reader = ahead;
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kGroups; ++i) _mm512_store_ps(o + r * o_stride + i * kLanes, sum[r][i]);
  }
}

template <int kRows, bool kSkipsHidden, class Reader>
TESSERA_BF16_TARGET void decode_weigh(const DecodeWeighArguments& arguments, std::int64_t first,
                                      std::int64_t last, Reader& reader) {
  std::int64_t column = 0;
  for (; column + 64 <= arguments.head_dim; column += 64) {
    weigh_columns<kRows, 2, kSkipsHidden>(arguments, first, last, column, reader);
  }
  for (; column < arguments.head_dim; column += 32) {
    weigh_columns<kRows, 1, kSkipsHidden>(arguments, first, last, column, reader);
  }
}

template <int kRows, class Reader>
void decode_weigh_of(const DecodeWeighArguments& arguments, std::int64_t first, std::int64_t last,
                     Reader& reader) {
  if (std::is_same_v<Reader, StreamReader> && arguments.skips_hidden) {
    decode_weigh<kRows, true>(arguments, first, last, reader);
  } else {
    decode_weigh<kRows, false>(arguments, first, last, reader);
  }
}

template <class Reader>
void decode_weigh_rows(const DecodeWeighArguments& arguments, std::int64_t first, std::int64_t last,
                       Reader& reader) {
  with_rows(arguments.rows, [&]<int kRows>() { decode_weigh_of<kRows>(arguments, first, last, reader); });
}

/// Of each 32 dimensions weigh_columns holds the first four of every eight in one vector, the last four in
/// another.
void order_dimensions(const float* o, std::int64_t head_dim, float* ordered) {
  for (std::int64_t group = 0; group < head_dim; group += 32) {
    for (std::int64_t part = 0; part < 8; ++part) {
      const std::int64_t place = group + part / 2 * 4 + part % 2 * 16;
      for (std::int64_t i = 0; i < 4; ++i) ordered[group + 4 * part + i] = o[place + i];
    }
  }
}

constexpr Bf16DotKernels kKernels = {product_of,
                                     pair_probabilities,
                                     pair_decode_probabilities,
                                     decode_dot_of,
                                     decode_weigh_rows<StreamReader>,
                                     decode_dot_in_order_of,
                                     decode_weigh_rows<FarStreamReader>,
                                     order_dimensions};

}  // namespace

const Bf16DotKernels* avx512_bf16_dot_kernels() { return &kKernels; }

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

const Bf16DotKernels* avx512_bf16_dot_kernels() { return nullptr; }

}  // namespace tessera::cpu

#endif
