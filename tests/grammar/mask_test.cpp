// Token masks: xgrammar's, and those that each token alone gives.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "grammar/matcher.h"
#include "grammar/vocabularies.h"

namespace tessera::testing {
namespace {

using grammar::Grammar;
using grammar::JsonSpacing;
using grammar::Matcher;
using grammar::TokenTrie;
using nlohmann::json;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::vector<int> tokens_of(const std::vector<std::uint32_t>& mask) {
  std::vector<int> tokens;
  for (std::size_t i = 0; i < mask.size() * 32; ++i) {
    if (mask[i / 32] >> (i % 32) & 1) tokens.push_back(static_cast<int>(i));
  }
  return tokens;
}

TEST(TokenMasks, AreThoseOfXgrammar) {
  std::ifstream file(std::string(TESSERA_FIXTURES) + "/grammar/masks.json");
  const json fixture = json::parse(file);
  std::vector<std::string> bytes;
  for (const json& token : fixture.at("tokens")) bytes.push_back(from_hex(token));
  bytes.emplace_back();
  const auto tokens = std::make_shared<const TokenTrie>(
      bytes, std::vector<std::int32_t>{fixture.at("end").get<std::int32_t>()});
  int compared = 0;
  for (const json& c : fixture.at("cases")) {
    const auto compiled = c.contains("schema") ? compile_json_schema(c.at("schema").get<std::string>(),
                                                                     tokens, JsonSpacing::kCompact)
                                               : compile_regex(c.at("regex").get<std::string>(), tokens);
    const std::string text = c.at("text");
    for (std::size_t length = 0; length <= text.size(); ++length, ++compared) {
      Matcher matcher(compiled);
      ASSERT_TRUE(matcher.accept_text(text.substr(0, length)));
      std::vector<std::uint32_t> mask(tokens->mask_words(), 0xdeadbeefu);
      matcher.fill_mask(mask);
      EXPECT_EQ(tokens_of(mask), c.at("masks").at(length).get<std::vector<int>>())
          << c << " behind " << text.substr(0, length);
    }
  }
  EXPECT_GT(compared, 150);
}

/// Behind each byte of `text`, the mask is what accept() says of every token, and what a matcher says that
/// made its masks in another order.
void expect_masks(const std::shared_ptr<const Grammar>& compiled, const std::string& text) {
  const TokenTrie& tokens = compiled->tokens();
  Matcher matcher(compiled);
  std::vector<std::uint32_t> mask(tokens.mask_words());
  for (std::size_t at = 0;; ++at) {
    matcher.fill_mask(mask);
    for (std::size_t token = at % 7; token < tokens.vocab_size();
         token += 7) {  // a copy of a matcher takes long
      Matcher next = matcher;
      ASSERT_EQ((mask[token / 32] >> (token % 32) & 1) != 0, next.accept(static_cast<std::int32_t>(token)))
          << "token " << token << " '" << tokens.bytes(static_cast<std::int32_t>(token)) << "' behind "
          << text.substr(0, at);
    }
    if (at == text.size()) break;
    ASSERT_TRUE(matcher.accept_text(text.substr(at, 1))) << text.substr(0, at + 1);
  }
}

TEST(TokenMasks, SayWhatAcceptSaysOfEachToken) {
  const auto tokens = small_vocabulary();
  expect_masks(
      compile_json_schema(
          R"({"properties":{"a":{"type":"string","maxLength":3},"b":{"type":"array","items":{"type":"number"}}},"required":["a"]})",
          tokens),
      "{\"a\": \"aé\\u00e9\", \"b\": [1234, -0.5e+3], \"c\": {\n  \"d\": [[], {}, null]}}");
  expect_masks(compile_json_schema(R"({"type":"string","pattern":"^(red|green)( the)*$"})", tokens),
               "\"green the the\"");
  expect_masks(compile_json_schema(R"({"type":"string","format":"date-time"})", tokens),
               "\"2024-02-29T12:00:00.5Z\"");
  expect_masks(compile_json_object(tokens), "{\"a\":{\"\":[\"\\\"\\ud83d\\ude00\",false]}}");
  expect_masks(compile_regex("(ab|é+|[^\\n]{2}x)*", tokens), "abéé\xf0\x9f\x98\x80qxab");
}

TEST(TokenMasks, EndTokensComeWhereTheTextMayEnd) {
  const auto tokens = small_vocabulary();
  Matcher matcher(compile_regex("a{1,2}", tokens));
  std::vector<std::uint32_t> mask(tokens->mask_words());
  matcher.fill_mask(mask);
  EXPECT_EQ(tokens_of(mask), (std::vector<int>{'a' + 1}));
  EXPECT_FALSE(matcher.accept(kEndToken));
  ASSERT_TRUE(matcher.accept('a' + 1));
  EXPECT_TRUE(matcher.may_end());
  EXPECT_FALSE(matcher.is_terminated());
  matcher.fill_mask(mask);
  EXPECT_EQ(tokens_of(mask), (std::vector<int>{kEndToken, 'a' + 1}));
  ASSERT_TRUE(matcher.accept('a' + 1));
  EXPECT_TRUE(matcher.is_terminated());
  matcher.fill_mask(mask);
  EXPECT_EQ(tokens_of(mask), (std::vector<int>{kEndToken}));
  EXPECT_FALSE(matcher.accept('a' + 1));
  EXPECT_FALSE(matcher.accept(-1));
  EXPECT_FALSE(matcher.accept(1'000'000));
  EXPECT_TRUE(matcher.accept(kEndToken));
  matcher.fill_mask(mask);
  EXPECT_EQ(tokens_of(mask), (std::vector<int>{kEndToken}));
}

TEST(TokenMasks, AGrammarServesThreadsAtOnce) {
  const auto compiled = compile_json_object(small_vocabulary());
  const std::string text = R"({"a":[1,{"b":"c d"}],"e":null})";
  std::vector<std::vector<int>> seen(4);
  std::vector<std::thread> threads;
  for (std::vector<int>& mine : seen) {
    threads.emplace_back([&] {
      Matcher matcher(compiled);
      std::vector<std::uint32_t> mask(compiled->tokens().mask_words());
      for (const char byte : text) {
        matcher.fill_mask(mask);
        const std::vector<int> tokens = tokens_of(mask);
        mine.insert(mine.end(), tokens.begin(), tokens.end());
        matcher.accept_text(std::string(1, byte));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(seen[0].empty());
  for (const std::vector<int>& mine : seen) EXPECT_EQ(mine, seen[0]);
}

TEST(TokenMasks, DeepNestingStaysCheap) {
  const auto tokens = small_vocabulary();
  Matcher matcher(grammar::compile_json_object(tokens));
  std::vector<std::uint32_t> mask(tokens->mask_words());
  std::string opening = "{\"a\":";
  for (int i = 0; i < 2'000; ++i) {
    ASSERT_TRUE(matcher.accept_text(opening));
    if (i % 100 == 0) matcher.fill_mask(mask);
  }
  ASSERT_TRUE(matcher.accept_text("{" + std::string(2'000, '}')));
  EXPECT_FALSE(matcher.may_end());
  ASSERT_TRUE(matcher.accept_text("}"));
  EXPECT_TRUE(matcher.is_terminated());
}

}  // namespace
}  // namespace tessera::testing
