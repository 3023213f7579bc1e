#include "grammar/regex_syntax.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "core/text.h"
#include "tessera/error.h"

namespace tessera::grammar {
namespace {

const CharSet kDigits = {{'0', '9'}};
const CharSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpace = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                        {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

constexpr int kMaxGroupDepth = 200;
constexpr std::size_t kMostAheads = 16;
constexpr std::uint32_t kMostRepeats = 100'000;

class Parser {
 public:
  Parser(std::string_view pattern, std::string_view source) : text_(pattern), source_(source) {}

  Regex parse(bool is_whole) {
    Regex result;
    const bool is_anchored = take("^");
    while (is_anchored || is_whole) {
      const bool is_wanted = take("(?=");
      if (!is_wanted && !take("(?!")) break;
      if (result.ahead.size() == kMostAheads) refuse(fmt::format("more than {} look-aheads", kMostAheads));
      result.ahead.push_back({alternative(), is_wanted});
      if (!take(")")) fail("a group without )");
      if (!done() && std::string_view("*+?{").find(peek()) != std::string_view::npos)
        fail("a quantifier behind look-ahead");
    }
    if (result.ahead.empty()) {
      at_ = 0;
      result.tree = alternative();
    } else {
      result.tree = {RegexNode::Kind::kSequence};
      if (is_anchored) result.tree.children.push_back({RegexNode::Kind::kStart});
      result.tree.children.push_back(sequence());
      if (peek() == '|') refuse("alternatives behind look-ahead, without a group around them,");
    }
    if (at_ < text_.size()) fail("a ) without a (");
    return result;
  }

 private:
  [[noreturn]] void fail(std::string_view reason) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the regular expression '{}' is malformed at byte {}: {}", source_,
                            printable(text_), at_, reason));
  }
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: the regular expression '{}' has {} at byte {}, which no finite automaton of "
                            "this library has; expected one without",
                            source_, printable(text_), what, at_));
  }

  bool done() const { return at_ >= text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }
  bool take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }
  /// The pattern is valid UTF-8.
  char32_t next_character() {
    const auto byte = [&](std::size_t i) {
      return static_cast<char32_t>(static_cast<unsigned char>(text_[i]));
    };
    const char32_t lead = byte(at_);
    const int more = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    char32_t c = more == 0 ? lead : lead & (0x3Fu >> more);
    ++at_;
    for (int i = 0; i < more; ++i) c = c << 6 | (byte(at_++) & 0x3F);
    return c;
  }

  RegexNode alternative() {
    if (++depth_ > kMaxGroupDepth) refuse(fmt::format("more than {} nested groups", kMaxGroupDepth));
    RegexNode node{RegexNode::Kind::kAlternative};
    node.children.push_back(sequence());
    while (take("|")) node.children.push_back(sequence());
    --depth_;
    return node.children.size() == 1 ? std::move(node.children[0]) : std::move(node);
  }

  RegexNode sequence() {
    RegexNode node{RegexNode::Kind::kSequence};
    while (!done() && peek() != '|' && peek() != ')') node.children.push_back(quantified());
    return node;
  }

  RegexNode quantified() {
    RegexNode node = atom();
    for (bool is_first = true;; is_first = false) {
      std::uint32_t min = 0, max = RegexNode::kUnbounded;
      if (take("*")) {
      } else if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (!take_braces(min, max)) {
        return node;
      }
      if (!is_first) fail("a quantifier behind a quantifier");
      if (node.kind == RegexNode::Kind::kStart || node.kind == RegexNode::Kind::kEnd)
        fail("a quantified ^ or $");
      take("?");  // lazy: the same texts
      if (peek() == '+') refuse("a possessive quantifier");
      RegexNode repeat{RegexNode::Kind::kRepeat};
      repeat.min = min;
      repeat.max = max;
      repeat.children.push_back(std::move(node));
      node = std::move(repeat);
    }
  }

  std::optional<std::uint32_t> number() {
    if (peek() < '0' || peek() > '9') return std::nullopt;
    std::uint32_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<std::uint32_t>(text_[at_++] - '0');
      if (value > kMostRepeats) refuse(fmt::format("more than {} repetitions", kMostRepeats));
    }
    return value;
  }

  bool take_braces(std::uint32_t& min, std::uint32_t& max) {
    if (peek() != '{') return false;
    ++at_;
    const std::optional<std::uint32_t> low = number();
    if (!low) fail("a { that opens no quantifier; write \\{ for the character");
    min = max = *low;
    if (take(",")) {
      const std::optional<std::uint32_t> high = number();
      max = high ? *high : RegexNode::kUnbounded;
    }
    if (!take("}")) fail("a quantifier without }");
    if (max < min) fail(fmt::format("a quantifier from {} to {}", min, max));
    return true;
  }

  static RegexNode set_node(CharSet set) { return {RegexNode::Kind::kSet, std::move(set)}; }
  static RegexNode character(char32_t c) { return set_node({{c, c}}); }

  RegexNode atom() {
    if (peek() == '(') return group();
    if (peek() == '[') return set_node(bracket());
    if (take(".")) return set_node(complement(kLineEnds));
    if (take("^")) return {RegexNode::Kind::kStart};
    if (take("$")) return {RegexNode::Kind::kEnd};
    if (peek() == '\\') {
      if (std::optional<CharSet> set = class_escape()) return set_node(*set);
      return character(character_escape(false));
    }
    if (peek() == '*' || peek() == '+' || peek() == '?') fail("a quantifier without anything before it");
    return character(next_character());
  }

  RegexNode group() {
    ++at_;
    if (take("?")) {
      if (peek() == '=' || peek() == '!') refuse("look-ahead that is not behind a ^ at its beginning");
      if (take("<") || take("P<")) {
        if (peek() == '=' || peek() == '!') refuse("look-behind");
        while (!done() && peek() != '>') ++at_;  // a name
        if (!take(">")) fail("a group's name without >");
      } else if (!take(":")) {
        refuse("flags or an unknown kind of group");
      }
    }
    RegexNode node = alternative();
    if (!take(")")) fail("a group without )");
    return node;
  }

  std::optional<CharSet> class_escape() {
    const std::string_view rest = text_.substr(at_);
    std::optional<CharSet> set;
    if (rest.size() < 2) fail("a \\ at the end");
    switch (rest[1]) {
      case 'd':
        set = kDigits;
        break;
      case 'D':
        set = complement(kDigits);
        break;
      case 'w':
        set = kWord;
        break;
      case 'W':
        set = complement(kWord);
        break;
      case 's':
        set = kSpace;
        break;
      case 'S':
        set = complement(kSpace);
        break;
      case 'p':
      case 'P':
        refuse("a Unicode property");
      default:
        return std::nullopt;
    }
    at_ += 2;
    return set;
  }

  char32_t hex(std::size_t digits) {
    char32_t value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail(fmt::format("an escape that needs {} hexadecimal digits", digits));
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    return value;
  }

  char32_t unicode_escape() {
    char32_t c = 0;
    if (take("{")) {
      std::size_t digits = 0;
      while (peek() != '}' && digits < 6) {
        c = c * 16 + hex(1);
        ++digits;
      }
      if (!take("}") || digits == 0 || c > kLastCodePoint) fail("an escape \\u{…} that is no code point");
    } else {
      c = hex(4);
      if (c >= 0xD800 && c < 0xDC00 && take("\\u")) {
        const char32_t low = hex(4);
        if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
      }
    }
    if (c >= 0xD800 && c <= 0xDFFF) fail("half of a surrogate pair");
    return c;
  }

  char32_t character_escape(bool in_bracket) {
    ++at_;
    if (done()) fail("a \\ at the end");
    const char c = text_[at_];
    if (c >= '1' && c <= '9') refuse("a back reference");
    if (c == 'b' && in_bracket) {
      ++at_;
      return 8;
    }
    if (c == 'b' || c == 'B') refuse("a word boundary");
    if (c == 'k') refuse("a back reference");
    if (c == 'A' || c == 'Z' || c == 'z' || c == 'G') refuse("an anchor other than ^ and $");
    switch (c) {
      case 'n':
        ++at_;
        return '\n';
      case 'r':
        ++at_;
        return '\r';
      case 't':
        ++at_;
        return '\t';
      case 'f':
        ++at_;
        return '\f';
      case 'v':
        ++at_;
        return '\v';
      case '0':
        ++at_;
        return 0;
      case 'x':
        ++at_;
        return hex(2);
      case 'u':
        ++at_;
        return unicode_escape();
      case 'c':
        ++at_;
        if (!((peek() >= 'a' && peek() <= 'z') || (peek() >= 'A' && peek() <= 'Z')))
          fail("an escape \\c without a letter");
        return static_cast<char32_t>(text_[at_++]) % 32;
      default:
        break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) fail(fmt::format("an unknown escape \\{}", c));
    return next_character();
  }

  CharSet bracket() {
    ++at_;
    const bool is_negated = take("^");
    CharSet set;
    while (true) {
      if (done()) fail("a [ without ]");
      if (take("]")) break;
      std::optional<CharSet> members = peek() == '\\' ? class_escape() : std::nullopt;
      if (members) {
        set.insert(set.end(), members->begin(), members->end());
        continue;
      }
      const char32_t first = peek() == '\\' ? character_escape(true) : next_character();
      char32_t last = first;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        if (peek() == '\\' && class_escape()) fail("a range that ends in a class");
        last = peek() == '\\' ? character_escape(true) : next_character();
        if (last < first) fail("a range whose end is before its beginning");
      }
      set.push_back({first, last});
    }
    set = normalized(std::move(set));
    return is_negated ? complement(set) : set;
  }

  std::string_view text_;
  std::string_view source_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

CharSet normalized(CharSet ranges) {
  std::ranges::sort(ranges, {}, &CharRange::first);
  CharSet result;
  for (const CharRange& range : ranges) {
    if (!result.empty() && range.first <= result.back().last + 1) {
      result.back().last = std::max(result.back().last, range.last);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

CharSet complement(const CharSet& set) {
  CharSet result;
  char32_t next = 0;
  for (const CharRange& range : normalized(set)) {
    if (range.first > next) result.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) result.push_back({next, kLastCodePoint});
  return result;
}

Regex parse_regex(std::string_view pattern, bool is_whole, std::string_view source) {
  if (!is_valid_utf8(pattern)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the regular expression '{}' is no valid UTF-8", source, printable(pattern)));
  }
  return Parser(pattern, source).parse(is_whole);
}

}  // namespace tessera::grammar
