#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Upper and lower case as Python's str has them: Unicode's properties and full mappings.
namespace tessera::jinja {

bool is_upper(char32_t character);
bool is_lower(char32_t character);
bool is_cased(char32_t character);  ///< either, or a letter like U+01C5 that is a capital and a small one

void append_upper(char32_t character, std::string& out);
void append_title(char32_t character, std::string& out);  ///< as a word's first
void append_folded(char32_t character, std::string& out);
/// The character that begins at text[position]: its neighbours say which small sigma a capital one becomes.
void append_lower(std::string_view text, std::size_t position, std::string& out);

}  // namespace tessera::jinja
