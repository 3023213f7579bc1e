// What requests mean and how answers look, without a network.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "child_process.h"
#include "server/completion_answer.h"
#include "server/completion_call.h"
#include "server/engine_model.h"
#include "server/fields.h"
#include "server/request_error.h"
#include "server/tool_calls.h"
#include "server/work_queue.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using json = nlohmann::ordered_json;
using namespace server;

CallDefaults defaults() {
  CallDefaults defaults;
  defaults.model_name = "parrot";
  defaults.sampling.temperature = 1;
  return defaults;
}

CompletionCall chat(const std::string& fields) {
  return parse_chat_completion(parse_body(R"({"messages":[{"role":"user","content":"Hi"}])" +
                                          (fields.empty() ? "" : "," + fields) + "}"),
                               defaults());
}

struct WrongField {
  std::string fields;
  std::string param;
  std::string in_message;  ///< what the message has to hold
};

TEST(ServerProtocol, WrongFieldsAreNamedWithTheirValues) {
  const WrongField cases[] = {
      {R"("temperature":"hot")", "temperature", "\"hot\""},
      {R"("temperature":2.5)", "temperature", "2.5"},
      {R"("temperature":-1)", "temperature", "-1"},
      {R"("top_p":0)", "top_p", "0"},
      {R"("top_p":1.5)", "top_p", "1.5"},
      {R"("top_k":1.5)", "top_k", "1.5"},
      {R"("min_p":2)", "min_p", "2"},
      {R"("n":0)", "n", "0"},
      {R"("n":1000)", "n", "1000"},
      {R"("max_tokens":0)", "max_tokens", "0"},
      {R"("max_tokens":18446744073709551615)", "max_tokens", "18446744073709551615"},
      {R"("max_completion_tokens":"5")", "max_completion_tokens", "\"5\""},
      {R"("stream":1)", "stream", "1"},
      {R"("stream":true,"stream_options":{"include_usage":"yes"})", "stream_options.include_usage",
       "\"yes\""},
      {R"("stream_options":{"include_usage":true})", "stream_options", "stream"},
      {R"("stop":5)", "stop", "5"},
      {R"("stop":[""])", "stop", "[\"\"]"},
      {R"("seed":1.5)", "seed", "1.5"},
      {R"("logprobs":1)", "logprobs", "1"},
      {R"("top_logprobs":3)", "top_logprobs", "3"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "21"},
      {R"("presence_penalty":3)", "presence_penalty", "3"},
      {R"("response_format":"json")", "response_format", "\"json\""},
      {R"("response_format":{"json_schema":{"schema":true}})", "response_format.type", "missing"},
      {R"("response_format":{"type":"xml"})", "response_format.type", "\"xml\""},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema", "missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":5}})",
       "response_format.json_schema.schema", "5"},
      {R"("tools":{})", "tools", "{}"},
      {R"("tools":[{"type":"function"}])", "tools[0].function", "missing"},
      {R"("tools":[{"function":{"name":"a b"}}])", "tools[0].function.name", "\"a b\""},
      {R"("tools":[{"function":{"name":"a","parameters":{"type":"string"}}}])",
       "tools[0].function.parameters.type", "\"string\""},
      {R"("tool_choice":"required")", "tool_choice", "\"required\""},
      {R"("tools":[{"function":{"name":"a"}}],"tool_choice":{"function":{"name":"b"}})", "tool_choice",
       "\"b\""},
      {R"("functions":[{"name":"a"}])", "functions", "\"a\""},
      {R"("modalities":["audio"])", "modalities", "\"audio\""},
      {R"("chat_template_kwargs":1)", "chat_template_kwargs", "1"},
  };
  for (const WrongField& wrong : cases) {
    try {
      chat(wrong.fields);
      ADD_FAILURE() << wrong.fields << " was taken";
    } catch (const RequestError& error) {
      EXPECT_EQ(error.error().status, 400) << wrong.fields;
      EXPECT_EQ(error.error().param, wrong.param) << error.what();
      EXPECT_NE(error.error().message.find(wrong.in_message), std::string::npos) << error.what();
    }
  }
}

TEST(ServerProtocol, WrongMessagesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":"Hi"})", "messages"},
      {R"({"messages":[5]})", "messages[0]"},
      {R"({"messages":[{"content":"Hi"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "messages[0].content[0].type"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text"},
      {R"({"messages":[{"role":"assistant","tool_calls":[]}]})", "messages[0].content"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages[0].tool_calls[0].function"},
  };
  for (const auto& [body, param] : cases) {
    try {
      parse_chat_completion(parse_body(body), defaults());
      ADD_FAILURE() << body << " was taken";
    } catch (const RequestError& error) {
      EXPECT_EQ(error.error().param, param) << error.what();
    }
  }
}

TEST(ServerProtocol, BodiesThatAreNoJsonObjectAreErrors) {
  std::string nested(1000, '[');
  std::string wide = "{";
  for (int i = 0; i < 20000; ++i) wide += "\"k" + std::to_string(i) + "\":1,";
  wide += "\"z\":1}";
  for (const std::string& body : {std::string(), std::string("{"), std::string("[]"), std::string("\xff"),
                                  nested, wide, std::string("{\"a\":1,\"a\":2}"), std::string("null")}) {
    EXPECT_THROW(parse_body(body), RequestError) << body.substr(0, 100);
  }
}

TEST(ServerProtocol, NullAndUnknownFieldsAreIgnored) {
  const CompletionCall call = chat(
      R"("temperature":null,"stop":null,"tools":null,"response_format":null,"unheard_of":{"a":1},"user":"me","n":null)");
  EXPECT_EQ(call.request.sampling.temperature, 1);
  EXPECT_EQ(call.n, 1);
  EXPECT_FALSE(call.max_tokens);
}

TEST(ServerProtocol, FieldsReachTheRequest) {
  const CompletionCall call = chat(
      R"("temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,"repetition_penalty":1.1,"seed":-1,"stop":"x","max_tokens":7,"max_completion_tokens":9,"logprobs":true,"top_logprobs":2,"n":3,"ignore_eos":true)");
  EXPECT_EQ(call.request.sampling.temperature, 0.5f);
  EXPECT_EQ(call.request.sampling.top_k, 0);
  EXPECT_EQ(call.request.sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(call.request.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(call.max_tokens, 9);
  EXPECT_EQ(call.request.top_logprobs, 2);
  EXPECT_EQ(call.n, 3);
  EXPECT_FALSE(call.request.stop_at_eos);
}

TEST(ServerProtocol, SchemaKeepsTheOrderOfItsFields) {
  const CompletionCall call = chat(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"z":1,"a":{"y":2,"b":3}}}})");
  EXPECT_EQ(call.json_schema, R"({"z":1,"a":{"y":2,"b":3}})");
}

/// Templates of three kinds, in what they make of calls.
TEST(ServerMessages, CallsAreGivenAsTheTemplateWritesThem) {
  const std::string messages = normalized_messages(json::parse(R"([
    {"role":"user","content":"Hi"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"look","arguments":"{\"a\":1}"}}]},
    {"role":"tool","tool_call_id":"1","content":"sun"}])"));
  const auto plain = [](const std::string& given) {
    std::string text = "Tools: look\n";
    for (const json& m : json::parse(given)) {
      if (m["content"].is_null()) text += "None";
      if (m.contains("tool_calls")) text += m["tool_calls"].dump();
    }
    return text;
  };
  EXPECT_EQ(messages_with_calls(messages, plain), messages);
  const auto deepseek = [](const std::string& given) {
    std::string text = "Tools: look\n";
    for (const json& m : json::parse(given)) {
      if (!m["content"].is_null()) {
        text += m["content"];
      } else {
        const json& call = m["tool_calls"][0]["function"];
        if (!call["arguments"].is_string())
          throw Error(ErrorCode::kInvalidArgument, "can only concatenate str");
        text += call["name"].get<std::string>() + call["arguments"].get<std::string>();
      }
    }
    return text;
  };
  EXPECT_EQ(deepseek(messages_with_calls(messages, deepseek)), "Tools: look\nHilook{\"a\":1}sun");
  const auto refuses = [](const std::string&) -> std::string {
    throw Error(ErrorCode::kInvalidArgument, "no tools");
  };
  EXPECT_EQ(messages_with_calls(messages, refuses), messages);
  const std::string none = R"([{"role":"user","content":"Hi"}])";
  EXPECT_EQ(messages_with_calls(none, refuses), none);
}

TEST(ServerProtocol, MessagesBecomeWhatTemplatesRead) {
  const json messages = json::parse(normalized_messages(json::parse(R"([
    {"role":"developer","content":"Be brief."},
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"me"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
    {"role":"tool","content":"2","tool_call_id":"1"},
    {"role":"assistant","content":"It is 2.","refusal":null,"tool_calls":null},
    {"role":"user","content":"Thanks","tool_calls":[]}])")));
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[1]["content"], "a\nb");
  EXPECT_EQ(messages[1]["name"], "me");
  EXPECT_EQ(messages[2]["content"], "");
  EXPECT_EQ(messages[2]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(messages[3]["tool_call_id"], "1");
  EXPECT_EQ(messages[4], json::parse(R"({"role":"assistant","content":"It is 2."})"));
  EXPECT_EQ(messages[5], json::parse(R"({"role":"user","content":"Thanks"})"));
}

TEST(ServerProtocol, CompletionsTakeTextsAndTokens) {
  const auto parse = [](const char* prompt) {
    return parse_completion(parse_body(std::string("{\"prompt\":") + prompt + "}"), defaults());
  };
  EXPECT_EQ(parse("\"a\"").texts, std::vector<std::string>{"a"});
  EXPECT_EQ(parse("[1,2]").tokens, (std::vector<std::vector<std::int32_t>>{{1, 2}}));
  EXPECT_EQ(parse("[\"a\",\"b\"]").texts.size(), 2U);
  EXPECT_EQ(parse("[[1],[2,3]]").tokens.size(), 2U);
  EXPECT_EQ(parse("\"a\"").max_tokens, 16);
  for (const char* wrong :
       {"5", "[]", "[[]]", "[1.5]", "[-1]", "[4294967296]", "[1,\"a\"]", "[\"a\",[1]]", "{}"}) {
    EXPECT_THROW(parse(wrong), RequestError) << wrong;
  }
}

TEST(ServerProtocol, AnotherModelIs404) {
  EXPECT_EQ(chat(R"("model":"parrot")").model, "parrot");
  try {
    chat(R"("model":"gpt-4")");
    FAIL();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.error().status, 404);
    EXPECT_EQ(error.error().code, "model_not_found");
  }
}

// ---- Tool calls

std::vector<Tool> two_tools() {
  return {{"add", R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})"},
          {"now", ""}};
}

/// Text and calls, with the text given in pieces of `step` bytes.
std::pair<std::string, std::string> read_calls(const std::string& text, std::size_t step,
                                               bool parallel = true) {
  ToolCallReader reader(two_tools(), ToolChoice::kAuto, parallel);
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += step) out += reader.push(text.substr(at, step));
  out += reader.finish();
  std::string calls;
  for (const ToolCall& call : reader.take_calls()) calls += call.name + call.arguments + ";";
  return {out, calls};
}

TEST(ServerProtocol, ToolCallsAreFoundHoweverTheTextComes) {
  const std::string call =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 2, \"a\": 1}}\n</tool_call>";
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {call, "", "add{\"b\":2,\"a\":1};"},
      {"Let me see.\n" + call + "\n" + call, "Let me see.\n", "add{\"b\":2,\"a\":1};add{\"b\":2,\"a\":1};"},
      {"{\"name\": \"now\", \"parameters\": {}}", "", "now{};"},
      {"No call < here", "No call < here", ""},
      {"<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>", ""},
      {"<tool_call>{\"name\": \"add\", \"argum", "<tool_call>{\"name\": \"add\", \"argum", ""},
      {"{\"an\": \"object\"}", "{\"an\": \"object\"}", ""},
      // As Mistral's models write them, with and without the control tokens.
      {R"([{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}])", "",
       "add{\"a\":1};now{};"},
      {R"([TOOL_CALLS] [{"name": "now", "arguments": {}}])", "", "now{};"},
      {R"([TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{})", "", "add{\"a\":1};now{};"},
      {R"(Let me see. [TOOL_CALLS][{"name": "now", "arguments": {}}])", "Let me see.", "now{};"},
      {R"(Let me see.[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{})", "Let me see.",
       "add{\"a\":1};now{};"},
      {R"([TOOL_CALLS]add[CALL_ID]x7[ARGS]{"a": 1}[TOOL_CALLS]now[CALL_ID]x8[ARGS]{})", "",
       "add{\"a\":1};now{};"},
      {"[TOOL_CALLS]add[CALL_ID]x7", "[TOOL_CALLS]add[CALL_ID]x7", ""},
      {R"({"an": 1} [TOOL_CALLS][{"name": "now", "arguments": {}}])", R"({"an": 1})", "now{};"},
      {"  [TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}]", "", "now{};"},
      {"See [TOOL_CALLS] in the manual", "See [TOOL_CALLS] in the manual", ""},
      {"See [TOOL_CAL", "See [TOOL_CAL", ""},
      {R"(add{"a": "}\"{"}now{})", "", R"(add{"a":"}\"{"};now{};)"},
      {R"({"name": "now", "arguments": {"a": 1, "b": 2, "a": [3]}})", "", R"(now{"a":[3],"b":2};)"},
      {R"([{"name": "now", "arguments": {"a": 1, "a": 2}}])", "", R"(now{"a":2};)"},
      // Numbers keep all their digits, texts their spaces.
      {R"({"arguments": {"a": 12345678901234567890123, "b": [1.10, 1e2]}, "name": "now"})", "",
       R"(now{"a":12345678901234567890123,"b":[1.10,1e2]};)"},
      {R"([{"name": "now", "arguments": {"a ,": ": \" }{ ["}}, {"name": "add", "arguments": {"a": 0.10}}])",
       "", R"(now{"a ,":": \" }{ ["};add{"a":0.10};)"},
      {R"({"name": "now", "\u0061rguments": {"a": 1.0}})", "", R"(now{"a":1.0};)"},
      {"[1, 2, 3] are numbers", "[1, 2, 3] are numbers", ""},
      {R"([{"name": "now", "arguments": {}}, {"name": "other", "arguments": {}}])",
       R"([{"name": "now", "arguments": {}}, {"name": "other", "arguments": {}}])", ""},
      {"[]", "[]", ""},
      {"add", "add", ""},
      {"adding", "adding", ""},
      {"add{\"a\": 1", "add{\"a\": 1", ""},
      {"add{\"a\": 1} and more", "add{\"a\": 1} and more", ""},
      {"<tool_cal", "<tool_cal", ""},
      {"", "", ""},
      {"  \n", "  \n", ""},
  };
  for (const auto& [text, out, calls] : cases) {
    for (const std::size_t step : {std::size_t{1}, std::size_t{3}, std::size_t{1000}}) {
      const auto [found_out, found_calls] = read_calls(text, step);
      EXPECT_EQ(found_calls, calls) << text << " by " << step;
      if (calls.empty() || out.empty()) {
        EXPECT_EQ(found_out, out) << text << " by " << step;
      } else {
        EXPECT_EQ(found_out.substr(0, 11), out.substr(0, 11)) << text << " by " << step;
      }
    }
  }
  // Of which only the first may be wanted; the others are no text of the answer's.
  const std::string list = R"([{"name": "now", "arguments": {}}, {"name": "add", "arguments": {}}])";
  for (const std::size_t step : {std::size_t{1}, std::size_t{1000}}) {
    EXPECT_EQ(read_calls(call + call, step, false),
              (std::pair<std::string, std::string>("", "add{\"b\":2,\"a\":1};")));
    EXPECT_EQ(read_calls(list, step, false), (std::pair<std::string, std::string>("", "now{};")));
  }
}

TEST(ServerProtocol, SchemaOfACallNamesItsTools) {
  const json schema = json::parse(tool_call_schema(two_tools()));
  ASSERT_EQ(schema["anyOf"].size(), 2U);
  EXPECT_EQ(schema["anyOf"][0]["properties"]["name"]["const"], "add");
  EXPECT_EQ(schema["anyOf"][0]["properties"]["arguments"]["required"][0], "a");
  EXPECT_EQ(schema["anyOf"][1]["properties"]["arguments"]["type"], "object");
  const json either = json::parse(tool_call_schema({{"add", R"({"type":["object","null"]})"}}));
  EXPECT_EQ(either["properties"]["arguments"]["type"], "object");
}

TEST(ServerProtocol, CallsInAnyTextAreHeldFromWhereTheyBegin) {
  LoadOptions load;
  load.backend = "cpu";
  EngineOptions options;
  options.max_seq_len = 64;
  options.max_batch = 1;
  const Model model = Model::load(TESSERA_SOURCE_DIR "/models/demo", load);
  const EngineModel served(model, options);
  std::vector<Tool> tools = two_tools();
  tools.push_back({"vague", R"({"type":"object","not":{}})"});  // can't be promised: any object then
  const auto constraint = served.tool_call_constraint(tools, true);
  std::vector<std::uint32_t> mask(static_cast<std::size_t>((model.info().vocab_size + 31) / 32));
  const auto accept = [&](const char* text, bool is_held) {
    for (const std::int32_t token : model.encode(text, false)) {
      std::ranges::fill(mask, 0u);
      EXPECT_EQ(constraint->allowed_tokens(mask), is_held) << text;
      const std::uint32_t bit = mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1;
      EXPECT_EQ(bit, is_held ? 1u : 0u) << text;
      constraint->accept(token);
    }
  };
  accept("Well: <tool_call>", false);
  accept("{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>", true);
  accept("And <tool_call>", false);
  accept("{\"name\": \"vague\", \"arguments\": {\"any\": null}}</tool_call>", true);
  accept("<tool_call>", false);
  EXPECT_THROW(constraint->accept(model.encode("x", false)[0]), Error);
}

TEST(ServerProtocol, SchemasOfSeveralCallsAndOfAResponseKeepWhereReferencesLead) {
  const std::string referring =
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}}})";
  const std::vector<Tool> tools = {{"tree", referring}, {"now", ""}};
  const json list = json::parse(tool_call_list_schema(tools, 3));
  EXPECT_EQ(list["maxItems"], 3);
  EXPECT_EQ(list["items"]["anyOf"][0]["properties"]["arguments"]["properties"]["a"]["$ref"],
            "#/items/anyOf/0/properties/arguments/$defs/n");
  EXPECT_FALSE(json::parse(tool_call_list_schema(tools, 0)).contains("maxItems"));
  const json either = json::parse(tool_call_or_response_schema(tools, referring));
  EXPECT_EQ(either["anyOf"][0]["anyOf"][0]["properties"]["arguments"]["properties"]["a"]["$ref"],
            "#/anyOf/0/anyOf/0/properties/arguments/$defs/n");
  EXPECT_EQ(either["anyOf"][1]["properties"]["a"]["$ref"], "#/anyOf/1/$defs/n");
}

TEST(ServerProtocol, SchemaOfACallKeepsWhereItsToolsReferencesLead) {
  const Tool tree = {"tree", R"({"type":"object",
    "properties":{"$ref":{"type":"string"},"root":{"$ref":"#/$defs/node"},"again":{"$ref":"#"},"named":{"$ref":"#n"}},
    "$defs":{"node":{"type":"object","properties":{"children":{"type":"array","items":{"$ref":"#/$defs/node"}},
                                                   "kind":{"enum":[{"$ref":"#/$defs/node"}]}}}}})"};
  const auto arguments_of = [&](const std::vector<Tool>& tools) {
    const json schema = json::parse(tool_call_schema(tools));
    return (tools.size() == 1 ? schema : schema["anyOf"][1])["properties"]["arguments"];
  };
  for (const auto& [tools, place] : {std::pair{std::vector<Tool>{tree}, "#/properties/arguments"},
                                     {{two_tools()[0], tree}, "#/anyOf/1/properties/arguments"}}) {
    const json arguments = arguments_of(tools);
    const json& properties = arguments["properties"];
    const json& node = arguments["$defs"]["node"]["properties"];
    EXPECT_EQ(properties["root"]["$ref"], place + std::string("/$defs/node"));
    EXPECT_EQ(properties["again"]["$ref"], place);
    EXPECT_EQ(properties["named"]["$ref"], "#n");
    EXPECT_EQ(properties["$ref"]["type"], "string");
    EXPECT_EQ(node["children"]["items"]["$ref"], place + std::string("/$defs/node"));
    EXPECT_EQ(node["kind"]["enum"][0]["$ref"], "#/$defs/node");
  }
}

// ---- Answers

Event token(std::int32_t id, const std::string& text) {
  Event event;
  event.token = id;
  event.text = text;
  event.logprob = -0.25f;
  event.top_logprobs = {{id, -0.25f}, {0, -std::numeric_limits<float>::infinity()}};
  return event;
}

Event finished(StopReason reason, std::int64_t generated, const std::string& text = "") {
  Event event;
  event.type = Event::Type::kFinished;
  event.stop_reason = reason;
  event.text = text;
  event.stats.prompt_tokens = 4;
  event.stats.cached_tokens = 2;
  event.stats.generated_tokens = generated;
  return event;
}

CompletionAnswer answer_of(CompletionCall call, int choices) {
  return CompletionAnswer(std::make_shared<CompletionCall>(std::move(call)), {"chatcmpl-1", 17}, choices,
                          [](std::int32_t id) { return std::string(1, static_cast<char>(id)); });
}

TEST(ServerProtocol, LogprobsOfHalfCharactersComeWithTheNextText) {
  CompletionAnswer answer = answer_of(chat(R"("stream":true,"logprobs":true,"top_logprobs":1)"), 1);
  answer.begin({});
  EXPECT_EQ(answer.add(0, token(0xc3, "")), "");
  const std::string text = answer.add(0, token(0xa9, "\xc3\xa9"));
  const json chunk = json::parse(text.substr(6));
  EXPECT_EQ(chunk["choices"][0]["delta"]["content"], "\xc3\xa9");
  ASSERT_EQ(chunk["choices"][0]["logprobs"]["content"].size(), 2U);
  EXPECT_EQ(chunk["choices"][0]["logprobs"]["content"][0]["bytes"], json({0xc3}));
  EXPECT_EQ(chunk["choices"][0]["logprobs"]["content"][0]["top_logprobs"][1]["logprob"], -9999.0);
}

TEST(ServerProtocol, ChoicesOfAPromptCountItOnce) {
  CompletionAnswer answer = answer_of(chat(R"("n":2)"), 2);
  answer.begin({});
  answer.add(1, token('b', "b"));
  answer.add(0, token('a', "a"));
  answer.add(0, finished(StopReason::kEndOfText, 2));
  EXPECT_FALSE(answer.finished());
  answer.add(1, finished(StopReason::kMaxTokens, 1));
  ASSERT_TRUE(answer.finished());
  const json body = json::parse(answer.body());
  EXPECT_EQ(body["choices"][0]["message"]["content"], "a");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][1]["message"]["content"], "b");
  EXPECT_EQ(body["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(
      body["usage"],
      json::parse(
          R"({"prompt_tokens":4,"completion_tokens":3,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}})"));
}

TEST(ServerProtocol, ToolCallsOfAnAnswer) {
  const char* tools =
      R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}])";
  for (const bool stream : {false, true}) {
    CompletionAnswer answer = answer_of(chat(std::string(tools) + (stream ? R"(,"stream":true)" : "")), 1);
    answer.begin({});
    std::string out = answer.add(0, token(1, R"(<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>)"));
    EXPECT_EQ(out, "");
    out += answer.add(0, finished(StopReason::kEndOfText, 9));
    json calls;
    if (stream) {
      const json chunk = json::parse(out.substr(6, out.find("\n\n") - 6));
      calls = chunk["choices"][0]["delta"]["tool_calls"];
      EXPECT_EQ(calls[0]["index"], 0);
      EXPECT_NE(out.find("\"finish_reason\":\"tool_calls\""), out.npos);
    } else {
      const json body = json::parse(answer.body());
      EXPECT_TRUE(body["choices"][0]["message"]["content"].is_null());
      EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
      calls = body["choices"][0]["message"]["tool_calls"];
    }
    ASSERT_EQ(calls.size(), 1U);
    EXPECT_EQ(calls[0]["function"]["arguments"], "{\"a\":1}");
    EXPECT_FALSE(calls[0]["id"].get<std::string>().empty());
  }
}

TEST(ServerProtocol, ACallMayBeginWithAControlToken) {
  const auto call = std::make_shared<CompletionCall>(
      chat(R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}])"));
  CompletionAnswer answer(call, {"chatcmpl-1", 17}, 1, [](std::int32_t) { return std::string(); },
                          {{99, std::string(kToolCallOpen)}});
  answer.begin({});
  answer.add(0, token(1, "Well."));
  answer.add(0, token(99, ""));
  answer.add(0, token(2, R"({"name":"add","arguments":{"a":1}})"));
  answer.add(0, token(3, "</tool_call>"));
  answer.add(0, finished(StopReason::kEndOfText, 5));
  const json message = json::parse(answer.body())["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Well.");
  ASSERT_EQ(message["tool_calls"].size(), 1U);
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
}

TEST(ServerProtocol, CallsOfMistralsModelsMayFollowText) {
  const auto call = std::make_shared<CompletionCall>(
      chat(R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}])"));
  // The older models' list, and the newer ones' name and arguments.
  for (const bool newer : {false, true}) {
    CompletionAnswer answer(call, {"chatcmpl-1", 17}, 1, [](std::int32_t) { return std::string(); },
                            {{98, std::string(kMistralArguments)}, {99, std::string(kMistralCalls)}});
    answer.begin({});
    answer.add(0, token(1, "Well."));
    answer.add(0, token(99, ""));
    if (newer) {
      answer.add(0, token(2, "add"));
      answer.add(0, token(98, ""));
      answer.add(0, token(3, R"({"a":1})"));
    } else {
      answer.add(0, token(2, R"([{"name":"add","arguments":{"a":1}}])"));
    }
    answer.add(0, finished(StopReason::kEndOfText, 5));
    const json message = json::parse(answer.body())["choices"][0]["message"];
    EXPECT_EQ(message["content"], "Well.");
    ASSERT_EQ(message["tool_calls"].size(), 1U);
    EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "add");
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
  }
}

TEST(ServerProtocol, ArgumentsMayBeDeepAndTheirNumbersLarge) {
  const auto nested = [](int depth) {
    const auto n = static_cast<std::size_t>(depth);
    return "{\"a\":" + std::string(n, '[') + std::string(n, ']') + "}";
  };
  const std::string integer(400, '9');
  const std::string arguments[] = {nested(62),
                                   nested(400),
                                   R"({"a":1e999})",
                                   R"({"a":[-1.5E+4000,2],"b":"1e999 \" 1e999"})",
                                   "{\"a\":" + integer + "}",
                                   "{\"a\":" + integer + "." + integer + "e" + integer + "}"};
  for (const std::string& text : arguments) {
    const std::string calls = "now" + text + ";";
    const std::string call = R"({"name":"now","arguments":)" + text + "}";
    for (const std::string& written :
         {call, "[" + call + "]", "<tool_call>" + call + "</tool_call>", "now" + text}) {
      EXPECT_EQ(read_calls(written, 1000), (std::pair<std::string, std::string>("", calls)));
    }
  }
  // What is no JSON stays text, however long its numbers are; so does what has no end.
  for (const char* wrong :
       {"01e999", "1e", "1.e999", "-e999", "1e999x", "+1e999", ".1e999", "1e+", "1.", "1e9e9"}) {
    const std::string call = std::string(R"({"name":"now","arguments":{"a":)") + wrong + "}}";
    EXPECT_EQ(read_calls(call, 1000), (std::pair<std::string, std::string>(call, ""))) << wrong;
  }
  const std::string deep = R"({"name":"now","arguments":)" + nested(100'000) + "}";
  EXPECT_EQ(read_calls(deep, 100'000), (std::pair<std::string, std::string>(deep, "")));
  // One of two values, of which neither can be written down again.
  const std::string twice = R"({"name":"now","arguments":{"a":1e999,"a":2}})";
  EXPECT_EQ(read_calls(twice, 1000), (std::pair<std::string, std::string>(twice, "")));
}

TEST(ServerProtocol, LegacyLogprobsCountCharacters) {
  CompletionAnswer answer =
      answer_of(parse_completion(parse_body(R"({"prompt":"x","logprobs":2})"), defaults()), 1);
  answer.begin({});
  answer.add(0, token('a', "a"));
  answer.add(0, token('b', "b"));
  answer.add(0, finished(StopReason::kStopString, 2, "c"));
  const json body = json::parse(answer.body());
  EXPECT_EQ(body["choices"][0]["text"], "abc");
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"], json({"a", "b"}));
  EXPECT_EQ(body["choices"][0]["logprobs"]["text_offset"], json({0, 1}));
}

TEST(ServerProtocol, LegacyLogprobsCountBytesThatAreNoCharacterAsTheirReplacement) {
  CompletionAnswer answer =
      answer_of(parse_completion(parse_body(R"({"prompt":"x","logprobs":0})"), defaults()), 1);
  answer.begin({});
  // A character in two tokens, a byte that continues none, and the first byte of one that doesn't come.
  for (const int byte : {0x61, 0xc3, 0xa9, 0xa9, 0x62, 0xe2, 0x63, 0x64}) answer.add(0, token(byte, ""));
  answer.add(0, finished(StopReason::kMaxTokens, 8,
                         "a\u00e9\ufffd"
                         "b\ufffd"
                         "cd"));
  const json logprobs = json::parse(answer.body())["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["text_offset"], json({0, 1, 2, 2, 3, 4, 5, 6}));
}

TEST(ServerProtocol, LegacyLogprobsNameTokensThatAreNoTextByTheirBytes) {
  CompletionAnswer answer =
      answer_of(parse_completion(parse_body(R"({"prompt":"x","logprobs":2})"), defaults()), 1);
  answer.begin({});
  Event event = token(0xc3, "");
  event.top_logprobs = {{0xc3, -0.25f}, {0xe2, -1.5f}, {'a', -3.0f}};
  answer.add(0, event);
  answer.add(0, finished(StopReason::kMaxTokens, 1, "\ufffd"));
  const json logprobs = json::parse(answer.body())["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({R"(bytes:\xc3)"}));
  EXPECT_EQ(logprobs["top_logprobs"][0],
            json({{R"(bytes:\xc3)", -0.25}, {R"(bytes:\xe2)", -1.5}, {"a", -3.0}}));
}

TEST(ServerProtocol, AnEchoedPromptHasLogprobsButForItsFirstToken) {
  for (const bool stream : {false, true}) {
    const CompletionCall call = parse_completion(
        parse_body(std::string(R"({"prompt":"ab","echo":true,"logprobs":1,"max_tokens":0,"stream":)") +
                   (stream ? "true}" : "false}")),
        defaults());
    EXPECT_TRUE(call.request.prompt_logprobs);
    EXPECT_EQ(call.max_tokens, 0);
    CompletionAnswer answer = answer_of(call, 1);
    // '^' is put before every text and is no part of it; SentencePiece's space is none either.
    EXPECT_EQ(answer.begin({{"a\xc3\xa9"
                             "b",
                             {'^', 'a', 0xc3, 0xa9, 'b'}}}),
              "");
    Event event = token('c', "c");
    for (const float logprob : {-1.f, -2.f, -3.f, -4.f})
      event.prompt_logprobs.push_back({logprob, {{'x', -0.5f}}});
    std::string text = answer.add(0, event);
    answer.add(0, finished(StopReason::kMaxTokens, 1));
    const json body = json::parse(stream ? text.substr(6) : answer.body());
    const json& choice = body["choices"][0];
    EXPECT_EQ(choice["text"],
              "a\xc3\xa9"
              "bc");
    const json& logprobs = choice["logprobs"];
    EXPECT_EQ(logprobs["token_logprobs"], json({nullptr, -1.0, -2.0, -3.0, -4.0, -0.25}));
    EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
    EXPECT_EQ(logprobs["top_logprobs"][1], json({{"x", -0.5}, {"a", -1.0}}));
    EXPECT_EQ(logprobs["text_offset"], json({0, 0, 1, 2, 2, 3}));
  }
  EXPECT_THROW(parse_completion(parse_body(R"({"prompt":"x","max_tokens":0})"), defaults()), RequestError);
}

TEST(ServerThreads, ThatCannotBeStartedAreAnErrorThatSaysWhy) {
  const int result = with_thread_limit(1, [] {
    try {
      const WorkQueue queue;
    } catch (const Error& error) {
      return error.message().find("ulimit -u") == std::string::npos ? 1 : 0;
    } catch (...) {
      return 2;
    }
    return 3;
  });
  if (result >= kNoThreadLimit) GTEST_SKIP() << "the number of threads can't be limited here: " << result;
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace tessera
