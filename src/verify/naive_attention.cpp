#include "verify/naive_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "core/element.h"
#include "core/parallel.h"

namespace tessera {
namespace {

double rounded(double value, DType dtype) {
  return dispatch_float(dtype, [&]<class T>() { return static_cast<double>(round_to<T>(value)); });
}

template <class A>
std::vector<A> cast(const std::vector<double>& values) {
  return std::vector<A>(values.begin(), values.end());
}

/// One head of one sequence.
template <class A>
struct HeadPass {
  const AttentionData& data;
  std::int64_t b;
  int h;
  bool round_weights;
  bool round_o;
  AttentionRows& rows;
  AttentionMagnitudes sizes = {};
  std::vector<double> sizes_of_scores = {};  ///< of the current row's visible keys, each at its largest

  void run() {
    const AttentionCase& c = data.description;
    const SequenceData& sequence = data.sequences[static_cast<std::size_t>(b)];
    const auto dim_qk = static_cast<std::size_t>(c.head_dim_qk);
    const auto heads = static_cast<std::size_t>(c.num_heads),
               kv_heads = static_cast<std::size_t>(c.num_kv_heads);
    const std::size_t head = static_cast<std::size_t>(h), kv_head = head * kv_heads / heads;
    const auto len_kv = static_cast<std::size_t>(sequence.len_kv);
    const std::vector<A> q = cast<A>(sequence.q), k = cast<A>(sequence.k), v = cast<A>(sequence.v);
    const A scale = c.softmax_scale ? A(*c.softmax_scale) : A(1) / std::sqrt(A(c.head_dim_qk));

    for (std::size_t i = 0; i < static_cast<std::size_t>(sequence.len_q); ++i) {
      std::vector<std::size_t> keys;
      std::vector<A> scores;
      sizes_of_scores.clear();
      A largest = -std::numeric_limits<A>::infinity();
      for (std::size_t j = 0; j < len_kv; ++j) {
        if (!data.visible(b, h, static_cast<std::int64_t>(i), static_cast<std::int64_t>(j))) continue;
        const A* q_row = &q[(i * heads + head) * dim_qk];
        const A* k_row = &k[(j * kv_heads + kv_head) * dim_qk];
        A s = 0;
        for (std::size_t d = 0; d < dim_qk; ++d) s += q_row[d] * k_row[d];
        s = finish_score(s * scale, i, j);
        keys.push_back(j);
        scores.push_back(s);
        if (!(s <= largest)) largest = s;
        if (std::isnan(s)) break;
      }
      const std::size_t row = static_cast<std::size_t>(data.first_row(b)) + i * heads + head;
      finish_row(row, keys, scores, largest, v, kv_head);
    }
  }

 private:
  A finish_score(A s, std::size_t i, std::size_t j) {
    const AttentionCase& c = data.description;
    const auto query = static_cast<std::int64_t>(i), key = static_cast<std::int64_t>(j);
    sizes_of_scores.push_back(0);
    const auto note = [&] {
      if (std::isfinite(s)) {
        sizes_of_scores.back() = std::max(sizes_of_scores.back(), static_cast<double>(std::abs(s)));
        sizes.score = std::max(sizes.score, sizes_of_scores.back());
      }
    };
    note();
    if (c.softcap) s = A(*c.softcap) * std::tanh(s / A(*c.softcap));
    if (c.alibi) {
      const std::size_t set = c.alibi_per_batch ? static_cast<std::size_t>(b) : 0;
      const A slope =
          A(data.alibi_slopes[set * static_cast<std::size_t>(c.num_heads) + static_cast<std::size_t>(h)]);
      s -= slope * A(std::abs(data.diagonal_key(b, query) - key));
      note();
    }
    if (c.additive_mask) s += A(data.additive_mask.at(b, h, query, key));
    note();
    return s;
  }

  void finish_row(std::size_t row, const std::vector<std::size_t>& keys, const std::vector<A>& scores,
                  A largest, const std::vector<A>& v, std::size_t kv_head) {
    const AttentionCase& c = data.description;
    const auto dim_v = static_cast<std::size_t>(c.head_dim_v);
    const auto kv_heads = static_cast<std::size_t>(c.num_kv_heads);
    double* o = &rows.o[row * dim_v];
    if (keys.empty()) {
      std::fill(o, o + dim_v, 0.0);
      rows.lse[row] = -std::numeric_limits<double>::infinity();
      return;
    }
    if (c.sinks) largest = std::max(largest, A(data.sinks[static_cast<std::size_t>(h)]));
    A sum = c.sinks ? std::exp(A(data.sinks[static_cast<std::size_t>(h)]) - largest) : A(0);
    std::vector<A> weights;
    for (const A s : scores) {
      weights.push_back(std::exp(s - largest));
      sum += weights.back();
    }
    for (A& w : weights) {
      w /= sum;
      if (round_weights) w = A(rounded(static_cast<double>(w), c.dtype));
    }
    for (std::size_t d = 0; d < dim_v; ++d) {
      A total = 0;
      double squares = 0, score_squares = 0;
      for (std::size_t n = 0; n < keys.size(); ++n) {
        const A term = weights[n] * v[(keys[n] * kv_heads + kv_head) * dim_v + d];
        total += term;
        const double term_squared = static_cast<double>(term * term);
        squares += term_squared;
        score_squares += term_squared * (1 + sizes_of_scores[n]) * (1 + sizes_of_scores[n]);
      }
      o[d] = static_cast<double>(total);
      if (round_o) o[d] = rounded(o[d], c.dtype);
      if (std::isfinite(o[d])) sizes.o = std::max(sizes.o, std::abs(o[d]));
      if (std::isfinite(squares)) sizes.weighted_v = std::max(sizes.weighted_v, std::sqrt(squares));
      if (std::isfinite(score_squares)) {
        sizes.weighted_score_v = std::max(sizes.weighted_score_v, std::sqrt(score_squares));
      }
    }
    rows.lse[row] = static_cast<double>(largest + std::log(sum));
    if (std::isfinite(rows.lse[row])) sizes.lse = std::max(sizes.lse, std::abs(rows.lse[row]));
  }
};

template <class A>
AttentionMagnitudes run_all(const AttentionData& data, bool round_weights, bool round_o,
                            AttentionRows& rows) {
  AttentionMagnitudes all;
  std::mutex mutex;
  const std::size_t heads = static_cast<std::size_t>(data.description.num_heads);
  parallel_for(data.sequences.size() * heads, [&](std::size_t task) {
    HeadPass<A> pass{
        data, static_cast<std::int64_t>(task / heads), static_cast<int>(task % heads), round_weights, round_o,
        rows};
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

}  // namespace

AttentionRows naive_attention(const AttentionData& data, NaiveArithmetic arithmetic,
                              AttentionMagnitudes* magnitudes) {
  const auto num_rows = static_cast<std::size_t>(data.num_rows());
  AttentionRows rows;
  rows.o.resize(num_rows * static_cast<std::size_t>(data.description.head_dim_v));
  rows.lse.resize(num_rows);
  AttentionMagnitudes sizes;
  switch (arithmetic) {
    case NaiveArithmetic::kF32:
      sizes = run_all<float>(data, true, true, rows);
      break;
    case NaiveArithmetic::kF64:
      sizes = run_all<double>(data, false, true, rows);
      break;
    case NaiveArithmetic::kExtended:
      sizes = run_all<long double>(data, false, false, rows);
      break;
  }
  if (magnitudes != nullptr) *magnitudes = sizes;
  return rows;
}

}  // namespace tessera
