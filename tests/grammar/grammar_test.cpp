// Regular expressions, and the automata of code points that patterns, numbers and formats become.
#include <gtest/gtest.h>

#include <regex>

#include "grammar/char_automaton.h"
#include "grammar/formats.h"
#include "grammar/matcher.h"
#include "grammar/number_texts.h"
#include "grammar/vocabularies.h"
#include "tessera/error.h"

namespace tessera::testing {
namespace {

using grammar::CharAutomaton;

bool fits(const char* pattern, const char* text, bool search = false) {
  return CharAutomaton::from_regex(pattern, search, "test").accepts(text);
}

TEST(Regex, MatchesWholeTexts) {
  EXPECT_TRUE(fits("", ""));
  EXPECT_FALSE(fits("", "a"));
  EXPECT_TRUE(fits("a|bc", "bc"));
  EXPECT_FALSE(fits("a|bc", "ab"));
  EXPECT_TRUE(fits("(ab)*c+d?", "ababcc"));
  EXPECT_TRUE(fits("[^a-c\\d]{2,3}", "xé"));
  EXPECT_FALSE(fits("[^a-c\\d]{2,3}", "x1"));
  EXPECT_FALSE(fits("x{3}", "xx"));
  EXPECT_TRUE(fits("x{2,}?", "xxxx"));
  EXPECT_TRUE(fits("\\u00e9\\x41\\u{1F600}\\.", "éA😀."));
  EXPECT_FALSE(fits(".", "\n"));
  EXPECT_TRUE(fits("(?:a(?<name>b))", "ab"));
  EXPECT_TRUE(fits("[\\s\\S]*", "a\nb"));
  EXPECT_TRUE(fits("[]a]*|[^]", "q"));  // ECMA-262: [] is nothing, [^] is anything
  EXPECT_TRUE(fits("[\\]a-]+", "]-a"));
}

TEST(Regex, AnchorsAndSearch) {
  EXPECT_TRUE(fits("b", "abc", true));
  EXPECT_FALSE(fits("^b", "abc", true));
  EXPECT_TRUE(fits("^ab", "abc", true));
  EXPECT_TRUE(fits("bc$", "abc", true));
  EXPECT_FALSE(fits("ab$", "abc", true));
  EXPECT_TRUE(fits("^a|c$", "xc", true));
  EXPECT_TRUE(fits("^a|c$", "ax", true));
  EXPECT_FALSE(fits("^a|c$", "xax", true));
  EXPECT_TRUE(fits("^$", "", true));
  EXPECT_FALSE(fits("^$", "a", true));
  EXPECT_TRUE(fits("(^|,)x", "a,x", true));
  EXPECT_FALSE(fits("a^b", "ab", true));
  EXPECT_FALSE(fits("a$b", "ab", true));
}

TEST(Regex, AgreesWithTheStandardLibrary) {
  std::uint32_t state = 1;
  const auto next = [&](std::uint32_t n) {
    return (state = state * 1664525 + 1013904223) >> 16 & 0x7fff ? (state >> 16) % n : 0;
  };
  std::function<std::string(int)> make = [&](int depth) -> std::string {
    switch (next(depth > 3 ? 3 : 8)) {
      case 0:
        return std::string(1, static_cast<char>('a' + next(3)));
      case 1:
        return "[ab]";
      case 2:
        return "[^b]";
      case 3:
        return make(depth + 1) + make(depth + 1);
      case 4:
        return "(" + make(depth + 1) + "|" + make(depth + 1) + ")";
      case 5:
        return "(" + make(depth + 1) + ")*";
      case 6:
        return "(" + make(depth + 1) + "){1,2}";
      default:
        return "(" + make(depth + 1) + ")?";
    }
  };
  int accepted = 0;
  for (int i = 0; i < 400; ++i) {
    std::string pattern = make(0);
    if (i >= 300) {
      const char* const kinds[] = {"(?=", "(?!"};
      for (int n = next(3); n >= 0; --n)
        pattern = kinds[next(2)] + make(2) + (next(2) ? "$)" : ")") + pattern;
      pattern = '^' + pattern;
    }
    const std::regex judge(pattern);
    const CharAutomaton ours = CharAutomaton::from_regex(pattern, false, "test"),
                        search = CharAutomaton::from_regex(pattern, true, "test");
    for (int j = 0; j < 40; ++j) {
      std::string text;
      for (std::uint32_t n = next(6); n > 0; --n) text += static_cast<char>('a' + next(3));
      EXPECT_EQ(ours.accepts(text), std::regex_match(text, judge)) << pattern << " " << text;
      EXPECT_EQ(search.accepts(text), std::regex_search(text, judge)) << pattern << " " << text;
      accepted += ours.accepts(text) ? 1 : 0;
    }
  }
  EXPECT_GT(accepted, 500);
}

void expect_error(const char* pattern, ErrorCode code, const std::string& part) {
  try {
    CharAutomaton::from_regex(pattern, false, "the pattern");
    ADD_FAILURE() << pattern << " is accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Regex, LookAheadStandsAtTheBeginning) {
  // zod's e-mail address, and what passwords must have.
  const char* const email =
      R"(^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$)";
  const CharAutomaton addresses = CharAutomaton::from_regex(email, true, "test");
  for (const char* text : {"a@b.io", "a.b+c@d.e.org"}) EXPECT_TRUE(addresses.accepts(text)) << text;
  for (const char* text : {".a@b.io", "a..b@c.io", "a.@b.io", "a@b"})
    EXPECT_FALSE(addresses.accepts(text)) << text;
  for (const char* pattern : {R"(^(?=.*[A-Z])(?=.*\d).{4,}$)", R"((?=.*[A-Z])(?=.*\d).{4,})"}) {
    const CharAutomaton passwords = CharAutomaton::from_regex(pattern, *pattern == '^', "test");
    for (const char* text : {"aB3d", "3BBB"}) EXPECT_TRUE(passwords.accepts(text)) << text;
    for (const char* text : {"aB3", "abc3", "ABCD"}) EXPECT_FALSE(passwords.accepts(text)) << text;
  }
}

TEST(Regex, WhatIsNotUnderstoodIsAnErrorThatNamesIt) {
  for (const char* malformed : {"(", ")", "a)", "[a", "*a", "a**", "a{2,1}", "a{x", "\\", "[b-a]", "\\q",
                                "\\x4", "\\u{110000}", "\\ud800", "^*"}) {
    expect_error(malformed, ErrorCode::kInvalidArgument, "malformed at byte");
  }
  expect_error("a\xff", ErrorCode::kInvalidArgument, "no valid UTF-8");
  expect_error("a(?=b)", ErrorCode::kUnsupported, "look-ahead");
  expect_error("^(?=a)b|c", ErrorCode::kUnsupported, "alternatives behind look-ahead");
  expect_error("^(?=a)*b", ErrorCode::kInvalidArgument, "a quantifier behind look-ahead");
  expect_error("^(?!a", ErrorCode::kInvalidArgument, "a group without )");
  expect_error("(?<!b)a", ErrorCode::kUnsupported, "look-behind");
  expect_error("(a)\\1", ErrorCode::kUnsupported, "a back reference");
  expect_error("\\bword", ErrorCode::kUnsupported, "a word boundary");
  expect_error("\\p{L}", ErrorCode::kUnsupported, "a Unicode property");
  expect_error("(?i)a", ErrorCode::kUnsupported, "flags");
}

TEST(Regex, HostileOnesEndInAnError) {
  expect_error("(a|b)*a(a|b){40}", ErrorCode::kUnsupported, "states");
  expect_error("((((a{1,100}){1,100}){1,100}){1,100}){1,100}", ErrorCode::kUnsupported, "states");
  expect_error("a{1000000}", ErrorCode::kUnsupported, "repetitions");
  expect_error(std::string(100'000, '(').c_str(), ErrorCode::kUnsupported, "nested groups");
  expect_error("(.*){1,99999}x", ErrorCode::kUnsupported, "states");
}

TEST(NumberTexts, BoundsAreExact) {
  const auto texts = [](bool is_integer, const char* low, bool low_open, const char* high, bool high_open) {
    grammar::NumberTexts n{is_integer, std::nullopt, std::nullopt, std::nullopt};
    if (low != nullptr) n.lower = {*grammar::parse_decimal(low), low_open};
    if (high != nullptr) n.upper = {*grammar::parse_decimal(high), high_open};
    return n.texts("test");
  };
  struct Range {
    const char *low, *high;
  };
  for (const Range& r : {Range{"-12", "105"},
                         {"7", "7"},
                         {"-100", "-9"},
                         {"0", "99"},
                         {"-1", "0"},
                         {nullptr, "12"},
                         {"-30", nullptr}}) {
    for (const int open : {0, 1, 2, 3}) {
      const bool low_open = open % 2 == 1, high_open = open / 2 == 1;
      const CharAutomaton integers = texts(true, r.low, low_open, r.high, high_open);
      for (int i = -250; i <= 250; ++i) {
        const bool inside =
            (r.low == nullptr || (low_open ? i > std::stoi(r.low) : i >= std::stoi(r.low))) &&
            (r.high == nullptr || (high_open ? i < std::stoi(r.high) : i <= std::stoi(r.high)));
        EXPECT_EQ(integers.accepts(std::to_string(i)), inside)
            << i << " in " << (r.low ? r.low : "") << ".." << (r.high ? r.high : "") << " " << open;
      }
    }
  }
  for (const Range& r :
       {Range{"-2.5", "10.25"}, {"0.1", "0.3"}, {"0", "1"}, {"-0.05", "-0.001"}, {"9.99", "10.01"}}) {
    for (const int open : {0, 3}) {
      const CharAutomaton numbers = texts(false, r.low, open != 0, r.high, open != 0);
      for (int i = -300'000; i <= 1'100'000; i += i > -3000 && i < 3000 ? 1 : 1250) {
        for (const int places : {2, 5}) {
          std::string text = std::to_string(std::abs(i));  // i thousandths, or hundred-thousandths
          if (text.size() < static_cast<std::size_t>(places) + 1)
            text.insert(0, static_cast<std::size_t>(places) + 1 - text.size(), '0');
          text.insert(text.size() - static_cast<std::size_t>(places), ".");
          if (i < 0) text.insert(0, "-");
          const double x = std::stod(text), low = std::stod(r.low), high = std::stod(r.high);
          EXPECT_EQ(numbers.accepts(text), open != 0 ? x > low && x < high : x >= low && x <= high)
              << text << " in " << r.low << ".." << r.high;
        }
      }
    }
  }
}

TEST(NumberTexts, MultiplesAreExact) {
  const auto multiples = [](const char* of, bool is_integer) {
    return grammar::NumberTexts{is_integer, std::nullopt, std::nullopt, grammar::parse_decimal(of)}.texts(
        "test");
  };
  const CharAutomaton sevens = multiples("7", true), quarters = multiples("0.25", false),
                      tens = multiples("1e1", false);
  for (int i = -1000; i <= 1000; ++i) {
    EXPECT_EQ(sevens.accepts(std::to_string(i)), i % 7 == 0) << i;
    EXPECT_EQ(tens.accepts(std::to_string(i)), i % 10 == 0) << i;
    std::string text = std::to_string(std::abs(i) + 1000);  // hundredths
    text.insert(text.size() - 2, ".");
    EXPECT_EQ(quarters.accepts(text), (std::abs(i) + 1000) % 25 == 0) << text;
  }
  EXPECT_FALSE(sevens.accepts("7.0"));
  EXPECT_TRUE(quarters.accepts("-0.5"));
  EXPECT_TRUE(quarters.accepts("3"));
  EXPECT_FALSE(quarters.accepts("0.250"));
  EXPECT_THROW(multiples("0.00000001234567", false), Error);
}

TEST(Formats, TakeWhatTheirStandardsSay) {
  const auto fits_format = [](const char* format, const char* text) {
    return grammar::format_texts(format, "test")->accepts(text);
  };
  for (const auto& [format, text] : {std::pair{"date", "2024-02-29"},
                                     {"date", "2000-02-29"},
                                     {"date", "1999-12-31"},
                                     {"time", "23:59:59Z"},
                                     {"time", "12:00:00.25+02:30"},
                                     {"date-time", "2024-01-02T03:04:05Z"},
                                     {"ipv4", "255.0.10.1"},
                                     {"ipv6", "::1"},
                                     {"ipv6", "fe80::1:2"},
                                     {"ipv6", "1:2:3:4:5:6:7:8"},
                                     {"ipv6", "::"},
                                     {"email", "a.b+c@example.com"},
                                     {"uuid", "123e4567-e89b-12d3-a456-426614174000"},
                                     {"duration", "P1Y2M3DT4H5M6S"},
                                     {"duration", "PT5M"},
                                     {"hostname", "a-b.example"},
                                     {"uri", "https://example.com/a/b?q=1#f"},
                                     {"json-pointer", "/a~1b/c"},
                                     {"password", "x\n"}}) {
    EXPECT_TRUE(fits_format(format, text)) << format << " " << text;
  }
  for (const auto& [format, text] : {std::pair{"date", "2023-02-29"},
                                     {"date", "1900-02-29"},
                                     {"date", "0000-01-01"},
                                     {"date", "2024-04-31"},
                                     {"time", "24:00:00Z"},
                                     {"time", "12:00:00"},
                                     {"ipv4", "256.1.1.1"},
                                     {"ipv4", "1.2.3"},
                                     {"ipv6", "1::2::3"},
                                     {"ipv6", "1:2:3:4:5:6:7"},
                                     {"email", "a@"},
                                     {"uuid", "123"},
                                     {"duration", "P"},
                                     {"duration", "PT"},
                                     {"hostname", "-a"}}) {
    EXPECT_FALSE(fits_format(format, text)) << format << " " << text;
  }
  EXPECT_FALSE(grammar::format_texts("nothing", "test"));
}

}  // namespace
}  // namespace tessera::testing
