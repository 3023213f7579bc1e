#pragma once

#include "sm90/attention_masks.cuh"
#include "sm90/attention_modifier.cuh"

// What happens to a warpgroup's products before the softmax: scale, softcap, ALiBi, masks
// (common/score_terms.cuh says the same of one score). Compiled in as TESSERA_TERMS says, each in as few
// instructions a score as may be, since the softmax has to fit beside the products.

namespace tessera::kernels {

/// Whether scores are in natural units after apply_terms; else they are still products.
constexpr bool kNaturalScores = (kTerms & ~kTermBooleanMask) != 0;

/// What the scores of all tiles have in common.
struct ScoreFactors {
  float log2;              // scores after apply_terms to units of log2
  float inner;             // softcap: products to tanh's argument in units of kTanhUnit
  float tanh[kTanhTerms];  // coefficients for that, times softcap
};

TESSERA_DEVICE ScoreFactors score_factors(const AttentionParams& p) {
  ScoreFactors f = {};
  f.log2 = kNaturalScores ? kLog2E : p.softmax_scale * kLog2E;
  if (kTerms & kTermSoftcap) {
    f.inner = p.softmax_scale / (p.softcap * kTanhUnit);
    float factor = p.softcap * kTanhUnit;
    TESSERA_UNROLL
    for (int i = 0; i < kTanhTerms; ++i) {
      f.tanh[i] = tanh_coefficient(i) * factor;
      factor *= kTanhUnit * kTanhUnit;
    }
  }
  return f;
}

/// scores = softcap tanh(softmax_scale scores / softcap). The polynomial, unless some score of the warp is
/// beyond it.
TESSERA_DEVICE void cap_scores(const AttentionParams& p, const ScoreFactors& f, float scale,
                               float (&scores)[kBlockN / 2]) {
  unsigned bits = 0;
  const float inner = f.inner * scale;
  TESSERA_UNROLL
  for (int i = 0; i < kBlockN / 2; ++i) {
    scores[i] *= inner;
    bits |= bits_of_float(scores[i]);
  }
  if (!warp_any((bits & kBeyondPolynomial) != 0)) {
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 2; ++i) {
      const float square = scores[i] * scores[i];
      float quotient = f.tanh[kTanhTerms - 1];
      TESSERA_UNROLL
      for (int n = kTanhTerms - 2; n >= 0; --n) quotient = fmaf(quotient, square, f.tanh[n]);
      scores[i] *= quotient;
    }
  } else {
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 2; ++i)
      scores[i] = p.softcap * tanh_without_branches(scores[i] * kTanhUnit);
  }
}

/// scores = scale scores + bias(r, i, e) + the additive mask's terms.
template <class Bias>
TESSERA_DEVICE void add_to_scores(const AttentionParams& p, const TileSlot& slot, const TileView& t,
                                  int key_begin, unsigned mask, float scale, float (&scores)[kBlockN / 2],
                                  Bias bias) {
  const auto add = [&](int r, int i, float low, float high) {
    float* pair = scores + 4 * i + 2 * r;
    pair[0] = fmaf(pair[0], scale, low);
    pair[1] = fmaf(pair[1], scale, high);
  };
  if constexpr ((kTerms & kTermAdditiveMask) != 0) {
    for_mask<kTermAdditiveMask>(
        p, p.additive_mask, slot, t, key_begin, mask,
        [&](int r, int i, float low, float high) { add(r, i, low + bias(r, i, 0), high + bias(r, i, 1)); });
  } else {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      TESSERA_UNROLL
      for (int i = 0; i < kBlockN / 8; ++i) add(r, i, bias(r, i, 0), bias(r, i, 1));
    }
  }
}

/// ALiBi's of the thread's row r.
TESSERA_DEVICE float slope_of_row(const AttentionParams& p, const TileSlot& slot, int r) {
  if (!kPacks) return slot.slope;
  const QueryTile& tile = slot.tile;
  return p.alibi_slopes[tile.b * p.alibi_batch_stride + row_of_thread(p, tile, r).h];
}

/// ALiBi's biases, and all else that add_to_scores adds.
TESSERA_DEVICE void add_distances(const AttentionParams& p, const TileSlot& slot, const TileView& t,
                                  int key_begin, unsigned mask, float scale, float (&scores)[kBlockN / 2]) {
  const int first_key = key_begin + thread_x() % 4 * 2;
  float slope[2];
  float distance[2];  // of the thread's rows to its first key: whole numbers, whose differences are exact
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    slope[r] = slope_of_row(p, slot, r);
    distance[r] = static_cast<float>(t.query_of_thread(p, r) + t.shift - first_key);
  }
  // With all keys on one side of the diagonal and a tile away from it the bias is linear in the key. Nearer
  // ones would lose bits of their small terms.
  const bool is_left = t.first_query + t.shift - key_begin >= 2 * kBlockN;
  const bool is_right = key_begin - (t.last_query + t.shift) >= kBlockN;
  if (is_left || is_right) {
    const float step[2] = {is_left ? slope[0] : -slope[0], is_left ? slope[1] : -slope[1]};
    const float start[2] = {-step[0] * distance[0], -step[1] * distance[1]};
    add_to_scores(p, slot, t, key_begin, mask, scale, scores, [&](int r, int i, int e) {
      return fmaf(step[r], static_cast<float>(8 * i + e), start[r]);
    });
  } else {
    add_to_scores(p, slot, t, key_begin, mask, scale, scores, [&](int r, int i, int e) {
      return -slope[r] * fabsf(distance[r] - static_cast<float>(8 * i + e));
    });
  }
}

/// Applies the terms to a tile's products. The masks are those of the query tile in `slot`; `mask` is where
/// the copied one lies.
TESSERA_DEVICE void apply_terms(const AttentionParams& p, const ScoreFactors& f, const TileSlot& slot,
                                const TileView& t, int key_begin, unsigned mask,
                                float (&scores)[kBlockN / 2]) {
  if constexpr ((kTerms & kTermSoftcap) != 0) cap_scores(p, f, t.score_scale, scores);
  const float scale = kTerms & kTermSoftcap ? 1.0f : p.softmax_scale * t.score_scale;
  if constexpr ((kTerms & kTermAlibi) != 0) {
    add_distances(p, slot, t, key_begin, mask, scale, scores);
  } else if constexpr ((kTerms & kTermAdditiveMask) != 0) {
    add_to_scores(p, slot, t, key_begin, mask, scale, scores, [](int, int, int) { return 0.0f; });
  } else if constexpr (kNaturalScores && !kScalesInModifier && (kTerms & kTermSoftcap) == 0) {
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 2; ++i) scores[i] *= scale;
  }
  if constexpr ((kTerms & kTermBooleanMask) != 0) {
    for_mask<kTermBooleanMask>(p, p.boolean_mask, slot, t, key_begin, mask,
                               [&](int r, int i, unsigned low, unsigned high) {
                                 float* pair = scores + 4 * i + 2 * r;
                                 if (low == 0) pair[0] = -infinity();
                                 if (high == 0) pair[1] = -infinity();
                               });
  }
}

}  // namespace tessera::kernels
