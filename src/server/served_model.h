#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/engine.h"
#include "tessera/model.h"

namespace tessera::server {

/// A conversation as JSON, as OpenAI's API has it.
struct Conversation {
  std::string
      messages;       ///< a list of objects with "role" and "content" (a string or null) and further fields
  std::string tools;  ///< a list; empty: none
  std::string variables;  ///< an object with further variables of the template; empty: none
};

/// A tool that the model may call.
struct Tool {
  std::string name;
  std::string parameters;  ///< JSON Schema of its arguments; empty: any object
};

/// What the server serves: a model with its engine, or something scripted in tests. All but step may be
/// called from any thread at any time, also while another is within step.
class ServedModel {
 public:
  virtual ~ServedModel() = default;

  virtual const ModelInfo& info() const = 0;
  /// Tokens that a sequence may take.
  virtual std::int64_t max_seq_len() const = 0;
  /// Throw as the functions of Model do.
  virtual std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) const = 0;
  virtual std::vector<std::int32_t> encode_chat(const Conversation& conversation) const = 0;
  virtual std::string decode(std::span<const std::int32_t> tokens, bool skip_special_tokens) const = 0;
  virtual std::string token_bytes(std::int32_t token) const = 0;
  /// What holds a text to a JSON Schema. Throws Error{kUnsupported} that names what it can't do, and
  /// Error{kInvalidArgument} for what is no schema.
  virtual std::shared_ptr<TokenConstraint> json_schema_constraint(const std::string& schema) const = 0;
  /// What holds the calls of tools in a text that need not have any to their tools' schemas, from where they
  /// begin on; null if the model's way to write calls is not one that can be held.
  virtual std::shared_ptr<TokenConstraint> tool_call_constraint(const std::vector<Tool>& tools,
                                                                bool parallel) const = 0;

  // As in Engine.
  virtual RequestId submit(Request request) = 0;
  virtual RequestId submit(EmbeddingRequest request) = 0;
  virtual RequestId submit(AttentionRequest request) = 0;
  virtual bool cancel(RequestId id) = 0;
  virtual std::vector<Event> step() = 0;
  virtual bool wait(std::chrono::milliseconds timeout) = 0;
  virtual void wake() = 0;
  virtual EngineStats stats() const = 0;
};

}  // namespace tessera::server
