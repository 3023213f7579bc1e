#pragma once

#include "sm90/decode_masks.cuh"
#include "sm90/decode_tiles.cuh"

// Terms without a modifier between the products and the softmax of the decode kernels of Hopper
// (common/score_terms.cuh says the same of one score), in as few instructions a score as may be.

namespace tessera::kernels {

constexpr bool kHasOnlyTerms = kHasTerms && !kHasModifier;
constexpr bool kHasAlibi = kHasOnlyTerms && (kTerms & kTermAlibi) != 0;
constexpr bool kHasSoftcap = kHasOnlyTerms && (kTerms & kTermSoftcap) != 0;

/// What the terms of a row are made of.
struct RowTerms {
  float slope;       // of ALiBi, in units of log2
  int position;      // of its query among the keys
  int additive_row;  // in MaskTiles
  int boolean_row;

  TESSERA_DEVICE void load(const AttentionParams& p, const Piece& piece, const RowIndex& index) {
    const int pack = p.num_heads / p.num_kv_heads;
    const int first_head = piece.kv_head * pack;
    if constexpr (kHasAlibi) {
      slope = p.alibi_slopes[piece.b * p.alibi_batch_stride + index.h] * kLog2E;
      position = index.i + piece.sequence.shift;
    }
    if constexpr (kAdditiveBytes > 0) additive_row = mask_row(p.additive_mask, index, pack, first_head);
    if constexpr (kBooleanBytes > 0) boolean_row = mask_row(p.boolean_mask, index, pack, first_head);
  }
};

/// The terms of a tile's products q k^T, which become scores in units of log2; of a thread's two rows, as in
/// decode_tiles.cuh.
TESSERA_DEVICE void add_terms(const AttentionParams& p, const RowTerms (&rows)[2], const CopiedMasks& masks,
                              int first_key, bool has_second_rows, float (&scores)[kBlockN / 2]) {
  if constexpr (kHasSoftcap) cap_scores(p, has_second_rows, scores);
  const float scale = kHasSoftcap ? 1.0f : p.softmax_scale * kLog2E;
  const int thread_key = thread_x() % 4 * 2;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (r == 1 && !has_second_rows) break;
    const auto distance = static_cast<float>(rows[r].position - first_key - thread_key);
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 8; ++i) {
      float* pair = scores + 4 * i + 2 * r;
      if constexpr (!kHasSoftcap) {
        pair[0] *= scale;
        pair[1] *= scale;
      }
      if constexpr (kHasAlibi) {
        pair[0] = add_bias(pair[0], rows[r].slope, distance - static_cast<float>(8 * i));
        pair[1] = add_bias(pair[1], rows[r].slope, distance - static_cast<float>(8 * i + 1));
      }
      if constexpr (kAdditiveBytes > 0) {
        const float2 elements = masks.additive(rows[r].additive_row, thread_key + 8 * i);
        pair[0] = add_element(pair[0], elements.x);
        pair[1] = add_element(pair[1], elements.y);
      }
      if constexpr (kBooleanBytes > 0) {
        const auto visible = masks.boolean(rows[r].boolean_row, thread_key + 8 * i);
        if (visible.x == 0) pair[0] = -infinity();
        if (visible.y == 0) pair[1] = -infinity();
      }
    }
  }
}

}  // namespace tessera::kernels
