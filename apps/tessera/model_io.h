#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/model.h"

namespace tessera::cli {

class Command;

/// As JSON documents spell it: "end_of_text", "max_tokens", "context_full", "cancelled".
std::string_view stop_reason_name(StopReason reason) noexcept;

/// For people: "end of text".
std::string_view stop_reason_text(StopReason reason) noexcept;

/// What --activation-dtype takes.
std::vector<std::string> activation_dtype_choices();
/// None for "auto".
std::optional<DType> parse_activation_dtype(const std::string& name);

/// --kv-dtype, of a command that loads a model. The command keeps the reference.
void add_kv_dtype_option(Command& command, std::string& kv_dtype);
/// None for "auto".
std::optional<DType> parse_kv_dtype(const std::string& name);

/// --backend, --activation-dtype and --threads, of a command that loads a model. The command keeps the
/// references.
void add_machine_options(Command& command, ModelOptions& options, std::string& activation_dtype,
                         int& threads);

/// What of these a model is loaded with, before it has a cache.
LoadOptions load_options(const ModelOptions& options);

/// A loaded model with a cache for `prompt` and `new_tokens` after it alone, so that one with a context of a
/// million tokens does not take memory for all of them.
LanguageModel with_cache_for(Model model, std::span<const std::int32_t> prompt, std::int64_t new_tokens,
                             ModelOptions options);

/// --stop. The command keeps the reference.
void add_stop_option(Command& command, std::vector<std::string>& stop, const std::string& help);

nlohmann::ordered_json model_to_json(const ModelInfo& info);

}  // namespace tessera::cli
