#include "ops/rope.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/error.h"

namespace tessera {
namespace {

void require_positive(std::string_view name, double value) {
  if (!(value > 0) || !std::isfinite(value)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rope: {} is {}; expected a positive finite number", name, value));
  }
}

/// Low frequencies (long wavelengths) are divided by the factor, high ones kept, those between blended.
double llama3_frequency(const RopeLlama3Scaling& s, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double context = static_cast<double>(s.original_max_seq_len);
  const double low = s.low_freq_factor;
  const double high = s.high_freq_factor;
  if (wavelength > context / low) return frequency / s.factor;
  if (wavelength < context / high) return frequency;
  const double kept = (context / wavelength - low) / (high - low);
  return (1 - kept) * frequency / s.factor + kept * frequency;
}

/// Blends interpolated and original frequencies by how often a dimension turns over the original context
/// (YaRN, section 3.2, "NTK-by-parts").
class YarnBlend {
 public:
  YarnBlend(const RopeYarnScaling& s, double theta, int rotary_dim) : factor_(s.factor) {
    const auto dimension_that_turns = [&](double turns) {
      const double context = static_cast<double>(s.original_max_seq_len);
      return rotary_dim * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
    };
    first_ = dimension_that_turns(s.beta_fast);
    last_ = dimension_that_turns(s.beta_slow);
    if (s.truncate) {
      first_ = std::floor(first_);
      last_ = std::ceil(last_);
    }
    first_ = std::max(first_, 0.0);
    last_ = std::min(last_, rotary_dim - 1.0);
    if (first_ == last_) last_ += 0.001;  // a ramp of no width would divide by zero
  }

  double frequency(int pair, double original) const {
    const double interpolated_share = std::clamp((pair - first_) / (last_ - first_), 0.0, 1.0);
    return original / factor_ * interpolated_share + original * (1 - interpolated_share);
  }

 private:
  double factor_, first_, last_;
};

void validate(const RopeConfig& c, int head_dim) {
  if (head_dim < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rope: head_dim is {}; expected at least 1", head_dim));
  }
  if (c.rotary_dim < 0 || c.rotary_dim > head_dim || c.rotary_dim % 2 != 0 ||
      (c.rotary_dim == 0 && head_dim % 2 != 0)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("rope: rotary_dim is {} with head_dim {}; expected an even number of at most head_dim",
                    c.rotary_dim, head_dim));
  }
  const int num_pairs = (c.rotary_dim == 0 ? head_dim : c.rotary_dim) / 2;
  if (c.num_turned_pairs < 0 || c.num_turned_pairs > num_pairs) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rope: num_turned_pairs is {}; expected 0 to {}", c.num_turned_pairs, num_pairs));
  }
  require_positive("theta", c.theta);
  if (int{c.linear.has_value()} + int{c.llama3.has_value()} + int{c.yarn.has_value()} +
          int{c.longrope.has_value()} >
      1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "rope: more than one of linear, llama3, yarn and longrope scaling is set; expected at most one");
  }
  if (c.linear) require_positive("linear.factor", c.linear->factor);
  if (c.llama3) {
    require_positive("llama3.factor", c.llama3->factor);
    require_positive("llama3.low_freq_factor", c.llama3->low_freq_factor);
    require_positive("llama3.high_freq_factor", c.llama3->high_freq_factor);
    require_positive("llama3.original_max_seq_len", static_cast<double>(c.llama3->original_max_seq_len));
    if (c.llama3->high_freq_factor <= c.llama3->low_freq_factor) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("rope: llama3.high_freq_factor is {}; expected more than low_freq_factor = {}",
                              c.llama3->high_freq_factor, c.llama3->low_freq_factor));
    }
  }
  if (c.yarn) {
    require_positive("yarn.factor", c.yarn->factor);
    require_positive("yarn.beta_fast", c.yarn->beta_fast);
    require_positive("yarn.beta_slow", c.yarn->beta_slow);
    require_positive("yarn.original_max_seq_len", static_cast<double>(c.yarn->original_max_seq_len));
    if (c.yarn->attention_factor) require_positive("yarn.attention_factor", *c.yarn->attention_factor);
    if (c.theta == 1) {
      throw Error(ErrorCode::kInvalidArgument, "rope: theta is 1 with yarn scaling; expected another base");
    }
  }
  if (c.longrope) {
    require_positive("longrope.original_max_seq_len", static_cast<double>(c.longrope->original_max_seq_len));
    require_positive("longrope.attention_factor", c.longrope->attention_factor);
  }
}

/// Of every pair; an empty list divides by nothing.
void divide(std::string_view name, std::span<const float> divisors, std::vector<double>& frequencies) {
  if (!divisors.empty() && divisors.size() != frequencies.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rope: {} has {} elements; expected rotary_dim / 2 = {}", name, divisors.size(),
                            frequencies.size()));
  }
  for (std::size_t pair = 0; pair < divisors.size(); ++pair) {
    require_positive(fmt::format("{}[{}]", name, pair), divisors[pair]);
    frequencies[pair] /= divisors[pair];
  }
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& config, int head_dim, std::int64_t max_seq_len) {
  validate(config, head_dim);
  const int rotary_dim = config.rotary_dim == 0 ? head_dim : config.rotary_dim;
  const int num_pairs = rotary_dim / 2;

  RopeFrequencies result;
  std::optional<YarnBlend> yarn;
  if (config.yarn) {
    yarn.emplace(*config.yarn, config.theta, rotary_dim);
    const double factor = config.yarn->factor;
    const double inferred = factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0;
    result.attention_factor = config.yarn->attention_factor.value_or(static_cast<float>(inferred));
  }
  std::vector<double> frequencies;
  for (int pair = 0; pair < num_pairs; ++pair) {
    double frequency = std::pow(static_cast<double>(config.theta), -2.0 * pair / rotary_dim);
    if (config.linear) frequency /= config.linear->factor;
    if (config.llama3) frequency = llama3_frequency(*config.llama3, frequency);
    if (yarn) frequency = yarn->frequency(pair, frequency);
    frequencies.push_back(frequency);
  }
  divide("frequency_divisors", config.frequency_divisors, frequencies);
  if (const auto& s = config.longrope) {
    result.attention_factor = s->attention_factor;
    if (max_seq_len > s->original_max_seq_len) {
      divide("longrope.long_divisors", s->long_divisors, frequencies);
    } else {
      divide("longrope.short_divisors", s->short_divisors, frequencies);
    }
  }
  if (config.num_turned_pairs > 0)
    std::fill(frequencies.begin() + config.num_turned_pairs, frequencies.end(), 0.0);
  for (const double frequency : frequencies)
    result.inverse_frequencies.push_back(static_cast<float>(frequency));
  return result;
}

}  // namespace tessera
