#include "backends/cpu/ops/sample.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/cpu/ops/row_kernels.h"
#include "core/parallel.h"
#include "ops/philox.h"
#include "tessera/error.h"

namespace tessera::cpu {
namespace {

struct Candidate {
  std::int32_t id = 0;
  double logit = 0;   // penalised, over temperature
  double weight = 0;  // exp(logit - the largest logit)
};

/// Rising likelihood; among equals the lower id counts as more likely.
bool less_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
}

class Sampler {
 public:
  Sampler(const SampleArguments& a, std::int64_t sequence)
      : parameters_(a.parameters[sequence]), step_(a.steps[sequence]) {
    load_logits(a, sequence);
    if (parameters_.repetition_penalty != 1) penalize(a, sequence);
    find_largest(sequence);
  }

  std::int32_t draw() {
    if (parameters_.temperature == 0) return largest_id_;
    const bool use_top_k =
        parameters_.top_k > 0 && static_cast<std::size_t>(parameters_.top_k) < logits_.size();
    collect(use_top_k ? least_of_top_k() : -std::numeric_limits<double>::infinity());
    if (parameters_.top_p < 1) keep_top_p();
    return pick();
  }

 private:
  void load_logits(const SampleArguments& a, std::int64_t sequence) {
    const std::size_t n = static_cast<std::size_t>(a.logits.columns);
    const std::int64_t offset = sequence * a.logits.row_stride;
    logits_.resize(n);
    if (a.logits.dtype == DType::kF32) {
      const float* row = static_cast<const float*>(a.logits.data) + offset;
      std::copy(row, row + n, logits_.begin());
      return;
    }
    std::vector<float> row(padded_row(a.logits.columns));
    row_kernels().load_as_f32(a.logits.data, a.logits.dtype, offset, n, row.data());
    std::copy(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(n), logits_.begin());
  }

  /// Once for each different token of the history.
  void penalize(const SampleArguments& a, std::int64_t sequence) {
    const std::int32_t* begin = a.history + sequence * a.history_stride;
    std::vector<std::int32_t> tokens(begin, begin + a.history_lens[sequence]);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    const double penalty = parameters_.repetition_penalty;
    for (const std::int32_t token : tokens) {
      double& logit = logits_[static_cast<std::size_t>(token)];
      logit = logit < 0 ? logit * penalty : logit / penalty;
    }
  }

  void find_largest(std::int64_t sequence) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    largest_ = -kInfinity;
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      if (!(logits_[i] < kInfinity)) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("sample: logits[{}][{}] is {}; expected a finite number or -inf", sequence, i,
                                logits_[i]));
      }
      if (logits_[i] > largest_) {
        largest_ = logits_[i];
        largest_id_ = static_cast<std::int32_t>(i);
      }
    }
    if (largest_ == -kInfinity) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("sample: all {} logits of sequence {} are -inf; expected a finite one",
                              logits_.size(), sequence));
    }
  }

  /// The k-th largest logit. A heap of the k largest so far: most of the vocabulary is one comparison each.
  double least_of_top_k() const {
    const std::size_t k = static_cast<std::size_t>(parameters_.top_k);
    std::vector<double> top(logits_.begin(), logits_.begin() + static_cast<std::ptrdiff_t>(k));
    std::make_heap(top.begin(), top.end(), std::greater<>());
    for (std::size_t i = k; i < logits_.size(); ++i) {
      if (logits_[i] <= top.front()) continue;
      std::pop_heap(top.begin(), top.end(), std::greater<>());
      top.back() = logits_[i];
      std::push_heap(top.begin(), top.end(), std::greater<>());
    }
    return top.front();
  }

  /// Tokens with a logit of at least `least`, by rising id. With min-p but not top-p, leaves out what min-p
  /// removes; top-p comes before it and needs the whole distribution.
  void collect(double least) {
    const double temperature = parameters_.temperature;
    const double top = largest_ / temperature;
    const double min_p = parameters_.top_p < 1 ? 0 : parameters_.min_p;
    // Clearly below min-p: needs no exponential.
    const double hopeless =
        min_p > 0 ? std::log(min_p) * 1.0001 - 1e-6 : -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      if (logits_[i] < least) continue;
      const double logit = logits_[i] / temperature;
      if (logit - top < hopeless) continue;
      const double weight = std::exp(logit - top);
      if (weight > 0 && weight >= min_p) candidates_.push_back({static_cast<std::int32_t>(i), logit, weight});
    }
  }

  double total_weight() const {
    double total = 0;
    for (const Candidate& c : candidates_) total += c.weight;
    return total;
  }

  /// Keeps a token if those more likely than it have less than top_p of the probability, then applies min-p.
  void keep_top_p() {
    const double total = total_weight();
    const double wanted = parameters_.top_p * total;
    // All tokens lighter than this together have less than 1 - top_p, so none of them is kept. The margin
    // covers the sums' rounding.
    const double hopeless = (1 - static_cast<double>(parameters_.top_p)) * total /
                            static_cast<double>(candidates_.size()) * 0.999;
    std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < hopeless; });
    std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
    std::vector<Candidate> kept;
    double more_likely = 0;
    while (!candidates_.empty() && more_likely < wanted) {
      std::pop_heap(candidates_.begin(), candidates_.end(), less_likely);
      const Candidate next = candidates_.back();
      candidates_.pop_back();
      more_likely += next.weight;
      if (next.weight >= parameters_.min_p) kept.push_back(next);
    }
    std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    candidates_ = std::move(kept);
  }

  std::int32_t pick() const {
    const double target =
        sampling_uniform(parameters_.seed, static_cast<std::uint64_t>(step_)) * total_weight();
    double sum = 0;
    for (const Candidate& c : candidates_) {
      sum += c.weight;
      if (sum > target) return c.id;
    }
    return candidates_.back().id;  // never empty: the most likely token always stays
  }

  const SamplingParameters parameters_;
  const std::int64_t step_;
  std::vector<double> logits_;
  double largest_ = 0;
  std::int32_t largest_id_ = 0;
  std::vector<Candidate> candidates_;  // by rising id, but for within keep_top_p
};

}  // namespace

void sample(const SampleArguments& a) {
  parallel_for(static_cast<std::size_t>(a.logits.rows), [&](std::size_t task) {
    const std::int64_t sequence = static_cast<std::int64_t>(task);
    a.tokens[sequence] = Sampler(a, sequence).draw();
  });
}

}  // namespace tessera::cpu
