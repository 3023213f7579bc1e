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
    parse_json_bounded(text, "file.json", {.max_depth = max_depth});
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
      {"\xef\xbb\xbf[1]", "invalid JSON at byte 0: the text opens with a byte order mark"},
      {std::string("[1]\0", 4), "invalid JSON at byte 3: a zero byte"},
      {std::string("{\"a\": 1}\0, nobody reads this", 28), "invalid JSON at byte 8: a zero byte"},
      {std::string("[\"\0\"]", 5), "invalid JSON at byte 2: a zero byte"},
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

TEST(ParseJson, BoundsTheValuesInMemory) {
  const auto parse = [](const char* text, std::size_t max_values) {
    parse_json_bounded(text, "file.json", {.max_values = max_values});
  };
  EXPECT_NO_THROW(parse(R"({"a": [1, 2], "b": "c"})", 5));
  EXPECT_THROW(parse(R"({"a": [1, 2], "b": "c"})", 4), Error);
}

/// Entries that streams hand on, as "key@offset=value".
std::vector<std::string> streamed(const std::string& text, const std::vector<std::string>& path,
                                  const JsonLimits& limits = {}, nlohmann::json* rest = nullptr) {
  std::vector<std::string> entries;
  const JsonStream stream{path, [&](const std::string& key, const nlohmann::json& value, std::size_t offset) {
                            entries.push_back(key + "@" + std::to_string(offset) + "=" + value.dump());
                          }};
  const nlohmann::json document = parse_json_bounded(text, "file.json", limits, {&stream, 1});
  if (rest != nullptr) *rest = document;
  return entries;
}

TEST(ParseJsonStreams, GiveEachEntryInTurn) {
  const std::string text = R"({"b": 1, "a": {"x": [1, {"y": 2}]}, "c": [], "b": null})";
  nlohmann::json rest;
  EXPECT_EQ(streamed(text, {}, {}, &rest),
            (std::vector<std::string>{"b@4=1", R"(a@12={"x":[1,{"y":2}]})", "c@39=[]", "b@48=null"}));
  EXPECT_EQ(rest, nlohmann::json::object());
  EXPECT_TRUE(streamed("{}", {}).empty());
  EXPECT_THROW(streamed(R"({"a": {"x": 1, "x": 2}})", {}), Error);
  for (const char* bad : {"", "{\"a\": 1"}) EXPECT_THROW(streamed(bad, {}), Error) << bad;
}

TEST(ParseJsonStreams, TakeOnlyTheContainerAtTheirPath) {
  const std::string text =
      R"({"m": {"v": {"a": 0, "b": [1]}, "l": [[1, 2], "x", {}]}, "v": {"c": 3}, "l": [[{"v": 4}]], "m2": []})";
  nlohmann::json rest;
  EXPECT_EQ(streamed(text, {"m", "v"}, {}, &rest), (std::vector<std::string>{"a@16=0", "b@24=[1]"}));
  nlohmann::json expected = nlohmann::json::parse(text);
  expected["m"]["v"] = nlohmann::json::object();
  EXPECT_EQ(rest, expected);
  const std::vector<std::string> elements = streamed(text, {"m", "l"}, {}, &rest);
  ASSERT_EQ(elements.size(), 3u);
  EXPECT_TRUE(elements[0].ends_with("=[1,2]"));
  EXPECT_TRUE(elements[1].ends_with("=\"x\""));
  EXPECT_TRUE(elements[2].ends_with("={}"));
  EXPECT_EQ(rest["m"]["l"], nlohmann::json::array());
  EXPECT_EQ(rest["l"], nlohmann::json::parse(R"([[{"v": 4}]])"));
  EXPECT_TRUE(streamed(text, {"m", "v", "a"}).empty()) << "a number is no container";
  EXPECT_TRUE(streamed(text, {"l", "v"}).empty()) << "an array has no keys";
}

TEST(ParseJsonStreams, CountOneEntryAtATime) {
  const std::string text = R"({"a": [1, 2], "b": [1, 2]})";
  EXPECT_NO_THROW(streamed(text, {}, {.max_values = 4}));
  EXPECT_THROW(streamed(text, {}, {.max_values = 3}), Error);
  EXPECT_THROW(parse_json_bounded(text, "file.json", {.max_values = 4}), Error);
}

}  // namespace
}  // namespace tessera
