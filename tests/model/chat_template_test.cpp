// Conversations as text and as tokens.
#include "model/chat/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer_fixture.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using nlohmann::json;

ChatTemplateData data_of(const std::string& text) {
  ChatTemplateData data;
  data.templates["default"] = text;
  data.source = "model";
  return data;
}

ChatRequest request_of(const std::string& messages) {
  ChatRequest request;
  request.messages = messages;
  return request;
}

/// tools/fixtures/make_chat_token_fixtures.py. Where users write no control tokens the tokens are
/// transformers' exactly; where they do, transformers cuts the text there, so that the text's own tokens may
/// differ, and no control token may come of it.
TEST(ChatTemplate, GivesTheTokensThatTransformersGives) {
  std::ifstream file(TESSERA_FIXTURES "/jinja/chat_tokens.json");
  const json fixture = json::parse(file);
  int exact = 0, injected = 0;
  for (const json& c : fixture.at("cases")) {
    ChatTemplateData data = data_of(c.at("template"));
    data.special_tokens = c.at("special_tokens").get<decltype(data.special_tokens)>();
    ChatRequest request = request_of(c.at("conversation").at("messages").dump());
    if (c.at("conversation").contains("tools")) {
      request.tools =
          R"([{"type": "function", "function": {"name": "look", "description": "Looks", "parameters": {"type": "object", "properties": {}}}}])";
    }
    const ChatText chat = render_chat(data, request);
    EXPECT_EQ(chat.text, c.at("text").get<std::string>());
    const auto tokenizer = fixture::tokenizer(c.at("tokenizer"));
    const std::vector<TokenId> ids = encode_chat(*tokenizer, chat), expected = c.at("ids");
    if (!c.at("injected").get<bool>()) {
      EXPECT_EQ(ids, expected) << chat.text;
      ++exact;
      continue;
    }
    ++injected;
    for (const TokenId id : c.at("control_ids").get<std::vector<TokenId>>()) {
      EXPECT_EQ(std::ranges::count(ids, id), std::ranges::count(expected, id)) << id << " in " << chat.text;
    }
    EXPECT_EQ(tokenizer->decode(ids, false), tokenizer->decode(expected, false));
  }
  EXPECT_GE(exact, 15);
  EXPECT_GE(injected, 8);
}

TEST(ChatTemplate, PartsOfControlTokensDontJoin) {
  const auto tokenizer = fixture::tokenizer("qwen2");
  const TokenId end = *tokenizer->find_token("<|im_end|>");
  const auto count = [&](const std::string& source, const std::string& messages) {
    const std::vector<TokenId> ids =
        encode_chat(*tokenizer, render_chat(data_of(source), request_of(messages)));
    return std::ranges::count(ids, end);
  };
  EXPECT_EQ(count("{{ messages[0].content }}|>", R"([{"role": "user", "content": "<|im_end"}])"), 0);
  EXPECT_EQ(count("<|{{ messages[0].content }}|>", R"([{"role": "user", "content": "im_end"}])"), 0);
  EXPECT_EQ(count("{% for m in messages %}{{ m.content }}{% endfor %}",
                  R"([{"role": "user", "content": "<|im_"}, {"role": "user", "content": "end|>"}])"),
            0);
  EXPECT_EQ(
      count("{{ messages[0].content|replace('X', '') }}", R"([{"role": "user", "content": "<|imX_end|>"}])"),
      0);
  // The template's own stay, and a token that begins in the user's text hides none that is the template's
  // alone.
  EXPECT_EQ(count("{{ messages[0].content }}<|im_end|>", R"([{"role": "user", "content": "<|im_end|"}])"), 1);
  EXPECT_EQ(count("{{ '<|' ~ 'im_end' ~ '|>' }}", "[]"), 1);
}

/// A special token that is looked for in the normalized text (where it opens with a space symbol)
/// ("normalized": true), where positions have moved.
TEST(ChatTemplate, NormalizedControlTokensAreGuarded) {
  json document = fixture::read("llama2");
  for (json& token : document.at("added_tokens")) token["normalized"] = true;
  const auto tokenizer = parse_tokenizer_json(document.dump(), "tokenizer.json");
  const TokenId end = *tokenizer->find_token("</s>");
  const ChatText chat =
      render_chat(data_of("a b {{ messages[0].content }} c </s>{{ messages[0].content }} d </s>"),
                  request_of(R"([{"role": "user", "content": "x y </s> z"}])"));
  EXPECT_EQ(std::ranges::count(tokenizer->encode(chat.text), end), 4);
  EXPECT_EQ(std::ranges::count(encode_chat(*tokenizer, chat), end), 2);
}

TEST(ChatTemplate, UsualRolesMayMakeControlTokensOthersMayNot) {
  const auto marked = [&](const std::string& role) {
    return render_chat(data_of("<|{{ messages[0].role }}|>"),
                       request_of(json::array({{{"role", role}, {"content", ""}}}).dump()))
        .foreign.size();
  };
  EXPECT_EQ(marked("user"), 0u);
  EXPECT_EQ(marked("im_end"), 1u);
}

TEST(ChatTemplate, ChoosesAmongSeveral) {
  ChatTemplateData data = data_of("plain");
  data.templates["tool_use"] = "tools";
  ChatRequest request;
  EXPECT_EQ(render_chat(data, request).text, "plain");
  request.tools = "[{}]";
  EXPECT_EQ(render_chat(data, request).text, "tools");
  request.template_name = "default";
  EXPECT_EQ(render_chat(data, request).text, "plain");
  request.template_name = "rag";
  try {
    render_chat(data, request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.message(), "model has no chat template called 'rag'; it has 'default', 'tool_use'");
  }
}

TEST(ChatTemplate, RefusesWhatIsNoConversation) {
  for (const char* messages : {"", "{}", "[1]", "[{}]", R"([{"role": 1}])", "[{\"role\": \"user\"}"}) {
    EXPECT_THROW(render_chat(data_of("x"), request_of(messages)), Error) << messages;
  }
  ChatRequest request;
  request.variables = "[1]";
  EXPECT_THROW(render_chat(data_of("x"), request), Error);
  EXPECT_THROW(render_chat({}, {}), Error);
}

TEST(ChatTemplate, HandsOverVariablesAndReasoning) {
  ChatRequest request = request_of(R"([{"role": "assistant", "content": "b", "reasoning": "why"}])");
  request.variables = R"({"enable_thinking": false, "z": [1]})";
  EXPECT_EQ(
      render_chat(
          data_of(
              "{{ enable_thinking }}{{ z }}{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"),
          request)
          .text,
      "False[1]whywhy");
}

}  // namespace
}  // namespace tessera
