#include "verify/naive_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <type_traits>

#include "core/element.h"
#include "core/parallel.h"

namespace tessera {
namespace {

double rounded(double value, DType dtype) {
  return dispatch_float(dtype, [&]<class T>() { return static_cast<double>(round_to<T>(value)); });
}

/// One head of one sequence.
template <class A>
class HeadPass {
 public:
  HeadPass(const AttentionData& data, std::int64_t b, int h, bool round_weights, bool round_o,
           std::int64_t every, AttentionRows& rows)
      : data_(data),
        c_(data.description),
        b_(b),
        h_(h),
        round_weights_(round_weights),
        round_o_(round_o),
        every_(static_cast<std::size_t>(every)),
        rows_(rows),
        len_kv_(static_cast<std::size_t>(data.sequences[static_cast<std::size_t>(b)].len_kv)),
        dim_qk_(static_cast<std::size_t>(c_.head_dim_qk)),
        dim_v_(static_cast<std::size_t>(c_.head_dim_v)),
        scale_(c_.softmax_scale ? A(*c_.softmax_scale) : A(1) / std::sqrt(A(c_.head_dim_qk))) {}

  AttentionMagnitudes sizes = {};

  void run() {
    const SequenceData& sequence = data_.sequences[static_cast<std::size_t>(b_)];
    const auto heads = static_cast<std::size_t>(c_.num_heads),
               kv_heads = static_cast<std::size_t>(c_.num_kv_heads);
    const std::size_t head = static_cast<std::size_t>(h_), kv_head = head * kv_heads / heads;
    gather_keys(sequence.k, kv_heads, kv_head);
    gather_values(sequence.v, kv_heads, kv_head);
    std::vector<Stored> q(dim_qk_);
    for (std::size_t i = 0; i < static_cast<std::size_t>(sequence.len_q); ++i) {
      const std::size_t row = static_cast<std::size_t>(data_.first_row(b_)) + i * heads + head;
      if (row % every_ != 0) continue;
      const double* q_row = sequence.q.data() + (i * heads + head) * dim_qk_;
      std::copy(q_row, q_row + dim_qk_, q.begin());
      score_row(q, static_cast<std::int64_t>(i));
      finish_row(row);
    }
  }

 private:
  /// Sums that run side by side, as many as there are registers for. Each is still added up one term after
  /// the other, so its bits are those of a plain loop.
  static constexpr std::size_t kSums = std::is_same_v<A, long double> ? 4 : 8;

  /// What the inputs are kept in: exact, and as narrow as can be.
  using Stored = std::conditional_t<std::is_same_v<A, float>, float, double>;

  /// k_: (len_kv / kSums, dim_qk, kSums), 0 beyond the last key.
  void gather_keys(const std::vector<double>& k, std::size_t kv_heads, std::size_t kv_head) {
    k_.assign((len_kv_ + kSums - 1) / kSums * kSums * dim_qk_, Stored(0));
    for (std::size_t j = 0; j < len_kv_; ++j) {
      Stored* to = &k_[j / kSums * kSums * dim_qk_ + j % kSums];
      for (std::size_t d = 0; d < dim_qk_; ++d)
        to[d * kSums] = static_cast<Stored>(k[(j * kv_heads + kv_head) * dim_qk_ + d]);
    }
  }

  /// v_: (dim_v / kSums, len_kv, kSums), 0 beyond the last element.
  void gather_values(const std::vector<double>& v, std::size_t kv_heads, std::size_t kv_head) {
    v_.assign((dim_v_ + kSums - 1) / kSums * kSums * len_kv_, Stored(0));
    for (std::size_t j = 0; j < len_kv_; ++j) {
      for (std::size_t d = 0; d < dim_v_; ++d)
        v_[(d / kSums * len_kv_ + j) * kSums + d % kSums] =
            static_cast<Stored>(v[(j * kv_heads + kv_head) * dim_v_ + d]);
    }
  }

  /// The scores of query i for the keys that it sees, up to the first that is NaN, and the largest.
  void score_row(const std::vector<Stored>& q, std::int64_t i) {
    keys_.clear();
    scores_.clear();
    sizes_of_scores_.clear();
    largest_ = -std::numeric_limits<A>::infinity();
    for (std::size_t block = 0; block * kSums < len_kv_; ++block) {
      A dots[kSums] = {};
      bool has_dots = false;
      const std::size_t end = std::min(len_kv_, (block + 1) * kSums);
      for (std::size_t j = block * kSums; j < end; ++j) {
        if (!data_.visible(b_, h_, i, static_cast<std::int64_t>(j))) continue;
        if (!has_dots) multiply(q, &k_[block * kSums * dim_qk_], dots);
        has_dots = true;
        const A s = finish_score(dots[j % kSums] * scale_, i, static_cast<std::int64_t>(j));
        keys_.push_back(j);
        scores_.push_back(s);
        if (!(s <= largest_)) largest_ = s;
        if (std::isnan(s)) return;
      }
    }
  }

  void multiply(const std::vector<Stored>& q, const Stored* k, A (&dots)[kSums]) const {
    for (std::size_t d = 0; d < dim_qk_; ++d, k += kSums) {
      for (std::size_t n = 0; n < kSums; ++n) dots[n] += A(q[d]) * A(k[n]);
    }
  }

  A finish_score(A s, std::int64_t i, std::int64_t j) {
    sizes_of_scores_.push_back(0);
    const auto note = [&] {
      // What is added to a mask's lowest numbers is lost in any arithmetic.
      if (std::abs(s) < A(kLeastSwallowing)) {
        sizes_of_scores_.back() = std::max(sizes_of_scores_.back(), static_cast<double>(std::abs(s)));
        sizes.score = std::max(sizes.score, sizes_of_scores_.back());
      }
    };
    note();
    if (c_.softcap) s = A(*c_.softcap) * std::tanh(s / A(*c_.softcap));
    if (c_.alibi) {
      const std::size_t set = c_.alibi_per_batch ? static_cast<std::size_t>(b_) : 0;
      const A slope =
          A(data_.alibi_slopes[set * static_cast<std::size_t>(c_.num_heads) + static_cast<std::size_t>(h_)]);
      s -= slope * A(std::abs(data_.diagonal_key(b_, i) - j));
      note();
    }
    if (c_.additive_mask) s += A(data_.additive_mask.at(b_, h_, i, j));
    note();
    if (c_.modifier == ModifierExample::kNone) return s;
    s += A(modifier_example_bias(c_.modifier, data_.modifier_point(b_, h_, i, j)));
    if (c_.modifier == ModifierExample::kSoftcap) s = A(kExampleCap) * std::tanh(s / A(kExampleCap));
    note();
    return s;
  }

  void finish_row(std::size_t row) {
    double* o = rows_.o.data() + row * dim_v_;
    if (keys_.empty()) {
      std::fill(o, o + dim_v_, 0.0);
      rows_.lse[row] = -std::numeric_limits<double>::infinity();
      return;
    }
    if (c_.sinks) largest_ = std::max(largest_, A(data_.sinks[static_cast<std::size_t>(h_)]));
    A sum = c_.sinks ? std::exp(A(data_.sinks[static_cast<std::size_t>(h_)]) - largest_) : A(0);
    std::vector<A>& weights = scores_;
    for (A& s : weights) {
      s = std::exp(s - largest_);
      sum += s;
    }
    for (A& w : weights) {
      w /= sum;
      if (round_weights_) w = A(rounded(static_cast<double>(w), c_.dtype));
    }
    for (double& size : sizes_of_scores_) size = (1 + size) * (1 + size);
    for (std::size_t d = 0; d < dim_v_; d += kSums) add_values(d, o + d);
    rows_.lse[row] = static_cast<double>(largest_ + std::log(sum));
    if (std::isfinite(rows_.lse[row])) sizes.lse = std::max(sizes.lse, std::abs(rows_.lse[row]));
  }

  /// Elements [d, d + kSums) of a row of o, as far as there are. scores_ are the weights here.
  void add_values(std::size_t d, double* o) {
    A totals[kSums] = {};
    double squares[kSums] = {}, score_squares[kSums] = {};
    for (std::size_t n = 0; n < keys_.size(); ++n) {
      const Stored* v = &v_[(d / kSums * len_kv_ + keys_[n]) * kSums];
      for (std::size_t x = 0; x < kSums; ++x) {
        const A term = scores_[n] * A(v[x]);
        totals[x] += term;
        const double term_squared = static_cast<double>(term * term);
        squares[x] += term_squared;
        score_squares[x] += term_squared * sizes_of_scores_[n];
      }
    }
    for (std::size_t x = 0; x < std::min(kSums, dim_v_ - d); ++x) {
      o[x] = static_cast<double>(totals[x]);
      if (round_o_) o[x] = rounded(o[x], c_.dtype);
      if (std::isfinite(o[x])) sizes.o = std::max(sizes.o, std::abs(o[x]));
      if (std::isfinite(squares[x])) sizes.weighted_v = std::max(sizes.weighted_v, std::sqrt(squares[x]));
      if (std::isfinite(score_squares[x]))
        sizes.weighted_score_v = std::max(sizes.weighted_score_v, std::sqrt(score_squares[x]));
    }
  }

  const AttentionData& data_;
  const AttentionCase& c_;
  std::int64_t b_;
  int h_;
  bool round_weights_;
  bool round_o_;
  std::size_t every_;
  AttentionRows& rows_;
  std::size_t len_kv_, dim_qk_, dim_v_;
  A scale_;
  std::vector<Stored> k_, v_;
  // Of the current row's visible keys:
  std::vector<std::size_t> keys_;
  std::vector<A> scores_;
  std::vector<double> sizes_of_scores_;  // each at its largest on the way
  A largest_ = 0;
};

template <class A>
AttentionMagnitudes run_all(const AttentionData& data, bool round_weights, bool round_o, std::int64_t every,
                            AttentionRows& rows) {
  AttentionMagnitudes all;
  std::mutex mutex;
  const std::size_t heads = static_cast<std::size_t>(data.description.num_heads);
  parallel_for(data.sequences.size() * heads, [&](std::size_t task) {
    HeadPass<A> pass(data, static_cast<std::int64_t>(task / heads), static_cast<int>(task % heads),
                     round_weights, round_o, every, rows);
    pass.run();
    const std::lock_guard lock(mutex);
    all.score = std::max(all.score, pass.sizes.score);
    all.o = std::max(all.o, pass.sizes.o);
    all.lse = std::max(all.lse, pass.sizes.lse);
    all.weighted_v = std::max(all.weighted_v, pass.sizes.weighted_v);
    all.weighted_score_v = std::max(all.weighted_score_v, pass.sizes.weighted_score_v);
  });
  return all;
}

AttentionMagnitudes fill_rows(const AttentionData& data, NaiveArithmetic arithmetic, std::int64_t every,
                              AttentionRows& rows) {
  switch (arithmetic) {
    case NaiveArithmetic::kF32:
      return run_all<float>(data, true, true, every, rows);
    case NaiveArithmetic::kF64:
      return run_all<double>(data, false, true, every, rows);
    case NaiveArithmetic::kExtended:
      break;
  }
  return run_all<long double>(data, false, false, every, rows);
}

}  // namespace

AttentionRows naive_attention(const AttentionData& data, NaiveArithmetic arithmetic,
                              AttentionMagnitudes* magnitudes) {
  const auto num_rows = static_cast<std::size_t>(data.num_rows());
  AttentionRows rows;
  rows.o.resize(num_rows * static_cast<std::size_t>(data.description.head_dim_v));
  rows.lse.resize(num_rows);
  const AttentionMagnitudes sizes = fill_rows(data, arithmetic, 1, rows);
  if (magnitudes != nullptr) *magnitudes = sizes;
  return rows;
}

AttentionRows naive_attention(const AttentionData& data, NaiveArithmetic arithmetic,
                              AttentionMagnitudes& magnitudes, std::int64_t every,
                              const AttentionRows& rest) {
  AttentionRows rows = rest;
  magnitudes = fill_rows(data, arithmetic, every, rows);
  return rows;
}

}  // namespace tessera
