#pragma once

#include "common/attention_params.h"
#include "common/types.cuh"

// What happens to a score between q k^T and the softmax: the device's side of ScoreTerms.

namespace tessera::kernels {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

/// One sequence of the batch and its diagonal.
struct Sequence {
  int64 q_begin;   // first query among the ragged tokens, 0 if dense
  int64 kv_begin;  // likewise for keys
  int len_q;
  int len_kv;
  int shift;  // query i is at key position i + shift
};

TESSERA_DEVICE Sequence load_sequence(const AttentionParams& p, int b) {
  Sequence s{0, 0, p.seq_len_q, p.seq_len_kv, 0};
  if (p.cu_seqlens_q != nullptr) {
    s.q_begin = p.cu_seqlens_q[b];
    s.len_q = p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b];
    if (s.len_q < p.fewest_q || (p.most_q > 0 && s.len_q > p.most_q)) return {s.q_begin, 0, 0, 0, 0};
  }
  if (p.cu_seqlens_kv != nullptr) {
    s.kv_begin = p.cu_seqlens_kv[b];
    s.len_kv = p.cu_seqlens_kv[b + 1] - p.cu_seqlens_kv[b];
  } else if (p.seq_lens_kv != nullptr) {
    s.len_kv = p.seq_lens_kv[b];
  }
  s.shift = p.top_left ? 0 : s.len_kv - s.len_q;
  return s;
}

/// Keys [begin, end) that query i sees by the diagonal mask.
struct KeyRange {
  int begin;
  int end;
};

TESSERA_DEVICE KeyRange keys_of_query(const AttentionParams& p, const Sequence& s, int i) {
  KeyRange r{0, s.len_kv};
  if (p.window_left < kUnlimitedWindow) r.begin = maximum(0, i + s.shift - p.window_left);
  if (p.window_right < kUnlimitedWindow) r.end = minimum(s.len_kv, i + s.shift + p.window_right + 1);
  return r;
}

/// Keys [begin, end) that a split has of a sequence.
TESSERA_DEVICE KeyRange keys_of_split(const AttentionParams& p, const Sequence& s, int split) {
  const int begin = p.num_splits > 1 ? split * p.keys_per_split : 0;
  return {begin, p.num_splits > 1 ? minimum(begin + p.keys_per_split, s.len_kv) : s.len_kv};
}

/// Splits of a sequence that have partial results.
TESSERA_DEVICE int splits_of(const AttentionParams& p, const Sequence& s) {
  if (!p.omits_splits) return p.num_splits;
  return maximum((s.len_kv + p.keys_per_split - 1) / p.keys_per_split, 1);
}

/// A packed row's query and head: with pack > 1 the rows of a tile are (query, head of the group) pairs.
struct RowIndex {
  int i;
  int h;
};

TESSERA_DEVICE RowIndex packed_row_index(int row, int pack, int first_head) {
  return pack == 1 ? RowIndex{row, first_head} : RowIndex{row / pack, first_head + row % pack};
}

/// kMaskDType: an additive mask's, or -1 to look at run time.
template <int kMaskDType>
TESSERA_DEVICE float load_mask(const MaskArgument& m, int64 offset) {
  const int dtype = kMaskDType >= 0 ? kMaskDType : m.dtype;
  if (dtype == kMaskF32) return static_cast<const float*>(m.data)[offset];
  if (dtype == kMaskF16) return to_float(static_cast<const f16*>(m.data)[offset]);
  return to_float(static_cast<const bf16*>(m.data)[offset]);
}

TESSERA_DEVICE int64 mask_offset(const MaskArgument& m, int b, int h, int i, int j) {
  return b * m.batch_stride + h * m.head_stride + i * m.q_stride + j * m.kv_stride;
}

/// A mask's element or a score that is finite in units of log2 if it is at all: masks hide by their type's
/// lowest number, too, and rows that see nothing else weigh those keys alike.
constexpr float kLowestTerm = -2.3e38f;

/// x or kLowestTerm, whichever is larger; NaN stays, and infinity may become it.
TESSERA_DEVICE float lifted_term(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float lifted;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(lifted) : "f"(x), "f"(kLowestTerm));
  return lifted;
#else
  return fmaf(x, 0.0f, fmaxf(x, kLowestTerm));  // a comparison keeps more registers of AMD's kernels busy
#endif
}

/// tanh(x) to a few units in the last place, without tanhf's branches: a tile's scores are unrolled, and the
/// run-time compiler took seconds over them.
TESSERA_DEVICE float tanh_without_branches(float x) {
  const float magnitude = x < 0.0f ? -x : x;
#if defined(__CUDA_ARCH__)
  const float large = 1.0f - __fdividef(2.0f, expf(2.0f * magnitude) + 1.0f);
#else
  const float large = 1.0f - 2.0f / (expf(2.0f * magnitude) + 1.0f);
#endif
  // (tanh(x) - x) / x^3 as a polynomial in x^2, fitted at Chebyshev's points of [0, 0.55^2].
  const float square = x * x;
  float tail = -0.006615746766f;
  tail = tail * square + 0.02131273970f;
  tail = tail * square - 0.05391006544f;
  tail = tail * square + 0.1333311796f;
  tail = tail * square - 0.3333333135f;
  const float small = tail * square * x + x;
  return magnitude < 0.55f ? small : x < 0.0f ? -large : large;
}

// tanh(x) = x P(x^2) to 6 units in the last place for |x| <= kMostPolynomial: interpolated at Chebyshev's
// points. It is taken of numbers in units in which that is 2, so that larger ones are those with the top bit
// of the exponent, as infinities and NaN are.
constexpr float kMostPolynomial = 0.9f;
constexpr int kTanhTerms = 6;
constexpr float kTanhUnit = kMostPolynomial / 2;
constexpr float kPerTanhUnit = 1 / kTanhUnit;
constexpr unsigned kBeyondPolynomial = 0x40000000u;

/// Of x^(2 i + 1).
TESSERA_DEVICE float tanh_coefficient(int i) {
  constexpr float kCoefficients[kTanhTerms] = {0.9999997949081098f,   -0.33331501982250256f,
                                               0.13306333351253713f,  -0.052475702201948304f,
                                               0.017971425547069785f, -0.003669523389086815f};
  return kCoefficients[i];
}

/// tanh(kTanhUnit x) where no bit of kBeyondPolynomial is set in x.
TESSERA_DEVICE float small_tanh(float x) {
  float coefficients[kTanhTerms];
  float factor = kTanhUnit;
  TESSERA_UNROLL
  for (int i = 0; i < kTanhTerms; ++i) {
    coefficients[i] = tanh_coefficient(i) * factor;
    factor *= kTanhUnit * kTanhUnit;
  }
  const float square = x * x;
  float sum = coefficients[kTanhTerms - 1];
  TESSERA_UNROLL
  for (int i = kTanhTerms - 2; i >= 0; --i) sum = fmaf(sum, square, coefficients[i]);
  return sum * x;
}

/// Softcap of a tile's products: from units of kTanhUnit softcap / softmax_scale to scores in units of log2,
/// in place. By the polynomial, unless some number of the warp is beyond it. products.for_each(f) calls
/// f(product) for those of the thread.
template <class Products>
TESSERA_DEVICE void cap_products(const AttentionParams& p, const Products& products) {
  const float outer = p.softcap * kLog2E;
  unsigned bits = 0;
  products.for_each([&](float& product) { bits |= bits_of_float(product); });
  if (!warp_any((bits & kBeyondPolynomial) != 0)) {
    products.for_each([&](float& product) { product = outer * small_tanh(product); });
  } else {
    products.for_each([&](float& product) { product = outer * tanh_without_branches(product * kTanhUnit); });
  }
}

}  // namespace tessera::kernels

#ifdef TESSERA_MODIFIER
#include "common/score_modifier.cuh"
#endif

namespace tessera::kernels {

/// The score in natural units after softcap, ALiBi, masks and the modifier; -inf if a mask hides it. product
/// = q . k.
template <int kTerms, int kMaskDType>
TESSERA_DEVICE float modified_score(const AttentionParams& p, const Sequence& s, float product, int b, int h,
                                    int i, int j) {
  float score = product * p.softmax_scale;
  if ((kTerms & kTermSoftcap) && p.softcap > 0.0f)
    score = p.softcap * tanh_without_branches(score * (1.0f / p.softcap));
  if ((kTerms & kTermAlibi) && p.alibi_slopes != nullptr) {
    const int distance = i + s.shift - j;
    score -= p.alibi_slopes[b * p.alibi_batch_stride + h] *
             static_cast<float>(distance < 0 ? -distance : distance);
  }
  if ((kTerms & kTermAdditiveMask) && p.additive_mask.data != nullptr) {
    const float term = load_mask<kMaskDType>(p.additive_mask, mask_offset(p.additive_mask, b, h, i, j));
    // A hidden key stays hidden even if its product is NaN.
    score = term == -infinity() ? term : score + lifted_term(term);
#ifdef TESSERA_MODIFIER
    if (term == -infinity()) return term;
#endif
  }
#ifdef TESSERA_MODIFIER
  score = apply_modifier(p.modifier, modifier_place(p, s, b, h), score, i, j);
  if (score < kLowestTerm && score != -infinity()) score = kLowestTerm;
#endif
  if ((kTerms & kTermBooleanMask) && p.boolean_mask.data != nullptr) {
    const unsigned char visible =
        static_cast<const unsigned char*>(p.boolean_mask.data)[mask_offset(p.boolean_mask, b, h, i, j)];
    if (as_word(visible) == 0) score = -infinity();
  }
  return score;
}

/// A score in units of log2, and ALiBi's bias of a key that is `distance` before the query. slope: in units
/// of log2.
TESSERA_DEVICE float add_bias(float score, float slope, float distance) {
  return fmaf(-slope, fabsf(distance), score);
}

/// A score in units of log2, and an additive mask's element. A hidden key stays hidden even if its product is
/// NaN.
TESSERA_DEVICE float add_element(float score, float element) {
  return element == -infinity() ? element : fmaf(lifted_term(element), kLog2E, score);
}

/// Whether the modifier's mask lets query i see key j.
TESSERA_DEVICE bool modifier_shows([[maybe_unused]] const AttentionParams& p,
                                   [[maybe_unused]] const Sequence& s, [[maybe_unused]] int b,
                                   [[maybe_unused]] int h, [[maybe_unused]] int i, [[maybe_unused]] int j) {
#ifdef TESSERA_MODIFIER
  const ModifierArguments& m = p.modifier;
  const ModifierPlace place = modifier_place(p, s, b, h);
  const ModifierUniform uniform = modifier_uniform(m, place, modifier_stored_uniform(m, place));
  return modifier_visible(m, uniform, modifier_row(m, uniform, i, modifier_stored_row(m, uniform, i)),
                          modifier_key(m, uniform, j, 0, modifier_stored_key(m, uniform, j, 0)));
#else
  return true;
#endif
}

/// Row t of sequence b's keys or values for kv head `head`.
template <class T>
TESSERA_DEVICE const T* kv_row(const AttentionParams& p, const TensorArgument& x, const Sequence& s, int b,
                               int head, int t) {
  const T* data = static_cast<const T*>(x.data) + head * x.head_stride;
  if (p.block_table != nullptr) {
    const int page = p.block_table[b * p.block_table_stride + t / p.page_size];
    return data + page * x.batch_stride + (t % p.page_size) * x.seq_stride;
  }
  const int64 batch_offset = p.cu_seqlens_kv != nullptr ? 0 : b * x.batch_stride;
  return data + batch_offset + (s.kv_begin + t) * x.seq_stride;
}

/// Whether stored numbers of type T are multiplied by AttentionParams::kv_scales.
template <class T>
struct HasKvScales {
  static constexpr bool kValue = false;
};
template <>
struct HasKvScales<f8e4m3> {
  static constexpr bool kValue = true;
};

/// The scale of key or value t of sequence b for kv head `head`. scales: kv_scales' k or v.
TESSERA_DEVICE float kv_scale(const AttentionParams& p, const float* scales, int b, int head, int t) {
  if (scales == nullptr) return 1.0f;
  int64 outer = p.cu_seqlens_kv != nullptr ? 0 : b;
  if (p.block_table != nullptr) outer = p.block_table[b * p.block_table_stride + t / p.page_size];
  return scales[outer * p.kv_scales.batch_stride + head * p.kv_scales.head_stride];
}

/// kv_scale where all keys of a sequence and head have the same.
TESSERA_DEVICE float scale_of_head(const AttentionParams& p, const float* scales, int b, int head) {
  if (scales == nullptr) return 1.0f;
  const int64 sequence = p.cu_seqlens_kv != nullptr || p.block_table != nullptr ? 0 : b;
  return scales[sequence * p.kv_scales.batch_stride + head * p.kv_scales.head_stride];
}

/// The scale of the queries of sequence b, of the heads that read kv head `head`.
TESSERA_DEVICE float q_scale(const AttentionParams& p, int b, int head) {
  return p.q_scales.q == nullptr ? 1.0f
                                 : p.q_scales.q[b * p.q_scales.batch_stride + head * p.q_scales.head_stride];
}

/// What products of stored queries and keys are multiplied by, where all keys of a sequence and head have the
/// same scale.
TESSERA_DEVICE float product_scale_of_head(const AttentionParams& p, int b, int head) {
  return scale_of_head(p, p.kv_scales.k, b, head) * q_scale(p, b, head);
}

/// Row of query i of sequence b and head h in q or o.
TESSERA_DEVICE int64 query_offset(const AttentionParams& p, const TensorArgument& x, const Sequence& s, int b,
                                  int h, int i) {
  const int64 batch_offset = p.cu_seqlens_q != nullptr ? 0 : b * x.batch_stride;
  return batch_offset + (s.q_begin + i) * x.seq_stride + h * x.head_stride;
}

TESSERA_DEVICE int64 lse_offset(const AttentionParams& p, const Sequence& s, int b, int h, int i) {
  const int64 batch_offset = p.cu_seqlens_q != nullptr ? 0 : b * p.lse.batch_stride;
  return batch_offset + h * p.lse.head_stride + (s.q_begin + i) * p.lse.seq_stride;
}

/// Where the partial results of a row stand: (b, h, i) in the padded (batch, num_heads, seq_len_q).
TESSERA_DEVICE int64 partial_row(const AttentionParams& p, int b, int h, int i) {
  return (static_cast<int64>(b) * p.num_heads + h) * p.seq_len_q + i;
}
/// The same of one of the splits of the keys.
TESSERA_DEVICE int64 split_row(const AttentionParams& p, int split, int b, int h, int i) {
  return static_cast<int64>(split) * p.batch * p.num_heads * p.seq_len_q + partial_row(p, b, h, i);
}

}  // namespace tessera::kernels
