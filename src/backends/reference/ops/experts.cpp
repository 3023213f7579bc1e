#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backends/reference/ops/elements.h"
#include "core/parallel.h"

// Mixtures of experts, slot by slot.

namespace tessera::reference {

void route_experts(const RouteExpertsArguments& a) {
  const ExpertRouting& r = a.routing;
  if (a.logits.rows == 0) return;
  const auto num_experts = static_cast<std::size_t>(r.num_experts);
  const std::int64_t num_slots = r.num_slots;
  std::vector<double> logits(num_experts);
  std::vector<std::int32_t> ranked(num_experts);
  for (std::int64_t row = 0; row < a.logits.rows; ++row) {
    for (std::size_t e = 0; e < num_experts; ++e)
      logits[e] = load(a.logits, row, static_cast<std::int64_t>(e));
    const auto key = [&](std::int32_t e) {
      const double logit = logits[static_cast<std::size_t>(e)];
      return std::isnan(logit) ? -std::numeric_limits<double>::infinity() : logit;
    };
    std::iota(ranked.begin(), ranked.end(), 0);
    std::stable_sort(ranked.begin(), ranked.end(), [&](auto x, auto y) { return key(x) > key(y); });
    const double top = key(ranked.front());
    const std::size_t counted = a.normalized ? static_cast<std::size_t>(num_slots) : num_experts;
    double sum = 0;
    for (std::size_t i = 0; i < counted; ++i)
      sum += std::exp(logits[static_cast<std::size_t>(ranked[i])] - top);
    for (std::int64_t slot = 0; slot < num_slots; ++slot) {
      const std::int32_t expert = ranked[static_cast<std::size_t>(slot)];
      r.experts[row * num_slots + slot] = expert;
      r.weights[row * num_slots + slot] =
          static_cast<float>(std::exp(logits[static_cast<std::size_t>(expert)] - top) / sum);
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
