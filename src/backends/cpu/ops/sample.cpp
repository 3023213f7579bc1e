#include "backends/cpu/ops/sample.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/scratch.h"
#include "core/parallel.h"
#include "ops/philox.h"
#include "tessera/error.h"

namespace tessera::cpu {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();
constexpr double kRoundoff = std::numeric_limits<double>::epsilon() / 2;
constexpr std::size_t kBlock = 128;  // tokens that are passed over together

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

  /// Calls body(first, end) for the blocks of the row with a logit of at least `least()`, which is asked anew
  /// for each.
  template <class Least, class Body>
  void for_blocks_from(Least least, Body body) const {
    for (std::size_t b = 0; b < block_largest_.size(); ++b) {
      if (static_cast<double>(block_largest_[b]) < least()) continue;
      body(b * kBlock, std::min(n_, (b + 1) * kBlock));
    }
  }

  /// Calls body(id, logit) for tokens with a logit of at least `least`, by rising id.
  template <class Body>
  void for_each_from(double least, Body body) const {
    auto next = penalized_.begin();
    const auto penalized_before = [&](std::size_t end) {
      for (; next != penalized_.end() && static_cast<std::size_t>(next->id) < end; ++next) {
        if (next->logit >= least) body(next->id, next->logit);
      }
    };
    for_blocks_from([=] { return least; },
                    [&](std::size_t first, std::size_t end) {
                      for (std::size_t i = first; i < end; ++i) {
                        const double logit = static_cast<double>(row_[i]);
                        if (!(logit >= least) || logit == kHidden) continue;
                        penalized_before(i);
                        body(static_cast<std::int32_t>(i), logit);
                      }
                    });
    penalized_before(n_);
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
    float in_row = -std::numeric_limits<float>::infinity();
    std::size_t block = 0;
    for (std::size_t first = 0; first < n_; first += kBlock) {
      const std::size_t count = std::min(kBlock, n_ - first);
      const float largest = row_kernels().largest(row_ + first, count);
      if (!(largest < std::numeric_limits<float>::infinity())) {
        for (std::size_t i = first; i < first + count; ++i) {
          if (!(row_[i] < std::numeric_limits<float>::infinity())) fail(i, row_[i]);
        }
      }
      if (largest > in_row) {
        in_row = largest;
        block = first;
      }
      block_largest_.push_back(largest);
    }
    largest_ = static_cast<double>(in_row);
    largest_id_ = static_cast<std::int32_t>(std::find(row_ + block, row_ + n_, in_row) - row_);
    for (const PenalizedToken& token : penalized_) {
      if (token.logit < largest_ || (token.logit == largest_ && token.id > largest_id_)) continue;
      largest_ = token.logit;
      largest_id_ = token.id;
    }
    if (largest_ == kHidden) {
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
  std::vector<float> block_largest_;       // of each kBlock numbers of the row
  double largest_ = 0;
  std::int32_t largest_id_ = 0;
};

/// The first of the weights with which their sum, added to `sum`, exceeds target, or the last above 0; sum
/// becomes that of those before it.
std::size_t pick_weight(std::span<const double> weights, double target, double& sum) {
  std::size_t picked = 0;
  double before = sum;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    picked = i;
    before = sum;
    sum += weights[i];
    if (sum > target) break;
  }
  sum = before;
  return picked;
}

/// Weights up to 1 by size, in bins an eighth of a power of two wide, the first for all below 2^-64.
class WeightBins {
 public:
  explicit WeightBins(std::span<const double> weights) {
    // Two sums a bin, for weights in turns: where many fall into one, each addition waits for the one before.
    std::array<double, kBins> odd{};
    std::size_t i = 0;
    for (; i + 2 <= weights.size(); i += 2) {
      sums_[bin(weights[i])] += weights[i];
      odd[bin(weights[i + 1])] += weights[i + 1];
    }
    if (i < weights.size()) sums_[bin(weights[i])] += weights[i];
    for (std::size_t b = 0; b < kBins; ++b) sums_[b] += odd[b];
  }

  /// The bin in which the sum of weights, the heaviest first, reaches `wanted`, and that of heavier bins.
  struct Reached {
    std::size_t bin = kBins - 1;
    double heavier = 0;
  };
  Reached reach(double wanted) const {
    Reached r;
    for (; r.bin > 0 && r.heavier + sums_[r.bin] < wanted; --r.bin) r.heavier += sums_[r.bin];
    return r;
  }

  static std::size_t bin(double weight) {
    const std::uint64_t at = std::bit_cast<std::uint64_t>(weight) >> kShift;
    return at <= kFirst ? 0 : std::min<std::size_t>(at - kFirst, kBins - 1);
  }
  /// The least weight of a bin.
  static double least_of(std::size_t bin) {
    return bin == 0 ? 0 : std::bit_cast<double>((kFirst + bin) << kShift);
  }

 private:
  static constexpr int kShift = 52 - 3;
  static constexpr std::uint64_t kFirst = std::bit_cast<std::uint64_t>(0x1p-64) >> kShift;
  static constexpr std::size_t kBins = 64 * 8 + 1;
  std::array<double, kBins> sums_{};
};

/// Draws with a temperature above 0.
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
      collect(least_logit(parameters_.min_p));
    } else {
      return draw_from_all();
    }
    if (parameters_.top_p < 1) keep_top_p(candidates_, 0, parameters_.top_p * total_weight());
    keep_min_p();
    return pick();
  }

 private:
  double weight(double logit) const { return std::exp(logit / parameters_.temperature - top_); }

  /// The k-th largest logit. A heap of the k largest so far: most blocks of the vocabulary are one
  /// comparison.
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
    logits_.for_blocks_from([&] { return top.front(); },
                            [&](std::size_t first, std::size_t end) {
                              for (std::size_t i = std::max(k, first); i < end; ++i)
                                offer(static_cast<double>(row[i]));
                            });
    for (const PenalizedToken& token : logits_.penalized()) offer(token.logit);
    return top.front();
  }

  /// A logit below which a token's weight is certainly below `weight`, without an exponential; never above
  /// the largest. The margin covers the rounding of both sides: of quotients, relative to them, and of exp
  /// and log.
  double least_logit(double weight) const {
    if (weight == 0) return kHidden;
    const double furthest = std::log(weight) * 1.0001 - 1e-6;
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
    const std::span<double> weights(static_cast<double*>(memory.data()), logits_.size());
    std::vector<double> sums;
    for (std::size_t first = 0; first < weights.size(); first += kBlock) {
      sums.push_back(row_kernels().exp_weights(logits_.row() + first,
                                               std::min(kBlock, weights.size() - first),
                                               parameters_.temperature, top_, weights.data() + first));
    }
    for (const PenalizedToken& token : logits_.penalized()) {
      const std::size_t id = static_cast<std::size_t>(token.id);
      weights[id] = weight(token.logit);
      sums[id / kBlock] += weights[id];
    }
    const double total = std::accumulate(sums.begin(), sums.end(), 0.0);

    if (parameters_.top_p == 1) {  // and min-p is 0
      const double target = uniform_ * total;
      double sum = 0;
      const std::size_t first = kBlock * pick_weight(sums, target, sum);
      const auto block = weights.subspan(first, std::min(kBlock, weights.size() - first));
      return static_cast<std::int32_t>(first + pick_weight(block, target, sum));
    }

    // Heavier tokens than the bin's stay, lighter ones go.
    const double wanted = parameters_.top_p * total;
    const WeightBins::Reached reached = WeightBins(weights).reach(wanted);
    const double least = WeightBins::least_of(reached.bin);
    std::vector<Candidate> doubtful;
    logits_.for_each_from(least_logit(least), [&](std::int32_t id, double logit) {
      const double w = weights[static_cast<std::size_t>(id)];
      if (w == 0 || w < least) return;
      candidates_.push_back({id, logit / parameters_.temperature, w});
      if (WeightBins::bin(w) == reached.bin) doubtful.push_back(candidates_.back());
    });
    keep_top_p(std::move(doubtful), reached.heavier, wanted);
    keep_min_p();
    return pick();
  }

  /// Keeps a token if those more likely than it weigh less than `wanted`. That is certain for all but the
  /// doubtful ones; those more likely than they weigh `sum`, which is less. They are halved until one is
  /// left.
  void keep_top_p(std::vector<Candidate> doubtful, double sum, double wanted) {
    if (doubtful.empty()) return;
    auto begin = doubtful.begin();
    auto end = doubtful.end();
    while (end - begin > 1) {
      const auto middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end,
                       [](const Candidate& a, const Candidate& b) { return less_likely(b, a); });
      const double with_half = std::accumulate(
          begin, middle, sum, [](double total, const Candidate& c) { return total + c.weight; });
      if (with_half < wanted) {
        sum = with_half;
        begin = middle;
      } else {
        end = middle;
      }
    }
    std::erase_if(candidates_, [&](const Candidate& c) { return less_likely(c, *begin); });
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
  std::vector<Candidate> candidates_;  // by rising id
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
