#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backends/reference/ops/elements.h"

namespace tessera::reference {

void adjust_logits(const AdjustLogitsArguments& a) {
  for (std::int64_t s = 0; s < a.logits.rows; ++s) {
    std::vector<double> biases(static_cast<std::size_t>(a.logits.columns));
    if (a.bias_offsets != nullptr) {
      for (std::int32_t i = a.bias_offsets[s]; i < a.bias_offsets[s + 1]; ++i) {
        biases[static_cast<std::size_t>(a.biases[i].token)] = static_cast<double>(a.biases[i].bias);
      }
    }
    const std::uint32_t* mask =
        a.mask_rows == nullptr || a.mask_rows[s] < 0 ? nullptr : a.masks + a.mask_rows[s] * a.mask_stride;
    for (std::int64_t i = 0; i < a.logits.columns; ++i) {
      const bool may_come = mask == nullptr || (mask[i / 32] >> (i % 32) & 1u) != 0;
      store(a.out, s, i,
            may_come ? load(a.logits, s, i) + biases[static_cast<std::size_t>(i)]
                     : -std::numeric_limits<double>::infinity());
    }
  }
}

void logprobs(const LogprobsArguments& a) {
  for (std::int64_t s = 0; s < a.logits.rows; ++s) {
    std::vector<double> logits(static_cast<std::size_t>(a.logits.columns));
    for (std::size_t i = 0; i < logits.size(); ++i)
      logits[i] = load(a.logits, s, static_cast<std::int64_t>(i));
    float* top_logprobs = a.top_logprobs + s * a.num_top;
    std::int32_t* top_tokens = a.top_tokens + s * a.num_top;
    const double largest = *std::ranges::max_element(logits);
    const bool is_distribution =
        std::isfinite(largest) && std::ranges::none_of(logits, [](double x) { return std::isnan(x); });
    if (!is_distribution) {
      a.logprobs[s] = std::numeric_limits<float>::quiet_NaN();
      std::fill_n(top_logprobs, a.num_top, std::numeric_limits<float>::quiet_NaN());
      std::fill_n(top_tokens, a.num_top, -1);
      continue;
    }
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - largest);
    const auto logprob = [&](std::int32_t token) {
      return static_cast<float>(logits[static_cast<std::size_t>(token)] - largest - std::log(sum));
    };
    const bool in_vocabulary = a.tokens[s] >= 0 && a.tokens[s] < a.logits.columns;
    a.logprobs[s] = in_vocabulary ? logprob(a.tokens[s]) : std::numeric_limits<float>::quiet_NaN();
    std::vector<std::int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::stable_sort(ids, std::greater<>(),
                             [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; });
    for (int n = 0; n < a.num_top; ++n) {
      top_tokens[n] = ids[static_cast<std::size_t>(n)];
      top_logprobs[n] = logprob(top_tokens[n]);
    }
  }
}

}  // namespace tessera::reference
