#pragma once

#include <stdexcept>
#include <string>

namespace tessera::server {

/// What an answer with an error says, in the form of OpenAI's API.
struct ApiError {
  int status = 400;  ///< of HTTP
  std::string type = "invalid_request_error";
  std::string message;
  std::string param;  ///< the field that is wrong; empty: none
  std::string code;   ///< for programs; empty: none

  /// {"error": {"message", "type", "param", "code"}}
  std::string body() const;
};

/// A request that can't be served, and what the client is told.
class RequestError : public std::runtime_error {
 public:
  explicit RequestError(ApiError error) : std::runtime_error(error.message), error_(std::move(error)) {}
  const ApiError& error() const noexcept { return error_; }

 private:
  ApiError error_;
};

/// 429: as many requests wait as may.
ApiError queue_full();
/// A field whose value is wrong: 400.
RequestError wrong_field(const std::string& param, const std::string& message);
/// A field that is right but that this server, its model or its backend can't serve: 400, code "unsupported".
RequestError unsupported_field(const std::string& param, const std::string& message);

}  // namespace tessera::server
