#include "c_api/generation.h"

#include <fmt/core.h>

#include <map>

#include "c_api/structs.h"

namespace tessera::c_api {
namespace {

constexpr std::uint64_t kAllFlags = kGenerateFlags | TESSERA_GENERATE_KEEP_CACHE | kEngineFlags;

std::map<std::int32_t, float> logit_bias_of(const tessera_generate_options& c) {
  std::map<std::int32_t, float> biases;
  for (const tessera_logit_bias& b : array(c.logit_bias, c.num_logit_bias, "options.logit_bias")) {
    if (!biases.emplace(b.token, b.bias).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("options.logit_bias has token {} twice; expected each once", b.token));
    }
  }
  return biases;
}

/// The form that the text is held to; null: none.
std::shared_ptr<TokenConstraint> constraint_of(const tessera_generate_options& c, SharedModel& model) {
  const bool is_object = (c.flags & TESSERA_GENERATE_JSON_OBJECT) != 0;
  const int forms = (c.json_schema != nullptr) + (c.regex != nullptr) + is_object;
  if (forms == 0) return nullptr;
  if (forms > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("options ask for {} of json_schema, regex and TESSERA_GENERATE_JSON_OBJECT; "
                            "expected one at most",
                            forms));
  }
  if ((c.flags & TESSERA_GENERATE_IGNORE_EOS) != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "options hold the text to a form and have TESSERA_GENERATE_IGNORE_EOS; expected one of them: "
                "what is complete can only end");
  }
  const StructuredOutput& forms_of_model = model.structured_output();
  if (c.json_schema != nullptr) return forms_of_model.json_schema(c.json_schema);
  if (c.regex != nullptr) return forms_of_model.regex(c.regex);
  return forms_of_model.json_object();
}

}  // namespace

GenerateOptions generate_options(const tessera_generate_options* given, std::uint64_t own_flags,
                                 SharedModel& model) {
  const tessera_generate_options c = read_optional_struct(given, "options");
  check_reserved("options", c.reserved);
  check_reserved("options", c.reserved_2);
  check_flags("options", c.flags, kAllFlags);
  const std::uint64_t others = c.flags & ~own_flags;
  if (others != 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        (others & TESSERA_GENERATE_KEEP_CACHE) != 0
            ? "options have TESSERA_GENERATE_KEEP_CACHE, which is a model's; expected none: an engine's "
              "prefix cache keeps what prompts share"
        : (others & TESSERA_GENERATE_PROMPT_LOGPROBS) != 0
            ? "options have TESSERA_GENERATE_PROMPT_LOGPROBS, which is an engine's; expected none: "
              "tessera_model_logits has what a model makes of a prompt"
            : "options have TESSERA_GENERATE_NO_PREFIX_CACHE, which is an engine's; expected none: a "
              "model keeps nothing without TESSERA_GENERATE_KEEP_CACHE");
  }
  if ((c.flags & TESSERA_GENERATE_PROMPT_LOGPROBS) != 0 && (c.flags & TESSERA_GENERATE_HAS_LOGPROBS) == 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "options have TESSERA_GENERATE_PROMPT_LOGPROBS; expected TESSERA_GENERATE_HAS_LOGPROBS, too, and "
        "how many of each token in top_logprobs");
  }
  const auto has = [&c](std::uint64_t flag) { return (c.flags & flag) != 0; };
  GenerateOptions options;
  if (has(TESSERA_GENERATE_HAS_MAX_TOKENS)) options.max_tokens = c.max_tokens;
  options.sampling.temperature = c.temperature;
  options.sampling.top_k = c.top_k;
  if (has(TESSERA_GENERATE_HAS_TOP_P)) options.sampling.top_p = c.top_p;
  options.sampling.min_p = c.min_p;
  if (has(TESSERA_GENERATE_HAS_REPETITION_PENALTY))
    options.sampling.repetition_penalty = c.repetition_penalty;
  options.sampling.presence_penalty = c.presence_penalty;
  options.sampling.frequency_penalty = c.frequency_penalty;
  options.sampling.logit_bias = logit_bias_of(c);
  options.sampling.seed = c.seed;
  options.stop_at_eos = !has(TESSERA_GENERATE_IGNORE_EOS);
  options.keep_cache = has(TESSERA_GENERATE_KEEP_CACHE);
  for (const char* text : array(c.stop, c.num_stop, "options.stop")) {
    options.stop.emplace_back(&required(text, "options.stop[]"));
  }
  if (has(TESSERA_GENERATE_HAS_LOGPROBS)) options.top_logprobs = c.top_logprobs;
  options.constraint = constraint_of(c, model);
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

void append(std::vector<tessera_token_logprob>& to, std::span<const TokenLogprob> logprobs) {
  for (const TokenLogprob& l : logprobs) to.push_back({l.token, l.logprob});
}

}  // namespace tessera::c_api
