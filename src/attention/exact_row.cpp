#include "attention/exact_row.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "attention/modifier.h"
#include "attention/narrow.h"
#include "core/element.h"
#include "core/infinity.h"
#include "modifier/evaluate.h"

namespace tessera {
namespace {

/// Keys whose products with q are summed side by side. Each sum is still added up one term after the other.
constexpr std::size_t kKeysAtOnce = 8;

/// A key that the row sees.
struct SeenKey {
  std::int64_t j = 0;
  double score = 0;
};

/// One query of one head of one sequence: its q in fp64 and all that its scores depend on. Kv: of k and v as
/// stored.
template <class Kv>
class Row {
 public:
  Row(const AttentionProblem& p, const modifier::Program& program, const TokenRows& rows, std::int64_t i,
      int h)
      : p_(p),
        rows_(rows),
        diagonal_(resolve_diagonal(p.scores, rows.extent.len_q, rows.extent.len_kv)),
        i_(i),
        h_(h),
        kv_head_(h / (p.num_heads / p.num_kv_heads)),
        scale_(p.scores.softmax_scale ? static_cast<double>(*p.scores.softmax_scale)
                                      : 1 / std::sqrt(static_cast<double>(p.head_dim_qk))) {
    if (!p.scores.modifier) return;
    modifier_.emplace(program, *p.scores.modifier);
    modifier_->begin_query(modifier_variables(p, rows.b, rows.extent, i, h));
  }

  /// The keys that no mask hides with their scores, every term applied.
  std::vector<SeenKey> seen_keys() {
    const KeyRange range = diagonal_.keys_of_query(i_);
    std::vector<SeenKey> keys;
    keys.reserve(static_cast<std::size_t>(std::max<std::int64_t>(0, range.end - range.begin)));
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      if (modifier_ && !modifier_->is_visible(static_cast<std::int32_t>(j))) continue;
      const double bias = mask(j);
      if (bias != -kInfinity) keys.push_back({j, bias});
    }
    if (keys.empty()) return keys;
    load_query();
    for (std::size_t first = 0; first < keys.size(); first += kKeysAtOnce)
      score(keys.data() + first, std::min(kKeysAtOnce, keys.size() - first));
    if (modifier_) {
      for (SeenKey& key : keys) {
        modifier_->is_visible(static_cast<std::int32_t>(key.j));  // what score() goes on from
        key.score = modifier_->score(key.score);
      }
    }
    return keys;
  }

  const Kv* v(std::int64_t j) const {
    return static_cast<const Kv*>(p_.v.data) + rows_.key(p_.v, j, kv_head_);
  }
  double v_scale(std::int64_t j) const { return static_cast<double>(rows_.v_scale(j, kv_head_)); }

 private:
  void load_query() {
    q_.resize(static_cast<std::size_t>(p_.head_dim_qk));
    const std::int64_t q = rows_.query(p_.q, i_, h_);
    const double q_scale = rows_.q_scale(kv_head_);
    dispatch_stored(p_.q.dtype, [&]<class Q>() {
      const Q* stored = static_cast<const Q*>(p_.q.data) + q;
      for (std::size_t d = 0; d < q_.size(); ++d) q_[d] = static_cast<double>(stored[d]) * q_scale;
    });
  }

  /// What the masks add to the score of key j; -inf if they hide it.
  double mask(std::int64_t j) const {
    const ScoreTerms& terms = p_.scores;
    if (terms.boolean_mask) {
      const auto* visible = static_cast<const std::uint8_t*>(terms.boolean_mask->data);
      if (visible[mask_offset(*terms.boolean_mask, j)] == 0) return -kInfinity;
    }
    if (!terms.additive_mask) return 0;
    return load_element(terms.additive_mask->data, terms.additive_mask->dtype,
                        mask_offset(*terms.additive_mask, j));
  }

  /// Adds all but the masks to the scores of up to kKeysAtOnce keys.
  void score(SeenKey* keys, std::size_t count) const {
    std::array<const Kv*, kKeysAtOnce> k;
    for (std::size_t n = 0; n < kKeysAtOnce; ++n)  // the last key again where there are fewer
      k[n] = static_cast<const Kv*>(p_.k.data) + rows_.key(p_.k, keys[std::min(n, count - 1)].j, kv_head_);
    std::array<double, kKeysAtOnce> sums = {};
    for (std::size_t d = 0; d < q_.size(); ++d) {
      for (std::size_t n = 0; n < kKeysAtOnce; ++n) sums[n] += q_[d] * static_cast<double>(k[n][d]);
    }
    const ScoreTerms& terms = p_.scores;
    for (std::size_t n = 0; n < count; ++n) {
      double s = sums[n] * (scale_ * static_cast<double>(rows_.k_scale(keys[n].j, kv_head_)));
      if (terms.softcap) s = *terms.softcap * std::tanh(s / *terms.softcap);
      if (terms.alibi) {
        const double slope = terms.alibi->slopes[rows_.b * terms.alibi->batch_stride + h_];
        s -= slope * static_cast<double>(std::abs(i_ + diagonal_.shift - keys[n].j));
      }
      keys[n].score += s;
    }
  }

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
  std::vector<double> q_;  // of rows that see a key
  std::optional<modifier::Evaluator<double>> modifier_;
};

/// T: of o, Kv: of k and v as stored.
template <class T, class Kv>
void attend_row(const AttentionProblem& p, const modifier::Program& program, const TokenRows& rows,
                std::int64_t i, int h) {
  Row<Kv> row(p, program, rows, i, h);
  const std::vector<SeenKey> keys = row.seen_keys();

  double largest = -kInfinity;
  for (const SeenKey& key : keys) {
    if (key.score > largest || std::isnan(key.score)) largest = key.score;
    if (std::isnan(key.score)) break;  // the row's result is NaN, as the equations say
  }
  T* out = static_cast<T*>(p.o.data) + rows.query(p.o, i, h);
  if (largest == -kInfinity) {  // no key is visible
    std::fill_n(out, p.head_dim_v, round_to<T>(0));
    if (p.lse) p.lse->data[rows.query(*p.lse, i, h)] = static_cast<float>(-kInfinity);
    return;
  }
  if (p.scores.sinks) largest = std::max(largest, static_cast<double>(p.scores.sinks->logits[h]));

  double sum = 0;
  std::vector<double> o(static_cast<std::size_t>(p.head_dim_v), 0.0);
  if (std::isnan(largest)) {
    sum = largest;
  } else {
    if (p.scores.sinks) sum = std::exp(static_cast<double>(p.scores.sinks->logits[h]) - largest);
    for (const SeenKey& key : keys) {
      if (key.score == -kInfinity) continue;
      const double weight = std::exp(key.score - largest);
      sum += weight;
      const Kv* v = row.v(key.j);
      const double v_scale = row.v_scale(key.j);
      if (weight != 0) {
        for (std::size_t d = 0; d < o.size(); ++d) o[d] += weight * (static_cast<double>(v[d]) * v_scale);
        continue;
      }
      for (std::size_t d = 0; d < o.size(); ++d) {
        if (!std::isfinite(static_cast<double>(v[d]))) o[d] += static_cast<double>(v[d]);
      }
    }
  }

  for (std::size_t d = 0; d < o.size(); ++d) out[d] = round_to<T>(o[d] / sum);
  if (p.lse) p.lse->data[rows.query(*p.lse, i, h)] = static_cast<float>(largest + std::log(sum));
}

}  // namespace

void attend_row_exactly(const AttentionProblem& problem, const modifier::Program& program,
                        const TokenRows& rows, std::int64_t query, int head) {
  dispatch_float(wide_dtype(problem), [&]<class T>() {
    if (has_narrow_kv(problem)) {
      attend_row<T, Float8E4M3>(problem, program, rows, query, head);
    } else {
      attend_row<T, T>(problem, program, rows, query, head);
    }
  });
}

}  // namespace tessera
