#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/served_model.h"
#include "tessera/engine.h"

namespace tessera::server {

/// What a server sets for all requests.
struct CallDefaults {
  std::string model_name;             ///< the one that requests may name
  SamplingOptions sampling;           ///< where a request says nothing
  std::optional<std::uint64_t> seed;  ///< where a request has none; none: another each time
  int max_choices = 16;               ///< of one request: prompts times n
};

/// Whether the model has to call tools. kOne: the one that is left in `tools`.
enum class ToolChoice { kNone, kAuto, kRequired, kOne };

/// A request for generated text, /v1/completions or /v1/chat/completions, read and checked, but not yet
/// tokens.
struct CompletionCall {
  bool chat = false;
  std::string model;  ///< as answers name it

  std::vector<std::string> texts;                 ///< prompts of /v1/completions, or
  std::vector<std::vector<std::int32_t>> tokens;  ///< the same as tokens
  Conversation conversation;                      ///< of a chat

  /// Of every choice; seeds count up from choice to choice. Without its prompt.
  Request request;
  /// None: what is left of the context.
  std::optional<std::int64_t> max_tokens;
  int n = 1;
  bool echo = false;  ///< the answer begins with the prompt
  bool stream = false;
  bool include_usage = false;  ///< in a stream's last chunk
  std::string json_schema;     ///< of response_format; empty: any text

  std::vector<Tool> tools;
  ToolChoice tool_choice = ToolChoice::kNone;
  bool parallel_tool_calls = true;
};

/// Both throw RequestError; unknown fields are ignored.
CompletionCall parse_chat_completion(const nlohmann::ordered_json& body, const CallDefaults& defaults);
CompletionCall parse_completion(const nlohmann::ordered_json& body, const CallDefaults& defaults);
/// What of a chat completion's body makes its prompt.
Conversation parse_conversation(const nlohmann::ordered_json& body);

/// Messages as templates read them: parts of text joined, arguments of tool calls as objects, "developer" as
/// "system". Throws RequestError.
std::string normalized_messages(const nlohmann::ordered_json& messages);

/// Normalised messages as a template wants them that writes their tool calls. DeepSeek's write those of a
/// message only if its content is none, and their arguments only if they are texts; others fail for either.
/// What `render` mentions the tools in most often is taken, and of equals what is closest to `messages`.
std::string messages_with_calls(const std::string& messages,
                                const std::function<std::string(const std::string&)>& render);

/// The field "model" if it is a name that is served here; else RequestError 404.
std::string check_model_name(const nlohmann::ordered_json& body, const CallDefaults& defaults);

/// Prompts of completions and embeddings: a text, tokens, or a list of either. Throws RequestError.
void parse_prompts(const nlohmann::ordered_json& value, const std::string& field, int max_prompts,
                   std::vector<std::string>& texts, std::vector<std::vector<std::int32_t>>& tokens);

}  // namespace tessera::server
