#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/completion_call.h"

namespace tessera::server {

struct ToolCall {
  std::string name;
  std::string arguments;  ///< a JSON object
};

/// What calls stand between in the texts of models that were trained so.
inline constexpr std::string_view kToolCallOpen = "<tool_call>";
inline constexpr std::string_view kToolCallClose = "</tool_call>";
/// What Mistral's models write before a list of calls, and the newer ones between a call's name and
/// arguments, some with an id before that. These are control tokens, which an answer's text usually lacks.
inline constexpr std::string_view kMistralCalls = "[TOOL_CALLS]";
inline constexpr std::string_view kMistralArguments = "[ARGS]";
inline constexpr std::string_view kMistralCallId = "[CALL_ID]";

/// The JSON Schema of a text that is one call of one of `tools`: {"name": …, "arguments": {…}}.
std::string tool_call_schema(const std::vector<Tool>& tools);
/// Of one that is a list of calls, of at most `max_calls` unless that is 0.
std::string tool_call_list_schema(const std::vector<Tool>& tools, int max_calls);
/// Of one that is such a call or fits `response_schema`.
std::string tool_call_or_response_schema(const std::vector<Tool>& tools, const std::string& response_schema);

/// Finds calls in a generated text. With a choice that requires a call the whole text is one, by grammar.
/// With kAuto a call is what stands between <tool_call> and </tool_call>, or the whole text is one, or
/// several as Mistral's models write them: [{"name": …, "arguments": {…}}, …], or NAME{…}, with or without
/// the control tokens. What follows [TOOL_CALLS] may be such calls behind any text. Calls are JSON and have
/// the name of a tool; anything else stays text. They come out whole.
class ToolCallReader {
 public:
  ToolCallReader(const std::vector<Tool>& tools, ToolChoice choice, bool parallel);

  /// Text of the answer, now that `piece` is known: what is certainly no call.
  std::string push(const std::string& piece);
  /// The rest of the text, at its end.
  std::string finish();
  std::vector<ToolCall> take_calls() { return std::move(calls_); }

 private:
  bool read_call(const std::string& text);
  bool may_be_calls(std::string_view text) const;
  bool read_whole_text(std::string_view text);

  std::vector<Tool> tools_;
  ToolChoice choice_;
  bool parallel_;
  bool begun_ = false;  ///< something other than white space was given out
  std::string held_;    ///< may be a call
  std::vector<ToolCall> calls_;
};

}  // namespace tessera::server
