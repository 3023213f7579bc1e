#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/model.h"

namespace tessera::cli {

/// As JSON documents spell it: "end_of_text", "max_tokens", "context_full", "cancelled".
std::string_view stop_reason_name(StopReason reason) noexcept;

/// For people: "end of text".
std::string_view stop_reason_text(StopReason reason) noexcept;

/// What --activation-dtype takes.
std::vector<std::string> activation_dtype_choices();
/// None for "auto".
std::optional<DType> parse_activation_dtype(const std::string& name);

nlohmann::ordered_json model_to_json(const ModelInfo& info);

}  // namespace tessera::cli
