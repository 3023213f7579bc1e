#include "server/engine_model.h"

#include "server/completion_call.h"
#include "server/tool_calls.h"
#include "tessera/error.h"

namespace tessera::server {

std::vector<std::int32_t> EngineModel::encode_chat(const Conversation& conversation) const {
  ChatOptions options;
  options.tools = conversation.tools;
  options.variables = conversation.variables;
  const auto render = [&](const std::string& messages) {
    return model().render_chat_json(messages, options);
  };
  return model().encode_chat_json(messages_with_calls(conversation.messages, render), options);
}

const StructuredOutput& EngineModel::structured_output() const {
  std::call_once(made_structured_output_, [&] { structured_output_.emplace(model()); });
  return *structured_output_;
}

std::shared_ptr<TokenConstraint> EngineModel::json_schema_constraint(const std::string& schema) const {
  return structured_output().json_schema(schema);
}

std::shared_ptr<TokenConstraint> EngineModel::tool_call_constraint(const std::vector<Tool>& tools,
                                                                   bool parallel) const {
  const auto is_token = [&](std::string_view text) { return model().encode(text, false).size() == 1; };
  // The newer models of Mistral write a call's name outside of JSON.
  if (is_token(kMistralCalls) && is_token(kMistralArguments)) return nullptr;
  std::vector<Tool> held = tools;
  for (Tool& tool : held) {
    try {
      json_schema_constraint(tool_call_schema({tool}));
    } catch (const Error&) {
      tool.parameters.clear();  // what can't be promised of its arguments is left to the model
    }
  }
  if (is_token(kMistralCalls)) {
    return structured_output().json_between(kMistralCalls, tool_call_list_schema(held, parallel ? 0 : 1), "");
  }
  return structured_output().json_between(kToolCallOpen, tool_call_schema(held), kToolCallClose);
}

}  // namespace tessera::server
