// Search for added tokens by narrowing a sorted list, byte by byte.
#include "model/tokenizer/added_tokens.h"

#include <algorithm>

#include "model/tokenizer/unicode.h"

namespace tessera::tokenizers {
namespace {

/// Start of the last character before `position`.
std::size_t previous_character(std::string_view text, std::size_t position) {
  do --position;
  while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80);
  return position;
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  std::size_t last = previous_character(text, text.size());
  return unicode::is_word(unicode::next_code_point(text, last));
}

bool starts_with_word(std::string_view text) {
  std::size_t first = 0;
  return !text.empty() && unicode::is_word(unicode::next_code_point(text, first));
}

/// Start of the white space that ends at `end`, not before `limit`.
std::size_t white_space_before(std::string_view text, std::size_t end, std::size_t limit) {
  while (end > limit) {
    std::size_t position = previous_character(text, end);
    const std::size_t start = position;
    if (!unicode::is_whitespace(unicode::next_code_point(text, position))) break;
    end = start;
  }
  return std::max(end, limit);
}

std::size_t white_space_after(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    std::size_t next = begin;
    if (!unicode::is_whitespace(unicode::next_code_point(text, next))) break;
    begin = next;
  }
  return begin;
}

bool is_control(const AddedToken& token, const EncodeOptions& options) {
  if (token.special) return true;
  if (options.control_text.find(token.content) == options.control_text.npos) return false;
  return white_space_after(token.content, 0) < token.content.size();
}

/// Whether [begin, end) has a byte in any of `ranges`, which ascend.
bool touches(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  const auto range = std::ranges::upper_bound(ranges, begin, {}, &TextRange::end);
  return range != ranges.end() && range->begin < end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) starts_[static_cast<unsigned char>(token.content[0])] = true;
}

const AddedToken* AddedTokenMatcher::longest_match(std::string_view whole, std::size_t at,
                                                   const EncodeOptions& options) const {
  const std::string_view text = whole.substr(at);
  const AddedToken* best = nullptr;
  auto begin = tokens_.begin(), end = tokens_.end();  // those that start with text[0, length)
  for (std::size_t length = 0; length < text.size() && begin != end; ++length) {
    const auto byte = static_cast<unsigned char>(text[length]);
    // In a sorted list the content that ends here comes first.
    const auto byte_at = [&](const AddedToken& token) {
      return token.content.size() == length ? -1 : static_cast<unsigned char>(token.content[length]);
    };
    begin = std::lower_bound(begin, end, byte, [&](const AddedToken& t, int b) { return byte_at(t) < b; });
    end = std::upper_bound(begin, end, byte, [&](int b, const AddedToken& t) { return b < byte_at(t); });
    if (begin == end || begin->content.size() != length + 1) continue;
    const bool stays_text = touches(options.plain, at, at + length + 1) && is_control(*begin, options);
    if (!stays_text) best = &*begin;
  }
  return best;
}

void AddedTokenMatcher::split(std::string_view text, const EncodeOptions& options,
                              std::vector<TextSegment>& segments) const {
  if (text.empty()) return;
  std::size_t done = 0;          // everything before is in a segment
  std::size_t stripped_end = 0;  // end of the white space that was stripped last
  for (std::size_t at = 0; !tokens_.empty() && at < text.size();) {
    const AddedToken* token =
        starts_[static_cast<unsigned char>(text[at])] ? longest_match(text, at, options) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->special && !options.parse_special_tokens) continue;
    if (token->single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    if (token->lstrip) begin = white_space_before(text, begin, done);
    if (token->rstrip) {
      // The run may have been measured already, for a token inside it.
      if (end >= stripped_end) stripped_end = white_space_after(text, end);
      end = stripped_end;
    }
    if (begin >= end) continue;  // white space that belongs to the token before
    if (done < begin) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, token->id});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
}

}  // namespace tessera::tokenizers
