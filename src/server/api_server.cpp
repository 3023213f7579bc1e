#include "server/api_server.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "core/text.h"
#include "server/fields.h"
#include "server/page.h"
#include "tessera/error.h"

namespace tessera::server {

using json = nlohmann::ordered_json;

namespace {

constexpr std::chrono::milliseconds kStepWait{100};

const char* const kPostPaths[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                                  "/v1/attention",        "/tokenize",       "/detokenize"};

bool is_post_path(const std::string& path) {
  return std::ranges::find(kPostPaths, path) != std::end(kPostPaths);
}

const PageFile* find_page_file(const std::string& path) {
  const auto files = page_files();
  const auto file = std::ranges::find(files, path, &PageFile::path);
  return file == files.end() ? nullptr : &*file;
}

bool is_get_path(const std::string& path) {
  return path == "/health" || path == "/metrics" || path == "/v1/models" || path == "/models" ||
         path.starts_with("/v1/models/") || find_page_file(path) != nullptr;
}

/// "example.com" of "example.com:8080", "[::1]" of "[::1]:8080".
std::string_view host_name(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  return colon == host.npos || host.ends_with(']') ? host : host.substr(0, colon);
}

/// Not a name that only looks like an address, such as 127.example.com.
bool is_loopback_name(std::string_view host) {
  const std::string name = lower_case(host_name(host));
  return name.empty() || name == "localhost" || name.ends_with(".localhost") || name == "[::1]" ||
         (name.starts_with("127.") && name.find_first_not_of("0123456789.") == name.npos);
}

/// Takes the same time wherever the difference is.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |=
        static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
  }
  return difference == 0;
}

/// KEY of "Bearer KEY"; a scheme's name may have any case.
std::optional<std::string_view> bearer_token(std::string_view authorization) {
  const std::size_t space = authorization.find(' ');
  if (space == authorization.npos || lower_case(authorization.substr(0, space)) != "bearer") {
    return std::nullopt;
  }
  return authorization.substr(std::min(authorization.find_first_not_of(' ', space), authorization.size()));
}

double this_threads_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

std::string as_browsers_write_it(const std::string& cors_origin) {
  if (cors_origin.empty() || cors_origin == "*" || cors_origin == "null") return cors_origin;
  std::string origin = lower_case(cors_origin);
  if (origin.ends_with('/')) origin.pop_back();
  const std::size_t host = origin.find("://");
  const bool is_origin =
      host != origin.npos && host > 0 && host + 3 < origin.size() &&
      std::ranges::all_of(origin, [](char c) { return c > ' ' && c < '\x7f' && c != ',' && c != '*'; }) &&
      origin.find_first_of("/?#@", host + 3) == origin.npos;
  if (!is_origin) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is not where pages come from; expected one site's scheme and host, such as "
                            "https://example.com, or *",
                            printable(cors_origin)));
  }
  for (const auto& [scheme, port] : {std::pair{"http://", ":80"}, {"https://", ":443"}}) {
    if (origin.starts_with(scheme) && origin.ends_with(port)) origin.resize(origin.rfind(':'));
  }
  return origin;
}

ApiServer::ApiServer(ServedModel& model, ServerOptions options)
    : model_(model), options_(std::move(options)), http_(options_.host, options_.port, options_.http, *this) {
  options_.cors_origin = as_browsers_write_it(options_.cors_origin);
  std::random_device random;
  id_prefix_ = fmt::format("{:08x}{:08x}", random(), random());
}

ApiServer::~ApiServer() = default;

void ApiServer::run() {
  http_.on_tick([this] { tick(); });
  std::thread stepper = start_thread([this] { step_loop(); });
  try {
    http_.run();
  } catch (...) {
    failure_ = std::current_exception();
  }
  stopping_ = true;
  model_.wake();
  stepper.join();
  if (failure_) std::rethrow_exception(failure_);
}

void ApiServer::drain() noexcept {
  http_.post([this] {
    if (!drain_end_) drain_end_ = Clock::now() + options_.drain_time;
  });
  http_.drain();
}

void ApiServer::step_loop() {
  try {
    while (!stopping_) {
      if (!model_.wait(kStepWait)) continue;
      std::vector<Event> events = model_.step();
      if (events.empty()) continue;
      http_.post([this, events = std::move(events)]() mutable { deliver(std::move(events)); });
    }
  } catch (...) {
    http_.post([this, failure = std::current_exception()] {
      failure_ = failure;
      http_.stop();
    });
  }
}

void ApiServer::tick() {
  if (!drain_end_ && options_.wants_end && options_.wants_end()) drain();
  if (!drain_end_) return;
  const bool is_over = Clock::now() > *drain_end_;
  if (is_over && !active_.empty()) {
    std::vector<EventSink> sinks;
    for (const auto& [id, sink] : active_) sinks.push_back(sink);
    Event event;
    event.type = Event::Type::kError;
    event.error_code = ErrorCode::kDevice;
    event.error_message = "the server is shutting down";
    for (const EventSink& sink : sinks) sink(event);
    // What they were told is sent until the next tick.
  } else if (is_over || (active_.empty() && preparing_ == 0 && http_.num_connections() == 0)) {
    http_.stop();
  }
}

// ---- Requests

HttpResponse ApiServer::error_response(int status, const std::string& message) {
  return error_response(
      ApiError{status, status >= 500 ? "server_error" : "invalid_request_error", message, "", ""});
}

/// Pages that may call the server may read its errors, too.
HttpResponse ApiServer::error_response(const ApiError& error) const {
  HttpResponse response;
  response.status = error.status;
  response.body = error.body();
  response.headers = cors_headers();
  return response;
}

HttpHeaders ApiServer::cors_headers() const {
  if (options_.cors_origin.empty()) return {};
  return {{"Access-Control-Allow-Origin", options_.cors_origin}, {"Vary", "Origin"}};
}

/// What is wrong with a request before its body is looked at.
std::optional<ApiError> ApiServer::objection(const HttpRequest& request) const {
  const bool has_key = !options_.api_key.empty();
  // A page of another site can send requests to this machine's servers through its visitor's browser, by the
  // name it gives to 127.0.0.1 even without CORS.
  if (!has_key && http_.on_loopback() && !is_loopback_name(request.host)) {
    return ApiError{
        403, "permission_error",
        fmt::format("the host is '{}'; a server on loopback without a key answers only to localhost and "
                    "127.0.0.1 (set an API key to be reached by other names)",
                    printable(request.host)),
        "", "wrong_host"};
  }
  if (!request.origin.empty() && options_.cors_origin != "*" && request.origin != options_.cors_origin &&
      request.origin != "http://" + request.host && request.origin != "https://" + request.host) {
    return ApiError{403, "permission_error",
                    fmt::format("pages of '{}' may not call this server; --cors-origin allows it",
                                printable(request.origin)),
                    "", "wrong_origin"};
  }
  if (request.method == "OPTIONS") return std::nullopt;
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  const bool is_open = request.path == "/health" || find_page_file(request.path) != nullptr;
  if (has_key && !is_open) {
    const std::optional<std::string_view> given = bearer_token(request.authorization);
    if (!given || !same_secret(*given, options_.api_key)) {
      return ApiError{401, "authentication_error",
                      "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'", "",
                      "invalid_api_key"};
    }
  }
  if (!is_get_path(request.path) && !is_post_path(request.path)) {
    return ApiError{404, "invalid_request_error",
                    fmt::format("there is no '{}' here", printable(request.path)), "", "not_found"};
  }
  if (is_get != is_get_path(request.path) || (!is_get && request.method != "POST")) {
    return ApiError{405, "invalid_request_error",
                    fmt::format("{} of '{}'; expected {}", printable(request.method), request.path,
                                is_get_path(request.path) ? "GET" : "POST"),
                    "", "wrong_method"};
  }
  if (drain_end_ && !is_open)
    return ApiError{503, "server_error", "the server is shutting down", "", "shutting_down"};
  return std::nullopt;
}

bool ApiServer::refuse(const HttpRequest& request, HttpResponse& refusal) {
  if (const auto error = objection(request)) {
    refusal = error_response(*error);
    if (error->status == 401) refusal.headers.emplace_back("WWW-Authenticate", "Bearer");
    if (error->status == 405) {
      refusal.headers.emplace_back("Allow",
                                   is_get_path(request.path) ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
    }
    ++metrics_.responses[{"refused", error->status}];
    return true;
  }
  if (request.method == "OPTIONS") {
    refusal.status = 204;
    refusal.headers = cors_headers();
    refusal.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
    refusal.headers.emplace_back("Access-Control-Allow-Headers", "authorization, content-type, *");
    refusal.headers.emplace_back("Access-Control-Max-Age", "600");
    return true;
  }
  return false;
}

void ApiServer::handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  auto call = std::make_shared<Call>();
  call->exchange = std::move(exchange);
  call->path = request.path;
  call->begun = Clock::now();
  if (auto response = get(request.path)) return reply(*call, std::move(*response));

  if (preparing_ >= options_.max_preparing) return fail(*call, queue_full());
  ++preparing_;
  call->exchange->on_gone([this, call] {
    call->gone = true;
    ++metrics_.disconnected;
    forget(*call, true);
  });
  work_.add([this, call, body = std::move(request.body)] {
    std::function<void()> then = [] {};
    const auto refuse_with = [&](const ApiError& error) {
      then = [this, call, error] { fail(*call, error); };
    };
    try {
      if (call->gone) {
      } else if (call->path == "/v1/embeddings") {
        then = prepare_embeddings(call, body);
      } else if (call->path == "/v1/attention") {
        then = prepare_attention(call, body);
      } else if (call->path == "/tokenize") {
        then = prepare_tokenize(call, body);
      } else if (call->path == "/detokenize") {
        then = prepare_detokenize(call, body);
      } else {
        then = prepare_completion(call, call->path == "/v1/chat/completions", body);
      }
    } catch (const RequestError& error) {
      refuse_with(error.error());
    } catch (const Error& error) {
      refuse_with(api_error(error.code(), error.message()));
    } catch (const std::exception& error) {
      refuse_with({500, "server_error", error.what(), "", ""});
    }
    http_.post([this, then = std::move(then)] {
      --preparing_;
      then();
    });
  });
}

std::optional<HttpResponse> ApiServer::get(const std::string& path) {
  HttpResponse response;
  const json model = {{"id", options_.defaults.model_name},
                      {"object", "model"},
                      {"created", 0},
                      {"owned_by", "tessera"},
                      {"max_model_len", model_.max_seq_len()}};
  if (path == "/health") {
    response.body = R"({"status":"ok"})";
  } else if (path == "/metrics") {
    response.content_type = "text/plain; version=0.0.4";
    response.body =
        metrics_.text(model_.stats(), http_.num_connections(), preparing_, this_threads_cpu_seconds());
  } else if (path == "/v1/models" || path == "/models") {
    response.body = dump({{"object", "list"}, {"data", json::array({model})}});
  } else if (path == "/v1/models/" + options_.defaults.model_name) {
    response.body = dump(model);
  } else if (path.starts_with("/v1/models/")) {
    const ApiError error{404, "invalid_request_error",
                         fmt::format("there is no model '{}' here; there is '{}'", printable(path.substr(11)),
                                     options_.defaults.model_name),
                         "model", "model_not_found"};
    response.status = error.status;
    response.body = error.body();
  } else if (const PageFile* file = find_page_file(path)) {
    response.content_type = file->content_type;
    response.body = file->text;
    response.headers = {
        {"Cache-Control", "no-cache"},
        {"Referrer-Policy", "no-referrer"},
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
         "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}};
  } else {
    return std::nullopt;
  }
  return response;
}

// ---- Answers

void ApiServer::count(const Call& call, int status) {
  ++metrics_.responses[{call.path.starts_with("/v1/models/") ? "/v1/models" : call.path, status}];
  if (is_post_path(call.path)) {
    metrics_.request_time.add(std::chrono::duration<double>(Clock::now() - call.begun).count());
  }
}

void ApiServer::reply(Call& call, HttpResponse response) {
  if (call.gone) return;
  count(call, response.status);
  for (auto& header : cors_headers()) response.headers.push_back(std::move(header));
  call.exchange->respond(std::move(response));
}

void ApiServer::fail(Call& call, const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error.body();
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  reply(call, std::move(response));
}

/// Takes no more events of a call's requests.
void ApiServer::forget(Call& call, bool cancel) {
  for (const RequestId id : std::exchange(call.ids, {})) {
    if (active_.erase(id) != 0 && cancel) model_.cancel(id);
  }
}

void ApiServer::deliver(std::vector<Event> events) {
  for (Event& event : events) {
    const auto found = active_.find(event.id);
    if (found == active_.end()) continue;  // cancelled meanwhile
    const EventSink sink = found->second;  // which may take itself away
    if (event.type != Event::Type::kToken) active_.erase(found);
    sink(std::move(event));
  }
}

void ApiServer::check_tokens(std::span<const std::int32_t> tokens, const std::string& field) const {
  const auto wrong =
      std::ranges::find_if(tokens, [&](std::int32_t id) { return id < 0 || id >= model_.info().vocab_size; });
  if (wrong != tokens.end()) {
    throw wrong_field(field, fmt::format("{} has token {}; expected ids below {}, the vocabulary's size",
                                         field, *wrong, model_.info().vocab_size));
  }
}

std::vector<std::int32_t> ApiServer::check_prompt(std::vector<std::int32_t> tokens,
                                                  const std::string& field) const {
  const auto size = static_cast<std::int64_t>(tokens.size());
  if (size >= model_.max_seq_len()) {
    throw RequestError(
        {400, "invalid_request_error",
         fmt::format("the prompt has {} tokens; of prompt and answer {} fit", size, model_.max_seq_len()), "",
         "context_length_exceeded"});
  }
  check_tokens(tokens, field);
  return tokens;
}

}  // namespace tessera::server
