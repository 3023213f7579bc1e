#include "model/chat/chat_template.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "model/jinja/json.h"
#include "model/jinja/template.h"
#include "model/tokenizer/tokenizer.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr std::array<std::string_view, 7> kRoles = {"system",    "user",     "assistant", "tool",
                                                    "developer", "function", "ipython"};
constexpr std::array<std::string_view, 3> kReasoningNames = {"reasoning_content", "thinking", "reasoning"};

[[noreturn]] void fail(std::string_view field, std::string_view what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("the chat's {}: {}", field, what));
}

Value parse(Heap& heap, std::string_view field, std::string_view json) {
  try {
    return jinja::parse_json(heap, json, /*foreign=*/true);
  } catch (const jinja::Failure& failure) {
    fail(field, failure.message);
  }
}

/// The messages as templates see them.
Value read_messages(Heap& heap, const std::string& json) {
  const Value messages = parse(heap, "messages", json);
  if (!messages.is(Kind::kList)) fail("messages", "expected a list");
  for (const Value& message : messages.sequence->items) {
    if (!message.is(Kind::kDict)) fail("messages", "each must be an object with a role and content");
    const Value* const role = message.dict->find("role");
    if (role == nullptr || !role->is(Kind::kString)) fail("messages", "each must have a role, a string");
    if (std::ranges::find(kRoles, role->view()) != kRoles.end()) {
      const std::string known(role->view());
      heap.set(*message.dict, heap.string("role"), heap.string(known));
    }
    for (const std::string_view name : kReasoningNames) {
      const Value* const found = message.dict->find(name);
      if (found == nullptr || found->is(Kind::kNone)) continue;
      const Value reasoning = *found;
      heap.set(*message.dict, heap.string("reasoning_content"), reasoning);
      if (message.dict->find("thinking") == nullptr)
        heap.set(*message.dict, heap.string("thinking"), reasoning);
      break;
    }
  }
  return messages;
}

const std::string& choose_template(const ChatTemplateData& data, const ChatRequest& request,
                                   std::string& name) {
  name = request.template_name;
  if (name.empty()) {
    name = !request.tools.empty() && data.templates.contains("tool_use") ? "tool_use" : "default";
  }
  const auto found = data.templates.find(name);
  if (found != data.templates.end()) return found->second;
  std::string names;
  for (const auto& [known, text] : data.templates)
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", known);
  throw Error(ErrorCode::kUnsupported,
              names.empty()
                  ? fmt::format("{} has no chat template; expected one in tokenizer_config.json, "
                                "chat_template.jinja or the GGUF metadata (text can be continued without)",
                                data.source)
                  : fmt::format("{} has no chat template called '{}'; it has {}", data.source, name, names));
}

}  // namespace

ChatText render_chat(const ChatTemplateData& data, const ChatRequest& request) {
  std::string name;
  const std::string& text = choose_template(data, request, name);
  const jinja::Template parsed(
      text, fmt::format("{}: chat template{}", data.source, name == "default" ? "" : " '" + name + "'"));
  Heap heap;
  std::vector<std::pair<std::string, Value>> variables;
  for (const auto& [token, spelling] : data.special_tokens)
    variables.emplace_back(token, heap.string(spelling));
  variables.emplace_back("messages", read_messages(heap, request.messages));
  variables.emplace_back("tools",
                         request.tools.empty() ? Value::none() : parse(heap, "tools", request.tools));
  if (!variables.back().second.is(Kind::kNone) && !variables.back().second.is(Kind::kList))
    fail("tools", "expected a list");
  variables.emplace_back("documents", Value::none());
  variables.emplace_back("add_generation_prompt", Value::of(request.add_generation_prompt));
  if (!request.variables.empty()) {
    const Value more = parse(heap, "variables", request.variables);
    if (!more.is(Kind::kDict)) fail("variables", "expected an object");
    for (const auto& [key, value] : more.dict->entries)
      variables.emplace_back(std::string(key.view()), value);
  }
  const jinja::MarkedText rendered = parsed.render(heap, variables);
  return {std::string(rendered.view()), rendered.foreign(), parsed.literals()};
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatText& chat) {
  EncodeOptions options;
  options.add_special_tokens = false;  // the template writes them
  options.plain = chat.foreign;
  options.control_text = chat.literals;
  return tokenizer.encode(chat.text, options);
}

}  // namespace tessera
