#include "core/text.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

TEST(Utf8, TakesEveryCharacterAndNothingElse) {
  for (char32_t c = 0; c <= 0x110010; ++c) {
    std::string text;
    if (c < 0x80) {
      text = {static_cast<char>(c)};
    } else if (c < 0x800) {
      text = {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
    } else if (c < 0x10000) {
      text = {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)),
              static_cast<char>(0x80 | (c & 0x3f))};
    } else {
      text = {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3f)),
              static_cast<char>(0x80 | (c >> 6 & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
    }
    const bool is_scalar = (c < 0xd800 || c > 0xdfff) && c <= 0x10ffff;
    ASSERT_EQ(is_valid_utf8(text), is_scalar) << std::hex << static_cast<std::uint32_t>(c);
    ASSERT_EQ(is_valid_utf8("a" + text + "b"), is_scalar);
    if (text.size() > 1) {
      ASSERT_FALSE(is_valid_utf8(text.substr(0, text.size() - 1)));
    }
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
                          "\xf5\x80\x80\x80", "\xff", "\xc3\x28", "\xe2\x82\x28"}) {
    EXPECT_FALSE(is_valid_utf8(bad));
  }
}

TEST(LowerCase, ChangesCapitalsOfAsciiAlone) {
  EXPECT_EQ(lower_case("Q4_K_M @[`{ aZ"), "q4_k_m @[`{ az");
  EXPECT_EQ(lower_case("\xc3\x89\xff"), "\xc3\x89\xff");
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(printable("layers.0.weight"), "layers.0.weight");
  EXPECT_EQ(printable("a\nb\x7f\xff\xc3\xa9"), "a\\x0ab\\x7f\\xff\xc3\xa9");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("ab\xc3\xa9", 3), "ab...");
}

}  // namespace
}  // namespace tessera
