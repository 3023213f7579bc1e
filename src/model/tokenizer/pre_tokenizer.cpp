// Steps that cut a text into words.
#include "model/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "model/tokenizer/byte_level.h"

namespace tessera::tokenizers {
namespace {

struct Part {
  TextRange range;
  bool is_match;
};

/// Matches and what lies between them, in order.
void list_parts(std::string_view text, const std::vector<TextRange>& matches, bool invert,
                std::vector<Part>& parts) {
  parts.clear();
  std::size_t done = 0;
  for (const TextRange& match : matches) {
    if (done != match.begin) parts.push_back({{done, match.begin}, invert});
    parts.push_back({match, !invert});
    done = match.end;
  }
  if (done != text.size()) parts.push_back({{done, text.size()}, invert});
}

/// Joins each part that `joins` (given whether it and its neighbour before it match) to that neighbour.
template <class Joins>
void join_forwards(const std::vector<Part>& parts, std::vector<TextRange>& ranges, Joins joins) {
  bool previous_is_match = false;
  for (const Part& part : parts) {
    if (!ranges.empty() && joins(part.is_match, previous_is_match))
      ranges.back().end = part.range.end;
    else
      ranges.push_back(part.range);
    previous_is_match = part.is_match;
  }
}

void apply_behavior(const std::vector<Part>& parts, SplitBehavior behavior, std::vector<TextRange>& ranges) {
  ranges.clear();
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const Part& part : parts)
        if (!part.is_match) ranges.push_back(part.range);
      return;
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) ranges.push_back(part.range);
      return;
    case SplitBehavior::kContiguous:
      return join_forwards(parts, ranges, [](bool match, bool previous) { return match == previous; });
    case SplitBehavior::kMergedWithPrevious:
      return join_forwards(parts, ranges, [](bool match, bool previous) { return match && !previous; });
    case SplitBehavior::kMergedWithNext: {
      bool next_is_match = false;
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->is_match && !next_is_match && !ranges.empty())
          ranges.back().begin = part->range.begin;
        else
          ranges.push_back(part->range);
        next_is_match = part->is_match;
      }
      std::reverse(ranges.begin(), ranges.end());
      return;
    }
  }
}

}  // namespace

PreTokenizerStep split_step(Matcher matcher, SplitBehavior behavior, bool invert) {
  return [matcher = std::move(matcher), behavior, invert](TextPieces& text, WorkBudget& budget) {
    std::vector<TextPiece> result;
    result.reserve(2 * text.pieces.size());
    std::vector<TextRange> matches, ranges;
    std::vector<Part> parts;
    for (const TextPiece& piece : text.pieces) {
      matches.clear();
      matcher(piece.text, budget, matches);
      list_parts(piece.text, matches, invert, parts);
      apply_behavior(parts, behavior, ranges);
      for (const TextRange& range : ranges)
        if (range.begin < range.end)
          result.push_back(
              {piece.text.substr(range.begin, range.end - range.begin), piece.at_start && range.begin == 0});
    }
    text.pieces = std::move(result);
  };
}

PreTokenizerStep prefix_space_step() {
  return [](TextPieces& text, WorkBudget&) {
    for (TextPiece& piece : text.pieces)
      if (!piece.text.starts_with(' ')) piece.text = text.storage.emplace_back(' ' + std::string(piece.text));
  };
}

PreTokenizerStep byte_alphabet_step() {
  return [](TextPieces& text, WorkBudget&) {
    for (TextPiece& piece : text.pieces)
      piece.text = text.storage.emplace_back(byte_level::encode(piece.text));
  };
}

PreTokenizerStep metaspace_step(std::string replacement, PrependScheme scheme) {
  return [replacement = std::move(replacement), scheme](TextPieces& text, WorkBudget&) {
    for (TextPiece& piece : text.pieces) {
      std::string& rewritten = text.storage.emplace_back();
      rewritten.reserve(piece.text.size() + replacement.size());
      const bool prepend =
          scheme == PrependScheme::kAlways || (scheme == PrependScheme::kFirst && piece.at_start);
      if (prepend && !piece.text.starts_with(' ') && !piece.text.starts_with(replacement))
        rewritten += replacement;
      for (const char c : piece.text) {
        if (c == ' ')
          rewritten += replacement;
        else
          rewritten += c;
      }
      piece.text = rewritten;
    }
  };
}

}  // namespace tessera::tokenizers
