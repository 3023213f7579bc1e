#include "model_io.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "command.h"
#include "engine/stop_strings.h"
#include "threads_option.h"

namespace tessera::cli {

std::string_view stop_reason_name(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::kEndOfText:
      return "end_of_text";
    case StopReason::kMaxTokens:
      return "max_tokens";
    case StopReason::kContextFull:
      return "context_full";
    case StopReason::kCancelled:
      return "cancelled";
    case StopReason::kStopString:
      return "stop_string";
  }
  return "unknown";
}

std::string_view stop_reason_text(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::kEndOfText:
      return "end of text";
    case StopReason::kMaxTokens:
      return "token limit";
    case StopReason::kContextFull:
      return "context full";
    case StopReason::kCancelled:
      return "cancelled";
    case StopReason::kStopString:
      return "stop string";
  }
  return "unknown";
}

std::vector<std::string> activation_dtype_choices() { return {"auto", "f32", "f16", "bf16"}; }

void add_machine_options(Command& command, ModelOptions& options, std::string& activation_dtype,
                         int& threads) {
  command.add_text("--backend", options.backend, "auto, or a name that 'tessera info' lists", "NAME",
                   check_backend_name);
  command.add_choice("--activation-dtype", activation_dtype, activation_dtype_choices(),
                     "Of activations and KV cache; auto: what suits the weights");
  add_threads_option(command, threads);
}

std::optional<DType> parse_activation_dtype(const std::string& name) {
  if (name == "auto") return std::nullopt;
  return parse_dtype(name);
}

void add_kv_dtype_option(Command& command, std::string& kv_dtype) {
  command.add_choice("--kv-dtype", kv_dtype, {"auto", "fp8"},
                     "Of the KV cache; fp8: e4m3, half of a 16-bit cache; auto: that of the activations");
}

std::optional<DType> parse_kv_dtype(const std::string& name) {
  if (name == "auto") return std::nullopt;
  return parse_dtype(name);
}

LoadOptions load_options(const ModelOptions& options) {
  return {options.backend, options.device, options.activation_dtype, options.on_progress};
}

LanguageModel with_cache_for(Model model, std::span<const std::int32_t> prompt, std::int64_t new_tokens,
                             ModelOptions options) {
  options.max_kv_tokens = std::max<std::int64_t>(std::ssize(prompt) + new_tokens, 1);
  return LanguageModel(std::move(model), options);
}

void add_stop_option(Command& command, std::vector<std::string>& stop, const std::string& help) {
  command.add_texts("--stop", stop, help + "; may be given several times", "TEXT",
                    taken_by([](const std::string& text) { StopStrings({text}); }));
}

nlohmann::ordered_json model_to_json(const ModelInfo& info) {
  return {{"architecture", info.architecture},     {"num_parameters", info.num_parameters},
          {"weight_bytes", info.weight_bytes},     {"weight_dtype", dtype_name(info.weight_dtype)},
          {"quantization", info.quantization},     {"activation_dtype", dtype_name(info.activation_dtype)},
          {"kv_dtype", dtype_name(info.kv_dtype)}, {"vocab_size", info.vocab_size},
          {"hidden_size", info.hidden_size},       {"intermediate_size", info.intermediate_size},
          {"num_layers", info.num_layers},         {"num_heads", info.num_heads},
          {"num_kv_heads", info.num_kv_heads},     {"head_dim", info.head_dim},
          {"max_seq_len", info.max_seq_len},       {"kv_cache_bytes", info.kv_cache_bytes}};
}

}  // namespace tessera::cli
