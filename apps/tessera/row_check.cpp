#include "row_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "attention/modifier.h"
#include "attention/narrow.h"
#include "attention/token_rows.h"
#include "core/element.h"
#include "core/parallel.h"
#include "verify/attention_check.h"

namespace tessera::cli {

namespace {

struct RowIndex {
  std::int64_t b = 0;
  int head = 0;
  std::int64_t query = 0;
};

double mask_value(const ScoreMask& mask, const RowIndex& row, std::int64_t key) {
  const std::int64_t at = row.b * mask.batch_stride + row.head * mask.head_stride +
                          row.query * mask.q_stride + key * mask.kv_stride;
  if (mask.dtype == DType::kBool || mask.dtype == DType::kU8) {
    return static_cast<const std::uint8_t*>(mask.data)[at];
  }
  return load_element(mask.data, mask.dtype, at);
}

/// As AttentionMagnitudes, of one row.
struct RowMagnitudes {
  double weighted_v = 0;
  double weighted_score_v = 0;
};

/// o of one row by the definition, all arithmetic in Real, the weights rounded to Weight before they meet v.
/// Kv: of k and v.
template <class Kv, class Real, class Weight>
std::vector<Real> attention_row(const AttentionProblem& p, const modifier::Program& program,
                                const RowIndex& row, RowMagnitudes* magnitudes = nullptr) {
  const TokenRows rows(p, row.b);
  const int kv_head = row.head / (p.num_heads / p.num_kv_heads);
  const Diagonal diagonal = resolve_diagonal(p.scores, rows.extent.len_q, rows.extent.len_kv);
  const KeyRange keys = diagonal.keys_of_query(row.query);
  const std::int64_t first = rows.query(p.q, row.query, row.head);
  std::vector<Real> q(static_cast<std::size_t>(p.head_dim_qk));
  for (std::size_t d = 0; d < q.size(); ++d)
    q[d] = static_cast<Real>(load_element(p.q.data, p.q.dtype, first + static_cast<std::int64_t>(d)));
  const ScoreTerms& terms = p.scores;
  const Real scale = terms.softmax_scale ? static_cast<Real>(*terms.softmax_scale)
                                         : Real{1} / std::sqrt(static_cast<Real>(p.head_dim_qk));
  constexpr Real kHidden = -std::numeric_limits<Real>::infinity();
  std::optional<modifier::Evaluator<Real>> modifier;
  if (terms.modifier) {
    modifier.emplace(program, *terms.modifier);
    modifier->begin_query(modifier_variables(p, row.b, rows.extent, row.query, row.head));
  }

  std::vector<Real> scores(static_cast<std::size_t>(keys.size()), kHidden);
  Real largest = kHidden;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    if (terms.boolean_mask && mask_value(*terms.boolean_mask, row, j) == 0) continue;
    if (modifier && !modifier->is_visible(static_cast<std::int32_t>(j))) continue;
    const Kv* k = static_cast<const Kv*>(p.k.data) + rows.key(p.k, j, kv_head);
    Real score = 0;
    for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * static_cast<Real>(k[d]);
    score *= scale * static_cast<Real>(rows.q_scale(kv_head)) * static_cast<Real>(rows.k_scale(j, kv_head));
    if (terms.softcap) {
      const auto softcap = static_cast<Real>(*terms.softcap);
      score = softcap * std::tanh(score / softcap);
    }
    if (terms.alibi) {
      const float slope = terms.alibi->slopes[row.b * terms.alibi->batch_stride + row.head];
      score -= static_cast<Real>(slope) * static_cast<Real>(std::abs(row.query + diagonal.shift - j));
    }
    if (terms.additive_mask) {
      const auto bias = static_cast<Real>(mask_value(*terms.additive_mask, row, j));
      if (bias == kHidden) continue;
      score += bias;
    }
    if (modifier) score = modifier->score(score);
    scores[static_cast<std::size_t>(j - keys.begin)] = score;
    largest = std::max(largest, score);
  }

  std::vector<Real> o(static_cast<std::size_t>(p.head_dim_v));
  if (largest == kHidden) return o;
  Real sum = 0;
  if (terms.sinks) {
    const auto sink = static_cast<Real>(terms.sinks->logits[row.head]);
    largest = std::max(largest, sink);
    sum = std::exp(sink - largest);
  }
  std::vector<double> factors;  // what magnitudes weigh a key's terms with
  if (magnitudes != nullptr) {
    for (const Real score : scores) factors.push_back(1 + std::abs(static_cast<double>(score)));
  }
  for (Real& score : scores) {
    score = std::exp(score - largest);
    sum += score;
  }
  std::vector<double> squares(o.size());
  std::vector<double> score_squares(o.size());
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const Real probability = scores[static_cast<std::size_t>(j - keys.begin)] / sum;
    if (probability == 0) continue;
    const Real weight = static_cast<Real>(static_cast<Weight>(probability));
    const Kv* v = static_cast<const Kv*>(p.v.data) + rows.key(p.v, j, kv_head);
    const auto v_scale = static_cast<Real>(rows.v_scale(j, kv_head));
    for (int d = 0; d < p.head_dim_v; ++d) {
      const Real term = weight * (static_cast<Real>(v[d]) * v_scale);
      o[static_cast<std::size_t>(d)] += term;
      if (magnitudes == nullptr) continue;
      const double size = static_cast<double>(term);
      const double scored = size * factors[static_cast<std::size_t>(j - keys.begin)];
      squares[static_cast<std::size_t>(d)] += size * size;
      score_squares[static_cast<std::size_t>(d)] += scored * scored;
    }
  }
  if (magnitudes != nullptr)
    *magnitudes = {std::sqrt(std::ranges::max(squares)), std::sqrt(std::ranges::max(score_squares))};
  return o;
}

struct RowErrors {
  double kernel = 0;
  double naive = 0;
  double rounding = 0;  ///< of scores, weights and results, at most, as `tessera verify` has it
};

/// An error that is no number is as bad as an infinite one.
double absolute_error(double value, double exact) {
  const double error = std::abs(value - exact);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

template <class Element, class Kv>
RowErrors row_errors(const AttentionProblem& p, const modifier::Program& program, const RowIndex& row,
                     bool narrow_weights) {
  using NaiveReal = std::conditional_t<std::is_same_v<Element, double>, double, float>;
  RowMagnitudes magnitudes;
  const std::vector<double> exact = attention_row<Kv, double, double>(p, program, row, &magnitudes);
  const std::vector<NaiveReal> naive = attention_row<Kv, NaiveReal, Element>(p, program, row);
  const Element* o =
      static_cast<const Element*>(p.o.data) + TokenRows(p, row.b).query(p.o, row.query, row.head);
  RowErrors errors;
  double largest = 0;
  for (std::size_t d = 0; d < exact.size(); ++d) {
    errors.kernel = std::max(errors.kernel, absolute_error(static_cast<double>(o[d]), exact[d]));
    const double rounded = static_cast<double>(round_to<Element>(static_cast<double>(naive[d])));
    errors.naive = std::max(errors.naive, absolute_error(rounded, exact[d]));
    largest = std::max(largest, std::abs(exact[d]));
  }
  const double roundoff = unit_roundoff(wide_dtype(p));
  errors.rounding = rounding_bound(largest, roundoff, magnitudes.weighted_v,
                                   narrow_weights ? unit_roundoff(DType::kF8E4M3) : roundoff) +
                    5 * unit_roundoff(DType::kF32) * magnitudes.weighted_score_v;
  return errors;
}

/// Rows spread evenly over sequences, heads and queries, the last query of all among them.
std::vector<RowIndex> choose_rows(const AttentionProblem& p) {
  constexpr double kMaxOperations = 4e8;  // about a second
  const double row_operations =
      static_cast<double>(p.seq_len_kv + 1) * static_cast<double>(p.head_dim_qk + p.head_dim_v);
  const auto count = static_cast<std::int64_t>(std::clamp(kMaxOperations / row_operations, 4.0, 64.0));
  std::vector<RowIndex> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    RowIndex row;
    row.b = i * 5 % p.batch;
    row.head = static_cast<int>(i * 7 % p.num_heads);
    const std::int64_t len_q = sequence_extent(p, row.b).len_q;
    if (len_q == 0) continue;
    row.query = count == 1 ? len_q - 1 : i * (len_q - 1) / (count - 1);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

RowCheck check_rows(const AttentionProblem& problem, bool narrow_weights) {
  const std::vector<RowIndex> rows = choose_rows(problem);
  std::vector<RowErrors> errors(rows.size());
  const auto program = modifier_program(problem);
  dispatch_float(wide_dtype(problem), [&]<class Element>() {
    parallel_for(rows.size(), [&](std::size_t i) {
      errors[i] = has_narrow_kv(problem)
                      ? row_errors<Element, Float8E4M3>(problem, *program, rows[i], narrow_weights)
                      : row_errors<Element, Element>(problem, *program, rows[i], narrow_weights);
    });
  });
  RowCheck check;
  check.rows = static_cast<int>(rows.size());
  for (const RowErrors& e : errors) {
    check.error = std::max(check.error, e.kernel);
    // The naive row may be exact: that of a single visible key has a weight of 1.
    check.bound = std::max(check.bound, 2 * e.naive + e.rounding);
  }
  return check;
}

}  // namespace tessera::cli
