#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "backends/reference/ops/elements.h"
#include "core/parallel.h"

// Mixtures of experts, slot by slot.

namespace tessera::reference {

namespace {

/// Experts' scores by their logits.
std::vector<double> scores_of(const std::vector<double>& logits, ExpertScoring scoring) {
  std::vector<double> scores;
  if (scoring == ExpertScoring::kSigmoid) {
    for (const double logit : logits) scores.push_back(1 / (1 + std::exp(-logit)));
    return scores;
  }
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const double logit : logits) top = logit > top ? logit : top;
  for (const double logit : logits) sum += std::exp(logit - top);
  for (const double logit : logits) scores.push_back(std::exp(logit - top) / sum);
  return scores;
}

double counted(double value) { return std::isnan(value) ? -std::numeric_limits<double>::infinity() : value; }

/// Their numbers, those of the largest keys first and of equal ones the lowest.
std::vector<std::int32_t> ranked(const std::vector<double>& keys) {
  std::vector<std::int32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto x, auto y) {
    return keys[static_cast<std::size_t>(x)] > keys[static_cast<std::size_t>(y)];
  });
  return order;
}

/// Experts by how good they are, those of groups that are not used left out.
std::vector<std::int32_t> candidates(const RouteExpertsArguments& a, const std::vector<double>& keys) {
  std::vector<std::int32_t> order = ranked(keys);
  if (a.num_groups == 1) return order;
  const std::size_t group_size = keys.size() / static_cast<std::size_t>(a.num_groups);
  const bool counts_two = group_size > 1 && a.num_experts_of_group > 1;
  std::vector<double> group_keys;
  for (auto begin = keys.begin(); begin != keys.end(); begin += static_cast<std::ptrdiff_t>(group_size)) {
    std::vector<double> group(begin, begin + static_cast<std::ptrdiff_t>(group_size));
    std::ranges::sort(group, std::greater<>());
    group_keys.push_back(counted(counts_two ? group[0] + group[1] : group[0]));
  }
  std::vector<std::int32_t> groups = ranked(group_keys);
  groups.resize(static_cast<std::size_t>(a.num_groups_used));
  std::erase_if(order, [&](std::int32_t expert) {
    return std::ranges::count(groups, expert / static_cast<std::int32_t>(group_size)) == 0;
  });
  return order;
}

}  // namespace

void route_experts(const RouteExpertsArguments& a) {
  const ExpertRouting& r = a.routing;
  if (a.logits.rows == 0) return;
  const auto num_experts = static_cast<std::size_t>(r.num_experts);
  const std::int64_t num_slots = r.num_slots;
  std::vector<double> logits(num_experts), keys(num_experts);
  for (std::int64_t row = 0; row < a.logits.rows; ++row) {
    for (std::size_t e = 0; e < num_experts; ++e)
      logits[e] = load(a.logits, row, static_cast<std::int64_t>(e));
    const std::vector<double> scores = scores_of(logits, a.scoring);
    for (std::size_t e = 0; e < num_experts; ++e) {
      const double bias = a.score_bias == nullptr ? 0 : static_cast<double>(a.score_bias[e]);
      keys[e] = counted(chooses_by_logits(a) ? logits[e] : scores[e] + bias);
    }
    const std::vector<std::int32_t> order = candidates(a, keys);
    double sum = 0;
    for (std::int64_t slot = 0; slot < num_slots; ++slot)
      sum += scores[static_cast<std::size_t>(order[static_cast<std::size_t>(slot)])];
    if (sum < double{kLeastSumOfScores}) sum = double{kLeastSumOfScores};
    for (std::int64_t slot = 0; slot < num_slots; ++slot) {
      const std::int32_t expert = order[static_cast<std::size_t>(slot)];
      const double score = scores[static_cast<std::size_t>(expert)];
      r.experts[row * num_slots + slot] = expert;
      const double scale = a.expert_scales == nullptr ? 1 : static_cast<double>(a.expert_scales[expert]);
      r.weights[row * num_slots + slot] =
          static_cast<float>(double{a.weight_scale} * scale * (a.normalized ? score / sum : score));
    }
  }
  const auto slots = static_cast<std::size_t>(a.logits.rows * num_slots);
  std::iota(r.order, r.order + slots, 0);
  std::stable_sort(r.order, r.order + slots, [&](auto x, auto y) { return r.experts[x] < r.experts[y]; });
  for (std::int32_t e = 0; e <= r.num_experts; ++e) {
    r.offsets[e] = static_cast<std::int32_t>(
        std::count_if(r.experts, r.experts + slots, [&](std::int32_t expert) { return expert < e; }));
  }
}

void expert_gemm(const ExpertGemmArguments& a) {
  if (a.out.rows == 0) return;
  const std::int64_t n = rows_of_expert(a), k = a.x.columns;
  const bool shares_x = a.x.rows != a.out.rows;
  std::vector<double> x(static_cast<std::size_t>(a.x.rows * k));
  for (std::int64_t i = 0; i < a.x.rows * k; ++i) x[static_cast<std::size_t>(i)] = load(a.x, i / k, i % k);
  // Each row of the weight is read once, for all slots of its expert.
  parallel_for(static_cast<std::size_t>(a.weight.rows), [&](std::size_t task) {
    const auto row = static_cast<std::int64_t>(task);
    const std::int64_t expert = row / n, i = row % n;
    const std::int32_t begin = a.routing.offsets[expert], end = a.routing.offsets[expert + 1];
    if (begin == end) return;
    std::vector<double> w(static_cast<std::size_t>(k));
    for (std::int64_t j = 0; j < k; ++j) w[static_cast<std::size_t>(j)] = load(a.weight, row, j);
    for (std::int32_t place = begin; place < end; ++place) {
      const std::int64_t slot = a.routing.order[place];
      const double* const x_row = x.data() + (shares_x ? slot / a.routing.num_slots : slot) * k;
      double sum = a.bias ? load(*a.bias, expert, i) : 0;
      for (std::int64_t j = 0; j < k; ++j) sum += x_row[j] * w[static_cast<std::size_t>(j)];
      store(a.out, slot, i, sum);
    }
  });
}

void combine_experts(const CombineExpertsArguments& a) {
  for (std::int64_t row = 0; row < a.out.rows; ++row) {
    for (std::int64_t c = 0; c < a.out.columns; ++c) {
      double sum = a.accumulate ? load(a.out, row, c) : 0;
      for (std::int64_t s = row * a.num_slots; s < (row + 1) * a.num_slots; ++s)
        sum += static_cast<double>(a.weights[s]) * load(a.x, s, c);
      store(a.out, row, c, sum);
    }
  }
}

}  // namespace tessera::reference
