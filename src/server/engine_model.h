#pragma once

#include <mutex>
#include <optional>

#include "server/served_model.h"
#include "tessera/engine.h"
#include "tessera/structured_output.h"

namespace tessera::server {

/// A model with its engine.
class EngineModel final : public ServedModel {
 public:
  EngineModel(Model model, const EngineOptions& options) : engine_(std::move(model), options) {}

  const ModelInfo& info() const override { return model().info(); }
  std::int64_t max_seq_len() const override { return engine_.options().max_seq_len; }
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) const override {
    return model().encode(text, add_special_tokens);
  }
  std::vector<std::int32_t> encode_chat(const Conversation& conversation) const override;
  std::string decode(std::span<const std::int32_t> tokens, bool skip_special_tokens) const override {
    return model().decode(tokens, skip_special_tokens);
  }
  std::string token_bytes(std::int32_t token) const override { return model().token_bytes(token); }
  std::shared_ptr<TokenConstraint> json_schema_constraint(const std::string& schema) const override;
  std::shared_ptr<TokenConstraint> tool_call_constraint(const std::vector<Tool>& tools,
                                                        bool parallel) const override;

  RequestId submit(Request request) override { return engine_.submit(std::move(request)); }
  RequestId submit(EmbeddingRequest request) override { return engine_.submit(std::move(request)); }
  RequestId submit(AttentionRequest request) override { return engine_.submit(std::move(request)); }
  bool cancel(RequestId id) override { return engine_.cancel(id); }
  std::vector<Event> step() override { return engine_.step(); }
  bool wait(std::chrono::milliseconds timeout) override { return engine_.wait(timeout); }
  void wake() override { engine_.wake(); }
  EngineStats stats() const override { return engine_.stats(); }

 private:
  const Model& model() const { return engine_.model(); }
  const StructuredOutput& structured_output() const;

  Engine engine_;
  mutable std::once_flag made_structured_output_;
  mutable std::optional<StructuredOutput> structured_output_;  // made when first asked for
};

}  // namespace tessera::server
