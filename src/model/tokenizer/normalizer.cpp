// Normalisation steps and the matchers they share with pre-tokenizers.
#include "model/tokenizer/normalizer.h"

#include <fmt/core.h>

#include "model/tokenizer/byte_level.h"
#include "tessera/error.h"

namespace tessera::tokenizers {

Matcher literal_matcher(std::string literal) {
  if (literal.empty()) return regex_matcher(Regex("", "an empty pattern"));
  return [literal = std::move(literal)](std::string_view text, WorkBudget&, std::vector<TextRange>& matches) {
    for (std::size_t at = text.find(literal); at != text.npos; at = text.find(literal, at + literal.size()))
      matches.push_back({at, at + literal.size()});
  };
}

Matcher regex_matcher(Regex regex) {
  return
      [regex = std::move(regex)](std::string_view text, WorkBudget& budget, std::vector<TextRange>& matches) {
        regex.find_all(text, budget, matches);
      };
}

Matcher character_matcher(bool (*predicate)(char32_t)) {
  return [predicate](std::string_view text, WorkBudget&, std::vector<TextRange>& matches) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      if (predicate(unicode::next_code_point(text, at))) matches.push_back({begin, at});
    }
  };
}

Matcher word_matcher() {
  return [](std::string_view text, WorkBudget&, std::vector<TextRange>& matches) {
    enum class Kind { kSpace, kWord, kOther } previous = Kind::kSpace;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const char32_t c = unicode::next_code_point(text, at);
      const Kind kind = unicode::is_word(c)         ? Kind::kWord
                        : unicode::is_whitespace(c) ? Kind::kSpace
                                                    : Kind::kOther;
      if (kind != Kind::kSpace && kind == previous)
        matches.back().end = at;
      else if (kind != Kind::kSpace)
        matches.push_back({begin, at});
      previous = kind;
    }
  };
}

std::string replace_all(std::string_view text, const Matcher& matcher, std::string_view content,
                        WorkBudget& budget) {
  std::vector<TextRange> matches;
  matcher(text, budget, matches);
  if (matches.size() * content.size() > Normalizer::kMaxGrowth * text.size() + Normalizer::kFreeGrowth)
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: replacing {} matches in a text of {} bytes by {} bytes each makes it too long",
                    budget.source(), matches.size(), text.size(), content.size()));
  std::string out;
  out.reserve(text.size() + matches.size() * content.size());
  std::size_t done = 0;
  for (const TextRange& match : matches) {
    out += text.substr(done, match.begin - done);
    out += content;
    done = match.end;
  }
  out += text.substr(done);
  return out;
}

NormalizerStep prepend_step(std::string prefix) {
  return [prefix = std::move(prefix)](std::string_view text, WorkBudget&) {
    std::string out;
    if (text.empty()) return out;
    out.reserve(prefix.size() + text.size());
    out += prefix;
    out += text;
    return out;
  };
}

NormalizerStep replace_step(Matcher matcher, std::string content) {
  return
      [matcher = std::move(matcher), content = std::move(content)](
          std::string_view text, WorkBudget& budget) { return replace_all(text, matcher, content, budget); };
}

NormalizerStep strip_step(bool left, bool right) {
  return [left, right](std::string_view text, WorkBudget&) {
    std::size_t begin = 0, end = text.size();
    for (std::size_t at = 0; left && at < text.size();) {
      if (!unicode::is_whitespace(unicode::next_code_point(text, at))) break;
      begin = at;
    }
    while (right && end > begin) {
      std::size_t at = end - 1;
      while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
      const std::size_t start = at;
      if (!unicode::is_whitespace(unicode::next_code_point(text, at))) break;
      end = start;
    }
    return std::string(text.substr(begin, end - begin));
  };
}

NormalizerStep unicode_step(unicode::NormalizationForm form) {
  return [form](std::string_view text, WorkBudget&) { return unicode::normalize(text, form); };
}

NormalizerStep lowercase_step() {
  return [](std::string_view text, WorkBudget&) { return unicode::to_lower(text); };
}

NormalizerStep byte_level_step() {
  return [](std::string_view text, WorkBudget&) { return byte_level::encode(text); };
}

std::string Normalizer::apply(std::string_view text, WorkBudget& budget) const {
  std::string out(text);
  for (const NormalizerStep& step : steps_) {
    out = step(out, budget);
    if (out.size() > kMaxGrowth * text.size() + kFreeGrowth)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: the normalizer makes a text of {} bytes more than {} times longer",
                              budget.source(), text.size(), kMaxGrowth));
  }
  return out;
}

}  // namespace tessera::tokenizers
