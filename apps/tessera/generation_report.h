#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/model.h"

namespace tessera::cli {

/// Tokens a second of the prompt and of what was generated; 0 if nothing was measured.
double prompt_rate(const GenerationStats& stats);
double generation_rate(const GenerationStats& stats);

/// The seed that decided the text; none if the likeliest tokens were taken.
std::optional<std::uint64_t> used_seed(const SamplingOptions& sampling);

/// A line for people: on what, how fast, why it stopped, with which seed.
std::string rates_text(const Generation& generation, const SamplingOptions& sampling, const ModelInfo& info);

}  // namespace tessera::cli
