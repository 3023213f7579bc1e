#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// Bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

/// Length of the UTF-8 sequence that `text` opens with; 0 if it opens with none.
std::size_t utf8_sequence_length(std::string_view text) noexcept;

/// Whether `text` is well-formed UTF-8 (no overlong forms, no surrogates, nothing past U+10FFFF).
bool is_valid_utf8(std::string_view text) noexcept;

/// `text` with ASCII's capital letters as small ones.
std::string lower_case(std::string_view text);

/// `text` as it may stand in an error message: control characters and bytes that are no UTF-8 become \xNN,
/// and what is longer than max_bytes ends in "...".
std::string printable(std::string_view text, std::size_t max_bytes = 100);

}  // namespace tessera
