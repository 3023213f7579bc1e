#include "grammar/number_texts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "tessera/error.h"

namespace tessera::grammar {
namespace {

constexpr std::size_t kMaxDigits = 40;
constexpr std::string_view kAnyFraction = R"((\.[0-9]+)?)";
constexpr std::string_view kAnyMagnitude = R"((0|[1-9][0-9]*)(\.[0-9]+)?)";

/// Collects alternatives of a regular expression.
class Alternatives {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    if (!text_.empty()) text_ += '|';
    ((text_ += parts), ...);
  }
  /// [^\s\S] matches nothing.
  std::string text() const { return text_.empty() ? "[^\\s\\S]" : "(" + text_ + ")"; }

 private:
  std::string text_;
};

std::string digits(char first, char last) { return fmt::format("[{}-{}]", first, last); }
std::string repeated_digit(std::size_t count) { return fmt::format("[0-9]{{{}}}", count); }

/// Magnitudes of at least (`exclusive`: above) |bound|.
std::string at_least(const Decimal& bound, bool exclusive) {
  const std::string& whole = bound.whole;
  const std::string& fraction = bound.fraction;
  Alternatives all;
  all.add(fmt::format("[1-9][0-9]{{{},}}", whole.size()), kAnyFraction);
  for (std::size_t i = 0; i < whole.size(); ++i) {  // the first digit that is larger
    if (whole[i] == '9') continue;
    all.add(whole.substr(0, i), digits(static_cast<char>(whole[i] + 1), '9'),
            repeated_digit(whole.size() - 1 - i), kAnyFraction);
  }
  for (std::size_t i = 0; i < fraction.size(); ++i) {
    if (fraction[i] == '9') continue;
    all.add(whole, "\\.", fraction.substr(0, i), digits(static_cast<char>(fraction[i] + 1), '9'), "[0-9]*");
  }
  if (exclusive) {
    all.add(whole, "\\.", fraction, "[0-9]*[1-9][0-9]*");
  } else if (fraction.empty()) {
    all.add(whole, kAnyFraction);
  } else {
    all.add(whole, "\\.", fraction, "[0-9]*");
  }
  return all.text();
}

/// Magnitudes of at most (`exclusive`: below) |bound|.
std::string at_most(const Decimal& bound, bool exclusive) {
  const std::string& whole = bound.whole;
  const std::string& fraction = bound.fraction;
  Alternatives all;
  if (whole.size() > 1) all.add(fmt::format("(0|[1-9][0-9]{{0,{}}})", whole.size() - 2), kAnyFraction);
  for (std::size_t i = 0; i < whole.size(); ++i) {  // the first digit that is smaller
    const char least = i == 0 && whole.size() > 1 ? '1' : '0';
    if (whole[i] <= least) continue;
    all.add(whole.substr(0, i), digits(least, static_cast<char>(whole[i] - 1)),
            repeated_digit(whole.size() - 1 - i), kAnyFraction);
  }
  if (!fraction.empty()) all.add(whole);
  for (std::size_t i = 0; i < fraction.size(); ++i) {
    if (i > 0) all.add(whole, "\\.", fraction.substr(0, i));
    if (fraction[i] > '0')
      all.add(whole, "\\.", fraction.substr(0, i), digits('0', static_cast<char>(fraction[i] - 1)), "[0-9]*");
  }
  if (!exclusive) {
    if (fraction.empty()) {
      all.add(whole, "(\\.0+)?");
    } else {
      all.add(whole, "\\.", fraction, "0*");
    }
  }
  return all.text();
}

std::string from_lower(const Bound& bound) {
  if (!bound.value.is_negative || bound.value.is_zero()) return at_least(bound.value, bound.is_exclusive);
  return fmt::format("{}|-{}", kAnyMagnitude, at_most(bound.value, bound.is_exclusive));
}

std::string to_upper(const Bound& bound) {
  if (bound.value.is_zero() && bound.is_exclusive) return "-" + at_least(bound.value, true);
  if (bound.value.is_negative && !bound.value.is_zero())
    return "-" + at_least(bound.value, bound.is_exclusive);
  return fmt::format("-{}|{}", kAnyMagnitude, at_most(bound.value, bound.is_exclusive));
}

/// Digits behind the point. Where a bound is exclusive no more than what fp64 tells from the bound, so that
/// who reads numbers as fp64 finds them inside as well.
int most_decimals(const std::optional<Bound>& lower, const std::optional<Bound>& upper) {
  int most = 17;
  for (const std::optional<Bound>& bound : {lower, upper}) {
    if (!bound || !bound->is_exclusive) continue;
    const int whole = static_cast<int>(bound->value.whole.size()),
              fraction = static_cast<int>(bound->value.fraction.size());
    most = std::min(most, std::max(fraction, 15 - whole));
  }
  return most;
}

}  // namespace

std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal result;
  if (text.starts_with('-')) {
    result.is_negative = true;
    text.remove_prefix(1);
  }
  const std::size_t e = text.find_first_of("eE");
  long exponent = 0;
  if (e != text.npos) {
    constexpr long kLargest = 1'000'000'000;  // beyond kMaxDigits in any case, and digits may be added to it
    exponent =
        std::clamp(std::strtol(std::string(text.substr(e + 1)).c_str(), nullptr, 10), -kLargest, kLargest);
    text = text.substr(0, e);
  }
  const std::size_t point = text.find('.');
  std::string all(text.substr(0, point));
  if (point != text.npos) {
    all += text.substr(point + 1);
    exponent -= static_cast<long>(text.size() - point - 1);
  }
  all.erase(0, std::min(all.find_first_not_of('0'), all.size()));
  while (!all.empty() && all.back() == '0') {
    all.pop_back();
    ++exponent;
  }
  if (all.empty()) return result;
  const long length = static_cast<long>(all.size());
  if (length > static_cast<long>(kMaxDigits) || exponent > static_cast<long>(kMaxDigits) - length ||
      exponent < -static_cast<long>(kMaxDigits)) {
    return std::nullopt;
  }
  if (exponent >= 0) {
    result.whole = all + std::string(static_cast<std::size_t>(exponent), '0');
    return result;
  }
  const std::size_t places = static_cast<std::size_t>(-exponent);
  if (all.size() <= places) all.insert(0, places + 1 - all.size(), '0');
  result.whole = all.substr(0, all.size() - places);
  result.fraction = all.substr(all.size() - places);
  return result;
}

std::strong_ordering compare(const Decimal& a, const Decimal& b) {
  const auto is_below_zero = [](const Decimal& number) { return number.is_negative && !number.is_zero(); };
  if (is_below_zero(a) != is_below_zero(b))
    return is_below_zero(a) ? std::strong_ordering::less : std::strong_ordering::greater;
  const auto &small = is_below_zero(a) ? b : a, &large = is_below_zero(a) ? a : b;
  if (small.whole.size() != large.whole.size()) return small.whole.size() <=> large.whole.size();
  if (const auto order = small.whole <=> large.whole; order != 0) return order;
  return small.fraction <=> large.fraction;
}

std::partial_ordering compare_numbers(std::string_view a, std::string_view b) {
  const std::optional<Decimal> x = parse_decimal(a), y = parse_decimal(b);
  if (x && y) return compare(*x, *y);
  return std::strtod(std::string(a).c_str(), nullptr) <=> std::strtod(std::string(b).c_str(), nullptr);
}

CharAutomaton NumberTexts::texts(std::string_view source) const {
  if (!lower && !upper && !multiple_of) {
    return CharAutomaton::from_regex(
        is_integer ? "0|-?[1-9][0-9]*"
                   : R"(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?([0-9]{1,2}|[12][0-9]{2}))?)",
        false, source);
  }
  std::string any = is_integer ? "0|-?[1-9][0-9]*" : "-?(0|[1-9][0-9]*)";
  const int decimals = is_integer ? 0 : most_decimals(lower, upper);
  if (decimals > 0) any += fmt::format(R"((\.[0-9]{{1,{}}})?)", decimals);
  CharAutomaton result = CharAutomaton::from_regex(any, false, source);
  if (lower)
    result = result.intersected(CharAutomaton::from_regex(from_lower(*lower), false, source), source);
  if (upper) result = result.intersected(CharAutomaton::from_regex(to_upper(*upper), false, source), source);
  if (multiple_of) {
    const std::string factor_digits = multiple_of->whole + multiple_of->fraction;
    const std::uint64_t factor = std::strtoull(factor_digits.c_str(), nullptr, 10);
    const std::size_t places = multiple_of->fraction.size();
    if (factor_digits.size() > 18 || factor == 0 || factor > 10'000 / (places + 2)) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format(
              "{}: multiples of {}{}{} can't be guaranteed; expected at most 10,000 / (2 + digits behind the "
              "point) when it is written without its point",
              source, multiple_of->whole, places == 0 ? "" : ".", multiple_of->fraction));
    }
    result = result.intersected(
        CharAutomaton::decimal_multiples(static_cast<std::uint32_t>(factor), static_cast<int>(places)),
        source);
  }
  return result;
}

}  // namespace tessera::grammar
