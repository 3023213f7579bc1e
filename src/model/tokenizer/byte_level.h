#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// GPT-2's byte-level alphabet: each of the 256 bytes is written as one printable character, those that are
/// printable in Latin-1 as themselves and the others as U+0100 onwards, so that any bytes can be spelled in
/// JSON.
namespace tessera::byte_level {

/// The UTF-8 of the character that stands for `byte` (one or two bytes).
std::string_view character(std::uint8_t byte);
/// The byte that `c` stands for, if it is in the alphabet.
std::optional<std::uint8_t> byte_of(char32_t c);

/// Writes every byte of `bytes` as its character.
std::string encode(std::string_view bytes);
/// The bytes that `text` (valid UTF-8) spells, or nothing if a character is not in the alphabet.
std::optional<std::string> decode(std::string_view text);

}  // namespace tessera::byte_level
