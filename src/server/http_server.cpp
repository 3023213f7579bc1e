#include "server/http_server.h"

// Beast of Boost 1.74 lacks this include.
#include <fmt/core.h>
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <unordered_set>
#include <utility>

#include "server/http_connection.h"
#include "tessera/error.h"

namespace tessera::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kTick{250};

/// A connection is a file: as many as the system lets this process have.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

tcp::endpoint endpoint_of(asio::io_context& io, const std::string& host, std::uint16_t port) {
  error_code error;
  tcp::resolver resolver(io);
  const auto results = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (host.empty()) error = asio::error::host_not_found;  // to the resolver it is all networks
  if (error || results.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("host is '{}', which is no address of this machine ({}); expected 127.0.0.1, 0.0.0.0 for "
                    "all networks, or a name",
                    host, error.message()));
  }
  return results.begin()->endpoint();
}

}  // namespace

class HttpServer::Implementation {
 public:
  Implementation(const std::string& host, std::uint16_t port, const HttpLimits& limits, HttpHandler& handler)
      : acceptor_(io_), timer_(io_) {
    raise_file_limit();
    context_.limits = limits;
    context_.handler = &handler;
    context_.on_closed = [this](const auto& connection) { connections_.erase(connection); };
    const tcp::endpoint endpoint = endpoint_of(io_, host, port);
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) endpoint_ = acceptor_.local_endpoint(error);
    if (error) {
      throw Error(ErrorCode::kIo,
                  fmt::format("cannot listen on {} port {}: {}; choose another --port, or end what "
                              "uses it",
                              host, port, error.message()));
    }
  }

  /// What is left of connections must go before what they refer to.
  ~Implementation() { close_all(); }

  std::uint16_t port() const { return endpoint_.port(); }
  bool on_loopback() const { return endpoint_.address().is_loopback(); }

  void run() {
    accept();
    tick();
    io_.run();
    close_all();
  }

  void post(std::function<void()> task) { asio::post(io_, std::move(task)); }
  void stop() { io_.stop(); }

  void drain() {
    post([this] {
      context_.draining = true;
      error_code ignored;
      acceptor_.close(ignored);
      const auto connections = connections_;
      for (const auto& connection : connections) connection->drain();
    });
  }

  std::size_t num_connections() const { return connections_.size(); }
  void on_tick(std::function<void()> action) { on_tick_ = std::move(action); }

 private:
  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        // Out of files or memory: trying again at once would only keep the processor busy.
        accept_later_ = true;
        return;
      }
      // One that came just before drain() closed the acceptor is as idle as those that it closed.
      if (!context_.draining && connections_.size() < context_.limits.max_connections) {
        const auto connection = std::make_shared<HttpConnection>(std::move(socket), context_);
        connections_.insert(connection);
        connection->start();
      }
      accept();
    });
  }

  void tick() {
    timer_.expires_after(kTick);
    timer_.async_wait([this](error_code error) {
      if (error) return;
      const auto connections = connections_;  // who is closed leaves the set
      const auto now = HttpConnection::Clock::now();
      for (const auto& connection : connections) connection->check(now);
      if (std::exchange(accept_later_, false) && acceptor_.is_open()) accept();
      if (on_tick_) on_tick_();
      tick();
    });
  }

  void close_all() {
    const auto connections = connections_;
    for (const auto& connection : connections) connection->close();
  }

  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  tcp::endpoint endpoint_;  ///< what it listens on, or did
  asio::steady_timer timer_;
  ConnectionContext context_;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;
  std::function<void()> on_tick_;
  bool accept_later_ = false;
};

HttpServer::HttpServer(const std::string& host, std::uint16_t port, const HttpLimits& limits,
                       HttpHandler& handler)
    : implementation_(std::make_unique<Implementation>(host, port, limits, handler)) {}
HttpServer::~HttpServer() = default;

std::uint16_t HttpServer::port() const { return implementation_->port(); }
bool HttpServer::on_loopback() const { return implementation_->on_loopback(); }
void HttpServer::run() { implementation_->run(); }
void HttpServer::post(std::function<void()> task) { implementation_->post(std::move(task)); }
void HttpServer::drain() { implementation_->drain(); }
void HttpServer::stop() { implementation_->stop(); }
std::size_t HttpServer::num_connections() const { return implementation_->num_connections(); }
void HttpServer::on_tick(std::function<void()> action) { implementation_->on_tick(std::move(action)); }

}  // namespace tessera::server
