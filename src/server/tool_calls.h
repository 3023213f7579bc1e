#pragma once

#include <string>
#include <vector>

#include "server/completion_call.h"

namespace tessera::server {

struct ToolCall {
  std::string name;
  std::string arguments;  ///< a JSON object
};

/// The JSON Schema of a text that is one call of one of `tools`: {"name": …, "arguments": {…}}.
std::string tool_call_schema(const std::vector<Tool>& tools);

/// Finds calls in a generated text. With a choice that requires a call the whole text is one, by grammar.
/// With kAuto a call is what stands between <tool_call> and </tool_call>, or is the whole text, is JSON, and
/// has the name of a tool; anything else stays text. Calls come out whole.
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

  std::vector<Tool> tools_;
  ToolChoice choice_;
  bool parallel_;
  bool begun_ = false;  ///< something other than white space was given out
  std::string held_;    ///< may be a call
  std::vector<ToolCall> calls_;
};

}  // namespace tessera::server
