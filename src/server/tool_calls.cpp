#include "server/tool_calls.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/json_parse.h"
#include "tessera/error.h"

namespace tessera::server {

using json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// How many bytes at the end of `text` may be the beginning of `word`.
std::size_t overlap(std::string_view text, std::string_view word) {
  std::size_t length = std::min(text.size(), word.size() - 1);
  while (length > 0 && !text.ends_with(word.substr(0, length))) --length;
  return length;
}

/// Makes references within a schema lead to the same places after it has moved to `where` of another
/// document. What stands for itself (a constant, an example) is left as it is.
void move_references(json& schema, const std::string& where) {
  if (schema.is_array()) {
    for (json& part : schema) move_references(part, where);
  }
  if (!schema.is_object()) return;
  for (auto member = schema.begin(); member != schema.end(); ++member) {
    const std::string& keyword = member.key();
    json& value = member.value();
    if (keyword == "$ref" && value.is_string()) {
      const std::string target = value;
      if (target == "#" || target.starts_with("#/")) value = where + target.substr(1);
    } else if (keyword == "properties" || keyword == "patternProperties" || keyword == "$defs" ||
               keyword == "definitions") {
      // Of names, whatever these are, with schemas.
      if (!value.is_object()) continue;
      for (json& part : value) move_references(part, where);
    } else if (keyword != "const" && keyword != "enum" && keyword != "default" && keyword != "examples") {
      move_references(value, where);
    }
  }
}

}  // namespace

std::string tool_call_schema(const std::vector<Tool>& tools) {
  json alternatives = json::array();
  for (const Tool& tool : tools) {
    json arguments = {{"type", "object"}};
    if (!tool.parameters.empty()) arguments = json::parse(tool.parameters);
    if (!arguments.contains("type")) arguments["type"] = "object";
    const std::string place = tools.size() == 1 ? "#" : fmt::format("#/anyOf/{}", alternatives.size());
    move_references(arguments, place + "/properties/arguments");
    alternatives.push_back({{"type", "object"},
                            {"properties", {{"name", {{"const", tool.name}}}, {"arguments", arguments}}},
                            {"required", {"name", "arguments"}},
                            {"additionalProperties", false}});
  }
  const json schema = alternatives.size() == 1 ? alternatives[0] : json{{"anyOf", alternatives}};
  return schema.dump(-1, ' ', false, json::error_handler_t::replace);
}

ToolCallReader::ToolCallReader(const std::vector<Tool>& tools, ToolChoice choice, bool parallel)
    : tools_(tools), choice_(choice), parallel_(parallel) {}

bool ToolCallReader::read_call(const std::string& text) {
  if (!parallel_ && !calls_.empty()) return false;
  json call;
  try {
    parse_json_bounded(text, "a tool call");
    call = json::parse(text);
  } catch (const Error&) {
    return false;
  }
  if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return false;
  const char* key = call.contains("arguments") ? "arguments" : "parameters";
  if (!call.contains(key) || !call[key].is_object()) return false;
  const std::string name = call["name"];
  if (std::ranges::none_of(tools_, [&](const Tool& tool) { return tool.name == name; })) return false;
  calls_.push_back({name, call[key].dump(-1, ' ', false, json::error_handler_t::replace)});
  return true;
}

std::string ToolCallReader::push(const std::string& piece) {
  held_ += piece;
  if (choice_ != ToolChoice::kAuto) return {};
  std::string out;
  for (;;) {
    // A text that opens with a brace may be a call as a whole.
    const std::string_view text = trimmed(held_);
    if (!begun_ && (text.empty() || text.front() == '{')) return out;
    const std::size_t open = held_.find(kOpen);
    if (open == held_.npos) {
      const std::size_t kept = overlap(held_, kOpen);
      // White space before a call is no text of its own.
      std::size_t end = held_.size() - kept;
      while (end > 0 && kSpace.find(held_[end - 1]) != kSpace.npos) --end;
      out += held_.substr(0, end);
      held_.erase(0, end);
      begun_ = begun_ || end > 0;
      return out;
    }
    const std::size_t close = held_.find(kClose, open);
    if (close == held_.npos) return out;
    const std::string before = held_.substr(0, open);
    const std::string inside = held_.substr(open + kOpen.size(), close - open - kOpen.size());
    if (read_call(inside)) {
      if (!trimmed(before).empty()) out += before;
    } else {
      out += held_.substr(0, close + kClose.size());
    }
    held_.erase(0, close + kClose.size());
    begun_ = true;
  }
}

std::string ToolCallReader::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  if (trimmed(rest).empty()) return calls_.empty() ? rest : std::string();
  if (!begun_ && read_call(rest)) return {};
  return rest;
}

}  // namespace tessera::server
