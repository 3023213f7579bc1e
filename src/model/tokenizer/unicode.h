#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// UTF-8 and the few Unicode properties that tokenizers ask for.
namespace tessera::unicode {

enum class Utf8Status { kValid, kInvalid, kIncomplete };

/// One step of a UTF-8 scan. `length` >= 1 is that of the character, or of the longest prefix of one
/// ("maximal subpart", Unicode 15, section 3.9) when it is invalid or when the text ends inside it.
struct Utf8Step {
  std::size_t length;
  Utf8Status status;
};

/// Reads the character at the start of `text`, which must not be empty.
Utf8Step scan_utf8(std::string_view text);

/// What one U+FFFD stands for: a maximal subpart of an ill-formed sequence, or each of its bytes.
enum class IllFormed { kSubpart, kByte };

/// `text` with U+FFFD for what is not UTF-8.
std::string replace_invalid_utf8(std::string_view text, IllFormed unit = IllFormed::kSubpart);
bool is_valid_utf8(std::string_view text);

/// The code point at `position` of valid UTF-8; moves `position` past it.
char32_t next_code_point(std::string_view text, std::size_t& position);
/// Bytes of the valid character that starts with `lead`.
std::size_t utf8_length(char lead);
void append_utf8(char32_t code_point, std::string& out);

/// U+2581, which stands for a space in the tokens of SentencePiece models.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

/// The first position after `from` where a space symbol follows something else, or the end of `text`.
std::size_t next_word_start(std::string_view text, std::size_t from);

bool is_whitespace(char32_t c);   ///< White_Space
bool is_numeric(char32_t c);      ///< general categories Nd, Nl, No
bool is_punctuation(char32_t c);  ///< ASCII punctuation and general categories P*
bool is_word(char32_t c);         ///< \w of UTS #18: Alphabetic, M, Nd, Pc, Join_Control

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

/// Unicode normalisation (UAX #15) of valid UTF-8 in O(n log n) time.
std::string normalize(std::string_view text, NormalizationForm form);
/// Each character's full lower case; contexts (final sigma) are not looked at.
std::string to_lower(std::string_view text);

}  // namespace tessera::unicode
