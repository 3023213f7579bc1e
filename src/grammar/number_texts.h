#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/char_automaton.h"

namespace tessera::grammar {

/// A decimal number as its digits: `whole` without leading zeros ("0" for none), `fraction` without trailing
/// ones.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0";
  std::string fraction;

  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

/// By value, on all digits.
std::strong_ordering compare(const Decimal& a, const Decimal& b);
/// The same of numbers as JSON writes them; as fp64 where one has more than 40 digits.
std::partial_ordering compare_numbers(std::string_view a, std::string_view b);

/// Of a number as JSON writes it; none if it has more than 40 digits.
std::optional<Decimal> parse_decimal(std::string_view text);

struct Bound {
  Decimal value;
  bool is_exclusive = false;
};

/// What an integer's or number's text may be. Numbers with a bound or a multiple have no exponent.
struct NumberTexts {
  bool is_integer = false;
  std::optional<Bound> lower, upper;
  std::optional<Decimal> multiple_of;  ///< above 0

  /// Throws Error{kUnsupported} with `source` for multiples that take too many states.
  CharAutomaton texts(std::string_view source) const;
};

}  // namespace tessera::grammar
