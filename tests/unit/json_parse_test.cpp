#include "core/json_parse.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/error.h"

namespace tessera {
namespace {

std::string error_of(std::string_view text, int max_depth = 64) {
  try {
    parse_json_bounded(text, "file.json", max_depth);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruptFile);
    return error.message();
  }
  return "";
}

TEST(ParseJson, ReadsWhatTheLibraryItselfReads) {
  for (const char* text :
       {"null", "true", "-7", "18446744073709551615", "2.5e-3", "\"a\\u00e9\\ud83d\\ude00\\n\"", "[]", "{}",
        R"([1, [2, [], {}], {"a": [null, false], "b": {"c": "d"}}, "x"])",
        R"({"z": 1, "a": {"z": [1.5, {"k": -1}]}, "": [[[]]]})"}) {
    EXPECT_EQ(parse_json_bounded(text, "file.json"), nlohmann::json::parse(text)) << text;
  }
}

TEST(ParseJson, SaysWhereAndWhyATextIsRefused) {
  const struct {
    std::string text;
    const char* expected;
  } cases[] = {
      {"", "file.json: invalid JSON at byte 0: "},
      {"{\"a\": 1,}", "invalid JSON at byte 8: "},
      {"[1, 2", "invalid JSON at byte 5: "},
      {"[1] x", "invalid JSON at byte 4: "},
      {"{\"a\": 1, \"b\": {\"c\": 1, \"c\": 2}}", "at byte 26: the key 'c' stands twice in one object"},
      {"[\"\xff\"]", "ill-formed UTF-8"},
      {"[\"\xc0\xaf\"]", "ill-formed UTF-8"},
      {"[\"\xed\xa0\x80\"]", "ill-formed UTF-8"},
      {"[\"\\ud800\"]", "surrogate"},
      {"[1e999]", "number overflow"},
      {"[NaN]", "invalid literal"},
      {"[1] // comment", "invalid JSON at byte 4: "},
  };
  for (const auto& c : cases) {
    EXPECT_NE(error_of(c.text).find(c.expected), std::string::npos) << c.text << "\n" << error_of(c.text);
  }
}

TEST(ParseJson, BoundsTheDepth) {
  EXPECT_EQ(error_of("[[[]]]", 3), "");
  EXPECT_NE(error_of("[[[]]]", 2).find("at byte 3: values are nested deeper than 2"), std::string::npos);
  EXPECT_NE(error_of(std::string(10'000'000, '[')).find("deeper than 64"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(error_of(objects).find("deeper than 64"), std::string::npos);
}

TEST(ParseJsonMembers, GivesEachMemberInTurn) {
  std::vector<std::string> members;
  parse_json_members(R"({"b": 1, "a": {"x": [1, {"y": 2}]}, "c": [], "b": null})", "file.json",
                     [&](const std::string& key, const nlohmann::json& value, std::size_t offset) {
                       members.push_back(key + "@" + std::to_string(offset) + "=" + value.dump());
                     });
  EXPECT_EQ(members,
            (std::vector<std::string>{"b@4=1", R"(a@12={"x":[1,{"y":2}]})", "c@39=[]", "b@48=null"}));
  const auto ignore = [](const std::string&, const nlohmann::json&, std::size_t) {};
  EXPECT_NO_THROW(parse_json_members("{}", "file.json", ignore));
  EXPECT_NO_THROW(parse_json_members(R"({"a": [1, 2], "b": [1, 2]})", "file.json", ignore, 64, 3));
  EXPECT_THROW(parse_json_members(R"({"a": [1, 2, 3]})", "file.json", ignore, 64, 3), Error);
  EXPECT_THROW(parse_json_members(R"({"a": {"x": 1, "x": 2}})", "file.json", ignore), Error);
  for (const char* text : {"[]", "1", "\"a\"", "null", "", "{\"a\": 1"}) {
    EXPECT_THROW(parse_json_members(text, "file.json", ignore), Error) << text;
  }
}

}  // namespace
}  // namespace tessera
