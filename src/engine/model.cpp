#include "tessera/model.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/loaded_model.h"
#include "model/random_checkpoint.h"
#include "tessera/error.h"

namespace tessera {
namespace {

ChatRequest chat_request(std::string messages, const ChatOptions& options) {
  ChatRequest request;
  request.messages = std::move(messages);
  request.tools = options.tools;
  request.variables = options.variables;
  request.add_generation_prompt = options.add_generation_prompt;
  request.template_name = options.template_name;
  return request;
}

std::string json_of(std::span<const ChatMessage> messages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

Model Model::load(const std::filesystem::path& path, const LoadOptions& options) {
  return Model(std::make_shared<LoadedModel>(open_checkpoint(path), nullptr, options));
}

Model Model::random(const RandomModelShape& shape, DType weight_dtype, const LoadOptions& options) {
  LoadedModel::require_device(options);  // a missing device is an error before memory is filled
  RandomCheckpoint random = make_random_checkpoint(shape, weight_dtype);
  return Model(
      std::make_shared<LoadedModel>(std::move(random.checkpoint), std::move(random.memory), options));
}

Model Model::random(const RandomModelShape& shape, std::string_view mix, const LoadOptions& options) {
  LoadedModel::require_device(options);
  RandomCheckpoint random = make_random_checkpoint(shape, mix);
  return Model(
      std::make_shared<LoadedModel>(std::move(random.checkpoint), std::move(random.memory), options));
}

Model Model::random_like(const std::filesystem::path& config_json, std::string_view type,
                         const LoadOptions& options) {
  LoadedModel::require_device(options);
  RandomCheckpoint random = make_random_checkpoint(config_json, type);
  return Model(
      std::make_shared<LoadedModel>(std::move(random.checkpoint), std::move(random.memory), options));
}

const ModelInfo& Model::info() const { return loaded_->info(); }

std::vector<std::int32_t> Model::encode(std::string_view text, bool add_special_tokens) const {
  return loaded_->require_tokenizer().encode(text, {.add_special_tokens = add_special_tokens});
}

std::string Model::decode(std::span<const std::int32_t> tokens, bool skip_special_tokens) const {
  const Tokenizer& tokenizer = loaded_->require_tokenizer();
  return tokenizer.decode(ids_with_tokens(tokenizer, tokens, info().vocab_size), skip_special_tokens);
}

std::string Model::render_chat(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  return render_chat_json(json_of(messages), options);
}

std::vector<std::int32_t> Model::encode_chat(std::span<const ChatMessage> messages,
                                             const ChatOptions& options) const {
  return encode_chat_json(json_of(messages), options);
}

std::string Model::render_chat_json(std::string_view messages, const ChatOptions& options) const {
  return tessera::render_chat(loaded_->chat(), chat_request(std::string(messages), options)).text;
}

std::vector<std::int32_t> Model::encode_chat_json(std::string_view messages,
                                                  const ChatOptions& options) const {
  return tessera::encode_chat(
      loaded_->require_tokenizer(),
      tessera::render_chat(loaded_->chat(), chat_request(std::string(messages), options)));
}

std::string Model::token_bytes(std::int32_t token) const {
  const Tokenizer& tokenizer = loaded_->require_tokenizer();
  std::string bytes;
  for (const TokenId id : ids_with_tokens(tokenizer, {&token, 1}, info().vocab_size)) {
    tokenizer.append_token_bytes(id, /*first=*/false, /*skip_special_tokens=*/true, bytes);
  }
  return bytes;
}

std::span<const std::int32_t> Model::end_tokens() const { return loaded_->end_tokens(); }

}  // namespace tessera
