#include "server/http_connection.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/status.hpp>
#include <charconv>

#include "core/text.h"

namespace tessera::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::size_t kReadBytes = 16 << 10;
/// Of what a client may send ahead while it is answered.
constexpr std::size_t kMaxAheadBytes = 64 << 10;
/// The status of an answer without a body, of which RFC 9110 (8.6) wants no length either.
constexpr int kNoContent = 204;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kComment = ": keep-alive\n\n";
/// For a client whose end of input came through others, which notice only a second time that it has gone.
constexpr std::chrono::seconds kProbeInterval{1};
/// For a client to read the last answer before the connection is reset.
constexpr std::chrono::seconds kClosingTime{2};

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }
std::string_view view(const boost::beast::flat_buffer& buffer) {
  return {static_cast<const char*>(buffer.data().data()), buffer.size()};
}

/// A request's target: "/v1/models?a=b", or with the host, as clients write it to proxies.
struct Target {
  std::optional<std::string_view> host;
  std::string_view path = "/";  ///< and query
};

Target parse_target(std::string_view written) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    const std::string_view begun = written.substr(0, scheme.size());
    if (!boost::beast::iequals({begun.data(), begun.size()}, {scheme.data(), scheme.size()})) continue;
    const std::string_view rest = written.substr(scheme.size());
    const std::size_t end = std::min(rest.find_first_of("/?#"), rest.size());
    Target target{rest.substr(0, end)};
    if (rest.substr(end).starts_with('/')) target.path = rest.substr(end);
    return target;
  }
  return {std::nullopt, written};
}

/// A path without the query, its %XX as the bytes that they stand for: clients write a / in a model's name
/// so.
std::string decoded_path(std::string_view target) {
  const std::string_view written = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (std::size_t i = 0; i < written.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = written.data() + i + 1;
    const bool is_escape = written[i] == '%' && i + 2 < written.size() &&
                           std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    path += is_escape ? static_cast<char>(byte) : written[i];
    if (is_escape) i += 2;
  }
  return path;
}

}  // namespace

/// The handler's end of a request. It loses its connection when the answer is complete or the client has
/// gone.
class ConnectionExchange final : public HttpExchange {
 public:
  explicit ConnectionExchange(std::shared_ptr<HttpConnection> connection)
      : connection_(std::move(connection)) {}

  void respond(HttpResponse response) override {
    if (const auto connection = connection_) connection->respond(response);
  }
  void begin_stream(const HttpHeaders& headers) override {
    if (const auto connection = connection_) connection->begin_stream(headers);
  }
  void write(std::string_view text) override {
    if (const auto connection = connection_) connection->write_chunk(text);
  }
  void end_stream() override {
    if (const auto connection = connection_) connection->end_stream();
  }
  void on_gone(std::function<void()> action) override {
    if (connection_) gone_ = std::move(action);
  }

  void detach() {
    connection_.reset();
    gone_ = nullptr;
  }
  void client_gone() {
    const auto action = std::move(gone_);
    detach();
    if (action) action();
  }

 private:
  std::shared_ptr<HttpConnection> connection_;
  std::function<void()> gone_;
};

HttpConnection::HttpConnection(asio::ip::tcp::socket socket, ConnectionContext& context)
    : socket_(std::move(socket)), context_(context) {}

void HttpConnection::start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  begin_request();
  read();
}

void HttpConnection::begin_request() {
  state_ = State::kHeader;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(context_.limits.max_header_bytes));
  parser_->body_limit(context_.limits.max_body_bytes);
  answered_ = false;
  read_deadline_ =
      Clock::now() + (num_requests_ == 0 ? context_.limits.header_time : context_.limits.idle_time);
}

void HttpConnection::read() {
  if (reading_ || state_ == State::kClosed) return;
  if (input_ended_) return end_of_input();
  if ((state_ == State::kAnswer || state_ == State::kStream) && buffer_.size() > kMaxAheadBytes) return;
  reading_ = true;
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](error_code error, std::size_t n) {
                            self->reading_ = false;
                            if (self->state_ == State::kClosed) return;
                            if (error == asio::error::eof) return self->end_of_input();
                            if (error) return self->client_gone();
                            if (self->state_ == State::kClosing) {
                              self->buffer_.clear();
                            } else {
                              self->buffer_.commit(n);
                              self->parse();
                            }
                            self->read();
                          });
}

/// The client sends nothing more. Unless its request is whole it has gone. Else it may have, or may wait for
/// the answer: nothing tells but what is sent to it, to which the system of a client that has gone answers
/// with a reset.
void HttpConnection::end_of_input() {
  const bool may_wait = state_ == State::kStream || (state_ == State::kAnswer && (chunked_ || answered_));
  if (!may_wait) return client_gone();
  if (std::exchange(input_ended_, true)) return;
  probe();
  if (state_ == State::kClosed) return;
  socket_.async_wait(asio::ip::tcp::socket::wait_error,
                     [self = shared_from_this()](error_code) { self->client_gone(); });
}

/// Sends what means nothing, so that a client that has gone is noticed: an interim answer, which any client
/// of HTTP/1.1 passes over, or a stream's comment.
void HttpConnection::probe() {
  last_probe_ = Clock::now();
  if (answered_ || written_ < writing_.size()) return;
  if (state_ == State::kStream) return write_chunk(kComment);
  pending_ += kContinue;
  flush();
}

/// Reads on in the present request with what has come. The parser stops at each of its parts.
void HttpConnection::parse() {
  while (state_ == State::kHeader || state_ == State::kBody) {
    if (state_ == State::kHeader) skip_empty_lines();
    if (buffer_.size() == 0 || (state_ == State::kHeader && view(buffer_) == "\r")) break;
    error_code error;
    buffer_.consume(parser_->put(buffer_.data(), error));
    if (error == http::error::header_limit) {
      return refuse(431, fmt::format("the header has more than {} bytes", context_.limits.max_header_bytes));
    }
    if (error == http::error::body_limit) {
      return refuse(413, fmt::format("the body has more than {} bytes", context_.limits.max_body_bytes));
    }
    if (error && error != http::error::need_more) {
      return refuse(400, "the request is no valid HTTP/1.1: " + error.message());
    }
    if (state_ == State::kHeader && parser_->is_header_done()) finish_header();
    if (state_ == State::kBody && parser_->is_done()) return dispatch();
    if (error == http::error::need_more) break;
  }
  if (state_ == State::kBody) read_deadline_ = Clock::now() + context_.limits.body_pause;
}

/// Before a request line, where RFC 9112 (2.2) wants them passed over.
void HttpConnection::skip_empty_lines() {
  while (view(buffer_).starts_with("\r\n")) buffer_.consume(2);
}

HttpRequest HttpConnection::take_request() {
  auto& message = parser_->get();
  HttpRequest request;
  request.method = view(message.method_string());
  const Target target = parse_target(view(message.target()));
  request.path = decoded_path(target.path);
  request.host = target.host.value_or(view(message[http::field::host]));
  request.origin = view(message[http::field::origin]);
  request.authorization = view(message[http::field::authorization]);
  request.body = std::move(message.body());
  return request;
}

void HttpConnection::finish_header() {
  ++num_requests_;
  const auto& message = parser_->get();
  keep_alive_ = message.keep_alive() && !context_.draining;
  chunked_ = message.version() >= 11;
  is_head_ = message.method() == http::verb::head;
  // RFC 9112, 3.2.
  const auto num_hosts = message.count(http::field::host);
  if (num_hosts > 1 || (num_hosts == 0 && message.version() >= 11)) {
    return refuse(400, num_hosts == 0 ? "the request has no Host, which HTTP/1.1 wants"
                                      : "the request has more than one Host; expected one");
  }
  if (message.count(http::field::transfer_encoding) > 0 && !parser_->chunked()) {
    return refuse(400,
                  "the request's Transfer-Encoding doesn't end in \"chunked\", so that nothing says where "
                  "its body ends");
  }
  const auto encoding = message[http::field::content_encoding];
  if (!parser_->is_done() && !encoding.empty() && !boost::beast::iequals(encoding, "identity")) {
    return refuse(415, fmt::format("the body's Content-Encoding is '{}'; send it without one, as it is",
                                   printable(view(encoding))));
  }

  HttpResponse refusal;
  if (context_.handler->refuse(take_request(), refusal)) {
    // What comes of the body isn't told from a next request.
    if (!parser_->is_done()) keep_alive_ = false;
    state_ = State::kAnswer;
    exchange_ = std::make_shared<ConnectionExchange>(shared_from_this());
    return respond(refusal);
  }
  // Without a length a body may be as long as is allowed.
  const auto length = parser_->content_length();
  const std::size_t charge =
      length ? static_cast<std::size_t>(*length) : (parser_->chunked() ? context_.limits.max_body_bytes : 0);
  if (context_.bodies_bytes + charge > context_.limits.max_bodies_bytes) {
    return refuse(503, "too many requests with large bodies are being read; try again later");
  }
  context_.bodies_bytes += charge;
  charge_ = charge;
  state_ = State::kBody;
  read_deadline_ = Clock::now() + context_.limits.body_pause;
  body_deadline_ = Clock::now() + context_.limits.body_time;
  if (boost::beast::iequals(message[http::field::expect], "100-continue") && !parser_->is_done()) {
    pending_ += kContinue;
    flush();
  }
}

void HttpConnection::refuse(int status, const std::string& message) {
  keep_alive_ = false;
  state_ = State::kAnswer;
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this());
  HttpResponse response = context_.handler->error_response(status, message);
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 415) response.headers.emplace_back("Accept-Encoding", "identity");  // RFC 9110, 12.5.3
  respond(response);
}

void HttpConnection::dispatch() {
  state_ = State::kAnswer;
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this());
  context_.handler->handle(take_request(), exchange_);
}

void HttpConnection::append_head(int status, const std::string& content_type, const HttpHeaders& headers) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  auto out = std::back_inserter(pending_);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nServer: tessera\r\n", status, view(reason));
  if (status != kNoContent) {
    fmt::format_to(out, "Content-Type: {}\r\nX-Content-Type-Options: nosniff\r\n", content_type);
  }
  for (const auto& [name, value] : headers) fmt::format_to(out, "{}: {}\r\n", name, value);
  if (!keep_alive_) {
    pending_ += "Connection: close\r\n";
  } else if (!chunked_) {
    pending_ += "Connection: keep-alive\r\n";  // which clients of HTTP/1.0 don't assume
  }
}

void HttpConnection::respond(const HttpResponse& response) {
  if (state_ != State::kAnswer) return;
  if (context_.draining) keep_alive_ = false;
  append_head(response.status, response.content_type, response.headers);
  if (response.status != kNoContent) {
    fmt::format_to(std::back_inserter(pending_), "Content-Length: {}\r\n", response.body.size());
  }
  pending_ += "\r\n";
  if (!is_head_) pending_ += response.body;
  end_answer();
}

void HttpConnection::begin_stream(const HttpHeaders& headers) {
  if (state_ != State::kAnswer) return;
  if (!chunked_ || context_.draining) keep_alive_ = false;
  append_head(200, "text/event-stream", headers);
  pending_ += chunked_ ? "Transfer-Encoding: chunked\r\nCache-Control: no-store\r\n\r\n"
                       : "Cache-Control: no-store\r\n\r\n";
  state_ = State::kStream;
  flush();
}

void HttpConnection::write_chunk(std::string_view text) {
  if (state_ != State::kStream || answered_ || text.empty()) return;
  if (chunked_) {
    fmt::format_to(std::back_inserter(pending_), "{:x}\r\n{}\r\n", text.size(), text);
  } else {
    pending_ += text;
  }
  if (pending_.size() + writing_.size() - written_ > context_.limits.max_unread_bytes) return client_gone();
  flush();
}

void HttpConnection::end_stream() {
  if (state_ != State::kStream || answered_) return;
  if (chunked_) pending_ += "0\r\n\r\n";
  end_answer();
}

void HttpConnection::end_answer() {
  answered_ = true;
  if (const auto exchange = std::move(exchange_)) exchange->detach();
  flush();
}

/// Writes what there is to write; after the end of an answer goes on with the next request, or closes.
void HttpConnection::flush() {
  if (state_ == State::kClosed || written_ < writing_.size()) return;
  if (pending_.empty()) {
    if (!answered_ || state_ == State::kClosing) return;
    context_.bodies_bytes -= std::exchange(charge_, 0);
    if (!keep_alive_ || context_.draining) {
      // The client may still be sending: a reset now could take the answer from it.
      error_code ignored;
      socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
      state_ = State::kClosing;
      read_deadline_ = Clock::now() + kClosingTime;
      return read();  // if all is read already it closes
    }
    begin_request();
    parse();
    return read();
  }
  writing_.clear();
  std::swap(writing_, pending_);
  written_ = 0;
  write_deadline_ = Clock::now() + context_.limits.write_pause;
  struct Write {
    std::shared_ptr<HttpConnection> self;
    void start() {
      auto& socket = self->socket_;
      const auto rest = asio::buffer(self->writing_) + self->written_;
      socket.async_write_some(rest, *this);
    }
    void operator()(error_code error, std::size_t n) {
      if (self->state_ == State::kClosed) return;
      if (error) return self->client_gone();
      self->written_ += n;
      self->last_write_ = Clock::now();
      self->write_deadline_ = self->last_write_ + self->context_.limits.write_pause;
      if (self->written_ < self->writing_.size()) return start();
      self->flush();
    }
  };
  Write{shared_from_this()}.start();
}

void HttpConnection::client_gone() {
  if (state_ == State::kClosed) return;
  const auto exchange = std::move(exchange_);
  close();
  if (exchange) exchange->client_gone();
}

void HttpConnection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  context_.bodies_bytes -= std::exchange(charge_, 0);
  if (const auto exchange = std::move(exchange_)) exchange->client_gone();
  error_code ignored;
  socket_.close(ignored);
  context_.on_closed(shared_from_this());
}

void HttpConnection::drain() {
  if (state_ == State::kHeader) return close();
  if (state_ == State::kBody) refuse(503, "the server is shutting down");
}

void HttpConnection::check(Clock::time_point now) {
  if (written_ < writing_.size() && now > write_deadline_) return client_gone();
  switch (state_) {
    case State::kHeader:
      if (now <= read_deadline_) return;
      return parser_->got_some() ? refuse(408, "the request's header took too long") : close();
    case State::kBody:
      if (now > read_deadline_ || now > body_deadline_) refuse(408, "the request's body took too long");
      return;
    case State::kStream:
      if (written_ == writing_.size() && now - last_write_ > context_.limits.comment_interval) {
        write_chunk(kComment);
      }
      [[fallthrough]];
    case State::kAnswer:
      if (input_ended_ && now - last_probe_ > kProbeInterval) probe();
      return;
    case State::kClosing:
      if (now > read_deadline_) close();
      return;
    default:
      return;
  }
}

}  // namespace tessera::server
