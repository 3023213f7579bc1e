#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/regex.h"

namespace tessera::tokenizers {

/// What becomes of the matches (delimiters) that a text is split at, with "a-b--c" split at "-" as the
/// example.
enum class SplitBehavior {
  kRemoved,             ///< a b c
  kIsolated,            ///< a - b - - c
  kMergedWithPrevious,  ///< a- b- - c
  kMergedWithNext,      ///< a -b - -c
  kContiguous,          ///< a - b -- c
};

enum class PrependScheme { kAlways, kFirst, kNever };

/// A piece of a text on its way to becoming words.
struct TextPiece {
  std::string_view text;
  bool at_start;  ///< whether the whole text starts with it
};

/// The pieces of a text, and what keeps the characters of those that are no longer part of it.
struct TextPieces {
  std::vector<TextPiece> pieces;
  std::deque<std::string> storage;
};

/// One step of pre-tokenization: splits or rewrites every piece.
using PreTokenizerStep = std::function<void(TextPieces&, WorkBudget&)>;

/// Splits at the matches, or between them if `invert`.
PreTokenizerStep split_step(Matcher matcher, SplitBehavior behavior, bool invert);
/// Adds a space in front of every piece that doesn't start with one.
PreTokenizerStep prefix_space_step();
/// Writes the bytes of every piece in the byte-level alphabet.
PreTokenizerStep byte_alphabet_step();
/// Writes spaces as `replacement` (one character) and puts one in front as `scheme` says.
PreTokenizerStep metaspace_step(std::string replacement, PrependScheme scheme);

/// GPT-2's pattern, which ByteLevel stands for when use_regex is set.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Steps applied one after the other.
struct PreTokenizer {
  std::vector<PreTokenizerStep> steps;
  /// Whether the words' bytes are to be read in the byte-level alphabet. This does what a byte_alphabet_step
  /// at the end does, without writing that text.
  bool words_are_bytes = false;
};

}  // namespace tessera::tokenizers
