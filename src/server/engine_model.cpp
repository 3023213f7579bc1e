#include "server/engine_model.h"

namespace tessera::server {

std::vector<std::int32_t> EngineModel::encode_chat(const Conversation& conversation) const {
  ChatOptions options;
  options.tools = conversation.tools;
  options.variables = conversation.variables;
  return model().encode_chat_json(conversation.messages, options);
}

std::shared_ptr<TokenConstraint> EngineModel::json_schema_constraint(const std::string&) const {
  throw Error(ErrorCode::kUnsupported, "text held to a JSON Schema is not supported yet");
}

}  // namespace tessera::server
