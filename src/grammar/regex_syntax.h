#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace tessera::grammar {

/// Code points [first, last].
struct CharRange {
  char32_t first = 0, last = 0;
  bool operator==(const CharRange&) const = default;
};

/// Ranges that rise and don't touch.
using CharSet = std::vector<CharRange>;

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

CharSet normalized(CharSet ranges);
CharSet complement(const CharSet& set);

/// A regular expression's tree.
struct RegexNode {
  enum class Kind {
    kEmpty,        ///< the empty text
    kSet,          ///< one character of `set`
    kSequence,     ///< all of `children`, one after the other
    kAlternative,  ///< one of `children`
    kRepeat,       ///< `children[0]`, `min` to `max` times
    kStart,        ///< the beginning of the text: ^
    kEnd           ///< the end of the text: $
  };
  static constexpr std::uint32_t kUnbounded = ~0u;

  Kind kind = Kind::kEmpty;
  CharSet set = {};
  std::vector<RegexNode> children = {};
  std::uint32_t min = 0, max = 0;
};

/// An expression that may begin with look-ahead: what must, or must not, stand at the text's beginning.
struct Regex {
  struct Ahead {
    RegexNode tree;
    bool is_wanted;
  };
  RegexNode tree;
  std::vector<Ahead> ahead = {};
};

/// Parses ECMA-262's syntax (that of JSON Schema's patterns) as far as it describes regular languages of
/// code points: alternatives, groups, classes, \d \w \s and their opposites, quantifiers (lazy ones match the
/// same texts), ^ and $, and look-ahead at the beginning: behind ^, which may be missing if `is_whole`, the
/// expression is to match all of a text. \d and \w are ASCII's. Throws Error{kInvalidArgument} with `source`
/// and the byte for what is malformed, and Error{kUnsupported} for other look-around, back references, \b,
/// \p, flags, and more than 200 nested groups.
Regex parse_regex(std::string_view pattern, bool is_whole, std::string_view source);

}  // namespace tessera::grammar
