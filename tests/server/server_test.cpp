// The server over real sockets, with a scripted model.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server/api_server.h"
#include "server/client.h"
#include "server/scripted_model.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using server::ApiServer;
using server::ServerOptions;
using testing::Client;
using testing::get;
using testing::post;
using testing::ScriptedModel;

class RunningServer {
 public:
  explicit RunningServer(const std::function<void(ServerOptions&, ScriptedModel&)>& change = {},
                         std::unique_ptr<ScriptedModel> scripted = std::make_unique<ScriptedModel>())
      : model(std::move(scripted)) {
    ServerOptions options;
    options.port = 0;
    options.defaults.model_name = "parrot";
    options.drain_time = 20s;
    if (change) change(options, *model);
    server = std::make_unique<ApiServer>(*model, options);
    thread_ = std::thread([this] { server->run(); });
  }
  ~RunningServer() { end(); }
  void end() {
    if (!thread_.joinable()) return;
    server->drain();
    thread_.join();
  }

  std::uint16_t port() const { return server->port(); }
  std::string ask(const std::string& request) const {
    Client client(port());
    client.send(request);
    return client.read_answer();
  }
  /// Waits until a request has come and no sequence runs any more.
  bool becomes_idle() const {
    for (int i = 0; i < 6000; ++i) {
      const EngineStats stats = model->stats();
      if (stats.requests_submitted > 0 && stats.running == 0) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }

  std::unique_ptr<ScriptedModel> model;
  std::unique_ptr<ApiServer> server;

 private:
  std::thread thread_;
};

std::string status_line(const std::string& answer) { return answer.substr(0, answer.find("\r\n")); }
json body_of(const std::string& answer) {
  const std::size_t head = answer.find("\r\n\r\n");
  return head == answer.npos ? json() : json::parse(answer.substr(head + 4), nullptr, false);
}

std::string chat(const std::string& text, const std::string& more = "") {
  return post("/v1/chat/completions",
              R"({"model":"parrot","messages":[{"role":"user","content":")" + text + "\"}]" + more + "}");
}

TEST(Server, AnswersAChat) {
  const RunningServer running;
  const std::string answer = running.ask(chat("abc", R"(,"max_tokens":5)"));
  EXPECT_EQ(status_line(answer), "HTTP/1.1 200 OK");
  const json body = body_of(answer);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "abcab");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
}

TEST(Server, StreamsAChat) {
  const RunningServer running;
  Client client(running.port());
  client.send(chat("abc", R"(,"max_tokens":4,"stream":true,"stream_options":{"include_usage":true})"));
  const std::string answer = client.read_until("0\r\n\r\n");
  std::string text;
  std::vector<json> chunks;
  for (std::size_t at = 0; (at = answer.find("data: ", at)) != answer.npos;) {
    at += 6;
    const std::string data = answer.substr(at, answer.find("\n\n", at) - at);
    if (data != "[DONE]") chunks.push_back(json::parse(data));
  }
  for (const json& chunk : chunks) {
    if (!chunk["choices"].empty()) text += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "abca");
  ASSERT_EQ(chunks.size(), 7U);  // the role, four tokens, the reason, usage
  EXPECT_EQ(chunks.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks[5]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chunks[6]["usage"]["total_tokens"], 7);
  EXPECT_NE(answer.find("data: [DONE]\n\n"), answer.npos);
  // The connection goes on.
  client.send(get("/health"));
  EXPECT_EQ(status_line(client.read_answer()), "HTTP/1.1 200 OK");
}

TEST(Server, AnswersSeveralRequestsOnAConnectionInTheirOrder) {
  const RunningServer running;
  Client client(running.port());
  client.send(chat("x", R"(,"max_tokens":1)") + get("/health") + chat("y", R"(,"max_tokens":2)"));
  EXPECT_EQ(body_of(client.read_answer())["choices"][0]["message"]["content"], "x");
  EXPECT_EQ(body_of(client.read_answer())["status"], "ok");
  EXPECT_EQ(body_of(client.read_answer())["choices"][0]["message"]["content"], "yy");
}

TEST(Server, TellsClientsOfHttp10WhetherTheConnectionGoesOn) {
  const RunningServer running;
  Client client(running.port());
  client.send("GET /health HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n");
  const std::string first = client.read_answer();
  EXPECT_NE(first.find("\r\nConnection: keep-alive\r\n"), first.npos) << first;
  client.send("GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n");
  const std::string last = client.read_all();
  EXPECT_NE(last.find("\r\nConnection: close\r\n"), last.npos) << last;
}

TEST(Server, FailureOfOneRequestDisturbsNoOther) {
  const RunningServer running([](ServerOptions&, ScriptedModel& model) { model.step_time = 1ms; });
  Client good(running.port());
  good.send(chat("ab", R"(,"max_tokens":200,"stream":true)"));
  good.read_until("\"content\":\"a\"");
  const std::string bad = running.ask(chat("fail", R"(,"n":2)"));
  EXPECT_EQ(status_line(bad), "HTTP/1.1 500 Internal Server Error");
  EXPECT_EQ(body_of(bad)["error"]["message"], "a NaN was computed");
  Client streamed(running.port());
  streamed.send(chat("fail", R"(,"stream":true)"));
  const std::string answer = streamed.read_until("0\r\n\r\n");
  EXPECT_NE(answer.find("data: {\"error\":{\"message\":\"a NaN was computed\""), answer.npos) << answer;
  EXPECT_NE(good.read_until("[DONE]").find("\"finish_reason\":\"length\""), std::string::npos);
}

TEST(Server, ClientThatGoesEndsItsRequest) {
  for (const bool stream : {true, false}) {
    for (const bool reset : {true, false}) {
      const RunningServer running;
      Client client(running.port());
      client.send(chat("abc", stream ? R"(,"stream":true,"max_tokens":100000)" : R"(,"max_tokens":100000)"));
      while (running.model->stats().running == 0) std::this_thread::sleep_for(1ms);
      reset ? client.reset() : client.close();
      // Long before its 4,000 tokens are there.
      EXPECT_TRUE(running.becomes_idle());
      const std::uint64_t steps = running.model->stats().steps;
      EXPECT_LT(steps, 3000U);
    }
  }
}

TEST(Server, ClientThatOnlyEndsItsSendingGetsItsAnswers) {
  const RunningServer running([](ServerOptions&, ScriptedModel& model) { model.step_time = 5ms; });
  Client waiting(running.port());
  waiting.send(chat("ab", R"(,"max_tokens":60)") + chat("c", R"(,"max_tokens":20)"));
  waiting.end_sending();
  // Interim answers, which tell the server that somebody is there, and then the two.
  const std::string answers = waiting.read_all();
  EXPECT_TRUE(answers.starts_with("HTTP/1.1 100 Continue\r\n\r\n")) << answers;
  const std::size_t first = answers.find("HTTP/1.1 200 OK"), second = answers.rfind("HTTP/1.1 200 OK");
  EXPECT_NE(first, second) << answers;
  EXPECT_NE(answers.substr(first, second - first).find("\"completion_tokens\":60"), answers.npos) << answers;
  EXPECT_NE(answers.substr(second).find("\"completion_tokens\":20"), answers.npos) << answers;

  Client streaming(running.port());
  streaming.send(chat("ab", R"(,"max_tokens":60,"stream":true)"));
  streaming.end_sending();
  EXPECT_TRUE(streaming.read_all().ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
}

TEST(Server, ClientThatGoesAfterItsSendingEndedEndsItsRequest) {
  for (const bool stream : {true, false}) {
    const RunningServer running([](ServerOptions&, ScriptedModel& model) { model.step_time = 5ms; });
    Client client(running.port());
    client.send(chat("abc", stream ? R"(,"stream":true,"max_tokens":100000)" : R"(,"max_tokens":100000)"));
    client.end_sending();
    client.read_until("\r\n\r\n");
    client.close();
    EXPECT_TRUE(running.becomes_idle());
    EXPECT_LT(running.model->stats().steps, 3000U);
  }
}

TEST(Server, SlowReadersStreamIsEnded) {
  const RunningServer running(
      [](ServerOptions& options, ScriptedModel& model) {
        options.http.max_unread_bytes = 32 << 10;
        model.step_time = 0us;
      },
      std::make_unique<ScriptedModel>(std::int64_t{1} << 40));
  Client client(running.port(), 4096);
  client.send(chat("abc", R"(,"stream":true)"));  // without end
  EXPECT_TRUE(running.becomes_idle());
  EXPECT_NE(running.ask(get("/metrics")).find("tessera_http_disconnected_total 1\n"), std::string::npos);
}

TEST(Server, ReaderThatReadsNothingForTooLongIsEnded) {
  const RunningServer running(
      [](ServerOptions& options, ScriptedModel&) {
        options.http.max_unread_bytes = std::size_t{1} << 30;
        options.http.write_pause = 500ms;
      },
      std::make_unique<ScriptedModel>(std::int64_t{1} << 40));
  Client client(running.port(), 4096);
  client.send(chat("abc", R"(,"stream":true)"));
  EXPECT_TRUE(running.becomes_idle());
}

TEST(Server, QuietStreamGetsCommentLines) {
  const RunningServer running([](ServerOptions& options, ScriptedModel& model) {
    options.http.comment_interval = 300ms;
    model.step_time = 1s;
  });
  Client client(running.port());
  client.send(chat("abc", R"(,"stream":true,"max_tokens":1)"));
  const std::string answer = client.read_until("[DONE]");
  EXPECT_NE(answer.find("\r\n: keep-alive\n\n\r\n"), answer.npos) << answer;
}

TEST(Server, HalfSentRequestsAreToldOrClosed) {
  const RunningServer running([](ServerOptions& options, ScriptedModel&) {
    options.http.header_time = 300ms;
    options.http.idle_time = 300ms;
    options.http.body_pause = 300ms;
  });
  Client silent(running.port());
  EXPECT_EQ(silent.read_all(), "");
  Client half_header(running.port());
  half_header.send("POST /v1/completions HTTP/1.1\r\nHo");
  EXPECT_EQ(status_line(half_header.read_all()), "HTTP/1.1 408 Request Timeout");
  Client half_body(running.port());
  half_body.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\"");
  EXPECT_EQ(status_line(half_body.read_all()), "HTTP/1.1 408 Request Timeout");
  Client vanished(running.port());
  vanished.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\"");
  vanished.reset();
  Client idle(running.port());
  idle.send(get("/health"));
  EXPECT_EQ(status_line(idle.read_answer()), "HTTP/1.1 200 OK");
  EXPECT_EQ(idle.read_all(), "");
}

TEST(Server, TakesARequestThatComesByteByByte) {
  const RunningServer running;
  Client client(running.port());
  const std::string request = chat("ab", R"(,"max_tokens":2)");
  for (const char c : request) client.send(std::string_view(&c, 1));
  EXPECT_EQ(body_of(client.read_answer())["choices"][0]["message"]["content"], "ab");
}

TEST(Server, TakesChunkedBodiesAndExpectContinue) {
  const RunningServer running;
  Client client(running.port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nExpect: "
      "100-continue\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("a\r\n{\"prompt\":\r\n5\r\n\"ab\"}\r\n0\r\n\r\n");
  EXPECT_EQ(body_of(client.read_answer())["choices"][0]["text"], "abababababababab");
}

TEST(Server, RefusesWhatIsTooLarge) {
  const RunningServer running([](ServerOptions& options, ScriptedModel&) {
    options.http.max_body_bytes = 1000;
    options.http.max_header_bytes = 2000;
  });
  const std::string body(1001, ' ');
  EXPECT_EQ(status_line(running.ask(post("/v1/completions", body))), "HTTP/1.1 413 Payload Too Large");
  const std::string answer = running.ask(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + body +
      "\r\n0\r\n\r\n");
  EXPECT_EQ(status_line(answer), "HTTP/1.1 413 Payload Too Large");
  EXPECT_NE(body_of(answer)["error"]["message"].get<std::string>().find("1000"), std::string::npos);
  EXPECT_EQ(status_line(running.ask(get("/health", "X: " + std::string(3000, 'x') + "\r\n"))),
            "HTTP/1.1 431 Request Header Fields Too Large");
  EXPECT_EQ(status_line(running.ask("\x16\x03\x01 hello\r\n\r\n")), "HTTP/1.1 400 Bad Request");
}

TEST(Server, TakesNoBodyWithoutAnEndForTheNextRequest) {
  const RunningServer running;
  Client client(running.port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n" +
              get("/health"));
  const std::string answer = client.read_all();
  EXPECT_EQ(status_line(answer), "HTTP/1.1 400 Bad Request");
  EXPECT_NE(answer.find("Transfer-Encoding"), answer.npos) << answer;
  EXPECT_EQ(answer.find("200 OK"), answer.npos) << answer;
}

TEST(Server, RefusesCompressedBodies) {
  const RunningServer running;
  const std::string body = R"({"prompt":"ab"})";
  const auto encoded = [&](const std::string& encoding) {
    return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: " + encoding +
           "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  };
  const std::string answer = running.ask(encoded("gzip"));
  EXPECT_EQ(status_line(answer), "HTTP/1.1 415 Unsupported Media Type");
  EXPECT_NE(body_of(answer)["error"]["message"].get<std::string>().find("'gzip'"), std::string::npos);
  EXPECT_NE(answer.find("Accept-Encoding: identity\r\n"), answer.npos) << answer;
  EXPECT_EQ(status_line(running.ask(encoded("Identity"))), "HTTP/1.1 200 OK");
}

TEST(Server, BoundsTheBodiesOfAllClients) {
  const RunningServer running([](ServerOptions& options, ScriptedModel&) {
    options.http.max_body_bytes = 1000;
    options.http.max_bodies_bytes = 1500;
  });
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nExpect: "
      "100-continue\r\n\r\n";
  Client first(running.port());
  first.send(head);
  first.read_until("\r\n\r\n");
  const std::string answer = running.ask(head);
  EXPECT_EQ(status_line(answer), "HTTP/1.1 503 Service Unavailable");
  EXPECT_NE(answer.find("Retry-After: 1\r\n"), answer.npos);
  first.reset();
  for (int i = 0; status_line(running.ask(head)) != "HTTP/1.1 100 Continue"; ++i) {
    ASSERT_LT(i, 1000);
    std::this_thread::sleep_for(10ms);
  }
}

TEST(Server, FullQueueIs429) {
  const RunningServer running({}, std::make_unique<ScriptedModel>(std::int64_t{1} << 40, 2));
  Client first(running.port()), second(running.port());
  first.send(chat("a", R"(,"stream":true)"));
  first.read_until("\"content\":\"a\"");
  second.send(chat("a", R"(,"stream":true)"));
  second.read_until("\"content\":\"a\"");
  const std::string answer = running.ask(chat("a"));
  EXPECT_EQ(status_line(answer), "HTTP/1.1 429 Too Many Requests");
  EXPECT_NE(answer.find("Retry-After: 1\r\n"), answer.npos);
  EXPECT_EQ(body_of(answer)["error"]["code"], "queue_full");
  // A request that fits in part gives back what it took.
  first.close();
  while (running.model->stats().running > 1) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(status_line(running.ask(chat("a", R"(,"n":2,"max_tokens":3)"))),
            "HTTP/1.1 429 Too Many Requests");
  EXPECT_EQ(status_line(running.ask(chat("a", R"(,"max_tokens":3)"))), "HTTP/1.1 200 OK");
}

TEST(Server, AsksForItsKey) {
  const RunningServer running([](ServerOptions& options, ScriptedModel&) { options.api_key = "secret"; });
  EXPECT_EQ(status_line(running.ask(get("/health"))), "HTTP/1.1 200 OK");
  EXPECT_EQ(status_line(running.ask(get("/"))), "HTTP/1.1 200 OK");
  for (const char* header :
       {"", "Authorization: Bearer secre\r\n", "Authorization: Bearer secrets\r\n",
        "Authorization: Bearer \r\n", "Authorization: Basic secret\r\n", "Authorization: Bearer\r\n",
        "Authorization: Bearersecret\r\n", "Authorization: Bearer secret x\r\n"}) {
    const std::string answer = running.ask(get("/v1/models", header));
    EXPECT_EQ(status_line(answer), "HTTP/1.1 401 Unauthorized") << header;
    EXPECT_EQ(body_of(answer)["error"]["code"], "invalid_api_key");
  }
  for (const char* header : {"Authorization: Bearer secret\r\n", "authorization: bearer secret\r\n",
                             "Authorization: BEARER  secret\r\n"}) {
    EXPECT_EQ(status_line(running.ask(get("/v1/models", header))), "HTTP/1.1 200 OK") << header;
  }
}

TEST(Server, PagesOfOtherSitesAreRefusedUnlessAllowed) {
  const std::string evil = "Origin: https://evil.example\r\n";
  {
    const RunningServer running;
    EXPECT_EQ(status_line(running.ask(get("/v1/models", evil))), "HTTP/1.1 403 Forbidden");
    EXPECT_EQ(status_line(running.ask(get("/v1/models", "Origin: http://localhost\r\n"))), "HTTP/1.1 200 OK");
    // A name that another site gave to this machine.
    const auto status_for = [&](const std::string& host) {
      return status_line(running.ask("GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n\r\n"));
    };
    for (const char* host :
         {"evil.example:80", "127.evil.example", "127.0.0.1.evil.example", "localhost.evil"})
      EXPECT_EQ(status_for(host), "HTTP/1.1 403 Forbidden") << host;
    for (const char* host : {"127.0.0.1", "127.1.2.3:80", "LocalHost:80", "a.localhost", "[::1]:80"})
      EXPECT_EQ(status_for(host), "HTTP/1.1 200 OK") << host;
    EXPECT_EQ(running.ask(get("/health")).find("Access-Control"), std::string::npos);
  }
  const RunningServer running(
      [](ServerOptions& options, ScriptedModel&) { options.cors_origin = "https://evil.example"; });
  const std::string answer = running.ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" +
                                         evil + "Access-Control-Request-Method: POST\r\n\r\n");
  EXPECT_EQ(status_line(answer), "HTTP/1.1 204 No Content");
  EXPECT_EQ(answer.find("Content-"), answer.npos) << answer;  // neither a length nor a type
  EXPECT_NE(answer.find("Access-Control-Allow-Origin: https://evil.example\r\n"), answer.npos);
  EXPECT_NE(
      running.ask(get("/v1/models", evil)).find("Access-Control-Allow-Origin: https://evil.example\r\n"),
      std::string::npos);
  // Errors, too, or a page could not tell why.
  for (const std::string& wrong :
       {get("/v2", evil), post("/v1/completions", "{}", evil), get("/" + std::string(20'000, 'x'), evil)}) {
    const std::string error = running.ask(wrong);
    EXPECT_EQ(status_line(error).substr(0, 10), "HTTP/1.1 4");
    EXPECT_NE(error.find("Access-Control-Allow-Origin: https://evil.example\r\n"), error.npos) << error;
  }
}

TEST(Server, OriginsAreComparedAsBrowsersWriteThem) {
  for (const char* written : {"https://example.com/", "HTTPS://Example.com", "https://example.com:443"}) {
    const RunningServer running(
        [&](ServerOptions& options, ScriptedModel&) { options.cors_origin = written; });
    EXPECT_NE(running.ask(get("/v1/models", "Origin: https://example.com\r\n"))
                  .find("Access-Control-Allow-Origin: https://example.com\r\n"),
              std::string::npos)
        << written;
  }
  for (const char* written :
       {"example.com", "https://", "https://example.com/chat", "https://a.com, https://b.com",
        "https://*.example.com", "https://a.com\r\nX: y", "/", "https://me@example.com"}) {
    ScriptedModel model;
    ServerOptions options;
    options.port = 0;
    options.cors_origin = written;
    try {
      ApiServer server(model, options);
      FAIL() << written;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(error.message().find("expected one site's scheme and host"), std::string::npos);
    }
  }
}

TEST(Server, TargetsMayNameTheHost) {
  const RunningServer running;
  const auto ask = [&](const std::string& target, const std::string& host) {
    return status_line(running.ask("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"));
  };
  EXPECT_EQ(ask("http://localhost:80/v1/models?a=b", "localhost"), "HTTP/1.1 200 OK");
  EXPECT_EQ(ask("HTTP://127.0.0.1/health", "127.0.0.1"), "HTTP/1.1 200 OK");
  EXPECT_EQ(ask("http://localhost", "localhost"), "HTTP/1.1 200 OK");  // the page
  EXPECT_EQ(ask("http://localhost/v2", "localhost"), "HTTP/1.1 404 Not Found");
  // It counts, not the field.
  EXPECT_EQ(ask("http://localhost/health", "evil.example"), "HTTP/1.1 200 OK");
  EXPECT_EQ(ask("http://evil.example/health", "localhost"), "HTTP/1.1 403 Forbidden");
  EXPECT_EQ(ask("http://localhost@evil.example/health", "localhost"), "HTTP/1.1 403 Forbidden");
}

TEST(Server, WantsOneHost) {
  const RunningServer running;
  const auto ask = [&](const std::string& head) { return status_line(running.ask(head + "\r\n")); };
  EXPECT_EQ(ask("GET /health HTTP/1.1\r\n"), "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(ask("GET http://localhost/health HTTP/1.1\r\n"), "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(ask("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n"),
            "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(ask("GET /health HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n"),
            "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(ask("GET /health HTTP/1.0\r\n"), "HTTP/1.1 200 OK");
}

TEST(Server, PassesOverEmptyLinesBeforeARequest) {
  const RunningServer running;
  Client client(running.port());
  client.send("\r\n" + get("/health") + "\r\n\r\n" + get("/health"));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(status_line(client.read_answer()), "HTTP/1.1 200 OK");
  for (const char c : "\r\n" + get("/health")) client.send(std::string_view(&c, 1));
  EXPECT_EQ(status_line(client.read_answer()), "HTTP/1.1 200 OK");
  client.send("\rGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(status_line(client.read_answer()), "HTTP/1.1 400 Bad Request");
}

TEST(Server, UnknownPathsAndMethodsAreErrors) {
  const RunningServer running;
  EXPECT_EQ(status_line(running.ask(get("/v2"))), "HTTP/1.1 404 Not Found");
  EXPECT_EQ(status_line(running.ask(get("/v1/completions"))), "HTTP/1.1 405 Method Not Allowed");
  EXPECT_EQ(status_line(running.ask(post("/health", "{}"))), "HTTP/1.1 405 Method Not Allowed");
  EXPECT_NE(running.ask(post("/health", "{}")).find("\r\nAllow: GET, HEAD, OPTIONS\r\n"), std::string::npos);
  EXPECT_NE(running.ask(get("/v1/completions")).find("\r\nAllow: POST, OPTIONS\r\n"), std::string::npos);
  EXPECT_EQ(status_line(running.ask(get("/v1/models/other"))), "HTTP/1.1 404 Not Found");
  EXPECT_EQ(body_of(running.ask(get("/v1/models/parrot")))["id"], "parrot");
  EXPECT_EQ(body_of(running.ask(get("/models?a=b")))["data"][0]["id"], "parrot");
}

TEST(Server, ModelsNamesMayHaveAnyCharacters) {
  const RunningServer running(
      [](ServerOptions& options, ScriptedModel&) { options.defaults.model_name = "birds/grey parrot%"; });
  for (const char* path : {"/v1/models/birds%2Fgrey%20parrot%25", "/v1/models/birds/grey%20parrot%?a=b"})
    EXPECT_EQ(body_of(running.ask(get(path)))["id"], "birds/grey parrot%") << path;
  for (const char* path : {"/v1/models/birds%2fgrey%2", "/v1/models/%00", "/v1/models/%+1", "/%76%32"})
    EXPECT_EQ(status_line(running.ask(get(path))), "HTTP/1.1 404 Not Found") << path;
}

TEST(Server, AModelsNameMayBeAnyBytes) {
  const RunningServer running(
      [](ServerOptions& options, ScriptedModel&) { options.defaults.model_name = "par\xffrot"; });
  for (const std::string& request :
       {get("/v1/models"), get("/v1/models/x"), post("/v1/embeddings", R"({"input":"xx"})"),
        post("/v1/completions", R"({"prompt":"ab","max_tokens":1})")}) {
    const std::string answer = running.ask(request);
    EXPECT_NE(answer.find("par\xef\xbf\xbdrot"), answer.npos) << answer;
  }
}

TEST(Server, AnAnswerThatCantBeMadeEndsItWithTheReason) {
  class WithoutStats : public ScriptedModel {
    EngineStats stats() const override { throw std::runtime_error("no stats"); }
  };
  WithoutStats model;
  ServerOptions options;
  options.port = 0;
  auto server = std::make_unique<ApiServer>(model, options);
  Client client(server->port());
  client.send(get("/metrics"));
  EXPECT_THROW(server->run(), std::runtime_error);
}

TEST(Server, TokensAndEmbeddings) {
  const RunningServer running;
  EXPECT_EQ(body_of(running.ask(post("/tokenize", R"({"prompt":"AB"})")))["tokens"], json({65, 66}));
  EXPECT_EQ(
      body_of(running.ask(post("/tokenize", R"({"messages":[{"role":"user","content":"C"}]})")))["count"], 1);
  // All that makes a chat completion's prompt counts.
  const json tools = json::parse(R"([{"type":"function","function":{"name":"f"}}])");
  const json with_tools = {{"messages", json::parse(R"([{"role":"user","content":"C"}])")},
                           {"tools", tools},
                           {"chat_template_kwargs", {{"writes", "tools"}}}};
  const std::size_t num_tokens = 1 + tools.dump().size();
  EXPECT_EQ(body_of(running.ask(post("/tokenize", with_tools.dump())))["count"], num_tokens);
  EXPECT_EQ(body_of(running.ask(post("/v1/attention", with_tools.dump())))["prompt_tokens"], num_tokens);
  EXPECT_EQ(body_of(running.ask(post("/v1/chat/completions", with_tools.dump())))["usage"]["prompt_tokens"],
            num_tokens);
  EXPECT_EQ(body_of(running.ask(post("/detokenize", R"({"tokens":[65,66]})")))["content"], "AB");
  EXPECT_EQ(body_of(running.ask(post("/detokenize", R"({"tokens":[]})")))["content"], "");
  EXPECT_EQ(status_line(running.ask(post("/detokenize", R"({"tokens":[[1],[2]]})"))),
            "HTTP/1.1 400 Bad Request");
  json inputs = json::array();
  for (int i = 1; i <= 100; ++i) inputs.push_back(std::string(static_cast<std::size_t>(i), 'x'));
  const json body = body_of(running.ask(post("/v1/embeddings", json{{"input", inputs}}.dump())));
  ASSERT_EQ(body["data"].size(), 100U);
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(body["data"][static_cast<std::size_t>(i)]["embedding"], json({1.0, 0.5, i + 1}));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5050);
  EXPECT_EQ(body_of(running.ask(post(
                "/v1/embeddings", R"({"input":"xx","encoding_format":"base64"})")))["data"][0]["embedding"],
            "AACAPwAAAD8AAABA");
  EXPECT_EQ(
      body_of(running.ask(post("/v1/embeddings", R"({"input":"xx","dimensions":2})")))["error"]["param"],
      "dimensions");
}

TEST(Server, TellsWhatATokenLooksAt) {
  const RunningServer running;
  const auto ask = [&](const std::string& more) {
    return body_of(running.ask(
        post("/v1/attention", R"({"messages":[{"role":"user","content":"ab"}],"answer":"cd")" + more + "}")));
  };
  const json body = ask(R"(,"position":1,"layer":0)");
  EXPECT_EQ(body["tokens"], json({"a", "b", "c", "d"}));
  EXPECT_EQ(body["prompt_tokens"], 2);
  EXPECT_EQ(body["weights"], json::parse("[[0.5,0.5],[0.5,0.5]]"));
  EXPECT_EQ(ask("")["position"], 3);
  EXPECT_EQ(ask("")["layer"], 1);
  EXPECT_EQ(ask(R"(,"position":4)")["error"]["param"], "position");
  EXPECT_EQ(ask(R"(,"layer":2)")["error"]["param"], "layer");
}

TEST(Server, SchemasThatCannotBeHeldToAreErrorsOfTheirField) {
  const RunningServer running;
  const std::pair<const char*, const char*> cases[] = {
      {R"(,"response_format":{"type":"json_object"})", "response_format"},
      {R"(,"tools":[{"function":{"name":"f"}}],"tool_choice":"required")", "tools"},
      {R"(,"tools":[{"function":{"name":"f"}}],"response_format":{"type":"json_object"})", "response_format"},
  };
  for (const auto& [more, param] : cases) {
    const json error = body_of(running.ask(chat("a", more)))["error"];
    EXPECT_EQ(error["param"], param);
    EXPECT_EQ(error["code"], "unsupported");
    EXPECT_EQ(error["message"], std::string(param) + ": no schemas here");
  }
}

TEST(Server, PromptThatDoesNotFitIsAnError) {
  const RunningServer running;
  const json body =
      body_of(running.ask(post("/v1/completions", json{{"prompt", std::string(5000, 'x')}}.dump())));
  EXPECT_EQ(body["error"]["code"], "context_length_exceeded");
}

TEST(Server, TokensThatTheModelLacksAreErrors) {
  const RunningServer running;
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"/v1/completions", R"({"prompt":[1,256]})", "prompt"},
      {"/v1/completions", R"({"prompt":[1],"logit_bias":{"5":1,"256":1}})", "logit_bias"},
      {"/v1/embeddings", R"({"input":[1,256]})", "input"},
      {"/detokenize", R"({"tokens":[1,256]})", "tokens"},
  };
  for (const auto& [path, body, param] : cases) {
    const std::string answer = running.ask(post(path, body));
    EXPECT_EQ(status_line(answer), "HTTP/1.1 400 Bad Request") << body;
    EXPECT_EQ(body_of(answer)["error"]["param"], param) << body;
    EXPECT_NE(answer.find("token 256"), answer.npos) << answer;
  }
}

TEST(Server, DrainsBeforeItEnds) {
  RunningServer running([](ServerOptions&, ScriptedModel& model) { model.step_time = 2ms; });
  Client idle(running.port()), busy(running.port());
  idle.send(get("/health"));
  idle.read_answer();
  busy.send(chat("ab", R"(,"stream":true,"max_tokens":400)"));
  busy.read_until("\"content\":\"a\"");
  running.server->drain();
  EXPECT_EQ(idle.read_all(), "");
  const std::string answer = busy.read_all();
  EXPECT_NE(answer.find("data: [DONE]"), answer.npos);
  running.end();
}

TEST(Server, DrainingWaitsForNoHalfSentRequests) {
  RunningServer running;
  Client half_header(running.port()), half_body(running.port()), silent(running.port());
  half_header.send("POST /v1/completions HTTP/1.1\r\nHo");
  half_body.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\"");
  running.ask(get("/health"));  // by then they have been read
  const auto begun = std::chrono::steady_clock::now();
  running.server->drain();
  EXPECT_EQ(half_header.read_all(), "");
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_EQ(status_line(half_body.read_all()), "HTTP/1.1 503 Service Unavailable");
  half_body.close();
  running.end();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);
}

TEST(Server, RequestsThatOutlastTheDrainAreTold) {
  RunningServer running([](ServerOptions& options, ScriptedModel&) { options.drain_time = 0s; },
                        std::make_unique<ScriptedModel>(std::int64_t{1} << 40));
  Client busy(running.port());
  busy.send(chat("ab", R"(,"stream":true)"));
  busy.read_until("\"content\":\"a\"");
  running.end();
  EXPECT_EQ(running.model->stats().running, 0);
  const std::string rest = busy.read_all();
  EXPECT_NE(rest.find("data: {\"error\":{\"message\":\"the server is shutting down\""), rest.npos);
  EXPECT_TRUE(rest.ends_with("\r\n0\r\n\r\n"))
      << rest.substr(rest.size() - std::min<std::size_t>(rest.size(), 300));
}

TEST(Server, ManyStreamsAtOnceAllComplete) {
  const RunningServer running({}, std::make_unique<ScriptedModel>(4096, 1000));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<Client>(running.port()));
    clients.back()->send(chat("abcdefgh", R"(,"stream":true,"max_tokens":50)"));
  }
  for (const auto& client : clients) {
    EXPECT_NE(client->read_until("[DONE]").find("\"finish_reason\":\"length\""), std::string::npos);
  }
}

TEST(Server, AddressInUseIsAnError) {
  ScriptedModel model;
  ServerOptions options;
  options.port = 0;
  const ApiServer first(model, options);
  options.port = first.port();
  try {
    const ApiServer second(model, options);
    FAIL() << "two servers on a port";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("--port"), std::string::npos) << error.message();
  }
  for (const char* host : {"no such host", ""}) {
    options.host = host;
    EXPECT_THROW(ApiServer(model, options), Error) << host;
  }
}

}  // namespace
}  // namespace tessera
