#pragma once

// Beast of Boost 1.74 lacks this include.
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/http_server.h"

namespace tessera::server {

/// What the connections of a server share. For the network thread.
struct ConnectionContext {
  HttpLimits limits;
  HttpHandler* handler = nullptr;
  std::size_t bodies_bytes = 0;  ///< charged by all connections
  bool draining = false;
  std::function<void(const std::shared_ptr<class HttpConnection>&)> on_closed;
};

/// One client. Reading never stops while an answer is made, so that a client that goes is noticed at once;
/// what it sends ahead waits in the buffer, up to a bound.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;

  HttpConnection(boost::asio::ip::tcp::socket socket, ConnectionContext& context);
  void start();
  /// Called now and then: ends what took too long, keeps quiet streams alive.
  void check(Clock::time_point now);
  /// Closes at once unless a request is being answered; one whose body was to come is told why.
  void drain();
  void close();

 private:
  friend class ConnectionExchange;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  /// kClosing: the answer is out, the rest of what the client sends is thrown away.
  enum class State { kHeader, kBody, kAnswer, kStream, kClosing, kClosed };

  void begin_request();
  void read();
  void parse();
  void skip_empty_lines();
  void finish_header();
  void refuse(int status, const std::string& message);
  void dispatch();
  HttpRequest take_request();

  void respond(const HttpResponse& response);
  void begin_stream(const HttpHeaders& headers);
  void write_chunk(std::string_view text);
  void end_stream();
  void end_answer();
  void append_head(int status, const std::string& content_type, const HttpHeaders& headers);
  void flush();
  void end_of_input();
  void probe();
  void client_gone();

  boost::asio::ip::tcp::socket socket_;
  ConnectionContext& context_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  State state_ = State::kHeader;
  bool reading_ = false;
  bool input_ended_ = false;  ///< the client sends nothing more, and may wait for answers
  bool keep_alive_ = true;
  bool chunked_ = true;
  bool is_head_ = false;
  bool answered_ = false;   ///< the whole answer is in the buffers
  std::size_t charge_ = 0;  ///< of context_.bodies_bytes
  std::size_t num_requests_ = 0;
  std::string writing_, pending_;  ///< on their way; to be written next
  std::size_t written_ = 0;        ///< of writing_
  Clock::time_point read_deadline_, body_deadline_, write_deadline_, last_write_, last_probe_;
  std::shared_ptr<class ConnectionExchange> exchange_;
};

}  // namespace tessera::server
