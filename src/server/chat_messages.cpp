// Messages of OpenAI's API in the form that chat templates were written for.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "core/json_parse.h"
#include "server/completion_call.h"
#include "server/fields.h"
#include "server/request_error.h"
#include "tessera/error.h"

namespace tessera::server {

using json = nlohmann::ordered_json;

namespace {

/// A message's text: a string, or a list of parts, of which only text can be read.
json text_content(const json& content, const std::string& path) {
  if (content.is_string() || content.is_null()) return content;
  if (!content.is_array()) {
    throw wrong_field(path,
                      fmt::format("{} is {}; expected a string or a list of parts", path, shown(content)));
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string part_path = fmt::format("{}[{}]", path, i);
    const Fields part(content[i], part_path);
    const std::string type = part.text("type").value_or("");
    if (type != "text") {
      throw unsupported_field(part_path + ".type",
                              fmt::format("{}.type is {}; only parts of type \"text\" are supported",
                                          part_path, shown(json(type))));
    }
    const auto piece = part.text("text");
    if (!piece) throw wrong_field(part_path + ".text", part_path + ".text is missing");
    if (i > 0) text += '\n';
    text += *piece;
  }
  return text;
}

/// Clients keep a call's arguments as a text, templates want the object in it.
void open_arguments(json& calls, const std::string& path) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string call_path = fmt::format("{}[{}]", path, i);
    const Fields call(calls[i], call_path);
    const json* function = call.object("function");
    if (function == nullptr) throw wrong_field(call_path + ".function", call_path + ".function is missing");
    const Fields inner(*function, call_path + ".function");
    if (!inner.text("name")) throw wrong_field(inner.path_of("name"), inner.path_of("name") + " is missing");
    const auto arguments = inner.find("arguments");
    if (arguments == nullptr || !arguments->is_string()) continue;
    try {
      json opened = parse_json_bounded(arguments->get_ref<const std::string&>(), inner.path_of("arguments"));
      if (opened.is_object()) calls[i]["function"]["arguments"] = std::move(opened);
    } catch (const Error&) {
      // Text that is no JSON, which a model may have written, stays text.
    }
  }
}

/// Messages as templates differ in wanting them: none for the content of those that only call tools, and the
/// arguments of calls as texts.
json variant_of(json messages, bool none_for_empty, bool text_arguments) {
  for (json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end()) continue;
    if (none_for_empty && message["content"] == "") message["content"] = nullptr;
    for (json& call : *calls) {
      const auto arguments = call["function"].find("arguments");
      if (text_arguments && arguments != call["function"].end() && arguments->is_object())
        *arguments = dump(*arguments);
    }
  }
  return messages;
}

std::size_t count_of(std::string_view text, std::string_view word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + word.size())) ++count;
  return count;
}

}  // namespace

std::string messages_with_calls(const std::string& messages,
                                const std::function<std::string(const std::string&)>& render) {
  constexpr std::size_t kMostNames = 8;  // they only have to tell variants apart
  const json list = json::parse(messages);
  std::set<std::string> names;
  bool has_calls = false, has_empty = false;
  for (const json& message : list) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end()) continue;
    has_calls = true;
    has_empty = has_empty || message["content"] == "";
    for (const json& call : *calls) {
      const std::string name = call["function"]["name"];
      if (!name.empty() && names.size() < kMostNames) names.insert(name);
    }
  }
  if (!has_calls) return messages;
  std::string best = messages;
  std::optional<std::size_t> most;
  bool fails = false;
  for (const bool text_arguments : {false, true}) {
    if (text_arguments && !fails) break;
    for (const bool none_for_empty : {false, true}) {
      if (none_for_empty && !has_empty) break;
      const std::string variant = dump(variant_of(list, none_for_empty, text_arguments));
      try {
        const std::string text = render(variant);
        std::size_t count = 0;
        for (const std::string& name : names) count += count_of(text, name);
        if (most && count <= *most) continue;
        most = count;
        best = variant;
      } catch (const Error&) {  // another may be what the template wants; if none is, the first says why
        fails = true;
      }
    }
  }
  return best;
}

std::string normalized_messages(const json& messages) {
  if (messages.empty()) throw wrong_field("messages", "messages is empty; expected at least one message");
  json list = messages;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    json& message = list[i];
    const Fields fields(message, path);
    // Templates ask whether a field is there, and clients send an answer back with all that it might have
    // had.
    for (auto field = message.begin(); field != message.end();) {
      const bool says_nothing =
          field->is_null() || (field.key() == "tool_calls" && field->is_array() && field->empty());
      field = says_nothing ? message.erase(field) : std::next(field);
    }
    const auto role = fields.text("role");
    if (!role || role->empty() || role->size() > 64) {
      throw wrong_field(path + ".role",
                        fmt::format("{}.role is {}; expected \"system\", \"user\", \"assistant\" or \"tool\"",
                                    path, role ? shown(json(*role)) : "missing"));
    }
    if (*role == "developer") message["role"] = "system";
    const bool has_calls = fields.find("tool_calls") != nullptr;
    if (!message.contains("content")) {
      if (!has_calls) throw wrong_field(path + ".content", path + ".content is missing");
      message["content"] = "";
    } else {
      message["content"] = text_content(message["content"], path + ".content");
    }
    if (has_calls) {
      fields.list("tool_calls");
      open_arguments(message["tool_calls"], path + ".tool_calls");
    }
  }
  return dump(list);
}

}  // namespace tessera::server
