#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/char_automaton.h"

namespace tessera::grammar {

/// The texts of a JSON Schema "format", or none if there is no such format here.
std::optional<CharAutomaton> format_texts(std::string_view format, std::string_view source);

/// Characters that the RFC of a format allows at most, where it says so; else RegexNode::kUnbounded.
std::uint32_t format_longest(std::string_view format);

/// Names of all formats, for messages.
std::string format_list();

}  // namespace tessera::grammar
