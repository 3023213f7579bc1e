#include "server/engine_model.h"

namespace tessera::server {

std::vector<std::int32_t> EngineModel::encode_chat(const Conversation& conversation) const {
  ChatOptions options;
  options.tools = conversation.tools;
  options.variables = conversation.variables;
  return model().encode_chat_json(conversation.messages, options);
}

std::shared_ptr<TokenConstraint> EngineModel::json_schema_constraint(const std::string& schema) const {
  std::call_once(made_structured_output_, [&] { structured_output_.emplace(model()); });
  return structured_output_->json_schema(schema);
}

}  // namespace tessera::server
