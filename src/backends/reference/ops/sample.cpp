#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "backends/reference/ops/elements.h"
#include "ops/philox.h"
#include "tessera/error.h"

namespace tessera::reference {
namespace {

constexpr double kRemoved = -std::numeric_limits<double>::infinity();

std::vector<double> penalized_logits(const SampleArguments& a, std::int64_t s) {
  std::vector<double> logits(static_cast<std::size_t>(a.logits.columns));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = load(a.logits, s, static_cast<std::int64_t>(i));
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<double>::infinity()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("sample: logits[{}][{}] is {}; expected a finite number or -inf", s, i, logits[i]));
    }
  }
  const double penalty = a.parameters[s].repetition_penalty;
  if (penalty != 1) {
    const std::int32_t* history = a.history + s * a.history_stride;
    for (const std::int32_t token : std::set<std::int32_t>(history, history + a.history_lens[s])) {
      double& logit = logits[static_cast<std::size_t>(token)];
      logit = logit < 0 ? logit * penalty : logit / penalty;
    }
  }
  return logits;
}

/// Ids by falling logit, equal ones by rising id.
std::vector<std::size_t> ids_by_logit(const std::vector<double>& logits) {
  std::vector<std::size_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), std::size_t{0});
  std::stable_sort(ids.begin(), ids.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  return ids;
}

/// Unnormalised probabilities, the largest 1, 0 where removed.
std::vector<double> weights(const std::vector<double>& logits) {
  const double maximum = *std::max_element(logits.begin(), logits.end());
  std::vector<double> result(logits.size());
  std::transform(logits.begin(), logits.end(), result.begin(),
                 [&](double logit) { return std::exp(logit - maximum); });
  return result;
}

std::int32_t draw(const SampleArguments& a, std::int64_t s) {
  const SamplingParameters& p = a.parameters[s];
  std::vector<double> logits = penalized_logits(a, s);
  const std::vector<std::size_t> order = ids_by_logit(logits);
  if (logits[order[0]] == kRemoved) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("sample: all {} logits of sequence {} are -inf; expected a finite one",
                            logits.size(), s));
  }
  if (p.temperature == 0) return static_cast<std::int32_t>(order[0]);
  for (double& logit : logits) logit /= p.temperature;

  if (p.top_k > 0 && static_cast<std::size_t>(p.top_k) < logits.size()) {
    const double least = logits[order[static_cast<std::size_t>(p.top_k) - 1]];
    for (double& logit : logits) logit = logit < least ? kRemoved : logit;  // equals of the k-th stay
  }
  if (p.top_p < 1) {
    const std::vector<double> w = weights(logits);
    const double total = std::accumulate(w.begin(), w.end(), 0.0);
    double more_likely = 0;
    for (const std::size_t id : order) {
      const bool kept = more_likely < p.top_p * total;
      more_likely += w[id];
      if (!kept) logits[id] = kRemoved;
    }
  }
  std::vector<double> w = weights(logits);
  for (double& weight : w) weight = weight < p.min_p ? 0 : weight;

  const double total = std::accumulate(w.begin(), w.end(), 0.0);
  const double target = sampling_uniform(p.seed, static_cast<std::uint64_t>(a.steps[s])) * total;
  double sum = 0;
  std::size_t last = 0;
  for (std::size_t id = 0; id < w.size(); ++id) {
    if (w[id] == 0) continue;
    sum += w[id];
    last = id;
    if (sum > target) break;
  }
  return static_cast<std::int32_t>(last);
}

}  // namespace

void sample(const SampleArguments& a) {
  for (std::int64_t s = 0; s < a.logits.rows; ++s) a.tokens[s] = draw(a, s);
}

}  // namespace tessera::reference
