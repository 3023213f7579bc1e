// Which earlier tokens a token of a conversation looks at.
#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_server.h"
#include "server/fields.h"

namespace tessera::server {

using json = nlohmann::ordered_json;

std::function<void()> ApiServer::prepare_attention(const CallPtr& call, const std::string& body) {
  const json document = parse_body(body);
  const Fields fields(document);
  check_model_name(document, options_.defaults);
  AttentionRequest request;
  if (fields.find("messages") != nullptr) {
    request.tokens = model_.encode_chat(parse_conversation(document));
  } else if (const auto prompt = fields.text("prompt")) {
    request.tokens = model_.encode(*prompt, true);
  } else {
    throw wrong_field("messages", "messages is missing; expected a list of messages, or prompt");
  }
  const std::size_t num_prompt_tokens = request.tokens.size();
  const std::vector<std::int32_t> answer = model_.encode(fields.text("answer").value_or(""), false);
  request.tokens.insert(request.tokens.end(), answer.begin(), answer.end());
  request.tokens = check_prompt(std::move(request.tokens));
  if (request.tokens.empty()) throw wrong_field("prompt", "prompt has no tokens");

  const auto num_tokens = static_cast<std::int64_t>(request.tokens.size());
  const int num_layers = model_.info().num_layers;
  const std::int64_t position = fields.integer("position", 0, num_tokens - 1).value_or(num_tokens - 1);
  const auto layer = static_cast<int>(fields.integer("layer", 0, num_layers - 1).value_or(num_layers - 1));
  request.positions = {position};
  request.layers = {layer};
  json texts = json::array();
  for (const std::int32_t token : request.tokens) texts.push_back(model_.token_bytes(token));
  json head = {{"tokens", std::move(texts)}, {"prompt_tokens", num_prompt_tokens},
               {"position", position},       {"layer", layer},
               {"num_layers", num_layers},   {"num_heads", model_.info().num_heads}};

  return [this, call, request = std::move(request), head = std::move(head), position]() mutable {
    if (call->gone) return;
    const std::size_t num_tokens = request.tokens.size();
    const auto answer = [this, call, head = std::move(head), position,
                         num_tokens](const Event& event) mutable {
      forget(*call, false);
      if (event.type == Event::Type::kError)
        return fail(*call, api_error(event.error_code, event.error_message));
      json weights = json::array();
      for (std::size_t row = 0; row < event.attention.size(); row += num_tokens) {
        json of_head = json::array();
        // Four decimals are more than a picture shows.
        for (std::int64_t i = 0; i <= position; ++i) {
          of_head.push_back(std::round(1e4 * event.attention[row + static_cast<std::size_t>(i)]) / 1e4);
        }
        weights.push_back(std::move(of_head));
      }
      head["weights"] = std::move(weights);
      HttpResponse response;
      response.body = dump(head);
      reply(*call, std::move(response));
    };
    try {
      const RequestId id = model_.submit(std::move(request));
      call->ids.push_back(id);
      active_.emplace(id, answer);
    } catch (const QueueFull&) {
      fail(*call, queue_full());
    } catch (const Error& error) {
      fail(*call, api_error(error.code(), error.message()));
    }
  };
}

}  // namespace tessera::server
