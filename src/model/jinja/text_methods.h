#pragma once

#include <string_view>
#include <vector>

#include "model/jinja/value.h"

/// Python's string methods that filters share.
namespace tessera::jinja {

enum class Side { kLeft, kRight, kBoth };

/// str.strip: without the characters of `characters` (null: white space) at its ends.
MarkedText strip(const MarkedText& text, Side side, const MarkedText* characters = nullptr);
MarkedText upper(const MarkedText& text);
MarkedText lower(const MarkedText& text);
MarkedText capitalize(const MarkedText& text);
MarkedText replace(Heap& heap, const MarkedText& text, const MarkedText& old, const MarkedText& with,
                   std::int64_t count);
MarkedText center(Heap& heap, const MarkedText& text, std::int64_t width);
std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends);
bool is_lower_case(std::string_view text);
bool is_upper_case(std::string_view text);
/// `count` copies of one character, charged.
std::string spaces(Heap& heap, std::int64_t count, std::string_view fill = " ");

}  // namespace tessera::jinja
