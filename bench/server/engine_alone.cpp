// What the engine does without a server, for comparison with bench/server/load.py:
//   engine_alone MODEL STREAMS TOKENS PROMPT_TOKENS MAX_BATCH
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "tessera/engine.h"
#include "tessera/error.h"

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc != 6) {
    fmt::print(stderr, "usage: engine_alone MODEL STREAMS TOKENS PROMPT_TOKENS MAX_BATCH\n");
    return 2;
  }
  const int num_streams = std::atoi(argv[2]), num_tokens = std::atoi(argv[3]),
            num_prompt_tokens = std::atoi(argv[4]);
  try {
    LoadOptions load;
    load.backend = "cpu";
    const Model model = Model::load(argv[1], load);
    EngineOptions options;
    options.max_batch = std::atoi(argv[5]);
    options.max_waiting = num_streams;
    options.max_kv_tokens = 65536;
    Engine engine(model, options);
    for (int i = 0; i < num_streams; ++i) {
      std::mt19937 random(static_cast<unsigned>(i));
      Request request;
      request.max_tokens = num_tokens;
      request.stop_at_eos = false;
      request.sampling.temperature = 1;
      request.sampling.seed = static_cast<std::uint64_t>(i);
      for (int j = 0; j < num_prompt_tokens; ++j) {
        request.prompt.push_back(static_cast<std::int32_t>(10 + random() % 1990));
      }
      engine.submit(std::move(request));
    }
    const auto begun = std::chrono::steady_clock::now();
    std::size_t num_finished = 0;
    while (engine.has_work()) {
      for (const Event& event : engine.step()) num_finished += event.type == Event::Type::kFinished;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    const auto generated = static_cast<double>(engine.stats().generated_tokens);
    fmt::print("{} of {} requests, {} tokens in {:.2f} s: {:.0f} tokens/s\n", num_finished, num_streams,
               generated, seconds, generated / seconds);
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.message());
    return 1;
  }
  return 0;
}
