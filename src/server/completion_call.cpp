#include "server/completion_call.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "server/fields.h"
#include "server/request_error.h"

namespace tessera::server {

using json = nlohmann::ordered_json;

namespace {

constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr int kMaxStopStrings = 16;
constexpr int kMaxTools = 128;
/// What a completion generates if it does not say, as in OpenAI's API.
constexpr std::int64_t kDefaultCompletionTokens = 16;

/// A field that means something which is not done here; what changes nothing may be given.
void refuse(const Fields& fields, const char* name, const json& harmless, const char* reason) {
  const json* value = fields.find(name);
  if (value == nullptr || *value == harmless || (value->is_structured() && value->empty())) return;
  throw unsupported_field(name,
                          fmt::format("{} is {}, which is not supported: {}", name, shown(*value), reason));
}

void parse_sampling(const Fields& fields, const CallDefaults& defaults, Request& request) {
  SamplingOptions& sampling = request.sampling;
  sampling = defaults.sampling;
  const auto set = [&](const char* name, float& option, double min, double max) {
    if (const auto value = fields.number(name, min, max)) option = static_cast<float>(*value);
  };
  set("temperature", sampling.temperature, 0, 2);
  set("min_p", sampling.min_p, 0, 1);
  set("top_p", sampling.top_p, 0, 1);
  if (sampling.top_p <= 0) fields.fail("top_p", *fields.find("top_p"), "a number above 0, up to 1");
  set("repetition_penalty", sampling.repetition_penalty, 0, 100);
  if (sampling.repetition_penalty <= 0) {
    fields.fail("repetition_penalty", *fields.find("repetition_penalty"), "a number above 0, up to 100");
  }
  if (const auto top_k = fields.integer("top_k", -1, std::numeric_limits<int>::max())) {
    sampling.top_k = *top_k < 0 ? 0 : static_cast<int>(*top_k);
  }
  const auto seed = fields.integer("seed", std::numeric_limits<std::int64_t>::min(), kMaxInteger);
  if (seed) {
    sampling.seed = static_cast<std::uint64_t>(*seed);
  } else if (defaults.seed) {
    sampling.seed = *defaults.seed;
  } else {
    std::random_device random;
    sampling.seed = std::uint64_t{random()} << 32 | random();
  }
  set("presence_penalty", sampling.presence_penalty, -2, 2);
  set("frequency_penalty", sampling.frequency_penalty, -2, 2);
  if (const json* bias = fields.object("logit_bias")) {
    for (const auto& [token, value] : bias->items()) {
      const bool is_id =
          !token.empty() && token.size() < 10 && token.find_first_not_of("0123456789") == token.npos;
      if (!is_id || !value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100)) {
        fields.fail("logit_bias", *bias, "an object of token ids with numbers from -100 to 100");
      }
      sampling.logit_bias[std::stoi(token)] = value.get<float>();
    }
  }
}

void parse_stop(const Fields& fields, Request& request) {
  const json* stop = fields.find("stop");
  if (stop == nullptr) return;
  const json list = stop->is_array() ? *stop : json::array({*stop});
  if (list.size() > kMaxStopStrings) {
    fields.fail("stop", *stop, fmt::format("at most {} strings", kMaxStopStrings));
  }
  for (const json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
        text.get_ref<const std::string&>().size() > 1024) {
      fields.fail("stop", *stop, "a string of 1 to 1024 bytes, or a list of such");
    }
    request.stop.push_back(text);
  }
}

/// What both kinds of completion have.
CompletionCall parse_common(const json& body, const Fields& fields, const CallDefaults& defaults) {
  CompletionCall call;
  call.model = check_model_name(body, defaults);
  parse_sampling(fields, defaults, call.request);
  parse_stop(fields, call.request);
  call.n = static_cast<int>(fields.integer("n", 1, defaults.max_choices).value_or(1));
  call.stream = fields.boolean("stream").value_or(false);
  call.request.stop_at_eos = !fields.boolean("ignore_eos").value_or(false);
  if (const json* options = fields.object("stream_options")) {
    if (!call.stream) {
      throw wrong_field("stream_options", "stream_options is only for requests with \"stream\": true");
    }
    call.include_usage = Fields(*options, "stream_options").boolean("include_usage").value_or(false);
  }
  return call;
}

void parse_response_format(const Fields& fields, CompletionCall& call) {
  const json* format = fields.object("response_format");
  if (format == nullptr) return;
  const Fields inner(*format, "response_format");
  const std::string types = R"("text", "json_object" or "json_schema")";
  const std::optional<std::string> type = inner.text("type");
  // Without it the answer's form would be anybody's guess, and text where JSON was meant.
  if (!type) throw wrong_field("response_format.type", "response_format.type is missing; expected " + types);
  if (type == "text") return;
  if (type == "json_object") {
    call.json_schema = R"({"type":"object"})";
    return;
  }
  if (type != "json_schema") inner.fail("type", *inner.find("type"), types);
  const json* schema_of = inner.object("json_schema");
  if (schema_of == nullptr) {
    throw wrong_field("response_format.json_schema", "response_format.json_schema is missing");
  }
  const json* schema = Fields(*schema_of, "response_format.json_schema").find("schema");
  if (schema == nullptr || !(schema->is_object() || schema->is_boolean())) {
    throw wrong_field("response_format.json_schema.schema",
                      fmt::format("response_format.json_schema.schema is {}; expected a JSON Schema",
                                  schema == nullptr ? "missing" : shown(*schema)));
  }
  call.json_schema = dump(*schema);
}

Tool parse_tool(const json& entry, const std::string& path) {
  const Fields fields(entry, path);
  if (fields.text("type").value_or("function") != "function") {
    fields.fail("type", *fields.find("type"), "\"function\"");
  }
  const json* function = fields.object("function");
  if (function == nullptr) throw wrong_field(path + ".function", path + ".function is missing");
  const Fields inner(*function, path + ".function");
  Tool tool;
  tool.name = inner.text("name").value_or("");
  const auto is_name_character = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  if (tool.name.empty() || tool.name.size() > 64 ||
      !std::all_of(tool.name.begin(), tool.name.end(), is_name_character)) {
    throw wrong_field(inner.path_of("name"),
                      fmt::format("{} is {}; expected 1 to 64 letters, digits, '_', '-' or '.'",
                                  inner.path_of("name"), shown(json(tool.name))));
  }
  if (const json* parameters = inner.object("parameters")) {
    const Fields schema(*parameters, path + ".function.parameters");
    const json* type = schema.find("type");
    const bool may_be_object =
        type == nullptr || *type == "object" ||
        (type->is_array() && std::find(type->begin(), type->end(), "object") != type->end());
    if (!may_be_object) schema.fail("type", *type, "\"object\"");
    tool.parameters = dump(*parameters);
  }
  return tool;
}

void parse_tool_choice(const Fields& fields, CompletionCall& call) {
  const json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    const std::string name = *choice;
    if (name == "none") {
      call.tool_choice = ToolChoice::kNone;
    } else if (name == "auto") {
      call.tool_choice = call.tools.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
    } else if (name == "required") {
      call.tool_choice = ToolChoice::kRequired;
    } else {
      fields.fail("tool_choice", *choice,
                  "\"none\", \"auto\", \"required\" or a function's name as an object");
    }
  } else {
    const Fields outer(*choice, "tool_choice");
    const json* function = outer.object("function");
    const std::string name =
        function == nullptr ? "" : Fields(*function, "tool_choice.function").text("name").value_or("");
    std::erase_if(call.tools, [&](const Tool& tool) { return tool.name != name; });
    if (call.tools.empty()) {
      fields.fail("tool_choice", *choice,
                  "{\"type\": \"function\", \"function\": {\"name\": one of the tools}}");
    }
    call.tool_choice = ToolChoice::kOne;
  }
  if (call.tools.empty() && call.tool_choice != ToolChoice::kNone) {
    throw wrong_field("tool_choice",
                      fmt::format("tool_choice is {}, but there are no tools", shown(*choice)));
  }
}

void parse_tools(const Fields& fields, CompletionCall& call) {
  const json* tools = fields.list("tools");
  if (tools != nullptr && !tools->empty()) {
    if (tools->size() > kMaxTools) fields.fail("tools", *tools, fmt::format("at most {}", kMaxTools));
    for (std::size_t i = 0; i < tools->size(); ++i) {
      call.tools.push_back(parse_tool((*tools)[i], fmt::format("tools[{}]", i)));
    }
    call.tool_choice = ToolChoice::kAuto;
  }
  parse_tool_choice(fields, call);
  call.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (call.tool_choice != ToolChoice::kNone) {
    call.conversation.tools = dump(*tools);
  }
}

void read_conversation(const Fields& fields, CompletionCall& call) {
  const json* messages = fields.list("messages");
  if (messages == nullptr) throw wrong_field("messages", "messages is missing; expected a list of messages");
  call.conversation.messages = normalized_messages(*messages);
  json variables = json::object();
  if (const json* given = fields.object("chat_template_kwargs")) variables = *given;
  if (const auto effort = fields.text("reasoning_effort")) variables["reasoning_effort"] = *effort;
  if (!variables.empty()) call.conversation.variables = dump(variables);
  parse_tools(fields, call);
}

}  // namespace

std::string check_model_name(const json& body, const CallDefaults& defaults) {
  const std::string name = Fields(body).text("model").value_or("");
  if (!name.empty() && name != defaults.model_name) {
    throw RequestError({404, "invalid_request_error",
                        fmt::format("model is {}, which is not served here; there is \"{}\"",
                                    shown(json(name)), defaults.model_name),
                        "model", "model_not_found"});
  }
  return defaults.model_name;
}

CompletionCall parse_chat_completion(const json& body, const CallDefaults& defaults) {
  const Fields fields(body);
  CompletionCall call = parse_common(body, fields, defaults);
  call.chat = true;
  call.max_tokens = fields.integer("max_tokens", 1, kMaxTokens);
  read_conversation(fields, call);
  if (const auto tokens = fields.integer("max_completion_tokens", 1, kMaxTokens)) call.max_tokens = tokens;

  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top_logprobs = fields.integer("top_logprobs", 0, 20);
  if (top_logprobs && !logprobs) {
    throw wrong_field("top_logprobs",
                      fmt::format("top_logprobs is {}, but logprobs is not true", *top_logprobs));
  }
  if (logprobs) call.request.top_logprobs = static_cast<int>(top_logprobs.value_or(0));

  parse_response_format(fields, call);
  refuse(fields, "functions", nullptr, "give tools instead");
  refuse(fields, "function_call", "none", "give tool_choice instead");
  refuse(fields, "modalities", json::array({"text"}), "the model writes text only");
  refuse(fields, "audio", nullptr, "the model writes text only");
  return call;
}

Conversation parse_conversation(const json& body) {
  CompletionCall call;
  read_conversation(Fields(body), call);
  return std::move(call.conversation);
}

CompletionCall parse_completion(const json& body, const CallDefaults& defaults) {
  const Fields fields(body);
  CompletionCall call = parse_common(body, fields, defaults);
  const json* prompt = fields.find("prompt");
  if (prompt == nullptr)
    throw wrong_field("prompt", "prompt is missing; expected a text or a list of tokens");
  parse_prompts(*prompt, "prompt", defaults.max_choices, call.texts, call.tokens);
  const auto prompts = static_cast<int>(call.texts.size() + call.tokens.size());
  if (prompts * call.n > defaults.max_choices) {
    throw wrong_field("n", fmt::format("n is {} for {} prompts, {} choices; expected at most {}", call.n,
                                       prompts, prompts * call.n, defaults.max_choices));
  }
  call.echo = fields.boolean("echo").value_or(false);
  // Who gets the prompt back may want nothing else.
  call.max_tokens =
      fields.integer("max_tokens", call.echo ? 0 : 1, kMaxTokens).value_or(kDefaultCompletionTokens);
  if (const auto logprobs = fields.integer("logprobs", 0, 20)) {
    call.request.top_logprobs = static_cast<int>(*logprobs);
    call.request.prompt_logprobs = call.echo;
  }
  parse_response_format(fields, call);
  refuse(fields, "suffix", "", "text can't be inserted");
  refuse(fields, "best_of", call.n, "every choice is returned; set n instead");
  return call;
}

void parse_prompts(const json& value, const std::string& field, int max_prompts,
                   std::vector<std::string>& texts, std::vector<std::vector<std::int32_t>>& tokens) {
  const auto fail = [&](const json& what) {
    return wrong_field(
        field, fmt::format("{} has {}; expected a text, a list of token ids, or a list of either", field,
                           shown(what)));
  };
  const auto read_tokens = [&](const json& list) {
    if (list.empty()) throw fail(list);
    std::vector<std::int32_t> ids;
    ids.reserve(list.size());
    for (const json& id : list) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
        throw fail(id);
      }
      ids.push_back(id);
    }
    return ids;
  };
  if (value.is_string()) {
    texts.push_back(value);
    return;
  }
  if (!value.is_array() || value.empty()) throw fail(value);
  if (value.front().is_number()) {
    tokens.push_back(read_tokens(value));
    return;
  }
  if (value.size() > static_cast<std::size_t>(max_prompts)) {
    throw wrong_field(
        field, fmt::format("{} has {} entries; expected at most {}", field, value.size(), max_prompts));
  }
  for (const json& entry : value) {
    if (entry.is_string() && tokens.empty()) {
      texts.push_back(entry);
    } else if (entry.is_array() && texts.empty()) {
      tokens.push_back(read_tokens(entry));
    } else {
      throw fail(entry);
    }
  }
}

}  // namespace tessera::server
