#pragma once

#include "common/attention_block.cuh"
#include "common/attention_constants.cuh"
#include "sm80/ptx.cuh"

// The terms and the modifier between a warp's products and their softmax. Its scores are accumulators of
// m16n8 products, scores[m][n][e]: the warp's rows m * 16 + lane / 4 (e = 0, 1) and 8 further (e = 2, 3),
// keys n * 8 + lane % 4 * 2 + e % 2 of the tile.

namespace tessera::kernels {

#ifndef TESSERA_INVARIANT
#define TESSERA_INVARIANT 0
#endif
constexpr bool kInvariant = TESSERA_INVARIANT != 0;

/// Of the thread's row r (of two, 8 apart) of row tile m.
TESSERA_DEVICE RowIndex index_of_row(const BlockWork& w, int warp_row, int m, int r) {
  return row_index(w, minimum(warp_row + m * 16 + r * 8 + thread_x() % 32 / 4, w.num_rows - 1));
}

/// Calls use(score, the row's query and head, key) for a warp's scores.
template <int kRowTiles, int kScoreTiles, class Use>
TESSERA_DEVICE void for_scores(const BlockWork& w, int warp_row, int key_begin,
                               float (&scores)[kRowTiles][kScoreTiles][4], Use use) {
  const int lane = thread_x() % 32;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const RowIndex index = index_of_row(w, warp_row, m, r);
      TESSERA_UNROLL
      for (int n = 0; n < kScoreTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) use(scores[m][n][2 * r + e], index, key_begin + n * 8 + lane % 4 * 2 + e);
      }
    }
  }
}

/// A warp's scores as cap_products() takes them.
template <int kRowTiles, int kScoreTiles>
struct WarpScores {
  float (&scores)[kRowTiles][kScoreTiles][4];

  template <class F>
  TESSERA_DEVICE void for_each(F f) const {
    TESSERA_UNROLL
    for (int i = 0; i < kRowTiles * kScoreTiles * 4; ++i)
      f(scores[i / 4 / kScoreTiles][i / 4 % kScoreTiles][i % 4]);
  }
};

/// softcap tanh(softmax_scale product / softcap) in units of log2.
template <int kRowTiles, int kScoreTiles>
TESSERA_DEVICE void cap_scores(const AttentionParams& p, float (&scores)[kRowTiles][kScoreTiles][4]) {
  const WarpScores<kRowTiles, kScoreTiles> all{scores};
  const float inner = p.softmax_scale / p.softcap * kPerTanhUnit;
  all.for_each([&](float& score) { score *= inner; });
  cap_products(p, all);
}

/// How a mask's elements lie for a warp's scores: anyhow; a row's side by side, none of them behind the last
/// key; and two neighbours each where one load brings both.
enum MaskLayout { kAnyLayout, kPlainLayout, kPairedLayout };

/// A mask's elements for a row of a warp's scores, as they are stored: to convert them is to wait for them.
template <class Element, int kScoreTiles>
struct RowElements {
  Element keys[2 * kScoreTiles];

  /// Of keys from key_begin on, of which those behind the last one, of which there is one, are the last
  /// one's: a branch around them would let each load wait for the one before.
  template <int kLayout>
  TESSERA_DEVICE void load(const MaskArgument& mask, const BlockWork& w, const RowIndex& index,
                           int key_begin) {
    struct alignas(2 * sizeof(Element)) Pair {
      Element low, high;
    };
    const int first_key = key_begin + thread_x() % 4 * 2;
    const Element* row = static_cast<const Element*>(mask.data) + mask_offset(mask, w.b, index.h, index.i, 0);
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kScoreTiles; i += 2) {
      if constexpr (kLayout == kPairedLayout) {
        const Pair pair = *reinterpret_cast<const Pair*>(row + first_key + i * 4);
        keys[i] = pair.low;
        keys[i + 1] = pair.high;
      } else {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int key = first_key + i * 4 + e;
          keys[i + e] =
              kLayout == kPlainLayout ? row[key] : row[minimum(key, w.sequence.len_kv - 1) * mask.kv_stride];
        }
      }
    }
  }
};

template <int kMaskDType>
struct MaskElement {
  using Type = f32;
};
template <>
struct MaskElement<kMaskF16> {
  using Type = f16;
};
template <>
struct MaskElement<kMaskBF16> {
  using Type = bf16;
};

/// What of the masks a warp's scores meet: rows[m][r] of accumulators [m][n][2 r + e].
template <int kTerms, int kMaskDType, int kRowTiles, int kScoreTiles>
struct WarpMasks {
  static constexpr bool kHasAdditive = (kTerms & kTermAdditiveMask) != 0;
  static constexpr bool kHasBoolean = (kTerms & kTermBooleanMask) != 0;
  static constexpr int kAdditiveBytes = sizeof(typename MaskElement<kMaskDType>::Type);
  RowElements<typename MaskElement<kMaskDType>::Type, kScoreTiles> additive[kRowTiles][2];
  RowElements<unsigned char, kScoreTiles> boolean[kRowTiles][2];

  TESSERA_DEVICE static bool is_paired(const MaskArgument& mask, int element_bytes) {
    const auto strides = mask.batch_stride | mask.head_stride | mask.q_stride;
    return ((reinterpret_cast<unsigned long long>(mask.data) & (2 * element_bytes - 1)) | (strides & 1)) == 0;
  }
  /// Which all of them have.
  TESSERA_DEVICE static MaskLayout layout(const AttentionParams& p, const BlockWork& w, int key_begin) {
    if (key_begin + kScoreTiles * 8 > w.sequence.len_kv || (kHasAdditive && p.additive_mask.kv_stride != 1) ||
        (kHasBoolean && p.boolean_mask.kv_stride != 1))
      return kAnyLayout;
    const bool are_paired = (!kHasAdditive || is_paired(p.additive_mask, kAdditiveBytes)) &&
                            (!kHasBoolean || is_paired(p.boolean_mask, 1));
    return are_paired ? kPairedLayout : kPlainLayout;
  }
  template <int kLayout>
  TESSERA_DEVICE void load_row(const AttentionParams& p, const BlockWork& w, int warp_row, int key_begin,
                               int m, int r) {
    const RowIndex index = index_of_row(w, warp_row, m, r);
    if constexpr (kHasAdditive) additive[m][r].template load<kLayout>(p.additive_mask, w, index, key_begin);
    if constexpr (kHasBoolean) boolean[m][r].template load<kLayout>(p.boolean_mask, w, index, key_begin);
  }
  template <int kLayout>
  TESSERA_DEVICE void load_rows(const AttentionParams& p, const BlockWork& w, int warp_row, int key_begin) {
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kRowTiles; ++i) load_row<kLayout>(p, w, warp_row, key_begin, i / 2, i % 2);
  }
  /// Asks for what the warp's scores will meet, a row a lane, so that loads later find it near.
  TESSERA_DEVICE static void prefetch(const AttentionParams& p, const BlockWork& w, int warp_row,
                                      int key_begin) {
    TESSERA_UNROLL
    for (int first = 0; first < 16 * kRowTiles; first += 32) {
      const RowIndex index = row_index(w, minimum(warp_row + first + thread_x() % 32, w.num_rows - 1));
      if constexpr (kHasAdditive) prefetch_row(p.additive_mask, kAdditiveBytes, w, index, key_begin);
      if constexpr (kHasBoolean) prefetch_row(p.boolean_mask, 1, w, index, key_begin);
    }
  }
  TESSERA_DEVICE static void prefetch_row(const MaskArgument& mask, int element_bytes, const BlockWork& w,
                                          const RowIndex& index, int key_begin) {
    constexpr int kLineBytes = 128;
    const int bytes = minimum(kScoreTiles * 8, w.sequence.len_kv - key_begin) * element_bytes;
    if (mask.kv_stride != 1 || bytes <= 0) return;
    const char* row = static_cast<const char*>(mask.data) +
                      mask_offset(mask, w.b, index.h, index.i, key_begin) * element_bytes;
    for (int byte = 0; byte < bytes; byte += kLineBytes) prefetch_to_l1(row + byte);
    prefetch_to_l1(row + bytes - 1);
  }
  TESSERA_DEVICE void load(const AttentionParams& p, const BlockWork& w, int warp_row, int key_begin) {
    if constexpr (kHasAdditive || kHasBoolean) {
      const MaskLayout found = layout(p, w, key_begin);
      if (found == kPairedLayout) {
        load_rows<kPairedLayout>(p, w, warp_row, key_begin);
      } else if (found == kPlainLayout) {
        load_rows<kPlainLayout>(p, w, warp_row, key_begin);
      } else {
        load_rows<kAnyLayout>(p, w, warp_row, key_begin);
      }
    }
  }
};

/// ALiBi's biases of a row of a warp's scores, in units of log2.
template <int kTerms>
struct RowBiases {
  float slope = 0.0f;
  float distance = 0.0f;  // of the query to the thread's first key

  TESSERA_DEVICE RowBiases(const AttentionParams& p, const BlockWork& w, const RowIndex& index,
                           int key_begin) {
    if constexpr ((kTerms & kTermAlibi) != 0) {
      slope = p.alibi_slopes[w.b * p.alibi_batch_stride + index.h] * kLog2E;
      distance = static_cast<float>(index.i + w.sequence.shift - key_begin - thread_x() % 4 * 2);
    }
  }
  /// scale product + the bias of the key `offset` behind that. kIsLinear: all keys are so far before the
  /// query that the bias is a multiple of the key; nearer ones would lose bits of their small biases.
  template <bool kIsLinear>
  TESSERA_DEVICE float add(float product, float scale, int offset) const {
    if constexpr ((kTerms & kTermAlibi) == 0) return product * scale;
    if constexpr (kIsLinear)
      return fmaf(product, scale, fmaf(slope, static_cast<float>(offset), -slope * distance));
    return add_bias(product * scale, slope, distance - static_cast<float>(offset));
  }
};

/// Whether ALiBi's biases of all of a warp's scores are so.
template <int kRowTiles, int kScoreTiles>
TESSERA_DEVICE bool has_linear_biases(const BlockWork& w, int warp_row, int key_begin) {
  constexpr int kKeys = kScoreTiles * 8;
  int first_query = index_of_row(w, warp_row, 0, 0).i;
  TESSERA_UNROLL
  for (int i = 1; i < 2 * kRowTiles; ++i)
    first_query = minimum(first_query, index_of_row(w, warp_row, i / 2, i % 2).i);
  return !warp_any(first_query + w.sequence.shift - key_begin < 2 * kKeys);
}

/// The terms of products, but for softcap, which become scores in units of log2. kHasMasks: masks are loaded,
/// else row by row, as they lie.
template <bool kHasMasks, int kLayout, bool kIsLinear, int kTerms, int kMaskDType, int kRowTiles,
          int kScoreTiles>
TESSERA_DEVICE void add_to_scores(const AttentionParams& p, const BlockWork& w, int warp_row, int key_begin,
                                  WarpMasks<kTerms, kMaskDType, kRowTiles, kScoreTiles>& masks,
                                  float (&scores)[kRowTiles][kScoreTiles][4]) {
  const float scale = (kTerms & kTermSoftcap) != 0 ? 1.0f : p.softmax_scale * kLog2E;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      if constexpr (!kHasMasks) masks.template load_row<kLayout>(p, w, warp_row, key_begin, m, r);
      const RowBiases<kTerms> biases(p, w, index_of_row(w, warp_row, m, r), key_begin);
      TESSERA_UNROLL
      for (int i = 0; i < 2 * kScoreTiles; ++i) {
        float& score = scores[m][i / 2][2 * r + i % 2];
        score = biases.template add<kIsLinear>(score, scale, i / 2 * 8 + i % 2);
        if constexpr ((kTerms & kTermAdditiveMask) != 0)
          score = add_element(score, to_float(masks.additive[m][r].keys[i]));
        if constexpr ((kTerms & kTermBooleanMask) != 0) {
          if (masks.boolean[m][r].keys[i] == 0) score = -infinity();
        }
      }
    }
  }
}

/// The terms of products, which become scores in units of log2.
template <bool kHasMasks, int kTerms, int kMaskDType, int kRowTiles, int kScoreTiles>
TESSERA_DEVICE void add_terms(const AttentionParams& p, const BlockWork& w, int warp_row, int key_begin,
                              WarpMasks<kTerms, kMaskDType, kRowTiles, kScoreTiles>& masks,
                              float (&scores)[kRowTiles][kScoreTiles][4]) {
  if constexpr ((kTerms & kTermSoftcap) != 0) cap_scores(p, scores);
  if constexpr (kHasMasks || (kTerms & (kTermAdditiveMask | kTermBooleanMask)) == 0) {
    if constexpr ((kTerms & kTermAlibi) != 0) {
      if (has_linear_biases<kRowTiles, kScoreTiles>(w, warp_row, key_begin)) {
        add_to_scores<kHasMasks, kAnyLayout, true>(p, w, warp_row, key_begin, masks, scores);
        return;
      }
    }
    add_to_scores<kHasMasks, kAnyLayout, false>(p, w, warp_row, key_begin, masks, scores);
    return;
  }
  // One branch for all rows, so that their loads are on their way together.
  const MaskLayout layout = masks.layout(p, w, key_begin);
  if (layout == kPairedLayout) {
    add_to_scores<false, kPairedLayout, false>(p, w, warp_row, key_begin, masks, scores);
  } else if (layout == kPlainLayout) {
    add_to_scores<false, kPlainLayout, false>(p, w, warp_row, key_begin, masks, scores);
  } else {
    add_to_scores<false, kAnyLayout, false>(p, w, warp_row, key_begin, masks, scores);
  }
}

/// Whether terms are added to all scores of a warp together: not where a modifier takes them one by one, nor
/// where a row's bits may not depend on the rows beside it and on which kernel takes it.
#ifdef TESSERA_MODIFIER
constexpr bool kAddsTerms = false;
#else
constexpr bool kAddsTerms = kHasTerms && !kInvariant;
#endif
/// Tiles of a warp's scores for whose elements there are registers beside the products.
constexpr int kMostEarlyMaskTiles = 4;

/// Replaces products by what the terms and the modifier make of them, in units of log2. There is some key;
/// those behind the last one are as the last one. kHasMasks: as above.
template <bool kHasMasks, int kTerms, int kMaskDType, int kRowTiles, int kScoreTiles>
TESSERA_DEVICE void apply_terms(const AttentionParams& p, const BlockWork& w, int warp_row, int key_begin,
                                WarpMasks<kTerms, kMaskDType, kRowTiles, kScoreTiles>& masks,
                                float (&scores)[kRowTiles][kScoreTiles][4]) {
  if constexpr (kAddsTerms) {
    add_terms<kHasMasks>(p, w, warp_row, key_begin, masks, scores);
  } else {
    for_scores(w, warp_row, key_begin, scores, [&](float& score, const RowIndex& index, int j) {
      const int stored = minimum(j, w.sequence.len_kv - 1);
      score =
          modified_score<kTerms, kMaskDType>(p, w.sequence, score, w.b, index.h, index.i, stored) * kLog2E;
    });
  }
}

/// Hides what the modifier's mask hides. Keys behind the last one may be seen.
template <int kRowTiles, int kScoreTiles>
TESSERA_DEVICE void hide_masked(const AttentionParams& p, const BlockWork& w, int warp_row, int key_begin,
                                float (&scores)[kRowTiles][kScoreTiles][4]) {
  for_scores(w, warp_row, key_begin, scores, [&](float& score, const RowIndex& index, int j) {
    if (!modifier_shows(p, w.sequence, w.b, index.h, index.i, j)) score = -infinity();
  });
}

}  // namespace tessera::kernels
