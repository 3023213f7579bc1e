#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Characters as Python's str sees them.
namespace tessera::jinja {

/// The code point at `position` of valid UTF-8; moves `position` past it.
char32_t next_character(std::string_view text, std::size_t& position);
void append_character(char32_t character, std::string& out);

std::int64_t count_characters(std::string_view text);
/// Where each character begins, and the text's end.
std::vector<std::size_t> character_offsets(std::string_view text);

/// Where `wanted` stands in text[from, …) first, npos if it doesn't, in time linear in both: what
/// std::string_view does takes their product.
std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from = 0);

bool is_space(char32_t character);  ///< str.isspace
bool is_alpha(char32_t character);
bool is_decimal(char32_t character);
bool is_digit(char32_t character);      ///< ASCII's, and others whose category is Nd
bool is_numeric(char32_t character);    ///< Nd, Nl, No
bool is_printable(char32_t character);  ///< what repr leaves as it is

/// Bytes of the line break that `text` has at `position`, as str.splitlines sees them; 0 if there is none.
std::size_t line_break_length(std::string_view text, std::size_t position);

}  // namespace tessera::jinja
