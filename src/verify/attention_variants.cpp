#include "verify/attention_variants.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "verify/attention_check.h"

namespace tessera {
namespace {

/// The queries [q_begin, q_end) of sequence b over its first len_kv keys.
struct Piece {
  std::int64_t b = 0;
  std::int64_t q_begin = 0;
  std::int64_t q_end = 0;
  std::int64_t len_kv = 0;
};

/// Query heads [h_begin, h_end) that read kv heads [kv_begin, kv_end).
struct Heads {
  int h_begin = 0;
  int h_end = 0;
  int kv_begin = 0;
  int kv_end = 0;
};

/// Rows of `width` numbers for heads [begin, end) of num_heads, of tokens [first, last).
std::vector<double> take(const std::vector<double>& from, std::int64_t first, std::int64_t last,
                         int num_heads, int begin, int end, int width) {
  std::vector<double> to;
  to.reserve(static_cast<std::size_t>((last - first) * (end - begin) * width));
  for (std::int64_t t = first; t < last; ++t) {
    const auto row = from.begin() + (t * num_heads + begin) * width;
    to.insert(to.end(), row, row + (end - begin) * width);
  }
  return to;
}

MaskValues take_mask(const AttentionData& data, const MaskValues& from, const MaskRecipe& recipe,
                     const AttentionCase& c, const std::vector<Piece>& pieces, const Heads& heads) {
  MaskValues to{recipe.per_batch ? c.batch : 1,
                recipe.per_head ? c.num_heads : 1,
                recipe.per_query ? c.seq_len_q : 1,
                c.seq_len_kv,
                {}};
  to.values.resize(static_cast<std::size_t>(to.batches * to.heads * to.queries * to.keys));
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    const Piece& piece = pieces[n];
    const std::int64_t queries = recipe.per_query ? piece.q_end - piece.q_begin : 1;
    const std::int64_t keys =
        std::min({piece.len_kv, from.keys, data.sequences[static_cast<std::size_t>(piece.b)].len_kv});
    for (std::int64_t h = 0; h < to.heads; ++h) {
      for (std::int64_t i = 0; i < queries; ++i) {
        for (std::int64_t j = 0; j < keys; ++j)
          to.at(static_cast<std::int64_t>(n), h, i, j) =
              from.at(piece.b, heads.h_begin + h, piece.q_begin + i, j);
      }
    }
  }
  return to;
}

/// A problem of these pieces and heads, with ragged queries and keys.
InvarianceVariant take_pieces(const AttentionData& data, const std::vector<Piece>& pieces, const Heads& heads,
                              std::string what) {
  const AttentionCase& from = data.description;
  InvarianceVariant variant;
  variant.what = std::move(what);
  variant.data.description = from;
  AttentionCase& c = variant.data.description;
  c.batch = static_cast<std::int64_t>(pieces.size());
  c.num_heads = heads.h_end - heads.h_begin;
  c.num_kv_heads = heads.kv_end - heads.kv_begin;
  c.seq_len_q = c.seq_len_kv = 0;
  c.lens_q.clear();
  c.lens_kv.clear();
  c.shared_kv = false;
  c.kv_storage = KvStorage::kRagged;
  for (const Piece& piece : pieces) {
    const SequenceData& s = data.sequences[static_cast<std::size_t>(piece.b)];
    c.lens_q.push_back(piece.q_end - piece.q_begin);
    c.lens_kv.push_back(piece.len_kv);
    c.seq_len_q = std::max(c.seq_len_q, c.lens_q.back());
    c.seq_len_kv = std::max(c.seq_len_kv, c.lens_kv.back());
    variant.data.sequences.push_back(
        {c.lens_q.back(), piece.len_kv,
         take(s.q, piece.q_begin, piece.q_end, from.num_heads, heads.h_begin, heads.h_end, c.head_dim_qk),
         take(s.k, 0, piece.len_kv, from.num_kv_heads, heads.kv_begin, heads.kv_end, c.head_dim_qk),
         take(s.v, 0, piece.len_kv, from.num_kv_heads, heads.kv_begin, heads.kv_end, c.head_dim_v)});
    const std::int64_t set = from.alibi_per_batch ? piece.b * from.num_heads : 0;
    if (from.alibi_per_batch || variant.data.alibi_slopes.empty()) {
      variant.data.alibi_slopes.insert(variant.data.alibi_slopes.end(),
                                       data.alibi_slopes.begin() + set + heads.h_begin,
                                       data.alibi_slopes.begin() + set + heads.h_end);
    }
    if (!data.q_scales.empty()) {
      const auto row = data.q_scales.begin() + piece.b * from.num_kv_heads;
      variant.data.q_scales.insert(variant.data.q_scales.end(), row + heads.kv_begin, row + heads.kv_end);
    }
    for (std::int64_t i = piece.q_begin; i < piece.q_end; ++i) {
      for (int h = heads.h_begin; h < heads.h_end; ++h)
        variant.rows.push_back(data.first_row(piece.b) + i * from.num_heads + h);
    }
  }
  const bool per_head = from.kv_scaling == KvScaling::kHead;
  const int first = per_head ? heads.kv_begin : 0, last = per_head ? heads.kv_end : 1;
  if (!data.k_scales.empty()) {
    variant.data.k_scales.assign(data.k_scales.begin() + first, data.k_scales.begin() + last);
    variant.data.v_scales.assign(data.v_scales.begin() + first, data.v_scales.begin() + last);
  }
  variant.data.sinks.assign(data.sinks.begin() + heads.h_begin, data.sinks.begin() + heads.h_end);
  if (c.additive_mask)
    variant.data.additive_mask = take_mask(data, data.additive_mask, *c.additive_mask, c, pieces, heads);
  if (c.boolean_mask)
    variant.data.boolean_mask = take_mask(data, data.boolean_mask, *c.boolean_mask, c, pieces, heads);
  return variant;
}

Piece whole(const AttentionData& data, std::int64_t b) {
  const SequenceData& s = data.sequences[static_cast<std::size_t>(b)];
  return {b, 0, s.len_q, s.len_kv};
}

/// Whether queries [q_begin, q_end) can stand alone: over which keys, so that a bottom-right diagonal (or
/// none) leaves each query where it is. -1 if not.
std::int64_t keys_of_piece(const AttentionData& data, std::int64_t b, std::int64_t q_end) {
  const AttentionCase& c = data.description;
  const SequenceData& s = data.sequences[static_cast<std::size_t>(b)];
  if (!c.diagonal && !c.alibi) return s.len_kv;
  const bool is_causal = c.diagonal && c.diagonal->window_right && *c.diagonal->window_right == 0;
  const std::int64_t len_kv = data.diagonal_key(b, q_end - 1) + 1;
  return is_causal && len_kv >= 0 && len_kv <= s.len_kv ? len_kv : -1;
}

}  // namespace

std::vector<InvarianceVariant> invariance_variants(const AttentionData& data) {
  const AttentionCase& c = data.description;
  std::vector<InvarianceVariant> variants;
  if (c.batch == 0) return variants;
  std::mt19937_64 random(c.seed);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const Heads all = {0, c.num_heads, 0, c.num_kv_heads};
  const auto other_strides = [&](InvarianceVariant& variant) {
    variant.data.description.strides = static_cast<StrideStyle>(between(0, 3));
  };

  std::vector<Piece> pieces;
  for (std::int64_t b = 0; b < c.batch; ++b) pieces.push_back(whole(data, b));
  std::shuffle(pieces.begin(), pieces.end(), random);
  variants.push_back(take_pieces(data, pieces, all, "the sequences in another order, ragged"));
  other_strides(variants.back());
  variants.push_back(take_pieces(data, pieces, all, ""));
  AttentionCase& paged = variants.back().data.description;
  paged.kv_storage = KvStorage::kPaged;
  paged.page_size = static_cast<int>(between(0, 1) == 0 ? 16 : between(1, 70));
  variants.back().what = fmt::format("paged storage with page_size {}", paged.page_size);
  other_strides(variants.back());

  const std::int64_t b = between(0, c.batch - 1);
  variants.push_back(take_pieces(data, {whole(data, b)}, all, fmt::format("sequence {} alone", b)));
  const int kv_head = static_cast<int>(between(0, c.num_kv_heads - 1)), group = c.num_heads / c.num_kv_heads;
  const int head = kv_head * group + static_cast<int>(between(0, group - 1));
  variants.push_back(take_pieces(data, {whole(data, b)}, {head, head + 1, kv_head, kv_head + 1},
                                 fmt::format("sequence {}, head {} alone", b, head)));

  const std::int64_t len_q = data.sequences[static_cast<std::size_t>(b)].len_q;
  if (len_q > 1) {
    const std::int64_t cut = between(1, len_q - 1);
    for (const auto& [begin, end] :
         {std::pair<std::int64_t, std::int64_t>{0, cut}, {cut, len_q}, {cut - 1, cut}}) {
      const std::int64_t len_kv = keys_of_piece(data, b, end);
      if (len_kv < 0) continue;
      variants.push_back(
          take_pieces(data, {{b, begin, end, len_kv}}, all,
                      fmt::format("queries {} to {} of sequence {} alone", begin, end - 1, b)));
      if (c.diagonal) variants.back().data.description.diagonal->alignment = DiagonalAlignment::kBottomRight;
    }
  }
  return variants;
}

std::string describe_first_difference(const AttentionData& original, const AttentionRows& rows,
                                      const InvarianceVariant& variant, const AttentionRows& variant_rows) {
  const int heads = original.description.num_heads;
  for (std::size_t n = 0; n < variant.rows.size(); ++n) {
    const std::int64_t row = variant.rows[n];
    const std::string where = describe_bit_difference(rows, row, variant_rows, static_cast<std::int64_t>(n),
                                                      1, original.description.head_dim_v);
    if (!where.empty())
      return fmt::format("query {} (of all sequences), head {}: {}", row / heads, row % heads, where);
  }
  return {};
}

}  // namespace tessera
