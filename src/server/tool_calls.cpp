#include "server/tool_calls.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/json_parse.h"
#include "server/fields.h"
#include "tessera/error.h"

namespace tessera::server {

using json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// The end of what is left of text[0, end): white space before a call is no text of its own.
std::size_t without_space(std::string_view text, std::size_t end) {
  return text.substr(0, end).find_last_not_of(kSpace) + 1;
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

namespace {

json call_of(const Tool& tool, const std::string& where) {
  json arguments = {{"type", "object"}};
  if (!tool.parameters.empty()) arguments = json::parse(tool.parameters);
  arguments["type"] = "object";  // the others that it may name are no arguments
  move_references(arguments, where + "/properties/arguments");
  return {{"type", "object"},
          {"properties", {{"name", {{"const", tool.name}}}, {"arguments", arguments}}},
          {"required", {"name", "arguments"}},
          {"additionalProperties", false}};
}

/// A call of one of `tools`, as a schema that stands at `where` of a document.
json call_of_any(const std::vector<Tool>& tools, const std::string& where) {
  if (tools.size() == 1) return call_of(tools[0], where);
  json alternatives = json::array();
  for (const Tool& tool : tools) {
    alternatives.push_back(call_of(tool, fmt::format("{}/anyOf/{}", where, alternatives.size())));
  }
  return {{"anyOf", alternatives}};
}

/// How many bytes the JSON object has that `text` begins with; 0 if it is not whole.
std::size_t object_size(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return 0;
}

/// Of calls: what reads JSON by recursion, in the library or at the client, has this much room.
constexpr int kMaxCallDepth = 500;

/// JSON with numbers that any reader can hold in place of those that fp64 can't: of integers the first
/// digits, and exponents of 0. What is no JSON stays none.
std::string with_short_numbers(std::string_view text) {
  constexpr int kMaxDigits = 100;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto add_digits = [&](int most) {
      for (int n = 0; i < text.size() && is_digit(text[i]); ++i, ++n) {
        if (n < most) out += most == 1 ? '0' : text[i];
      }
    };
    if (text[i] == '"') {
      do {
        if (text[i] == '\\' && i + 1 < text.size()) out += text[i++];
        out += text[i++];
      } while (i < text.size() && text[i] != '"');
      if (i < text.size()) out += text[i++];
    } else if (is_digit(text[i])) {
      add_digits(kMaxDigits);
      if (i + 1 < text.size() && text[i] == '.') {
        out += text[i++];
        add_digits(kMaxDigits);
      }
      if (i + 1 < text.size() && (text[i] == 'e' || text[i] == 'E')) {
        out += text[i++];
        if (i < text.size() && (text[i] == '+' || text[i] == '-')) out += text[i++];
        add_digits(1);
      }
    } else {
      out += text[i++];
    }
  }
  return out;
}

/// What a model wrote, or a discarded value for what is no JSON or too deep. Of a key that stands twice,
/// which no grammar here rules out among keys that may be any, the last counts, as it does for most readers.
json parse_written(std::string_view text) {
  // The library takes a zero byte for the end of the text.
  if (text.find('\0') != text.npos) return json(json::value_t::discarded);
  bool is_too_deep = false;
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    is_too_deep = is_too_deep || depth > kMaxCallDepth;
    return !is_too_deep;
  };
  json value = json::parse(text, check_depth, /*allow_exceptions=*/false);
  return is_too_deep ? json(json::value_t::discarded) : value;
}

/// The last member called `name` of an object that is valid JSON, as it is written but for white space: who
/// reads its numbers may round them. Empty if there is none.
std::string member_text(std::string_view object, std::string_view name) {
  std::string found, key, value;
  int depth = 1;
  bool in_string = false, in_value = false;
  for (std::size_t i = object.find('{') + 1; i < object.size() && depth > 0; ++i) {
    const char c = object[i];
    std::string& part = in_value ? value : key;
    if (in_string) {
      part += c;
      if (c == '\\') part += object[++i];
      in_string = c != '"';
      continue;
    }
    if (kSpace.find(c) != kSpace.npos) continue;
    in_string = c == '"';
    if (c == '}' || c == ']') --depth;
    if (depth == 0 || (depth == 1 && c == ',')) {
      if (key == fmt::format("\"{}\"", name)) found = value;
      key.clear();
      value.clear();
      in_value = false;
    } else if (depth == 1 && c == ':') {
      in_value = true;
    } else {
      part += c;
    }
    if (c == '{' || c == '[') ++depth;
  }
  return found;
}

/// Without `word`, and white space before and behind it, where it begins with that.
std::string_view without(std::string_view text, std::string_view word) {
  const std::string_view begun = trimmed(text);
  return begun.starts_with(word) ? trimmed(begun.substr(word.size())) : begun;
}

}  // namespace

std::string tool_call_schema(const std::vector<Tool>& tools) { return dump(call_of_any(tools, "#")); }

std::string tool_call_list_schema(const std::vector<Tool>& tools, int max_calls) {
  json schema = {{"type", "array"}, {"items", call_of_any(tools, "#/items")}, {"minItems", 1}};
  if (max_calls > 0) schema["maxItems"] = max_calls;
  return dump(schema);
}

std::string tool_call_or_response_schema(const std::vector<Tool>& tools, const std::string& response_schema) {
  json response = json::parse(response_schema);
  move_references(response, "#/anyOf/1");
  return dump({{"anyOf", {call_of_any(tools, "#/anyOf/0"), response}}});
}

ToolCallReader::ToolCallReader(const std::vector<Tool>& tools, ToolChoice choice, bool parallel)
    : tools_(tools), choice_(choice), parallel_(parallel) {}

bool ToolCallReader::read_call(const std::string& text) {
  json call = parse_written(text);
  const bool has_long_numbers = call.is_discarded();  // or is no JSON
  if (has_long_numbers) call = parse_written(with_short_numbers(text));
  if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return false;
  const char* key = call.contains("arguments") ? "arguments" : "parameters";
  if (!call.contains(key) || !call[key].is_object()) return false;
  const std::string name = call["name"];
  if (std::ranges::none_of(tools_, [&](const Tool& tool) { return tool.name == name; })) return false;
  if (!parallel_ && !calls_.empty()) return true;  // one more than is wanted
  std::string arguments = member_text(text, key);
  try {
    parse_json_bounded(with_short_numbers(arguments), "a tool call", {.max_depth = kMaxCallDepth});
  } catch (const Error&) {
    if (has_long_numbers) return false;  // of which only their text is known
    arguments = dump(call[key]);         // keys stand twice in it, or its own name has escapes
  }
  calls_.push_back({name, std::move(arguments)});
  return true;
}

/// Whether a text that begins so, without white space before it, may be calls as a whole.
bool ToolCallReader::may_be_calls(std::string_view text) const {
  if (text.empty() || text.front() == '{' || text.front() == '[') return true;
  return std::ranges::any_of(tools_, [&](const Tool& tool) {
    const std::string begun = tool.name + '{';
    return text.starts_with(begun) || text.starts_with(tool.name + std::string(kMistralArguments)) ||
           std::string_view(begun).starts_with(text) ||
           (text.starts_with(tool.name) && kMistralArguments.starts_with(text.substr(tool.name.size())));
  });
}

/// Takes the calls that a whole text is, or returns false.
bool ToolCallReader::read_whole_text(std::string_view text) {
  const std::vector<ToolCall> before = calls_;
  const auto give_up = [&] {
    calls_ = before;
    return false;
  };
  text = without(text, kMistralCalls);
  if (text.starts_with('{')) return read_call(std::string(text));
  if (text.starts_with('[')) {
    const json list = parse_written(with_short_numbers(text));
    if (!list.is_array()) return false;
    text.remove_prefix(1);
    for (const json& call : list) {
      if (!call.is_object()) return give_up();
      text.remove_prefix(text.find('{'));
      const std::size_t size = object_size(text);
      if (!read_call(std::string(text.substr(0, size)))) return give_up();
      text.remove_prefix(size);
    }
    return !list.empty();
  }
  bool any = false;
  while (!text.empty()) {
    const std::size_t brace = text.find_first_of("{[");
    const std::string_view name = trimmed(text.substr(0, brace));
    if (name.empty() || brace == text.npos) return give_up();
    text.remove_prefix(brace);
    if (text.starts_with(kMistralCallId)) {  // the model's own, which the answer has others for
      text.remove_prefix(std::min(text.find(kMistralArguments), text.size()));
    }
    const std::string_view arguments = without(text, kMistralArguments);
    const std::size_t size = arguments.starts_with('{') ? object_size(arguments) : 0;
    if (size == 0 || !read_call(fmt::format("{{\"name\":{},\"arguments\":{}}}", dump(json(name)),
                                            arguments.substr(0, size)))) {
      return give_up();
    }
    text = without(arguments.substr(size), kMistralCalls);
    any = true;
  }
  return any;
}

std::string ToolCallReader::push(const std::string& piece) {
  held_ += piece;
  if (choice_ != ToolChoice::kAuto) return {};
  std::string out;
  for (;;) {
    if (!begun_ && may_be_calls(trimmed(held_))) return out;
    const std::size_t list = held_.find(kMistralCalls);  // from there on all is calls
    const std::size_t open = std::string_view(held_).substr(0, list).find(kToolCallOpen);
    if (open == held_.npos) {
      const std::size_t kept = std::max(overlap(held_, kToolCallOpen), overlap(held_, kMistralCalls));
      const std::size_t end = without_space(held_, list == held_.npos ? held_.size() - kept : list);
      out += held_.substr(0, end);
      held_.erase(0, end);
      begun_ = begun_ || end > 0;
      return out;
    }
    const std::size_t close = held_.find(kToolCallClose, open);
    if (close == held_.npos) return out;
    const std::string before = held_.substr(0, open);
    const std::string inside = held_.substr(open + kToolCallOpen.size(), close - open - kToolCallOpen.size());
    if (read_call(inside)) {
      if (!trimmed(before).empty()) out += before;
    } else {
      out += held_.substr(0, close + kToolCallClose.size());
    }
    held_.erase(0, close + kToolCallClose.size());
    begun_ = true;
  }
}

std::string ToolCallReader::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  if (trimmed(rest).empty()) return calls_.empty() ? rest : std::string();
  if (!begun_ && read_whole_text(rest)) return {};
  const std::size_t calls = choice_ == ToolChoice::kAuto ? rest.find(kMistralCalls) : rest.npos;
  if (calls != rest.npos && read_whole_text(std::string_view(rest).substr(calls))) {
    rest.erase(without_space(rest, calls));
  }
  return rest;
}

}  // namespace tessera::server
