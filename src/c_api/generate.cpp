// A model's generate and generate_batch.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "c_api/generation.h"
#include "c_api/model.h"
#include "c_api/structs.h"

/// A generation and its log probabilities as arrays of the interface.
struct tessera_generation {
  explicit tessera_generation(tessera::Generation&& made) : generation(std::move(made)) {
    for (const auto& likeliest : generation.top_logprobs) tessera::c_api::append(top_logprobs, likeliest);
  }

  tessera::Generation generation;
  std::vector<tessera_token_logprob> top_logprobs;  // (tokens, as many as were asked for)
};

namespace tessera::c_api {
namespace {

constexpr std::uint64_t kFlags = kGenerateFlags | TESSERA_GENERATE_KEEP_CACHE;

}  // namespace
}  // namespace tessera::c_api

using namespace tessera::c_api;

extern "C" {

tessera_status tessera_model_generate(tessera_model* model, const int32_t* prompt, size_t prompt_tokens,
                                      const tessera_generate_options* options, tessera_on_token on_token,
                                      void* user_data, tessera_generation** generation) {
  return guarded([&] {
    tessera_generation*& out = required(generation, "generation");
    out = nullptr;
    std::function<bool(std::int32_t, std::string_view)> callback;
    if (on_token != nullptr) {
      callback = [&](std::int32_t token, std::string_view text) {
        const std::string ended(text);  // by a zero
        return on_token(user_data, token, ended.c_str(), ended.size()) == 0;
      };
    }
    tessera_model& m = required(model, "model");
    out = new tessera_generation(m.language_model().generate(
        array(prompt, prompt_tokens, "prompt"), generate_options(options, kFlags, *m.shared), callback));
  });
}

tessera_status tessera_model_generate_batch(tessera_model* model, const tessera_tokens* prompts,
                                            size_t num_prompts,
                                            const tessera_generate_options* const* options,
                                            tessera_generation** generations) {
  return guarded([&] {
    tessera_model& m = required(model, "model");
    array(generations, num_prompts, "generations");
    std::vector<std::vector<std::int32_t>> all;
    std::vector<tessera::GenerateOptions> all_options;
    for (const tessera_tokens& prompt : array(prompts, num_prompts, "prompts")) {
      const std::span<const int32_t> tokens =
          array(static_cast<const int32_t*>(prompt.data), prompt.size, "prompts[].data");
      all.emplace_back(tokens.begin(), tokens.end());
      all_options.push_back(
          generate_options(options == nullptr ? nullptr : options[all.size() - 1], kFlags, *m.shared));
    }
    std::vector<std::unique_ptr<tessera_generation>> results;
    for (tessera::Generation& result : m.language_model().generate_batch(all, all_options)) {
      results.push_back(std::make_unique<tessera_generation>(std::move(result)));
    }
    for (std::size_t i = 0; i < results.size(); ++i) generations[i] = results[i].release();
  });
}

void tessera_generation_free(tessera_generation* generation) { delete generation; }

tessera_status tessera_generation_get_info(const tessera_generation* generation,
                                           tessera_generation_info* info) {
  return guarded([&] {
    const auto& [g, top_logprobs] = required(generation, "generation");
    tessera_generation_info out{};
    out.tokens = g.tokens.data();
    out.num_tokens = g.tokens.size();
    out.stop_reason = c_stop_reason(g.stop_reason);
    out.prompt_tokens = g.stats.prompt_tokens;
    out.cached_tokens = g.stats.cached_tokens;
    out.generated_tokens = g.stats.generated_tokens;
    out.prefill_ms = g.stats.prefill_ms;
    out.decode_ms = g.stats.decode_ms;
    if (!g.logprobs.empty()) {
      out.logprobs = g.logprobs.data();
      out.top_logprobs = top_logprobs.data();
      out.num_top_logprobs = top_logprobs.size() / g.logprobs.size();
    }
    write_struct(info, out, "info");
  });
}

}  // extern "C"
