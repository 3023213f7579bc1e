#include "server/request_error.h"

#include <nlohmann/json.hpp>

namespace tessera::server {

std::string ApiError::body() const {
  using nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) {
    return text.empty() ? ordered_json() : ordered_json(text);
  };
  const ordered_json document = {
      {"error", {{"message", message}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}}}};
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ApiError queue_full() {
  return {429, "rate_limit_error", "the queue is full; try again later", "", "queue_full"};
}

RequestError wrong_field(const std::string& param, const std::string& message) {
  return RequestError({400, "invalid_request_error", message, param, ""});
}

RequestError unsupported_field(const std::string& param, const std::string& message) {
  return RequestError({400, "invalid_request_error", message, param, "unsupported"});
}

}  // namespace tessera::server
