#include "verify/attention_data.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include "core/element.h"
#include "core/infinity.h"

namespace tessera {
namespace {

double rounded(double value, DType dtype) {
  return dispatch_stored(dtype, [&]<class T>() { return static_cast<double>(round_to<T>(value)); });
}

std::vector<double> normal_numbers(std::int64_t count, double spread, const AttentionCase& c,
                                   std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, spread);
  std::uniform_int_distribution<int> exponent(-c.exponent_spread, c.exponent_spread);
  std::vector<double> numbers(static_cast<std::size_t>(count));
  for (double& x : numbers) {
    x = normal(random);
    if (c.exponent_spread > 0) x = std::ldexp(x, exponent(random));
    x = rounded(x, c.dtype);
  }
  return numbers;
}

/// Makes every row of `width` numbers the same as the first.
void repeat_first_row(std::vector<double>& rows, std::size_t width) {
  for (std::size_t n = width; n < rows.size(); ++n) rows[n] = rows[n - width];
}

MaskValues make_mask(const AttentionCase& c, const MaskRecipe& recipe, bool is_boolean,
                     std::mt19937_64& random) {
  MaskValues mask{recipe.per_batch ? c.batch : 1,
                  recipe.per_head ? c.num_heads : 1,
                  recipe.per_query ? c.seq_len_q : 1,
                  c.seq_len_kv,
                  {}};
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  mask.values.resize(static_cast<std::size_t>(mask.batches * mask.heads * mask.queries * mask.keys));
  const double lowest = recipe.dtype == DType::kF16    ? -65504.0
                        : recipe.dtype == DType::kBF16 ? -0x1.fep127
                                                       : -0x1.fffffep127;
  const double hiding = recipe.hides_by_lowest ? lowest : -kInfinity;
  for (double& value : mask.values) {
    const bool hidden = uniform(random) < recipe.hidden_share;
    value = is_boolean ? (hidden ? 0.0 : 1.0) : hidden ? hiding : rounded(normal(random), recipe.dtype);
  }
  return mask;
}

bool seen_by_any_query(const AttentionData& data, std::int64_t b, int kv_head, std::int64_t j) {
  const AttentionCase& c = data.description;
  const int group = c.num_heads / c.num_kv_heads;
  for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    for (std::int64_t i = 0; i < data.sequences[static_cast<std::size_t>(b)].len_q; ++i) {
      if (data.visible(b, h, i, j)) return true;
    }
  }
  return false;
}

void poison_keys(AttentionData& data) {
  const AttentionCase& c = data.description;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    SequenceData& s = data.sequences[static_cast<std::size_t>(b)];
    for (std::int64_t j = 0; j < s.len_kv; ++j) {
      for (int h = 0; h < c.num_kv_heads; ++h) {
        const bool poison =
            c.content == Content::kNanInLastKeys ? j >= s.len_kv - 3 : !seen_by_any_query(data, b, h, j);
        if (!poison) continue;
        const std::int64_t row = j * c.num_kv_heads + h;
        std::fill_n(s.k.begin() + row * c.head_dim_qk, c.head_dim_qk, kNan);
        std::fill_n(s.v.begin() + row * c.head_dim_v, c.head_dim_v, kNan);
      }
    }
  }
}

/// Rows of special numbers: see Content.
void spoil_keys(AttentionData& data) {
  const AttentionCase& c = data.description;
  const auto dim_qk = static_cast<std::size_t>(c.head_dim_qk), dim_v = static_cast<std::size_t>(c.head_dim_v);
  for (SequenceData& s : data.sequences) {
    const std::size_t rows = static_cast<std::size_t>(s.len_kv * c.num_kv_heads);
    for (std::size_t row = 0; row < rows; ++row) {
      if (c.content == Content::kNanInKeys) std::fill_n(&s.k[row * dim_qk], dim_qk, kNan);
      if (c.content == Content::kNanInValues && row % 8 == 3) s.v[row * dim_v + row % dim_v] = kNan;
      if (c.content == Content::kInfiniteKeys && row % 3 == 1) {
        s.k[row * dim_qk + row % dim_qk] = row % 2 == 0 ? kInfinity : -kInfinity;
        if (row % 9 == 1) std::fill_n(&s.v[row * dim_v], dim_v, row % 4 == 0 ? -kInfinity : kInfinity);
      }
    }
    if (c.content == Content::kNanInOneValue && rows > 0) {
      const std::size_t middle = static_cast<std::size_t>(s.len_kv / 2 * c.num_kv_heads);
      const auto heads = static_cast<std::size_t>(c.num_kv_heads);
      std::fill_n(&s.k[middle * dim_qk], heads * dim_qk, 0.0);
      std::fill_n(&s.v[middle * dim_v], heads * dim_v, kNan);
    }
    if (c.content == Content::kHeavyZeros) {
      for (double& x : s.q) x = std::abs(x);
      for (std::size_t row = 0; row < rows; ++row) {
        const bool is_heavy = row / static_cast<std::size_t>(c.num_kv_heads) % 5 == 2;
        for (std::size_t d = 0; d < dim_qk; ++d) {
          double& x = s.k[row * dim_qk + d];
          x = is_heavy ? std::abs(x) : -std::abs(x);
        }
        if (is_heavy) std::fill_n(&s.v[row * dim_v], dim_v, 0.0);
      }
    }
    if (c.content == Content::kLargestValues) {
      double largest = rounded(c.dtype == DType::kF16 ? 65504.0 : 0x1.fp127, c.dtype);
      if (c.kv_dtype) largest *= 15.0 / 16;  // rounded to 8 bits, a number grows by up to a 16th
      for (double& x : s.v) x = rounded(std::clamp(x, -1.0, 1.0) * largest, c.dtype);
    }
  }
}

/// Makes the values the first elements of the keys.
void take_values_from_keys(AttentionData& data) {
  const std::int64_t dim_qk = data.description.head_dim_qk, dim_v = data.description.head_dim_v;
  for (SequenceData& s : data.sequences) {
    for (std::int64_t row = 0; row < s.len_kv * data.description.num_kv_heads; ++row)
      std::copy_n(s.k.begin() + row * dim_qk, dim_v, s.v.begin() + row * dim_v);
  }
}

/// The pages that a sequence's scales are told apart by; 1 if they aren't.
std::int64_t scale_pages(const AttentionCase& c) {
  return c.kv_storage == KvStorage::kPaged ? (c.seq_len_kv + c.page_size - 1) / c.page_size : 1;
}

std::int64_t count_scales(const AttentionCase& c) {
  switch (c.kv_scaling) {
    case KvScaling::kNone:
      return 0;
    case KvScaling::kTensor:
      return 1;
    case KvScaling::kHead:
      return c.num_kv_heads;
    case KvScaling::kPageHead:
      return c.batch * scale_pages(c) * c.num_kv_heads;
  }
  return 0;
}

/// `count` scales for numbers of this spread.
std::vector<float> draw_scales(std::int64_t count, double spread, std::mt19937_64& random) {
  std::uniform_real_distribution<double> exponent(-2, 2);
  std::vector<float> scales(static_cast<std::size_t>(count));
  for (float& x : scales) x = static_cast<float>(spread * std::exp2(exponent(random)));
  return scales;
}

/// What `value` becomes when it is stored in 8 bits with this scale.
double narrowed(double value, double scale, DType dtype) {
  if (std::isfinite(value)) value = std::clamp(value / scale, -448.0, 448.0);
  return rounded(value, dtype) * scale;
}

/// Draws scales and rounds queries to what can be stored with them.
void narrow_queries(AttentionData& data) {
  const AttentionCase& c = data.description;
  if (!c.narrow_q) return;
  std::mt19937_64 random(c.seed + 0x51a3);
  if (c.q_scaling != KvScaling::kNone) {
    data.q_scales = draw_scales(c.batch * c.num_kv_heads, c.logit_spread, random);
    const auto heads = static_cast<std::size_t>(c.num_kv_heads);
    for (std::size_t n = 0; n < data.q_scales.size(); ++n) {
      if (c.q_scaling == KvScaling::kTensor) data.q_scales[n] = data.q_scales[0];
      if (c.q_scaling == KvScaling::kHead) data.q_scales[n] = data.q_scales[n % heads];
    }
  }
  const int group = c.num_heads / c.num_kv_heads;
  for (std::size_t b = 0; b < data.sequences.size(); ++b) {
    double* q = data.sequences[b].q.data();
    for (std::int64_t i = 0; i < data.sequences[b].len_q; ++i) {
      for (int h = 0; h < c.num_heads; ++h) {
        const double scale = data.q_scale(static_cast<std::int64_t>(b), h / group);
        for (int d = 0; d < c.head_dim_qk; ++d, ++q) *q = narrowed(*q, scale, *c.kv_dtype);
      }
    }
  }
}

/// Draws scales and rounds keys and values to what can be stored with them.
void narrow_keys(AttentionData& data) {
  const AttentionCase& c = data.description;
  if (!c.kv_dtype) return;
  std::mt19937_64 random(c.seed + 0x8b17);
  data.k_scales = draw_scales(count_scales(c), c.k_spread, random);
  data.v_scales = c.values_in_keys ? data.k_scales : draw_scales(count_scales(c), c.v_spread, random);
  for (std::size_t b = 0; b < data.sequences.size(); ++b) {
    SequenceData& s = data.sequences[b];
    double *k = s.k.data(), *v = s.v.data();
    for (std::int64_t j = 0; j < s.len_kv; ++j) {
      for (int h = 0; h < c.num_kv_heads; ++h) {
        const double k_scale = data.k_scale(static_cast<std::int64_t>(b), j, h);
        const double v_scale = data.v_scale(static_cast<std::int64_t>(b), j, h);
        for (int d = 0; d < c.head_dim_qk; ++d, ++k) *k = narrowed(*k, k_scale, *c.kv_dtype);
        for (int d = 0; d < c.head_dim_v; ++d, ++v) *v = narrowed(*v, v_scale, *c.kv_dtype);
      }
    }
  }
}

}  // namespace

std::size_t AttentionData::kv_scale_index(std::int64_t b, std::int64_t j, int h) const {
  const AttentionCase& c = description;
  if (c.kv_scaling == KvScaling::kTensor) return 0;
  if (c.kv_scaling == KvScaling::kHead) return static_cast<std::size_t>(h);
  const std::int64_t page = c.kv_storage == KvStorage::kPaged ? j / c.page_size : 0;
  const bool one_sequence = c.kv_storage == KvStorage::kRagged || c.shared_kv;
  const std::int64_t outer = one_sequence ? 0 : b * scale_pages(c) + page;
  return static_cast<std::size_t>(outer * c.num_kv_heads + h);
}

std::int64_t AttentionData::diagonal_key(std::int64_t b, std::int64_t i) const {
  const SequenceData& s = sequences[static_cast<std::size_t>(b)];
  const bool top_left =
      description.diagonal && description.diagonal->alignment == DiagonalAlignment::kTopLeft;
  return top_left ? i : i + s.len_kv - s.len_q;
}

bool AttentionData::visible(std::int64_t b, int h, std::int64_t i, std::int64_t j) const {
  if (description.diagonal) {
    const std::int64_t distance = j - diagonal_key(b, i);
    const DiagonalMask& d = *description.diagonal;
    if (d.window_right && distance > *d.window_right) return false;
    if (d.window_left && -distance > *d.window_left) return false;
  }
  if (!modifier_example_sees(description.modifier, modifier_point(b, h, i, j))) return false;
  if (description.boolean_mask && boolean_mask.at(b, h, i, j) == 0) return false;
  return !(description.additive_mask && additive_mask.at(b, h, i, j) == -kInfinity);
}

std::int64_t AttentionData::first_row(std::int64_t b) const {
  std::int64_t row = 0;
  for (std::int64_t s = 0; s < b; ++s)
    row += sequences[static_cast<std::size_t>(s)].len_q * description.num_heads;
  return row;
}

std::int64_t AttentionData::num_rows() const {
  return first_row(static_cast<std::int64_t>(sequences.size()));
}

AttentionData make_attention_data(const AttentionCase& c) {
  std::mt19937_64 random(c.seed);
  AttentionData data;
  data.description = c;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    SequenceData s;
    s.len_q = c.lens_q.empty() ? c.seq_len_q : c.lens_q[static_cast<std::size_t>(b)];
    s.len_kv = c.kv_storage == KvStorage::kDense ? c.seq_len_kv : c.lens_kv[static_cast<std::size_t>(b)];
    // A standard deviation of 1 for the dot product times the default scale of 1 / sqrt(head_dim).
    s.q = normal_numbers(s.len_q * c.num_heads * c.head_dim_qk, c.logit_spread, c, random);
    if (c.shared_kv && b > 0) {
      s.k = data.sequences[0].k;
      s.v = data.sequences[0].v;
    } else {
      s.k = normal_numbers(s.len_kv * c.num_kv_heads * c.head_dim_qk, c.k_spread, c, random);
      s.v = normal_numbers(s.len_kv * c.num_kv_heads * c.head_dim_v, c.v_spread, c, random);
    }
    if (c.content == Content::kEqualLogits) {
      repeat_first_row(s.k, static_cast<std::size_t>(c.num_kv_heads * c.head_dim_qk));
    }
    if (c.content == Content::kConstantValue) {
      repeat_first_row(s.v, static_cast<std::size_t>(c.num_kv_heads * c.head_dim_v));
    }
    data.sequences.push_back(std::move(s));
  }
  std::uniform_real_distribution<float> slope(0.01f, 0.5f);
  std::normal_distribution<float> logit;
  const auto heads = static_cast<std::size_t>(c.num_heads);
  data.alibi_slopes.resize(heads * static_cast<std::size_t>(c.alibi_per_batch ? c.batch : 1));
  data.sinks.resize(heads);
  for (float& x : data.alibi_slopes) x = slope(random);
  for (float& x : data.sinks) x = logit(random);
  if (c.additive_mask) data.additive_mask = make_mask(c, *c.additive_mask, false, random);
  if (c.boolean_mask) data.boolean_mask = make_mask(c, *c.boolean_mask, true, random);
  if (c.content == Content::kNanInHiddenKeys || c.content == Content::kNanInLastKeys) poison_keys(data);
  spoil_keys(data);
  narrow_queries(data);
  narrow_keys(data);
  if (c.values_in_keys) take_values_from_keys(data);
  return data;
}

AttentionData slice_attention_data(const AttentionData& data, std::int64_t b, std::int64_t q_begin,
                                   std::int64_t q_end) {
  const SequenceData& whole = data.sequences[static_cast<std::size_t>(b)];
  const std::int64_t len_kv = std::max<std::int64_t>(0, whole.len_kv - (whole.len_q - q_end));
  AttentionData part;
  part.description = data.description;
  AttentionCase& c = part.description;
  c.batch = 1;
  c.seq_len_q = q_end - q_begin;
  c.seq_len_kv = len_kv;
  c.lens_q.clear();
  c.lens_kv.clear();
  c.kv_storage = KvStorage::kDense;
  c.alibi_per_batch = false;

  const auto rows = [](const std::vector<double>& from, std::int64_t begin, std::int64_t end,
                       std::int64_t width) {
    return std::vector<double>(from.begin() + begin * width, from.begin() + end * width);
  };
  part.sequences.push_back({q_end - q_begin, len_kv,
                            rows(whole.q, q_begin, q_end, c.num_heads * c.head_dim_qk),
                            rows(whole.k, 0, len_kv, c.num_kv_heads * c.head_dim_qk),
                            rows(whole.v, 0, len_kv, c.num_kv_heads * c.head_dim_v)});
  const std::int64_t slopes = data.description.alibi_per_batch ? b * c.num_heads : 0;
  part.alibi_slopes.assign(data.alibi_slopes.begin() + slopes,
                           data.alibi_slopes.begin() + slopes + c.num_heads);
  part.sinks = data.sinks;
  if (!data.q_scales.empty()) {
    const auto first = data.q_scales.begin() + b * c.num_kv_heads;
    part.q_scales.assign(first, first + c.num_kv_heads);
  }
  part.k_scales = data.k_scales;
  part.v_scales = data.v_scales;
  const auto slice_mask = [&](const MaskValues& from, const MaskRecipe& recipe) {
    MaskValues to{1, from.heads, recipe.per_query ? c.seq_len_q : 1, len_kv, {}};
    to.values.resize(static_cast<std::size_t>(to.heads * to.queries * to.keys));
    for (std::int64_t h = 0; h < to.heads; ++h) {
      for (std::int64_t i = 0; i < to.queries; ++i) {
        for (std::int64_t j = 0; j < len_kv; ++j) to.at(0, h, i, j) = from.at(b, h, q_begin + i, j);
      }
    }
    return to;
  };
  if (c.additive_mask) part.additive_mask = slice_mask(data.additive_mask, *c.additive_mask);
  if (c.boolean_mask) part.boolean_mask = slice_mask(data.boolean_mask, *c.boolean_mask);
  return part;
}

}  // namespace tessera
