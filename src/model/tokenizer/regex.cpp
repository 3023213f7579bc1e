// Regular expressions by PCRE2, with what differs from Oniguruma rewritten or refused.
#include "model/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/core.h>
#include <pcre2.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <limits>
#include <utility>

#include "core/text.h"
#include "model/tokenizer/unicode.h"
#include "tessera/error.h"

namespace tessera::tokenizers {
namespace {

constexpr std::size_t kLongestPattern = 1 << 16;
constexpr std::size_t kShownBytes = 200;  // of a pattern, in errors
// Limits on one match: they bound backtracking that is exponential. The usual patterns look back at each
// character of a long run of spaces or letters, once for each of a few alternatives.
constexpr std::uint64_t kMatchLimit = 1'000'000;
constexpr std::uint64_t kMatchLimitPerByte = 64;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
// Limits on all matches that share a budget: they bound what is polynomial, and many that are slow. They are
// processor time, so that a busy machine refuses nothing. The usual patterns take less than 0.1 us a byte.
constexpr std::chrono::nanoseconds kTimeLimit = std::chrono::seconds(1);
constexpr std::chrono::nanoseconds kTimeLimitPerByte = std::chrono::microseconds(10);
// The clock is read after so many attempts, and after each if they are slow.
constexpr int kAttemptsBetweenReadings = 16;
constexpr std::chrono::nanoseconds kSlowReading = std::chrono::milliseconds(1);

// PCRE2 10.42 counts U+180E as a space, and no marks and of the connectors only '_' as word characters.
// Oniguruma's word characters take in the superscripts and fractions of Latin-1, but not in classes.
constexpr std::string_view kSpace = R"(\t-\r\x20\x{85}\p{Z})";
constexpr std::string_view kNoSpaceInClass = R"(\S\x{180e})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr std::string_view kWordInClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

/// What Oniguruma's POSIX classes mean, as content of a PCRE2 class.
constexpr std::pair<std::string_view, std::string_view> kPosixClasses[] = {{"[:alpha:]", R"(\p{Alphabetic})"},
                                                                           {"[:digit:]", R"(\p{Nd})"},
                                                                           {"[:punct:]", R"(\p{P}\p{S})"},
                                                                           {"[:lower:]", R"(\p{Lowercase})"},
                                                                           {"[:upper:]", R"(\p{Uppercase})"},
                                                                           {"[:xdigit:]", "0-9a-fA-F"},
                                                                           {"[:space:]", kSpace},
                                                                           {"[:word:]", kWordInClass}};

/// Whether PCRE2 knows a script of that name, and can tell it from the scripts' extensions.
bool is_script(std::string_view name) {
  const std::string property = fmt::format("\\p{{sc:{}}}", std::string(name));
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* const compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(property.data()), property.size(),
                                             PCRE2_UTF, &error, &error_offset, nullptr);
  pcre2_code_free(compiled);
  return compiled != nullptr;
}

/// Rewrites the constructs that PCRE2 reads differently from Oniguruma and refuses those without a
/// counterpart.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (in_class_) {
        c == '\\' ? escape() : class_character(c);
      } else {
        character(c);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: the regular expression \"{}\" uses {}, which is not supported", where_,
                            printable(pattern_, kShownBytes), construct));
  }

  void copy(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void replace(std::size_t count, std::string_view text) {
    out_ += text;
    at_ += count;
  }

  /// A set of characters, as a class of its own or inside one.
  void replace_with_set(std::string_view set, bool negated) {
    if (in_class_ && negated) refuse(fmt::format("\\{} inside a character class", pattern_[at_ + 1]));
    replace(2, in_class_ ? std::string(set) : fmt::format("[{}{}]", negated ? "^" : "", set));
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("a backslash at its end");
    switch (const char c = pattern_[at_ + 1]) {
      case 's':
        return replace_with_set(kSpace, false);
      case 'S':
        return in_class_ ? replace(2, kNoSpaceInClass) : replace_with_set(kSpace, true);
      case 'w':
      case 'W':
        return replace_with_set(in_class_ ? kWordInClass : kWord, c == 'W');
      case 'b':
      case 'B':
        return in_class_ ? copy(2) : word_boundary(c == 'B');
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'h':
      case 'H':
        return replace_with_set("0-9a-fA-F", c == 'H');
      case 'v':
        return replace(2, R"(\x0b)");
      case 'V':
        return replace(2, "V");
      case 'o':
      case 'x': {
        const std::size_t end = pattern_.substr(at_ + 2, 1) == "{" ? pattern_.find('}', at_) : at_ + 1;
        return copy(std::min(end, pattern_.size() - 1) + 1 - at_);
      }
      case 'u': {
        const std::string_view digits = pattern_.substr(at_ + 2, 4);
        if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
          refuse("\\u without four hexadecimal digits");
        return replace(6, fmt::format("\\x{{{}}}", std::string(digits)));
      }
      case 'C':
      case 'E':
      case 'G':
      case 'K':
      case 'N':
      case 'O':
      case 'Q':
      case 'c':
      case 'g':
      case 'k':
      case 'y':
      case 'Y':
        refuse(fmt::format("\\{}", c));
      default:
        return copy(1 + unicode::utf8_length(c));
    }
  }

  void word_boundary(bool negated) {
    replace(2, fmt::format("(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))", kWord, negated ? '=' : '!',
                           negated ? '!' : '='));
  }

  /// PCRE2 counts characters with several scripts, as most of CJK's punctuation, to each of them.
  void property(bool negated) {
    if (pattern_.substr(at_ + 2, 1) != "{") return replace(2, negated ? "P" : "p");
    const std::size_t end = pattern_.find('}', at_);
    if (end == pattern_.npos) refuse("\\p{ without }");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    const std::size_t size = end + 1 - at_;
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      negated = !negated;
    }
    if (!is_script(name)) return copy(size);
    replace(size, fmt::format("\\{}{{sc:{}}}", negated ? 'P' : 'p', std::string(name)));
  }

  void class_character(char c) {
    if (c == '[') {
      for (const auto& [name, set] : kPosixClasses)
        if (pattern_.substr(at_, name.size()) == name) return replace(name.size(), set);
      refuse("a class inside a character class");
    }
    if (pattern_.substr(at_, 2) == "&&") refuse("an intersection of character classes");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void character(char c) {
    switch (c) {
      case '(':
        groups_.push_back(out_.size());
        return group();
      case ')':
        if (!groups_.empty()) {
          item_ = groups_.back();
          groups_.pop_back();
        }
        is_quantified_ = false;
        return copy(1);
      case '*':
      case '+':
      case '?':
        is_quantified_ = true;
        return copy(1);
      case '{':
        if (interval()) return;
        break;
      default:
        break;
    }
    item_ = out_.size();
    is_quantified_ = false;
    if (c == '\\') return escape();
    copy(std::min(unicode::utf8_length(c), pattern_.size() - at_));
    if (c != '[') return;
    in_class_ = true;
    if (pattern_.substr(at_, 1) == "^") copy(1);
    if (pattern_.substr(at_, 1) == "]") copy(1);  // a bracket that comes first stands for itself
  }

  /// {n}, {n,}, {,m} and {n,m}. Behind them, '+' repeats what they repeat, and is not possessive as behind
  /// other quantifiers; '?' behind {n} makes it optional.
  bool interval() {
    const std::size_t end = pattern_.find('}', at_);
    if (end == pattern_.npos) return false;
    const std::string_view text = pattern_.substr(at_ + 1, end - at_ - 1);
    const std::size_t comma = text.find(',');
    const std::string_view low = text.substr(0, comma),
                           high = comma == text.npos ? low : text.substr(comma + 1);
    const auto has_other_than_digits = [](std::string_view part) {
      return part.find_first_not_of("0123456789") != part.npos;
    };
    if (has_other_than_digits(low) || has_other_than_digits(high) || (low.empty() && high.empty()))
      return false;
    at_ = end + 1;
    std::string quantifier = fmt::format("{{{}{}}}", low.empty() ? "0" : "", std::string(text));
    const std::string_view next = pattern_.substr(at_, 1);
    const bool repeats = next == "+", is_optional = next == "?" && comma == text.npos;
    if (repeats || is_optional) ++at_;
    if (repeats && !is_quantified_ && high != "0" && (low.empty() || low == "0" || low == "1")) {
      quantifier = low == "1" ? "+" : "*";  // the same, and a long run of them takes no stack
    } else if (repeats || is_optional) {
      out_.insert(item_, "(?:");
      quantifier += fmt::format("){}", next);
    }
    is_quantified_ = true;
    out_ += quantifier;
    return true;
  }

  void group() {
    if (pattern_.substr(at_, 2) == "(*") refuse("(*");
    if (pattern_.substr(at_, 2) != "(?") return copy(1);
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"})
      if (pattern_.substr(at_, opening.size()) == opening) return copy(opening.size());
    // Elsewhere than at the start Oniguruma's option takes in the alternatives that follow; PCRE2's doesn't.
    if (at_ == 0 && pattern_.substr(0, 4) == "(?i)") return copy(4);
    refuse(std::string(pattern_.substr(at_, 3)) + " in this place");
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
  std::size_t item_ = 0;             // where in out_ begins what a quantifier would repeat
  bool is_quantified_ = false;       // whether it is repeated already
  std::vector<std::size_t> groups_;  // where in out_ the open ones begin
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return fmt::format("error {}", code);
  return reinterpret_cast<const char*>(buffer);
}

struct Release {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
};

template <class T>
std::unique_ptr<T, Release> owned(T* p) {
  if (!p) throw Error(ErrorCode::kOutOfMemory, "PCRE2 could not allocate memory");
  return std::unique_ptr<T, Release>(p);
}

std::chrono::nanoseconds thread_time() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

/// PCRE2's memory, and the time spent.
struct WorkBudget::Matching {
  explicit Matching(std::size_t text_bytes)
      : end(thread_time() + kTimeLimit + kTimeLimitPerByte * static_cast<std::int64_t>(text_bytes)) {
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  }

  /// Whether there is time for another attempt.
  bool may_go_on() {
    if (--attempts_left > 0) return true;
    const std::chrono::nanoseconds now = thread_time();
    attempts_left = now - last_reading > kSlowReading ? 1 : kAttemptsBetweenReadings;
    last_reading = now;
    return now < end;
  }

  std::unique_ptr<pcre2_match_data, Release> data = owned(pcre2_match_data_create(1, nullptr));
  std::unique_ptr<pcre2_match_context, Release> context = owned(pcre2_match_context_create(nullptr));
  std::chrono::nanoseconds end;
  std::chrono::nanoseconds last_reading = thread_time();
  int attempts_left = kAttemptsBetweenReadings;
};

WorkBudget::WorkBudget(const std::string& source, std::size_t text_bytes)
    : source_(source), text_bytes_(text_bytes) {}
WorkBudget::~WorkBudget() = default;

WorkBudget::Matching& WorkBudget::matching() {
  if (!matching_) matching_ = std::make_unique<Matching>(text_bytes_);
  return *matching_;
}

struct Regex::Code {
  std::string where, pattern;
  std::unique_ptr<pcre2_code, Release> code;
};

Regex::Regex(std::string_view pattern, const std::string& where) {
  if (pattern.size() > kLongestPattern)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: the regular expression has {} bytes; at most {} are supported", where,
                            pattern.size(), kLongestPattern));
  const std::string translated = Translator(pattern, where).run();
  const auto compile_context = owned(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(compile_context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  // Anchored: find_all moves through the text itself, so that it can stop a search that takes too long.
  // Multi-line: in Oniguruma's Ruby syntax ^ and $ always match at line ends.
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                    &error, &error_offset, compile_context.get());
  if (!compiled)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: the regular expression \"{}\" can't be compiled: {}", where,
                            printable(pattern, kShownBytes), pcre2_message(error)));
  auto code = std::make_shared<Code>();
  code->where = where;
  code->pattern = printable(pattern, kShownBytes);
  code->code = owned(compiled);
  // Where no JIT compiler exists, pcre2_match interprets.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  code_ = std::move(code);
}

void Regex::find_all(std::string_view text, WorkBudget& budget, std::vector<TextRange>& matches) const {
  if (text.empty()) return;
  WorkBudget::Matching& matching = budget.matching();
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(matching.data.get());
  pcre2_set_match_limit(matching.context.get(), static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                                    kMatchLimit + kMatchLimitPerByte * text.size(),
                                                    std::numeric_limits<std::uint32_t>::max())));
  const auto fail = [&](const std::string& reason) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: the regular expression \"{}\" can't be matched on this text of {} bytes: {}",
                            code_->where, code_->pattern, text.size(), reason));
  };
  const auto match_at = [&](std::size_t at, std::uint32_t options) {
    return pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       PCRE2_NO_UTF_CHECK | options, matching.data.get(), matching.context.get());
  };
  std::size_t last_end = std::string_view::npos;
  for (std::size_t at = 0; at <= text.size();) {
    if (!matching.may_go_on()) fail("it takes too long, with all that was matched before");
    int result = match_at(at, 0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match_at(at, PCRE2_NO_JIT);
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) fail(pcre2_message(result));
    const bool matched = result >= 0 && range[1] >= range[0];
    // As in the tokenizers package, an empty match right behind the previous match doesn't count.
    if (matched && !(range[0] == range[1] && range[1] == last_end)) {
      matches.push_back({range[0], range[1]});
      last_end = range[1];
      at = range[1];
    } else {
      at += at < text.size() ? unicode::utf8_length(text[at]) : 1;
    }
  }
}

}  // namespace tessera::tokenizers
