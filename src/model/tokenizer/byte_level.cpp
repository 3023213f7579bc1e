// The byte-level alphabet as two tables, built once.
#include "model/tokenizer/byte_level.h"

#include <array>

#include "model/tokenizer/unicode.h"

namespace tessera::byte_level {
namespace {

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<std::int16_t, 512> bytes;  // -1 where no byte stands behind the code point

  Alphabet() {
    bytes.fill(-1);
    char32_t next_unprintable = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t c = printable ? static_cast<char32_t>(byte) : next_unprintable++;
      unicode::append_utf8(c, characters[static_cast<std::size_t>(byte)]);
      bytes[c] = static_cast<std::int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string_view character(std::uint8_t byte) { return alphabet().characters[byte]; }

std::optional<std::uint8_t> byte_of(char32_t c) {
  const auto& bytes = alphabet().bytes;
  if (c >= bytes.size() || bytes[c] < 0) return std::nullopt;
  return static_cast<std::uint8_t>(bytes[c]);
}

std::string encode(std::string_view bytes) {
  const auto& characters = alphabet().characters;
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) out += characters[static_cast<unsigned char>(c)];
  return out;
}

std::optional<std::string> decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = byte_of(unicode::next_code_point(text, i));
    if (!byte) return std::nullopt;
    out.push_back(static_cast<char>(*byte));
  }
  return out;
}

}  // namespace tessera::byte_level
