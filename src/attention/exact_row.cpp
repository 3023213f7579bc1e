#include "attention/exact_row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/element.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One query of one head of one sequence: its q in fp64 and all that its scores depend on.
template <class T>
class Row {
 public:
  Row(const AttentionProblem& p, const TokenRows& rows, std::int64_t i, int h)
      : p_(p),
        rows_(rows),
        diagonal_(resolve_diagonal(p.scores, rows.extent.len_q, rows.extent.len_kv)),
        i_(i),
        h_(h),
        kv_head_(h / (p.num_heads / p.num_kv_heads)),
        scale_(p.scores.softmax_scale ? static_cast<double>(*p.scores.softmax_scale)
                                      : 1 / std::sqrt(static_cast<double>(p.head_dim_qk))),
        q_(static_cast<std::size_t>(p.head_dim_qk)) {
    const T* q = static_cast<const T*>(p.q.data) + rows.query(p.q, i, h);
    for (std::size_t d = 0; d < q_.size(); ++d) q_[d] = static_cast<double>(q[d]);
  }

  KeyRange keys() const { return diagonal_.keys_of_query(i_); }

  /// The score of key j with every term applied; -inf if it is hidden.
  double score(std::int64_t j) const {
    const ScoreTerms& terms = p_.scores;
    if (terms.boolean_mask) {
      const auto* visible = static_cast<const std::uint8_t*>(terms.boolean_mask->data);
      if (visible[mask_offset(*terms.boolean_mask, j)] == 0) return -kInfinity;
    }
    double bias = 0;
    if (terms.additive_mask) {
      const ScoreMask& mask = *terms.additive_mask;
      bias = load_element(mask.data, mask.dtype, mask_offset(mask, j));
      if (bias == -kInfinity) return -kInfinity;
    }
    const T* k = static_cast<const T*>(p_.k.data) + rows_.key(p_.k, j, kv_head_);
    double s = 0;
    for (std::size_t d = 0; d < q_.size(); ++d) s += q_[d] * static_cast<double>(k[d]);
    s *= scale_;
    if (terms.softcap) s = *terms.softcap * std::tanh(s / *terms.softcap);
    if (terms.alibi) {
      const double slope = terms.alibi->slopes[rows_.b * terms.alibi->batch_stride + h_];
      s -= slope * static_cast<double>(std::abs(i_ + diagonal_.shift - j));
    }
    return s + bias;
  }

  const T* v(std::int64_t j) const { return static_cast<const T*>(p_.v.data) + rows_.key(p_.v, j, kv_head_); }

 private:
  std::int64_t mask_offset(const ScoreMask& mask, std::int64_t j) const {
    return rows_.b * mask.batch_stride + h_ * mask.head_stride + i_ * mask.q_stride + j * mask.kv_stride;
  }

  const AttentionProblem& p_;
  const TokenRows& rows_;
  Diagonal diagonal_;
  std::int64_t i_;
  int h_;
  int kv_head_;
  double scale_;
  std::vector<double> q_;
};

template <class T>
void attend_row(const AttentionProblem& p, const TokenRows& rows, std::int64_t i, int h) {
  const Row<T> row(p, rows, i, h);
  const KeyRange keys = row.keys();

  double largest = -kInfinity;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const double s = row.score(j);
    if (s > largest || std::isnan(s)) largest = s;
    if (std::isnan(s)) break;  // the row's result is NaN, as the equations say
  }
  const bool any_visible = largest != -kInfinity;
  if (any_visible && p.scores.sinks) {
    largest = std::max(largest, static_cast<double>(p.scores.sinks->logits[h]));
  }

  double sum = 0;
  std::vector<double> o(static_cast<std::size_t>(p.head_dim_v), 0.0);
  if (std::isnan(largest)) {
    sum = largest;
  } else if (any_visible) {
    if (p.scores.sinks) sum = std::exp(static_cast<double>(p.scores.sinks->logits[h]) - largest);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const double s = row.score(j);
      if (s == -kInfinity) continue;
      const double weight = std::exp(s - largest);
      sum += weight;
      const T* v = row.v(j);
      for (std::size_t d = 0; d < o.size(); ++d) {
        const double value = static_cast<double>(v[d]);
        o[d] += weight == 0 && !std::isfinite(value) ? value : weight * value;
      }
    }
  }

  T* out = static_cast<T*>(p.o.data) + rows.query(p.o, i, h);
  for (std::size_t d = 0; d < o.size(); ++d) out[d] = round_to<T>(any_visible ? o[d] / sum : 0.0);
  if (p.lse) {
    p.lse->data[rows.query(*p.lse, i, h)] =
        static_cast<float>(any_visible ? largest + std::log(sum) : -kInfinity);
  }
}

}  // namespace

void attend_row_exactly(const AttentionProblem& problem, const TokenRows& rows, std::int64_t query,
                        int head) {
  dispatch_float(problem.q.dtype, [&]<class T>() { attend_row<T>(problem, rows, query, head); });
}

}  // namespace tessera
