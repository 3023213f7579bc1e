#include "bench_mixed_steps.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "tessera/engine.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

constexpr int kTimedSteps = 8;
constexpr int kFirstSteps = 2;  // of each kind, which plan and load kernels
constexpr int kSteps = kFirstSteps + kTimedSteps;

double step_ms(Engine& engine) {
  const auto start = std::chrono::steady_clock::now();
  for (const Event& event : engine.step()) {
    if (event.type == Event::Type::kError) throw Error(event.error_code, event.error_message);
  }
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

Timing time_steps(Engine& engine) {
  std::vector<double> samples;
  for (int i = 0; i < kSteps; ++i) {
    const double ms = step_ms(engine);
    if (i >= kFirstSteps) samples.push_back(ms);
  }
  return summarize(samples);
}

/// Steps in which the first sequence decodes: until all prompts are read, and those that are timed.
std::int64_t most_decode_steps(std::int64_t batch, std::int64_t prompt_tokens, int chunk_tokens) {
  return batch * (prompt_tokens / chunk_tokens + 1) + 2 * kSteps + 1;
}

Request endless(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.stop_at_eos = false;
  request.sampling.temperature = 0;
  return request;
}

}  // namespace

MixedSteps time_mixed_steps(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                            int chunk_tokens) {
  const std::int64_t prompt_tokens = std::ssize(prompts.front());
  const std::int64_t gen_tokens = most_decode_steps(std::ssize(prompts), prompt_tokens, chunk_tokens);
  const std::int64_t long_tokens = std::int64_t{kSteps + 1} * chunk_tokens;
  EngineOptions options;
  options.max_batch = static_cast<int>(prompts.size()) + 1;
  options.max_seq_len = std::max(prompt_tokens + gen_tokens, long_tokens + 1);
  options.max_kv_tokens = std::ssize(prompts) * (prompt_tokens + gen_tokens + options.page_size) +
                          long_tokens + 2 * options.page_size;
  options.prefill_chunk = chunk_tokens;
  options.prefix_cache = false;
  Engine engine(model, options);
  std::vector<std::int32_t> long_prompt;
  for (std::int64_t i = 0; i < long_tokens; ++i) {
    const std::vector<std::int32_t>& prompt = prompts[static_cast<std::size_t>(i) % prompts.size()];
    long_prompt.push_back(prompt[static_cast<std::size_t>(i) / prompts.size() % prompt.size()]);
  }

  MixedSteps result;
  const RequestId alone = engine.submit(endless(long_prompt, 1));
  result.chunk = time_steps(engine);
  engine.cancel(alone);
  step_ms(engine);

  std::size_t num_decoding = 0;
  for (const std::vector<std::int32_t>& prompt : prompts) engine.submit(endless(prompt, gen_tokens));
  while (num_decoding < prompts.size()) {
    num_decoding = 0;
    for (const Event& event : engine.step()) num_decoding += event.type == Event::Type::kToken ? 1 : 0;
  }
  result.decode = time_steps(engine);
  engine.submit(endless(long_prompt, 1));
  result.both = time_steps(engine);
  return result;
}

}  // namespace tessera::cli
