#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/completion_call.h"
#include "server/request_error.h"
#include "server/tool_calls.h"
#include "tessera/engine.h"

namespace tessera::server {

/// A prompt that the answer begins with.
struct EchoedPrompt {
  std::string text;
  std::vector<std::int32_t> tokens;
};

/// Counts the characters of a text that comes in pieces, which may end within one. A byte that is no part of
/// any is one, too, since U+FFFD stands for it.
struct CharacterCount {
  std::size_t characters = 0;  ///< that have begun
  int missing_bytes = 0;       ///< of the last one

  void add(std::string_view bytes);
};

/// Makes the answer to a completion out of the engine's events: the chunks of a stream, or one document.
class CompletionAnswer {
 public:
  struct Identity {
    std::string id;            ///< "chatcmpl-…"
    std::int64_t created = 0;  ///< seconds since 1970
  };

  /// token_bytes gives a token's bytes, for log-probabilities. call_marks: control tokens that stand for a
  /// mark of calls, such as kToolCallOpen, which texts lack.
  CompletionAnswer(std::shared_ptr<const CompletionCall> call, Identity identity, int num_choices,
                   std::function<std::string(std::int32_t)> token_bytes,
                   std::map<std::int32_t, std::string> call_marks = {});

  /// The first chunks of a stream; `echo` has the prompts if they are wanted back, one a choice. With
  /// log-probabilities they come with a choice's first event.
  std::string begin(std::vector<EchoedPrompt> echo);
  /// Takes an event of a choice; returns what a stream sends now, which may be nothing. An event of type
  /// kError must not come here.
  std::string add(int choice, const Event& event);
  bool finished() const { return num_finished_ == static_cast<int>(choices_.size()); }
  /// Once it is finished: what ends a stream.
  std::string end() const;
  /// Once it is finished: the whole answer of a call that doesn't stream.
  std::string body() const;

  std::int64_t prompt_tokens() const;
  std::int64_t cached_tokens() const;
  std::int64_t generated_tokens() const;

 private:
  struct ScoredToken {
    std::int32_t token = 0;
    std::optional<float> logprob;  ///< none of a prompt's first token
    std::vector<TokenLogprob> top_logprobs;
    std::size_t text_offset = 0;  ///< characters of the answer before it
  };
  struct Choice {
    std::string text;                  ///< of an answer that doesn't stream
    std::optional<EchoedPrompt> echo;  ///< that is yet to come
    std::unique_ptr<ToolCallReader> tool_calls;
    std::vector<ToolCall> calls;
    std::vector<ScoredToken> tokens;  ///< with log-probabilities: those whose text is yet to come, or all
    std::string finish_reason;
    GenerationStats stats;
    CharacterCount text_so_far;  ///< the prompt that is wanted back and all tokens
  };

  void score_prompt(Choice& choice, const EchoedPrompt& prompt,
                    const std::vector<PromptLogprob>& logprobs) const;
  nlohmann::ordered_json logprobs(const std::vector<ScoredToken>& tokens) const;
  nlohmann::ordered_json usage() const;
  nlohmann::ordered_json document(const char* object) const;
  std::string chunk(int choice, const std::string& delta, const nlohmann::ordered_json* logprobs,
                    const std::string& finish_reason) const;
  std::string text_chunk(int choice, const std::string& text);

  std::shared_ptr<const CompletionCall> call_;
  Identity identity_;
  std::function<std::string(std::int32_t)> token_bytes_;
  std::map<std::int32_t, std::string> call_marks_;
  std::string chunk_head_;  ///< of every chunk, up to its choices
  std::vector<Choice> choices_;
  int num_finished_ = 0;
};

/// `data: …\n\n` of an error in mid-stream.
std::string error_event(const ApiError& error);

/// What a failed request's client is told.
ApiError api_error(ErrorCode code, const std::string& message);

/// A text as a JSON string; bytes that are no UTF-8 become U+FFFD.
std::string json_string(const std::string& text);

}  // namespace tessera::server
