#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/completion_answer.h"
#include "server/completion_call.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/request_error.h"
#include "server/served_model.h"
#include "server/work_queue.h"

namespace tessera::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;  ///< 0: any that is free
  std::string api_key;        ///< empty: none is asked for
  std::string cors_origin;    ///< whose pages may call this server: "https://example.com" or "*"; empty: none
  HttpLimits http;
  CallDefaults defaults;
  std::size_t max_preparing = 256;      ///< requests that are being turned into tokens, or wait for it
  std::chrono::seconds drain_time{30};  ///< for running requests, once the server is to end
  /// Asked four times a second: whether the server is to end. May be empty.
  std::function<bool()> wants_end;
};

/// A cors_origin with a lower-case host, without a port that its scheme has anyway, and without a slash
/// behind it. Throws Error{kInvalidArgument} for what no page's origin can be.
std::string as_browsers_write_it(const std::string& cors_origin);

/// OpenAI's API over a model. Three threads: the network's (the caller of run), one that steps the model, and
/// one that parses, renders and tokenises requests, so that a long one keeps neither of the others waiting.
class ApiServer : private HttpHandler {
 public:
  /// Listens. `model` must outlive this. Throws as HttpServer and as_browsers_write_it do.
  ApiServer(ServedModel& model, ServerOptions options);
  ~ApiServer() override;

  std::uint16_t port() const { return http_.port(); }
  /// Whether only this machine reaches it.
  bool on_loopback() const { return http_.on_loopback(); }

  /// Serves until drain() has come to its end. Throws what a step of the model or an answer threw, if one
  /// did.
  void run();
  /// Ends run() once what runs is done or drain_time is over. From any thread.
  void drain() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  /// A request that is being answered.
  struct Call {
    std::shared_ptr<HttpExchange> exchange;
    std::string path;
    Clock::time_point begun;
    std::atomic<bool> gone{false};  ///< its client has
    std::vector<RequestId> ids;     ///< of the engine
  };
  using CallPtr = std::shared_ptr<Call>;
  struct Completion;
  struct Embeddings;
  /// Takes the events of one engine request.
  using EventSink = std::function<void(Event event)>;

  bool refuse(const HttpRequest& request, HttpResponse& refusal) override;
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  HttpResponse error_response(int status, const std::string& message) override;

  std::optional<ApiError> objection(const HttpRequest& request) const;
  std::optional<HttpResponse> get(const std::string& path);

  // On the preparing thread; what they return is done on the network thread.
  std::function<void()> prepare_completion(const CallPtr& call, bool chat, const std::string& body);
  std::function<void()> prepare_embeddings(const CallPtr& call, const std::string& body);
  std::function<void()> prepare_tokenize(const CallPtr& call, const std::string& body);
  std::function<void()> prepare_attention(const CallPtr& call, const std::string& body);
  std::function<void()> prepare_detokenize(const CallPtr& call, const std::string& body);
  std::vector<std::vector<std::int32_t>> prompts_of(const CompletionCall& wanted, bool chat);
  /// Makes what holds a choice's text to its form, null where any may come. Throws RequestError for a form
  /// that can't be held to. `wanted` must outlive it.
  std::function<std::shared_ptr<TokenConstraint>()> constraints_of(const CompletionCall& wanted);
  /// The control tokens around calls of tools, as their texts.
  std::map<std::int32_t, std::string> call_marks();
  /// Both throw RequestError for `field` if they are not the model's.
  void check_tokens(std::span<const std::int32_t> tokens, const std::string& field) const;
  std::vector<std::int32_t> check_prompt(std::vector<std::int32_t> tokens,
                                         const std::string& field = "prompt") const;

  void start(const std::shared_ptr<Completion>& completion, std::vector<Request> requests);
  void deliver(const std::shared_ptr<Completion>& completion, int choice, const Event& event);
  void submit_some(const std::shared_ptr<Embeddings>& embeddings);
  void deliver(const std::shared_ptr<Embeddings>& embeddings, std::size_t input, Event event);
  void deliver(std::vector<Event> events);

  void reply(Call& call, HttpResponse response);
  void fail(Call& call, const ApiError& error);
  void forget(Call& call, bool cancel);
  void count(const Call& call, int status);

  void step_loop();
  void tick();
  HttpHeaders cors_headers() const;
  HttpResponse error_response(const ApiError& error) const;

  ServedModel& model_;
  ServerOptions options_;
  HttpServer http_;
  std::string id_prefix_;  ///< of this process's answers
  std::atomic<std::uint64_t> num_ids_{0};

  // Of the network thread.
  Metrics metrics_;
  std::unordered_map<RequestId, EventSink> active_;
  std::size_t preparing_ = 0;
  std::optional<Clock::time_point> drain_end_;
  std::exception_ptr failure_;

  std::atomic<bool> stopping_{false};
  WorkQueue work_;
};

}  // namespace tessera::server
