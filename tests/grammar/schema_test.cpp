// JSON Schemas: documents that jsonschema has judged, spacing, what is refused and how.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "grammar/matcher.h"
#include "grammar/vocabularies.h"
#include "tessera/error.h"

namespace tessera::testing {
namespace {

using grammar::compile_json_schema;
using grammar::Grammar;
using grammar::JsonSpacing;
using grammar::Matcher;
using nlohmann::json;

const std::shared_ptr<const grammar::TokenTrie>& vocabulary() {
  static const std::shared_ptr<const grammar::TokenTrie> all = small_vocabulary();
  return all;
}

bool accepts(const std::shared_ptr<const Grammar>& compiled, const std::string& text) {
  Matcher matcher(compiled);
  return matcher.accept_text(text) && matcher.may_end();
}
bool accepts(const std::string& schema, const std::string& text) {
  return accepts(compile_json_schema(schema, vocabulary()), text);
}

json read_documents() {
  std::ifstream file(std::string(TESSERA_FIXTURES) + "/grammar/documents.json");
  return json::parse(file);
}

TEST(JsonSchema, DocumentsAreAcceptedAsJsonschemaJudgesThem) {
  int valid = 0, invalid = 0;
  for (const json& c : read_documents()) {
    const auto compiled = compile_json_schema(c.at("schema").get<std::string>(), vocabulary());
    for (const json& document : c.at("documents")) {
      const bool is_valid = document.at(1).get<bool>();
      (is_valid ? valid : invalid) += 1;
      EXPECT_EQ(accepts(compiled, document.at(0).get<std::string>()), is_valid) << c.at("schema") << "\n"
                                                                                << document;
    }
  }
  EXPECT_GT(valid, 200);
  EXPECT_GT(invalid, 200);
}

/// Draws a text by masks alone; empty if it didn't end.
std::string walk(const std::shared_ptr<const Grammar>& compiled, std::mt19937& random) {
  Matcher matcher(compiled);
  std::vector<std::uint32_t> mask(vocabulary()->mask_words());
  std::string text;
  constexpr int kSteps = 200;
  for (int step = 0; step < kSteps; ++step) {
    matcher.fill_mask(mask);
    std::vector<std::int32_t> allowed;
    for (std::size_t token = 0; token < vocabulary()->vocab_size(); ++token) {
      if (mask[token / 32] >> (token % 32) & 1) allowed.push_back(static_cast<std::int32_t>(token));
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "no token may follow " << text;
      return "";
    }
    std::int32_t token = allowed[random() % allowed.size()];
    if (step > kSteps / 2) {  // towards the end
      for (const std::int32_t closing : allowed) {
        if (closing == kEndToken || vocabulary()->bytes(closing) == "\"" ||
            vocabulary()->bytes(closing) == "}" || vocabulary()->bytes(closing) == "]") {
          token = closing;
          break;
        }
      }
    }
    EXPECT_TRUE(matcher.accept(token)) << text << " then token " << token;
    if (token == kEndToken) {
      EXPECT_TRUE(matcher.is_terminated());
      return text;
    }
    text += vocabulary()->bytes(token);
  }
  return "";
}

TEST(JsonSchema, WalksThroughTheMasksAreJson) {
  // tools/fixtures/make_grammar_fixtures.py --judge asks jsonschema about the texts.
  std::ofstream out;
  const char* path = std::getenv("TESSERA_GRAMMAR_WALKS");
  if (path != nullptr) out.open(path);
  std::mt19937 random(1);
  int ended = 0, walks = 0;
  for (const json& c : read_documents()) {
    const auto compiled = compile_json_schema(c.at("schema").get<std::string>(), vocabulary());
    for (int i = 0; i < (path != nullptr ? 200 : 5); ++i, ++walks) {
      const std::string text = walk(compiled, random);
      if (text.empty()) continue;
      ++ended;
      EXPECT_TRUE(json::accept(text)) << text;
      EXPECT_TRUE(accepts(compiled, text)) << text;
      if (path != nullptr) out << json({{"schema", c.at("schema")}, {"text", text}}).dump() << '\n';
    }
  }
  EXPECT_GT(ended, walks * 8 / 10);
}

TEST(JsonSchema, SpacingIsThatOfPrinters) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}},"b":{}}})";
  const std::string spaced = "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {\"x\": [true, null]}\n}";
  EXPECT_TRUE(accepts(schema, spaced));
  EXPECT_TRUE(accepts(schema, R"({"a":[1,2],"b":{"x":[true,null]}})"));
  EXPECT_TRUE(accepts(schema, "{}"));
  const auto compact = compile_json_schema(schema, vocabulary(), JsonSpacing::kCompact);
  EXPECT_FALSE(accepts(compact, spaced));
  EXPECT_FALSE(accepts(compact, R"({"a": [1]})"));
  EXPECT_TRUE(accepts(compact, R"({"a":[1,2],"b":{"x":[true,null]}})"));
  EXPECT_FALSE(accepts(schema, "{\"a\":" + std::string(1000, ' ') + "[]}"));  // no white space without end
}

TEST(JsonSchema, StringsMayHaveAnySpellingOfCharacters) {
  const std::string any = R"({"type":"string"})", two = R"({"type":"string","minLength":2,"maxLength":2})";
  for (const char* text : {R"("a\"")", R"("\u00e9\/")", R"("\ud83d\ude00!")", "\"é😀\""}) {
    EXPECT_TRUE(accepts(any, text)) << text;
    EXPECT_TRUE(accepts(two, text)) << text;
  }
  for (const char* text : {R"("\ud83d")", R"("\ude00a")", R"("\ud83d\u0041")", R"("\x41")", "\"\n\"",
                           "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\\\""}) {
    EXPECT_FALSE(accepts(any, text)) << text;
  }
  EXPECT_FALSE(accepts(two, R"("abc")"));
  EXPECT_FALSE(accepts(two, R"("\ud83d\ude00")"));
  EXPECT_TRUE(accepts(R"({"pattern":"^a\"\n.$"})", R"("a\"\né")"));
}

TEST(JsonSchema, LongTextsAreCounted) {
  const std::string schema = R"({"type":"string","minLength":500,"maxLength":1000})";
  const auto compiled = compile_json_schema(schema, vocabulary());
  std::vector<std::uint32_t> mask(vocabulary()->mask_words());
  for (const std::size_t length : {0, 499, 500, 700, 1000, 1001}) {
    EXPECT_EQ(accepts(compiled, '"' + std::string(length, 'x') + '"'), length >= 500 && length <= 1000)
        << length;
    // Masks near and far from the bounds are what each token alone says.
    Matcher matcher(compiled);
    if (!matcher.accept_text('"' + std::string(length, 'x'))) continue;
    matcher.fill_mask(mask);
    for (std::size_t token = length % 17; token < vocabulary()->vocab_size(); token += 17) {
      Matcher next = matcher;
      EXPECT_EQ((mask[token / 32] >> (token % 32) & 1) != 0, next.accept(static_cast<std::int32_t>(token)))
          << length << " " << token;
    }
  }
}

void expect_error(const std::string& schema, ErrorCode code, const std::string& part) {
  try {
    compile_json_schema(schema, vocabulary());
    ADD_FAILURE() << "accepted: " << schema.substr(0, 200);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << error.what() << "\nexpected: " << part;
  }
}

TEST(JsonSchema, FormatsTakeTheLengthsThatSchemasGiveThem) {
  const auto check = [](const char* format, std::size_t max, const std::string& begin,
                        const std::string& end) {
    const std::string schema =
        json({{"type", "string"}, {"format", format}, {"minLength", 8}, {"maxLength", max}}).dump();
    const auto compiled = compile_json_schema(schema, vocabulary());
    const auto text = [&](std::size_t length) {
      return '"' + begin + std::string(length - begin.size() - end.size(), 'c') + end + '"';
    };
    for (const std::size_t length : {std::size_t{8}, max}) EXPECT_TRUE(accepts(compiled, text(length)));
    for (const std::size_t length : {std::size_t{7}, max + 1}) EXPECT_FALSE(accepts(compiled, text(length)));
  };
  check("email", 254, "", "@b.io");
  check("email", 320, "", "@b.io");
  check("uri", 2083, "a://b/", "");  // pydantic's HttpUrl
  // Bounds beyond the RFCs'.
  for (const auto& [format, end] : {std::pair{"email", "@b.io"}, std::pair{"hostname", ".b.io"}}) {
    const std::string schema = json({{"type", "string"}, {"format", format}, {"maxLength", 4096}}).dump();
    EXPECT_TRUE(accepts(schema, '"' + std::string(50, 'c') + end + '"'));
  }
  // The same automaton is made once.
  json urls = {{"type", "object"}};
  for (int i = 0; i < 40; ++i)
    urls["properties"]["u" + std::to_string(i)] = {{"format", "uri"}, {"maxLength", 2083}};
  EXPECT_TRUE(accepts(urls.dump(), R"({"u3":"a:b","u39":"c://d/e"})"));
}

// As pydantic and OpenAPI write them.
TEST(JsonSchema, WhatSaysNothingOfTheDocumentsIsIgnored) {
  const char* const schema =
      R"({"type":"string","contentMediaType":"application/json","contentSchema":{"type":"integer"},"x-order":7})";
  EXPECT_TRUE(accepts(schema, R"("5")"));
  EXPECT_TRUE(accepts(R"({"properties":{"x-y":{"const":1}},"required":["x-y"],"x-y":0})", R"({"x-y":1})"));
  for (const char* format : {"base64", "base64url"}) {
    const std::string typed = std::string(R"({"type":"string","format":")") + format + "\"}";
    for (const char* text : {R"("")", R"("YQ==")", R"("YWI=")", R"("YWJj")"})
      EXPECT_TRUE(accepts(typed, text)) << text;
    for (const char* text : {R"("YQ=")", R"("YWI")", R"("?WJj")"}) EXPECT_FALSE(accepts(typed, text)) << text;
    EXPECT_EQ(accepts(typed, R"("_-Jj")"), typed.find("url") != typed.npos);
    EXPECT_EQ(accepts(typed, R"("/+Jj")"), typed.find("url") == typed.npos);
  }
}

// As OpenAPI's documents have enumerations of numbers.
TEST(JsonSchema, WhatSaysNothingOfListedValuesIsIgnored) {
  for (const char* schema :
       {R"({"type":"integer","format":"int32","enum":[1,2]})", R"({"enum":[1,2],"minLength":5})",
        R"({"allOf":[{"enum":[1,2,"a"]},{"type":"integer","format":"int32"}]})",
        R"({"type":["number","null"],"enum":[1,2,"a"],"pattern":"x","required":["b"]})"}) {
    for (const char* text : {"1", "2"}) EXPECT_TRUE(accepts(schema, text)) << schema;
    for (const char* text : {"3", R"("a")", "null"}) EXPECT_FALSE(accepts(schema, text)) << schema;
  }
  expect_error(R"({"type":"integer","enum":[1,2],"minimum":2})", ErrorCode::kUnsupported,
               R"("minimum" beside "enum")");
}

TEST(JsonSchema, WhatIsNotUnderstoodIsAnErrorWithKeywordAndPath) {
  for (const char* keyword : {"not", "if", "dependentRequired", "unevaluatedProperties", "contains",
                              "nullable", "somethingNew", "$dynamicRef"}) {
    const std::string schema =
        json({{"type", "object"}, {"properties", {{"a", {{keyword, json::object()}}}}}}).dump();
    expect_error(schema, ErrorCode::kUnsupported,
                 std::string("at #/properties/a: the keyword \"") + keyword + '"');
  }
  expect_error(R"({"type":"array","uniqueItems":true})", ErrorCode::kUnsupported, "\"uniqueItems\"");
  expect_error(R"({"anyOf":[{"type":"string","format":"color"}]})", ErrorCode::kUnsupported,
               R"(at #/anyOf/0: "format" is "color")");
  expect_error(R"x({"items":{"pattern":"(?=a)"}})x", ErrorCode::kUnsupported, "at #/items");
  expect_error(R"({"$ref":"https://example.com/x"})", ErrorCode::kUnsupported, "a part of the same document");
  expect_error(R"({"enum":["a"],"minLength":1})", ErrorCode::kUnsupported, R"("minLength" beside "enum")");
  expect_error(R"({"allOf":[{"enum":["a"]},{"pattern":"a"}]})", ErrorCode::kUnsupported,
               R"(#: "pattern" beside "enum")");
  expect_error(R"({"allOf":[{"enum":["a"]},{"format":"date"}]})", ErrorCode::kUnsupported,
               R"(#: "format" beside "enum")");
  for (const char* schema : {R"({"\u0001patterns":["a"]})", R"({"\u001formats":["date"]})"})
    expect_error(schema, ErrorCode::kUnsupported, "at #: the keyword \"");
  expect_error(R"({"type":"object","minProperties":2})", ErrorCode::kUnsupported, "minProperties");
  expect_error(R"({"patternProperties":{"^a":{},"b$":{}}})", ErrorCode::kUnsupported, "fit the same key");
  expect_error(R"({"type":"string","maxLength":1000000000})", ErrorCode::kUnsupported, "maxLength");
  expect_error(R"({"type":"number","multipleOf":0.000000012345678})", ErrorCode::kUnsupported, "multiples");
}

TEST(JsonSchema, WhatIsNoSchemaIsAnErrorWithItsPath) {
  expect_error("", ErrorCode::kInvalidArgument, "no valid JSON");
  expect_error("[1]", ErrorCode::kInvalidArgument, "a schema is array");
  expect_error(R"({"type":"strin"})", ErrorCode::kInvalidArgument, "\"type\" is \"strin\"");
  expect_error(R"({"properties":{"a":3}})", ErrorCode::kInvalidArgument,
               "#/properties/a: a schema is number");
  expect_error(R"({"$ref":"#/$defs/none"})", ErrorCode::kInvalidArgument, "which is not there");
  expect_error(R"({"minLength":-1})", ErrorCode::kInvalidArgument, "\"minLength\" is -1");
  expect_error(R"({"minimum":"a"})", ErrorCode::kInvalidArgument, "\"minimum\"");
  expect_error(R"({"multipleOf":0})", ErrorCode::kInvalidArgument, "\"multipleOf\" is 0");
  expect_error(R"({"a":1,"a":2})", ErrorCode::kInvalidArgument, "stands twice");
  expect_error(R"({"enum":{}})", ErrorCode::kInvalidArgument, "\"enum\"");
  expect_error("{\"type\":\"string\"", ErrorCode::kInvalidArgument, "no valid JSON");
}

TEST(JsonSchema, WhatNothingFitsIsAnError) {
  for (const char* schema :
       {"false", R"({"type":"string","minLength":3,"maxLength":2})", R"({"enum":[]})",
        R"({"type":"integer","enum":["a"]})", R"({"type":"integer","minimum":5,"maximum":4})",
        R"({"required":["a"],"additionalProperties":false})",
        R"({"allOf":[{"type":"string"},{"type":"integer"}]})",
        R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4})",
        R"({"$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/a"},"minItems":1}},"$ref":"#/$defs/a"})"}) {
    expect_error(schema, ErrorCode::kInvalidArgument, "no text fits");
  }
}

TEST(JsonSchema, HostileOnesEndInAnError) {
  expect_error(R"({"$ref":"#"})", ErrorCode::kInvalidArgument, "no text fits");
  expect_error(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", ErrorCode::kInvalidArgument,
               "refers to itself");
  expect_error(R"({"allOf":[{"$ref":"#"},{"type":"null"}]})", ErrorCode::kUnsupported, "without end");
  std::string nested;
  for (int i = 0; i < 1000; ++i) nested += R"({"items":)";
  expect_error(nested + "{}" + std::string(1000, '}'), ErrorCode::kInvalidArgument, "nested deeper");
  expect_error(
      R"({"items":{"type":"string","maxLength":99999},"type":"array","prefixItems":[{"maxLength":99999},{"maxLength":99998},{"maxLength":99997},{"maxLength":99996}]})",
      ErrorCode::kUnsupported, "states");
  // Every level doubles the ways in which the levels below are asked for; they are shared, and so this is
  // small.
  json defs;
  for (int i = 0; i < 60; ++i) {
    const json next =
        i == 59 ? json({{"type", "null"}}) : json({{"$ref", "#/$defs/d" + std::to_string(i + 1)}});
    defs["d" + std::to_string(i)] = {{"type", "array"}, {"prefixItems", {next, next}}, {"items", false}};
  }
  EXPECT_TRUE(accepts(json({{"$defs", defs}, {"$ref", "#/$defs/d0"}}).dump(), "[]"));
  // Combined they are not.
  json all = json::array();
  for (int i = 0; i < 30; ++i) all.push_back({{"anyOf", {{{"minLength", i}}, {{"maxLength", 100 + i}}}}});
  expect_error(json({{"allOf", all}}).dump(), ErrorCode::kUnsupported, "has more than");
}

TEST(JsonSchema, NumbersBeyondAllBoundsOverflowNothing) {
  // 19 times the digits is 2^64 + 2.
  expect_error(R"({"type":"number","multipleOf":9.70881267037344822})", ErrorCode::kUnsupported, "10,000");
  // An exponent that no integer holds.
  expect_error(R"({"type":"number","maximum":0.1e-99999999999999999999})", ErrorCode::kUnsupported,
               "40 digits");
}

// Lists may have as many entries as a schema, and combining two of them must not take all pairs.
TEST(JsonSchema, LongListsAreCombinedInTheTimeOfOne) {
  constexpr int kEntries = 30'000;
  json names = json::array(), numbers = json::array(), others = json::array(), types = json::array();
  for (int i = 0; i < kEntries; ++i) {
    if (i < kEntries / 3) names.push_back("k" + std::to_string(i));
    numbers.push_back(i);
    others.push_back(kEntries + 2 - i + 0.0);
    types.push_back(i % 2 == 0 ? "number" : "null");
  }
  const auto both = [](const json& a, const json& b) { return json({{"allOf", {a, b}}}).dump(); };
  EXPECT_TRUE(accepts(both({{"enum", numbers}}, {{"enum", others}}), "29999"));
  EXPECT_FALSE(accepts(both({{"enum", numbers}}, {{"enum", others}}), "2"));
  const std::string typed = both({{"type", types}}, {{"type", types}, {"maximum", 5}});
  EXPECT_TRUE(accepts(typed, "null"));
  EXPECT_TRUE(accepts(typed, "4.5"));
  EXPECT_FALSE(accepts(typed, "6"));
  EXPECT_TRUE(accepts(both({{"type", "number"}}, {{"type", {"integer", "string"}}}), "4"));
  EXPECT_FALSE(accepts(both({{"type", "number"}}, {{"type", {"integer", "string"}}}), "4.5"));
  EXPECT_FALSE(accepts(both({{"required", {"a"}}}, {{"type", "object"}, {"required", names}}), "{}"));
}

TEST(JsonSchema, AlternativesAreNotEachGivenALongListThatStandsBesideThem) {
  json numbers = json::array(), any(5000, json::object());
  for (int i = 0; i < 40'000; ++i) numbers.push_back(i);
  expect_error(json({{"anyOf", any}, {"enum", numbers}, {"type", "null"}}).dump(), ErrorCode::kUnsupported,
               "combining schemas takes more than 1000000 values");
  any[0] = {{"enum", numbers}};
  expect_error(json({{"allOf", any}}).dump(), ErrorCode::kUnsupported, "takes more than 1000000 values");
}

TEST(JsonSchema, WhatIsNoSchemaIsAnErrorWhereSchemasAreCombinedToo) {
  const std::string object = R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a"]})";
  for (const auto& [wrong, what] :
       {std::pair{R"({"required":"b"})", "\"required\" is string; expected a list"},
        {R"({"properties":[1]})", "\"properties\" is array; expected an object"},
        {R"({"enum":2})", "\"enum\" is number; expected a list"},
        {R"({"type":"objekt"})", "\"type\" is \"objekt\"; expected a type"},
        {R"({"type":["object",1]})", "\"type\" is 1; expected a type"}}) {
    for (const std::string& schema : {R"({"allOf":[)" + object + "," + wrong + "]}",
                                      R"({"allOf":[)" + std::string(wrong) + "," + object + "]}",
                                      R"({"anyOf":[)" + object + "]," + std::string(wrong).substr(1)}) {
      expect_error(schema, ErrorCode::kInvalidArgument, what);
    }
  }
}

TEST(JsonSchema, PatternsMayHaveManyAlternativesAnywhere) {
  std::string words;
  for (int i = 0; i < 3000; ++i) words += (i > 0 ? "|w" : "w") + std::to_string(i);
  const std::string schema = json({{"type", "string"}, {"pattern", words}}).dump();
  EXPECT_TRUE(accepts(schema, R"("it is w2999.")"));
  EXPECT_TRUE(accepts(schema, R"("ww7w")"));
  EXPECT_FALSE(accepts(schema, R"("w is w")"));
  const std::string at_end =
      json({{"type", "string"}, {"pattern", "(" + words.substr(0, words.find("|w100")) + ")$"}}).dump();
  EXPECT_TRUE(accepts(at_end, R"("it is w1")"));
  EXPECT_FALSE(accepts(at_end, R"("w1.")"));
  EXPECT_TRUE(accepts(R"({"type":"string","pattern":"^|a"})", R"("b")"));
  EXPECT_TRUE(accepts(R"({"type":"string","pattern":"^b|a"})", R"("bc")"));
  EXPECT_FALSE(accepts(R"({"type":"string","pattern":"^b|a"})", R"("cb")"));
  expect_error(json({{"type", "string"}, {"pattern", "(" + words + ")$"}}).dump(), ErrorCode::kUnsupported,
               "steps to make; expected a simpler one, fewer alternatives");
}

TEST(JsonSchema, ManyPatternsTakeNoLongerThanAFewHardOnes) {
  std::string words = "w";
  for (int i = 0; i < 700; ++i) words += "|w" + std::to_string(i);
  json properties;
  const auto schema = [&](int patterns) {
    while (static_cast<int>(properties.size()) < patterns)
      properties["p" + std::to_string(properties.size())] = {
          {"type", "string"}, {"pattern", "(" + words + "|x" + std::to_string(properties.size()) + ")$"}};
    return json({{"type", "object"}, {"properties", properties}}).dump();
  };
  EXPECT_TRUE(accepts(schema(2), R"({"p1":"it is w77"})"));
  expect_error(schema(100), ErrorCode::kUnsupported,
               "the JSON schema: its regular expressions and their combinations take more than");
}

TEST(JsonSchema, ManyBoundsOfNumbersTakeNoLongerThanAFewHardPatterns) {
  json all;
  for (int i = 0; i < 25; ++i) all.push_back({{"anyOf", {{{"minimum", i}}, {{"maximum", -i}}}}});
  expect_error(json({{"allOf", all}}).dump(), ErrorCode::kUnsupported,
               "combinations take more than 60000000 steps");
  json properties;  // as many as somebody might have
  for (int i = 0; i < 500; ++i)
    properties["p" + std::to_string(i)] = {{"type", "integer"}, {"minimum", i}, {"maximum", 1000 + 7 * i}};
  EXPECT_TRUE(accepts(json({{"type", "object"}, {"properties", properties}}).dump(), R"({"p3":4})"));
}

TEST(JsonSchema, ListsOfManyValuesAreReadInOneWay) {
  // They begin and end alike, so that only their middles differ.
  json values = json::array();
  for (int i = 0; i < 10'000; ++i) values.push_back("the/same/beginning/" + std::to_string(i) + "/and/end");
  json constants = json::array();
  for (const json& value : values) constants.push_back({{"const", value}, {"title", "One"}});
  for (const json& schema :
       {json({{"enum", values}}), json({{"type", "string"}, {"enum", values}}), json({{"oneOf", constants}}),
        json({{"type", "string"}, {"anyOf", constants}})}) {
    const auto compiled = compile_json_schema(schema.dump(), vocabulary());
    EXPECT_LT(compiled->pushdown().num_states(), 5'000U);
    for (const char* number : {"0", "7", "70", "9999"})
      EXPECT_TRUE(accepts(compiled, "\"the/same/beginning/" + std::string(number) + "/and/end\"")) << number;
    for (const char* number : {"", "01", "10000", "a"})
      EXPECT_FALSE(accepts(compiled, "\"the/same/beginning/" + std::string(number) + "/and/end\"")) << number;
    std::mt19937 random(1);
    for (int i = 0; i < 5; ++i) {
      const std::string text = walk(compiled, random);
      EXPECT_NE(std::ranges::find(values, json::parse(text)), values.end()) << text;
    }
  }
}

TEST(JsonSchema, ListedValuesMayBeginEachOtherAndComeTwice) {
  const json values =
      json::parse(R"([1, 12, 1, 120, -1, "", "1", "é", "e\"", "e", null, true, 1.5, [1], {"a": 1}, [1, 2]])");
  const json schema = {{"type", "array"}, {"items", {{"anyOf", {{{"enum", values}}, {{"const", 123}}}}}}};
  const auto compiled = compile_json_schema(schema.dump(), vocabulary());
  for (const json& value : values) EXPECT_TRUE(accepts(compiled, json({value, value}).dump())) << value;
  for (const char* text : {"[123]", "[1,12]", "[[1],[1, 2]]"}) EXPECT_TRUE(accepts(compiled, text)) << text;
  for (const char* text :
       {"[1234]", "[2]", "[\"12\"]", "[nul]", "[false]", "[[2]]", "[-12]", "[1.]", "[\"e\\\"]"})
    EXPECT_FALSE(accepts(compiled, text)) << text;
}

TEST(JsonSchema, AlternativesMayListValues) {
  const std::string mixed =
      R"({"type":["integer","object"],"anyOf":[{"const":1},{"const":"a"},{"enum":[2,"b",{}]},{"enum":[],"const":3},{"minimum":50,"maximum":51}]})";
  for (const char* text : {"1", "2", "{}", "50"}) EXPECT_TRUE(accepts(mixed, text)) << text;
  for (const char* text : {"\"a\"", "\"b\"", "3", "52"}) EXPECT_FALSE(accepts(mixed, text)) << text;
}

TEST(JsonSchema, ListsBeyondTheLimitsAreAnError) {
  json many = json::array(), different = json::array();
  for (int i = 0; i < 100'001; ++i) many.push_back(i);
  expect_error(json({{"enum", many}}).dump(), ErrorCode::kInvalidArgument, "more than 100000 values");
  std::mt19937_64 random(1);
  for (int i = 0; i < 50'000; ++i) different.push_back(std::to_string(random()));
  expect_error(json({{"enum", different}}).dump(), ErrorCode::kUnsupported, "more than 400000 states");
}

TEST(JsonSchema, TooManyReadingsAtOnceAreAnError) {
  // Each [ may be of either alternative, so that the stacks double.
  const std::string schema =
      R"({"$defs":{"x":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/x"},"minItems":1,"maxItems":2},{"type":"array","items":{"$ref":"#/$defs/x"},"maxItems":1},{"const":1}]}},"$ref":"#/$defs/x"})";
  Matcher matcher(compile_json_schema(schema, vocabulary()));
  EXPECT_THROW(
      {
        for (int i = 0; i < 40; ++i) matcher.accept_text("[");
      },
      Error);
}

TEST(JsonSchema, NamesOfPropertiesFitAllThatIsSaidOfThem) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"propertyNames":{"enum":["a","bbb"],"minLength":2}})", R"({"bbb":1})"},
      {R"({"propertyNames":{"enum":["ab","bb"],"pattern":"^b"}})", R"({"bb":1})"},
      {R"({"propertyNames":{"enum":["a","b"],"const":"b"}})", R"({"b":1})"},
      {R"({"propertyNames":{"$ref":"#/$defs/n","maxLength":2},"$defs":{"n":{"pattern":"^b"}}})",
       R"({"bb":1})"},
      {R"({"propertyNames":{"type":["string","null"],"const":"b"}})", R"({"b":1})"},
      {R"({"propertyNames":{"const":5}})", R"({})"},
      {R"({"propertyNames":{"type":"integer"}})", R"({})"},
      {R"({"propertyNames":{"minLength":3,"maxLength":2}})", R"({})"},
  };
  for (const auto& [schema, valid] : cases) {
    EXPECT_TRUE(accepts(schema, valid)) << schema;
    for (const char* name : {"", "a", "ab", "5", "abb", "abcd"})
      EXPECT_FALSE(accepts(schema, std::string("{\"") + name + "\":1}")) << schema << name;
  }
  expect_error(R"({"propertyNames":5})", ErrorCode::kInvalidArgument, "propertyNames: a schema is number");
}

TEST(JsonSchema, TuplesMayBeWrittenAsOlderDraftsDo) {
  const std::string tuple =
      R"({"type":"array","items":[{"type":"integer"},{"type":"boolean"}],"additionalItems":)";
  for (const char* text : {"[]", "[1]", "[1, true]"}) {
    EXPECT_TRUE(accepts(tuple + "false}", text)) << text;
    EXPECT_TRUE(accepts(tuple + R"({"type":"null"}})", text)) << text;
  }
  EXPECT_FALSE(accepts(tuple + "false}", "[1, true, null]"));
  EXPECT_TRUE(accepts(tuple + R"({"type":"null"}})", "[1, true, null, null]"));
  EXPECT_FALSE(accepts(tuple + R"({"type":"null"}})", "[1, true, 2]"));
  // Without a list it says nothing.
  EXPECT_TRUE(accepts(R"({"type":"array","items":{"type":"integer"},"additionalItems":false})", "[1, 2]"));
  EXPECT_TRUE(accepts(R"({"type":"array","prefixItems":[true],"additionalItems":false})", "[1, 2]"));
  expect_error(tuple + R"({"minimum":"x","type":"number"}})", ErrorCode::kInvalidArgument,
               "#/additionalItems");
  for (const char* other :
       {R"({"items":{"minimum":3}})", R"({"additionalItems":false})", R"({"items":[{"minimum":3}]})"})
    expect_error(R"({"allOf":[{"type":"array","items":[{"type":"integer"}]},)" + std::string(other) + "]}",
                 ErrorCode::kUnsupported, "a list of schemas of items");
}

TEST(JsonSchema, BoundsMayBeThoseOfFp64) {
  const char* const all =
      R"({"type":"number","minimum":-1.7976931348623157e308,"exclusiveMaximum":1.7976931348623157e308})";
  for (const char* text : {"0", "-1.5", "123456789012345678901234567890.25"})
    EXPECT_TRUE(accepts(all, text)) << text;
  EXPECT_FALSE(accepts(all, std::string(310, '9')));
  expect_error(R"({"minimum":1e300})", ErrorCode::kUnsupported, "\"minimum\" is 1e300");
  expect_error(R"({"maximum":-1e300})", ErrorCode::kUnsupported, "\"maximum\" is -1e300");
  expect_error(R"({"minimum":1e-300})", ErrorCode::kUnsupported, "\"minimum\" is 1e-300");
}

TEST(JsonSchema, NumbersAreComparedOnAllDigits) {
  // 2^53 and 2^53 + 1 are the same in fp64.
  const std::string merged =
      R"({"type":"integer","allOf":[{"minimum":9007199254740992},{"minimum":9007199254740993}]})";
  EXPECT_FALSE(accepts(merged, "9007199254740992"));
  EXPECT_TRUE(accepts(merged, "9007199254740993"));
  const std::string both =
      R"({"type":"integer","maximum":-9007199254740993,"exclusiveMaximum":-9007199254740992})";
  EXPECT_FALSE(accepts(both, "-9007199254740992"));
  EXPECT_TRUE(accepts(both, "-9007199254740993"));
  const std::string enums =
      R"({"allOf":[{"enum":[9007199254740992,1.0]},{"enum":[9007199254740993,10e-1]}]})";
  EXPECT_FALSE(accepts(enums, "9007199254740992"));
  EXPECT_TRUE(accepts(enums, "1.0"));
  expect_error(R"({"type":"integer","const":1e-50})", ErrorCode::kInvalidArgument, "no text fits");
  EXPECT_TRUE(accepts(R"({"type":"integer","const":1e50})", "1e50"));
}

TEST(JsonSchema, LongBoundsMayBeExclusive) {
  for (const char* schema : {R"({"type":"number","exclusiveMinimum":1000000000000000})",
                             R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1e20})"}) {
    EXPECT_TRUE(accepts(schema, "1000000000000001")) << schema;
    EXPECT_FALSE(accepts(schema, "-1")) << schema;
    EXPECT_FALSE(accepts(schema, "0")) << schema;
  }
  EXPECT_FALSE(accepts(R"({"type":"number","exclusiveMinimum":1000000000000000})", "1000000000000000"));
}

TEST(JsonSchema, OneOfIsTakenAsAnyOf) {
  EXPECT_TRUE(
      accepts(R"({"oneOf":[{"type":"integer"},{"minimum":3}]})", "5"));  // docs/structured_output.md says so
}

}  // namespace
}  // namespace tessera::testing
