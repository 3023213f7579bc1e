#include "generation_report.h"

#include <fmt/core.h>

#include "model_io.h"
#include "output.h"

namespace tessera::cli {

namespace {

double rate(std::int64_t tokens, double ms) {
  return tokens > 0 && ms > 0 ? static_cast<double>(tokens) * 1e3 / ms : 0;
}

}  // namespace

double prompt_rate(const GenerationStats& stats) {
  return rate(stats.prompt_tokens - stats.cached_tokens, stats.prefill_ms);
}

/// The first token comes out of the prompt's pass, so decoding accounts for the others.
double generation_rate(const GenerationStats& stats) {
  return rate(stats.generated_tokens - 1, stats.decode_ms);
}

std::optional<std::uint64_t> used_seed(const SamplingOptions& sampling) {
  return sampling.temperature > 0 ? std::optional(sampling.seed) : std::nullopt;
}

std::string rates_text(const Generation& generation, const SamplingOptions& sampling, const ModelInfo& info) {
  const GenerationStats& stats = generation.stats;
  std::string text = info.backend;
  if (!info.quantization.empty())
    text += fmt::format(", {} weights (of {})", dtype_name(info.weight_dtype), info.quantization);
  text += fmt::format(", {} activations: prompt: {}{}, {:.1f} tokens/s; generated: {}",
                      dtype_name(info.activation_dtype), counted(stats.prompt_tokens, "token", "tokens"),
                      stats.cached_tokens > 0 ? fmt::format(" ({} kept)", stats.cached_tokens) : "",
                      prompt_rate(stats), counted(stats.generated_tokens, "token", "tokens"));
  if (stats.generated_tokens > 1) text += fmt::format(", {:.1f} tokens/s", generation_rate(stats));
  text += fmt::format("; stopped: {}", stop_reason_text(generation.stop_reason));
  if (const auto seed = used_seed(sampling)) text += fmt::format("; seed {}", *seed);
  return text + '\n';
}

}  // namespace tessera::cli
