#include "backends/cpu/ops/sample.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/scratch.h"
#include "core/parallel.h"
#include "ops/philox.h"
#include "tessera/error.h"

namespace tessera::cpu {
namespace {

constexpr double kRoundoff = std::numeric_limits<double>::epsilon() / 2;

struct Candidate {
  std::int32_t id = 0;
  double logit = 0;   // penalised, over temperature
  double weight = 0;  // exp(logit - the largest logit)
};

/// Rising likelihood; among equals the lower id counts as more likely.
bool less_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
}

/// A token of the history and its penalised logit.
struct PenalizedToken {
  std::int32_t id = 0;
  double logit = 0;
};

/// One sequence's logits: a row of fp32 that is read in place where possible. Tokens of the history stand
/// aside in fp64, with -inf in their place in the row.
class Logits {
 public:
  Logits(const SampleArguments& a, std::int64_t sequence)
      : sequence_(sequence), n_(static_cast<std::size_t>(a.logits.columns)) {
    const bool penalize = a.parameters[sequence].repetition_penalty != 1 && a.history_lens[sequence] > 0;
    const std::int64_t offset = sequence * a.logits.row_stride;
    if (a.logits.dtype == DType::kF32 && !penalize) {
      row_ = static_cast<const float*>(a.logits.data) + offset;
    } else {
      copy_ = scratch_floats(1, static_cast<std::int64_t>(padded_row(a.logits.columns)), "a row of logits");
      row_kernels().load_as_f32(a.logits.data, a.logits.dtype, offset, n_, copy_.floats());
      row_ = copy_.floats();
    }
    if (penalize) set_history_aside(a);
    find_largest();
  }

  std::size_t size() const { return n_; }
  const float* row() const { return row_; }
  const std::vector<PenalizedToken>& penalized() const { return penalized_; }
  double largest() const { return largest_; }
  std::int32_t largest_id() const { return largest_id_; }

  /// Calls body(id, logit) for tokens with a logit of at least `least`, by rising id.
  template <class Body>
  void for_each_from(double least, Body body) const {
    auto next = penalized_.begin();
    for (std::size_t i = 0; i < n_; ++i) {
      double logit = static_cast<double>(row_[i]);
      if (next != penalized_.end() && static_cast<std::size_t>(next->id) == i) logit = (next++)->logit;
      if (logit >= least) body(static_cast<std::int32_t>(i), logit);
    }
  }

 private:
  [[noreturn]] void fail(std::size_t id, float logit) const {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("sample: logits[{}][{}] is {}; expected a finite number or -inf", sequence_, id, logit));
  }

  void set_history_aside(const SampleArguments& a) {
    const std::int32_t* begin = a.history + sequence_ * a.history_stride;
    std::vector<std::int32_t> tokens(begin, begin + a.history_lens[sequence_]);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    const double penalty = a.parameters[sequence_].repetition_penalty;
    for (const std::int32_t id : tokens) {
      float& stored = copy_.floats()[id];
      if (!(stored < std::numeric_limits<float>::infinity())) fail(static_cast<std::size_t>(id), stored);
      const double logit = static_cast<double>(stored);
      penalized_.push_back({id, logit < 0 ? logit * penalty : logit / penalty});
      stored = -std::numeric_limits<float>::infinity();
    }
  }

  void find_largest() {
    const float in_row = row_kernels().largest(row_, n_);
    if (!(in_row < std::numeric_limits<float>::infinity())) {
      for (std::size_t i = 0; i < n_; ++i) {
        if (!(row_[i] < std::numeric_limits<float>::infinity())) fail(i, row_[i]);
      }
    }
    largest_ = static_cast<double>(in_row);
    largest_id_ = static_cast<std::int32_t>(std::find(row_, row_ + n_, in_row) - row_);
    for (const PenalizedToken& token : penalized_) {
      if (token.logit < largest_ || (token.logit == largest_ && token.id > largest_id_)) continue;
      largest_ = token.logit;
      largest_id_ = token.id;
    }
    if (largest_ == -std::numeric_limits<double>::infinity()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("sample: all {} logits of sequence {} are -inf; expected a finite one", n_, sequence_));
    }
  }

  std::int64_t sequence_;
  std::size_t n_;
  const float* row_ = nullptr;
  Scratch copy_{0, ""};
  std::vector<PenalizedToken> penalized_;  // by rising id
  double largest_ = 0;
  std::int32_t largest_id_ = 0;
};

/// Draws with a temperature above 0. What it sums, it sums by rising id, as the reference does.
class Sampler {
 public:
  Sampler(const Logits& logits, const SamplingParameters& parameters, std::int64_t step)
      : logits_(logits),
        parameters_(parameters),
        uniform_(sampling_uniform(parameters.seed, static_cast<std::uint64_t>(step))),
        top_(logits.largest() / parameters.temperature) {}

  std::int32_t draw() {
    const bool use_top_k =
        parameters_.top_k > 0 && static_cast<std::size_t>(parameters_.top_k) < logits_.size();
    if (use_top_k) {
      collect(least_of_top_k());
    } else if (parameters_.top_p == 1 && parameters_.min_p > 0) {
      collect(least_of_min_p());
    } else {
      return draw_from_all();
    }
    if (parameters_.top_p < 1) keep_top_p(total_weight());
    keep_min_p();
    return pick();
  }

 private:
  double weight(double logit) const { return std::exp(logit / parameters_.temperature - top_); }

  /// The k-th largest logit. A heap of the k largest so far: most of the vocabulary is one comparison each.
  double least_of_top_k() const {
    const std::size_t k = static_cast<std::size_t>(parameters_.top_k);
    const float* row = logits_.row();
    std::vector<double> top(row, row + k);
    std::make_heap(top.begin(), top.end(), std::greater<>());
    const auto offer = [&](double logit) {
      if (logit <= top.front()) return;
      std::pop_heap(top.begin(), top.end(), std::greater<>());
      top.back() = logit;
      std::push_heap(top.begin(), top.end(), std::greater<>());
    };
    for (std::size_t i = k; i < logits_.size(); ++i) offer(static_cast<double>(row[i]));
    for (const PenalizedToken& token : logits_.penalized()) offer(token.logit);
    return top.front();
  }

  /// A logit below which min-p certainly drops a token, which then needs no exponential; never above the
  /// largest. The margin covers the rounding of both sides: of quotients, relative to them, and of exp and
  /// log.
  double least_of_min_p() const {
    const double furthest = std::log(static_cast<double>(parameters_.min_p)) * 1.0001 - 1e-6;
    const double least = top_ + furthest - 8 * kRoundoff * (std::abs(top_) - furthest);
    return std::min(least * parameters_.temperature, logits_.largest());
  }

  /// Tokens with a logit of at least `least` and a probability above 0.
  void collect(double least) {
    logits_.for_each_from(least, [&](std::int32_t id, double logit) {
      const double w = weight(logit);
      if (w > 0) candidates_.push_back({id, logit / parameters_.temperature, w});
    });
  }

  double total_weight() const {
    double total = 0;
    for (const Candidate& c : candidates_) total += c.weight;
    return total;
  }

  /// Without top-k the whole distribution counts.
  std::int32_t draw_from_all() {
    const Scratch memory(logits_.size() * sizeof(double), "the weights of all tokens");
    double* weights = static_cast<double*>(memory.data());
    row_kernels().exp_weights(logits_.row(), logits_.size(), parameters_.temperature, top_, weights);
    for (const PenalizedToken& token : logits_.penalized()) weights[token.id] = weight(token.logit);
    double total = 0;
    for (std::size_t i = 0; i < logits_.size(); ++i) total += weights[i];

    if (parameters_.top_p == 1) {  // and min-p is 0
      const double target = uniform_ * total;
      double sum = 0;
      std::size_t last = static_cast<std::size_t>(logits_.largest_id());
      for (std::size_t i = 0; i < logits_.size(); ++i) {
        sum += weights[i];
        if (weights[i] > 0) last = i;
        if (sum > target) break;
      }
      return static_cast<std::int32_t>(last);
    }

    // All tokens lighter than this together have less than 1 - top_p, so top-p keeps none of them. The margin
    // covers the sums' rounding.
    const double hopeless =
        (1 - static_cast<double>(parameters_.top_p)) * total / static_cast<double>(logits_.size()) * 0.999;
    logits_.for_each_from(-std::numeric_limits<double>::infinity(), [&](std::int32_t id, double logit) {
      if (weights[id] >= hopeless && weights[id] > 0) {
        candidates_.push_back({id, logit / parameters_.temperature, weights[id]});
      }
    });
    keep_top_p(total);
    keep_min_p();
    return pick();
  }

  /// Keeps a token if those more likely than it have less than top_p of the probability.
  void keep_top_p(double total) {
    const double wanted = parameters_.top_p * total;
    std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
    // Each pop moves the most likely one left behind the heap's end.
    auto end = candidates_.end();
    for (double more_likely = 0; end != candidates_.begin() && more_likely < wanted;) {
      std::pop_heap(candidates_.begin(), end, less_likely);
      --end;
      more_likely += end->weight;
    }
    candidates_.erase(candidates_.begin(), end);
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }

  void keep_min_p() {
    std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < parameters_.min_p; });
  }

  std::int32_t pick() const {
    const double target = uniform_ * total_weight();
    double sum = 0;
    for (const Candidate& c : candidates_) {
      sum += c.weight;
      if (sum > target) return c.id;
    }
    return candidates_.back().id;  // never empty: the most likely token always stays
  }

  const Logits& logits_;
  const SamplingParameters& parameters_;
  const double uniform_;
  const double top_;                   // the largest logit over temperature
  std::vector<Candidate> candidates_;  // by rising id, but for within keep_top_p
};

}  // namespace

void sample(const SampleArguments& a) {
  parallel_for(static_cast<std::size_t>(a.logits.rows), [&](std::size_t task) {
    const std::int64_t sequence = static_cast<std::int64_t>(task);
    const SamplingParameters& parameters = a.parameters[sequence];
    const Logits logits(a, sequence);
    a.tokens[sequence] = parameters.temperature == 0 ? logits.largest_id()
                                                     : Sampler(logits, parameters, a.steps[sequence]).draw();
  });
}

}  // namespace tessera::cpu
