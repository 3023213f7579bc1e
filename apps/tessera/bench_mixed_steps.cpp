#include "bench_mixed_steps.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tessera/engine.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

constexpr int kSteps = 8;

/// Tokens that a step draws.
int run_step(Engine& engine) {
  int num_drawn = 0;
  for (const Event& event : engine.step()) {
    if (event.type == Event::Type::kError) throw Error(event.error_code, event.error_message);
    num_drawn += event.type == Event::Type::kToken ? 1 : 0;
  }
  return num_drawn;
}

Request endless(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.stop_at_eos = false;
  request.sampling.temperature = 0;
  return request;
}

/// Of kSteps steps, the second time. Only a step that draws waits for the device, as the last one of a prompt
/// does.
template <class Prepare>
double time_steps(Engine& engine, Prepare&& prepare) {
  double ms = 0;
  for (int run = 0; run < 2; ++run) {
    prepare();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) run_step(engine);
    ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  return ms / kSteps;
}

}  // namespace

MixedSteps time_mixed_steps(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                            int chunk_tokens) {
  const std::int64_t batch = std::ssize(prompts), prompt_tokens = std::ssize(prompts.front());
  // The first sequence decodes until all prompts are read, and in the steps that are timed.
  const std::int64_t gen_tokens = batch * (prompt_tokens / chunk_tokens + 1) + 4 * kSteps + 1;
  const std::int64_t long_tokens = std::int64_t{kSteps} * chunk_tokens;
  EngineOptions options;
  options.max_batch = static_cast<int>(batch) + 1;
  options.max_seq_len = std::max(prompt_tokens + gen_tokens, long_tokens + 1);
  options.max_kv_tokens =
      batch * (prompt_tokens + gen_tokens + options.page_size) + long_tokens + 2 * options.page_size;
  options.prefill_chunk = chunk_tokens;
  options.prefix_cache = false;
  Engine engine(model, options);
  std::vector<std::int32_t> long_prompt;
  for (std::size_t i = 0; std::ssize(long_prompt) < long_tokens; ++i) {
    const std::vector<std::int32_t>& prompt = prompts[i % prompts.size()];
    long_prompt.push_back(prompt[i / prompts.size() % prompt.size()]);
  }
  const auto submit_long = [&] { engine.submit(endless(long_prompt, 1)); };

  MixedSteps result;
  result.chunk_ms = time_steps(engine, submit_long);
  for (const std::vector<std::int32_t>& prompt : prompts) engine.submit(endless(prompt, gen_tokens));
  while (run_step(engine) < batch) continue;
  result.decode_ms = time_steps(engine, [] {});
  result.both_ms = time_steps(engine, submit_long);
  return result;
}

}  // namespace tessera::cli
