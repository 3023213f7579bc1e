#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::server {

/// Bounds of what one client, and all of them, may take. Times are checked four times a second.
struct HttpLimits {
  std::size_t max_connections = 4096;  ///< more are closed as they come
  std::size_t max_header_bytes = 16 << 10;
  std::size_t max_body_bytes = 8 << 20;
  std::size_t max_bodies_bytes = 256 << 20;            ///< of all requests that are being read or answered
  std::size_t max_unread_bytes = 1 << 20;              ///< of a stream that its client doesn't read
  std::chrono::milliseconds header_time{20'000};       ///< from the connection to the end of a first header
  std::chrono::milliseconds idle_time{75'000};         ///< until a later request's header is there
  std::chrono::milliseconds body_pause{20'000};        ///< between pieces of a body
  std::chrono::milliseconds body_time{300'000};        ///< for all of it
  std::chrono::milliseconds write_pause{30'000};       ///< for a client to read something
  std::chrono::milliseconds comment_interval{15'000};  ///< of silence in a stream, until a comment line
};

struct HttpRequest {
  std::string method;
  std::string path;  ///< decoded, without the query
  std::string host, origin, authorization;
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

/// One request that is being answered. For the network thread. After the end of the answer, or when the
/// client has gone, nothing happens any more.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void respond(HttpResponse response) = 0;
  /// Instead of respond: an answer in pieces (server-sent events), status 200.
  virtual void begin_stream(const HttpHeaders& headers) = 0;
  virtual void write(std::string_view text) = 0;
  virtual void end_stream() = 0;
  /// Called once if the client goes, or doesn't read, before the end of the answer.
  virtual void on_gone(std::function<void()> action) = 0;
};

/// What requests lead to. Called on the network thread, and must answer soon.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// A request whose header is there, and whose body isn't: true, and the answer in `refusal`, for one that
  /// is not worth reading.
  virtual bool refuse(const HttpRequest& request, HttpResponse& refusal) = 0;
  virtual void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  /// The answer for an error that the HTTP layer finds itself.
  virtual HttpResponse error_response(int status, const std::string& message) = 0;
};

/// A server of HTTP/1.1 on one thread, on Boost.Beast.
class HttpServer {
 public:
  /// Listens; who connects is answered once run() is called. Throws Error{kIo} that says why it can't,
  /// Error{kInvalidArgument} for a host that is none. `handler` must outlive this.
  HttpServer(const std::string& host, std::uint16_t port, const HttpLimits& limits, HttpHandler& handler);
  ~HttpServer();

  std::uint16_t port() const;
  bool on_loopback() const;

  /// Serves until stop(). The caller's is the network thread.
  void run();

  // From any thread:
  /// Runs `task` on the network thread.
  void post(std::function<void()> task);
  /// Takes no new connections; those without a whole request are closed, others after their answer.
  void drain();
  void stop();

  // On the network thread:
  std::size_t num_connections() const;
  /// Calls `action` four times a second.
  void on_tick(std::function<void()> action);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera::server
