#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "c_api/model.h"
#include "c_api/structs.h"

struct tessera_generation {
  tessera::Generation generation;
};

namespace tessera::c_api {
namespace {

GenerateOptions generate_options(const tessera_generate_options* given) {
  const tessera_generate_options c = read_optional_struct(given, "options");
  check_reserved("options", c.reserved);
  constexpr std::uint64_t kKnown = TESSERA_GENERATE_HAS_MAX_TOKENS | TESSERA_GENERATE_HAS_TOP_P |
                                   TESSERA_GENERATE_HAS_REPETITION_PENALTY | TESSERA_GENERATE_IGNORE_EOS |
                                   TESSERA_GENERATE_KEEP_CACHE;
  check_flags("options", c.flags, kKnown);
  const auto has = [&c](std::uint64_t flag) { return (c.flags & flag) != 0; };
  GenerateOptions options;
  if (has(TESSERA_GENERATE_HAS_MAX_TOKENS)) options.max_tokens = c.max_tokens;
  options.sampling.temperature = c.temperature;
  options.sampling.top_k = c.top_k;
  if (has(TESSERA_GENERATE_HAS_TOP_P)) options.sampling.top_p = c.top_p;
  options.sampling.min_p = c.min_p;
  if (has(TESSERA_GENERATE_HAS_REPETITION_PENALTY))
    options.sampling.repetition_penalty = c.repetition_penalty;
  options.sampling.seed = c.seed;
  options.stop_at_eos = !has(TESSERA_GENERATE_IGNORE_EOS);
  options.keep_cache = has(TESSERA_GENERATE_KEEP_CACHE);
  for (const char* text : array(c.stop, c.num_stop, "options.stop")) {
    options.stop.emplace_back(&required(text, "options.stop[]"));
  }
  return options;
}

tessera_stop_reason c_stop_reason(StopReason reason) {
  switch (reason) {
    case StopReason::kEndOfText:
      return TESSERA_STOP_END_OF_TEXT;
    case StopReason::kMaxTokens:
      return TESSERA_STOP_MAX_TOKENS;
    case StopReason::kContextFull:
      return TESSERA_STOP_CONTEXT_FULL;
    case StopReason::kCancelled:
      return TESSERA_STOP_CANCELLED;
    case StopReason::kStopString:
      return TESSERA_STOP_STRING;
  }
  return TESSERA_STOP_CANCELLED;
}

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
    out = new tessera_generation{
        required(model, "model")
            .model.generate(array(prompt, prompt_tokens, "prompt"), generate_options(options), callback)};
  });
}

tessera_status tessera_model_generate_batch(tessera_model* model, const tessera_tokens* prompts,
                                            size_t num_prompts,
                                            const tessera_generate_options* const* options,
                                            tessera_generation** generations) {
  return guarded([&] {
    array(generations, num_prompts, "generations");
    std::vector<std::vector<std::int32_t>> all;
    std::vector<tessera::GenerateOptions> all_options;
    for (const tessera_tokens& prompt : array(prompts, num_prompts, "prompts")) {
      const std::span<const int32_t> tokens =
          array(static_cast<const int32_t*>(prompt.data), prompt.size, "prompts[].data");
      all.emplace_back(tokens.begin(), tokens.end());
      all_options.push_back(generate_options(options == nullptr ? nullptr : options[all.size() - 1]));
    }
    std::vector<std::unique_ptr<tessera_generation>> results;
    for (tessera::Generation& result : required(model, "model").model.generate_batch(all, all_options)) {
      results.emplace_back(new tessera_generation{std::move(result)});
    }
    for (std::size_t i = 0; i < results.size(); ++i) generations[i] = results[i].release();
  });
}

void tessera_generation_free(tessera_generation* generation) { delete generation; }

tessera_status tessera_generation_get_info(const tessera_generation* generation,
                                           tessera_generation_info* info) {
  return guarded([&] {
    const tessera::Generation& g = required(generation, "generation").generation;
    tessera_generation_info out{};
    out.tokens = g.tokens.data();
    out.num_tokens = g.tokens.size();
    out.stop_reason = c_stop_reason(g.stop_reason);
    out.prompt_tokens = g.stats.prompt_tokens;
    out.cached_tokens = g.stats.cached_tokens;
    out.generated_tokens = g.stats.generated_tokens;
    out.prefill_ms = g.stats.prefill_ms;
    out.decode_ms = g.stats.decode_ms;
    write_struct(info, out, "info");
  });
}

}  // extern "C"
