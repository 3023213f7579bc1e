// The engine through its public interface: requests that come, run side by side, end and fail, one without
// another's doing.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "model/golden_fixture.h"
#include "model/tiny_requests.h"
#include "tessera/engine.h"
#include "tessera/model.h"

namespace tessera {
namespace {

EngineOptions tiny_options(int max_batch = 4) {
  EngineOptions options;
  options.max_seq_len = 64;
  options.max_batch = max_batch;
  options.batch_invariant = true;
  return options;
}

std::vector<std::int32_t> counting_prompt(int length, int first = 1) {
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

/// What became of a request.
struct Result {
  std::vector<std::int32_t> tokens;
  std::string text;
  std::vector<Event> events;

  const Event& last() const { return events.back(); }
};

void collect(std::vector<Event> events, std::map<RequestId, Result>& results) {
  for (Event& event : events) {
    Result& result = results[event.id];
    EXPECT_TRUE(result.events.empty() || result.last().type == Event::Type::kToken)
        << "an event after the last of request " << event.id;
    if (event.type == Event::Type::kToken) result.tokens.push_back(event.token);
    result.text += event.text;
    result.events.push_back(std::move(event));
  }
}

std::map<RequestId, Result> run_all(Engine& engine) {
  std::map<RequestId, Result> results;
  while (engine.has_work()) collect(engine.step(), results);
  return results;
}

/// The error that `call` throws.
Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return {ErrorCode::kDevice, "none"};
}

// ---- What comes out

TEST(Engine, GivesTheTokensOfGenerateWhateverElseRuns) {
  const Model model = tiny_model();
  ModelOptions alone_options;
  alone_options.max_seq_len = 64;
  alone_options.batch_invariant = true;
  LanguageModel alone(model, alone_options);
  Engine engine(model, tiny_options());
  std::vector<Request> requests;
  for (int i = 0; i < 9; ++i) {
    requests.push_back(request_of(counting_prompt(1 + 5 * i, 30 * i + 1), 3 + i % 4 * 5, i % 2 == 0 ? 0 : 1,
                                  static_cast<std::uint64_t>(i)));
  }
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(engine.submit(request));
  const std::map<RequestId, Result> results = run_all(engine);
  ASSERT_EQ(results.size(), requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    GenerateOptions options;
    options.max_tokens = requests[i].max_tokens;
    options.sampling = requests[i].sampling;
    const Result& result = results.at(ids[i]);
    EXPECT_EQ(result.tokens, alone.generate(requests[i].prompt, options).tokens) << i;
    EXPECT_EQ(result.last().type, Event::Type::kFinished);
    EXPECT_EQ(result.last().stop_reason, StopReason::kMaxTokens);
    EXPECT_EQ(result.last().stats.prompt_tokens, std::ssize(requests[i].prompt));
    EXPECT_EQ(result.last().stats.generated_tokens, requests[i].max_tokens);
  }
  EXPECT_TRUE(engine.step().empty());
}

TEST(Engine, StreamsTextUpToAStopString) {
  const GoldenFixture fixture = read_golden_fixture("llama2");
  EngineOptions options = tiny_options();
  options.max_seq_len = 0;
  Engine engine(Model::load(fixture.model), options);
  const RequestId whole_id = engine.submit(request_of(fixture.tokens, 24));
  const Result whole = run_all(engine).at(whole_id);
  ASSERT_GT(whole.text.size(), 12u);
  EXPECT_EQ(whole.text, engine.model().decode(whole.tokens));
  Request request = request_of(fixture.tokens, 24);
  const std::string stop = whole.text.substr(whole.text.size() / 2, 3);
  request.stop = {"not in it", stop};
  const RequestId id = engine.submit(request);
  const Result result = run_all(engine).at(id);
  EXPECT_EQ(result.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_EQ(result.last().stop_reason, StopReason::kStopString);
}

TEST(Engine, EndsAtEndOfTextAndSaysWithWhichToken) {
  const GoldenFixture fixture = read_golden_fixture("llama2");
  EngineOptions options = tiny_options(8);
  options.max_seq_len = 0;
  Engine engine(Model::load(fixture.model), options);
  ASSERT_EQ(std::vector<std::int32_t>(engine.model().end_tokens().begin(), engine.model().end_tokens().end()),
            std::vector<std::int32_t>{2});
  for (std::uint64_t seed = 0; seed < 24; ++seed) engine.submit(request_of(fixture.tokens, 100, 1000, seed));
  int num_ended = 0;
  for (const auto& [id, result] : run_all(engine)) {
    EXPECT_EQ(std::ranges::find(result.tokens, 2), result.tokens.end());
    if (result.last().stop_reason != StopReason::kEndOfText) continue;
    ++num_ended;
    EXPECT_EQ(result.last().token, 2);
    EXPECT_EQ(result.last().stats.generated_tokens, std::ssize(result.tokens) + 1);
  }
  EXPECT_GT(num_ended, 0);
}

TEST(Engine, GivesLogProbabilitiesOfTheModelsOwnDistribution) {
  for (const char* backend : {"reference", "cpu"}) {
    const Model model = tiny_model(backend);
    ModelOptions logits_options;
    logits_options.max_seq_len = 64;
    logits_options.batch_invariant = true;
    LanguageModel oracle(model, logits_options);
    Engine engine(model, tiny_options());
    Request request = request_of(counting_prompt(7), 6, 0.8f, 5);
    request.top_logprobs = 4;
    const RequestId plain = engine.submit(request_of(counting_prompt(9, 40), 6));
    const RequestId id = engine.submit(request);
    const std::map<RequestId, Result> results = run_all(engine);
    EXPECT_TRUE(results.at(plain).events.front().top_logprobs.empty());
    std::vector<std::int32_t> sequence = request.prompt;
    for (const Event& event : results.at(id).events) {
      if (event.type != Event::Type::kToken) continue;
      const std::vector<float> logits = oracle.logits(sequence);
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      const auto logprob = [&](std::int32_t token) {
        return static_cast<double>(logits[static_cast<std::size_t>(token)]) - std::log(sum);
      };
      // An fp32 number of size 10 or less is right to 5e-7.
      EXPECT_NEAR(event.logprob, logprob(event.token), 1e-6);
      ASSERT_EQ(event.top_logprobs.size(), 4u);
      EXPECT_EQ(event.top_logprobs[0].token, std::ranges::max_element(logits) - logits.begin());
      for (const TokenLogprob& top : event.top_logprobs) EXPECT_NEAR(top.logprob, logprob(top.token), 1e-6);
      EXPECT_TRUE(std::ranges::is_sorted(event.top_logprobs, std::ranges::greater(), &TokenLogprob::logprob));
      sequence.push_back(event.token);
    }
    EXPECT_EQ(sequence.size(), request.prompt.size() + 6);
  }
}

TEST(Engine, GivesLogProbabilitiesOfThePromptHoweverItIsSplit) {
  for (const char* backend : {"reference", "cpu"}) {
    const Model model = tiny_model(backend);
    ModelOptions logits_options;
    logits_options.max_seq_len = 64;
    LanguageModel oracle(model, logits_options);
    const std::vector<std::int32_t> prompt = counting_prompt(41, 40);
    const std::vector<float> logits = oracle.logits(prompt, /*all_positions=*/true);
    const std::size_t vocab_size = logits.size() / prompt.size();
    for (const int chunk : {64, 7, 1}) {
      EngineOptions options = tiny_options();
      options.prefill_chunk = chunk;
      Engine engine(model, options);
      engine.submit(request_of(prompt, 1));  // leaves its pages for those that come
      run_all(engine);
      Request request = request_of(prompt, 0);
      request.top_logprobs = 3;
      request.prompt_logprobs = true;
      const RequestId alone = engine.submit(request);
      request.max_tokens = 4;
      const RequestId continued = engine.submit(request);
      engine.submit(request_of(counting_prompt(9, 5), 12));
      const std::map<RequestId, Result> results = run_all(engine);
      ASSERT_EQ(results.at(alone).events.size(), 1u);
      EXPECT_EQ(results.at(alone).last().stop_reason, StopReason::kMaxTokens);
      EXPECT_EQ(results.at(alone).last().stats.generated_tokens, 0);
      EXPECT_EQ(results.at(continued).tokens.size(), 4u);
      for (const RequestId id : {alone, continued}) {
        const std::vector<Event>& events = results.at(id).events;
        for (std::size_t i = 1; i < events.size(); ++i) EXPECT_TRUE(events[i].prompt_logprobs.empty());
        ASSERT_EQ(events.front().prompt_logprobs.size(), prompt.size() - 1);
        for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
          const std::span<const float> row = std::span(logits).subspan(i * vocab_size, vocab_size);
          double sum = 0;
          for (const float logit : row) sum += std::exp(static_cast<double>(logit));
          const auto logprob = [&](std::int32_t token) {
            return static_cast<double>(row[static_cast<std::size_t>(token)]) - std::log(sum);
          };
          const PromptLogprob& got = events.front().prompt_logprobs[i];
          // The logits themselves differ by rounding: those here come of other chunks.
          EXPECT_NEAR(got.logprob, logprob(prompt[i + 1]), 1e-5) << i;
          ASSERT_EQ(got.top_logprobs.size(), 3u);
          EXPECT_NEAR(got.top_logprobs[0].logprob, logprob(got.top_logprobs[0].token), 1e-5);
          EXPECT_NEAR(got.top_logprobs[0].logprob, *std::ranges::max_element(row) - std::log(sum), 1e-5);
        }
      }
    }
  }
}

/// Allows multiples of a number, and fails at a step of the test's choice.
class Multiples : public TokenConstraint {
 public:
  explicit Multiples(int factor, int fails_at = -1) : factor_(factor), fails_at_(fails_at) {}
  bool allowed_tokens(std::span<std::uint32_t> mask) override {
    if (std::ssize(accepted_) == fails_at_) throw std::runtime_error("the grammar has no way on");
    if (factor_ == 1) return false;
    if (factor_ > 0) {
      for (std::size_t id = 0; id < 512; id += static_cast<std::size_t>(factor_))
        mask[id / 32] |= 1u << id % 32;
    }
    return true;
  }
  void accept(std::int32_t token) override { accepted_.push_back(token); }

  const std::vector<std::int32_t>& accepted() const { return accepted_; }

 private:
  int factor_, fails_at_;
  std::vector<std::int32_t> accepted_;
};

TEST(Engine, DrawsOnlyWhatAConstraintAllows) {
  for (const char* backend : {"reference", "cpu"}) {
    Engine engine(tiny_model(backend), tiny_options());
    const auto sevens = std::make_shared<Multiples>(7), any = std::make_shared<Multiples>(1);
    Request request = request_of(counting_prompt(7), 20, 2, 5);
    request.top_logprobs = 1;  // of all tokens, the forbidden ones too
    request.constraint = sevens;
    const RequestId id = engine.submit(request);
    request.constraint = any;
    const RequestId any_id = engine.submit(request);
    request.constraint = nullptr;
    const RequestId plain_id = engine.submit(request);
    const std::map<RequestId, Result> results = run_all(engine);
    EXPECT_EQ(results.at(id).tokens.size(), 20u);
    for (const std::int32_t token : results.at(id).tokens) EXPECT_EQ(token % 7, 0);
    EXPECT_EQ(results.at(id).tokens, sevens->accepted());
    EXPECT_EQ(results.at(any_id).tokens, results.at(plain_id).tokens);
    EXPECT_EQ(results.at(id).events[0].top_logprobs[0].token,
              results.at(plain_id).events[0].top_logprobs[0].token);
  }
}

TEST(Engine, EmbedsPromptsAsTheHiddenStatesMeanOrLast) {
  const Model model = tiny_model();
  EngineOptions options = tiny_options();
  options.prefill_chunk = 8;  // so that the mean is of several steps
  Engine engine(model, options);
  const auto embed = [&](std::vector<std::int32_t> prompt, Pooling pooling, bool normalize) {
    const RequestId id = engine.submit(EmbeddingRequest{std::move(prompt), pooling, normalize});
    const Result result = run_all(engine).at(id);
    EXPECT_EQ(result.events.size(), 1u);
    EXPECT_EQ(std::ssize(result.last().embedding), model.info().hidden_size);
    return result.last().embedding;
  };
  const std::vector<std::int32_t> prompt = counting_prompt(21);
  std::vector<double> mean(static_cast<std::size_t>(model.info().hidden_size));
  for (std::size_t length = 1; length <= prompt.size(); ++length) {
    const std::vector<float> last =
        embed({prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(length)}, Pooling::kLast, false);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += last[i] / static_cast<double>(prompt.size());
  }
  engine.submit(request_of(counting_prompt(30, 90), 20));  // side by side with another
  const std::vector<float> actual = embed(prompt, Pooling::kMean, false);
  double length = 0;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    EXPECT_NEAR(actual[i], mean[i], 1e-6 * std::max(1.0, std::abs(mean[i])));
    length += mean[i] * mean[i];
  }
  const std::vector<float> unit = embed(prompt, Pooling::kMean, true);
  for (std::size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(unit[i], mean[i] / std::sqrt(length), 1e-6);
}

// ---- How requests end and fail

TEST(Engine, ACancelledRequestEndsWithTheNextStepAndDisturbsNoOther) {
  Engine engine(tiny_model(), tiny_options(2));
  const RequestId stays = engine.submit(request_of(counting_prompt(5), 12, 1, 1));
  const RequestId expected_id = engine.submit(request_of(counting_prompt(8, 50), 12, 1, 2));
  const std::map<RequestId, Result> expected = run_all(engine);
  const RequestId again = engine.submit(request_of(counting_prompt(5), 12, 1, 1));
  const RequestId running = engine.submit(request_of(counting_prompt(8, 50), 12, 1, 2));
  const RequestId waiting = engine.submit(request_of(counting_prompt(9), 12));
  std::map<RequestId, Result> results;
  for (int i = 0; i < 4; ++i) collect(engine.step(), results);
  EXPECT_EQ(engine.stats().running, 2);
  EXPECT_EQ(engine.stats().waiting, 1);
  EXPECT_TRUE(engine.cancel(running));
  EXPECT_TRUE(engine.cancel(waiting));
  EXPECT_FALSE(engine.cancel(running));
  collect(engine.step(), results);
  for (const RequestId id : {running, waiting}) {
    EXPECT_EQ(results.at(id).last().type, Event::Type::kFinished);
    EXPECT_EQ(results.at(id).last().stop_reason, StopReason::kCancelled);
  }
  EXPECT_EQ(results.at(running).tokens.size(), 4u);
  EXPECT_EQ(engine.stats().running, 1);
  while (engine.has_work()) collect(engine.step(), results);
  EXPECT_EQ(results.at(again).tokens, expected.at(stays).tokens);
  EXPECT_EQ(expected.at(expected_id).tokens.size(), 12u);
  EXPECT_EQ(engine.stats().kv_pages_used, 0);
  EXPECT_EQ(engine.stats().requests_cancelled, 2u);
  EXPECT_FALSE(engine.cancel(again)) << "it has ended";
}

TEST(Engine, AFailingConstraintEndsItsOwnRequestOnly) {
  Engine engine(tiny_model(), tiny_options());
  Request request = request_of(counting_prompt(7), 10, 1, 3);
  const RequestId plain = engine.submit(request);
  request.constraint = std::make_shared<Multiples>(3, /*fails_at=*/4);
  const RequestId throws = engine.submit(request);
  request.constraint = std::make_shared<Multiples>(0);
  const RequestId forbids_all = engine.submit(request);
  const std::map<RequestId, Result> results = run_all(engine);
  EXPECT_EQ(results.at(plain).tokens.size(), 10u);
  EXPECT_EQ(results.at(throws).tokens.size(), 4u);
  EXPECT_EQ(results.at(throws).last().type, Event::Type::kError);
  EXPECT_EQ(results.at(throws).last().error_message, "the grammar has no way on");
  EXPECT_EQ(results.at(forbids_all).last().type, Event::Type::kError);
  EXPECT_NE(results.at(forbids_all).last().error_message.find("allows no token"), std::string::npos);
  EXPECT_EQ(engine.stats().requests_failed, 2u);
  EXPECT_EQ(engine.stats().kv_pages_used, 0);
}

TEST(Engine, ARequestThatOutgrowsTheCacheFailsAloneAndOthersGoOn) {
  EngineOptions options = tiny_options();
  options.page_size = 4;
  options.max_kv_tokens = 32;
  Engine engine(tiny_model(), options);
  const RequestId grows = engine.submit(request_of(counting_prompt(20), 40));
  const RequestId fits = engine.submit(request_of(counting_prompt(12, 60), 10));
  const RequestId too_long = engine.submit(request_of(counting_prompt(33), 1));
  const std::map<RequestId, Result> results = run_all(engine);
  for (const RequestId id : {grows, too_long}) {
    EXPECT_EQ(results.at(id).last().type, Event::Type::kError);
    EXPECT_EQ(results.at(id).last().error_code, ErrorCode::kOutOfMemory);
  }
  EXPECT_EQ(results.at(grows).tokens.size(), 32u - 20u + 1u);
  EXPECT_EQ(results.at(fits).tokens.size(), 10u);
}

TEST(Engine, RefusesWhatCannotRunAndWhatTheQueueHasNoRoomFor) {
  EngineOptions options = tiny_options(1);
  options.max_waiting = 2;
  Engine engine(tiny_model(), options);
  const auto refused = [&](const Request& request) { return error_of([&] { engine.submit(request); }); };
  EXPECT_EQ(refused(request_of({}, 1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(request_of({512}, 1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(request_of(counting_prompt(65), 1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(request_of({1}, -1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(request_of({1}, 1, -1)).code(), ErrorCode::kInvalidArgument);
  Request request = request_of({1}, 4);
  request.top_logprobs = 65;
  EXPECT_EQ(refused(request).code(), ErrorCode::kInvalidArgument);
  request = request_of({1}, 4);
  request.prompt_logprobs = true;  // and not how many of the likeliest
  EXPECT_EQ(refused(request).code(), ErrorCode::kInvalidArgument);
  request = request_of({1}, 4);
  request.stop = {"needs a tokenizer"};
  EXPECT_EQ(refused(request).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] {
              engine.submit(EmbeddingRequest{{}, Pooling::kMean, true});
            }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(engine.has_work());

  for (int i = 0; i < 2; ++i) engine.submit(request_of({1}, 4));
  EXPECT_THROW(engine.submit(request_of({1}, 4)), QueueFull);
  const Error full = refused(request_of({1}, 4));
  EXPECT_NE(full.message().find("2 requests wait"), std::string::npos) << full.message();
  engine.step();  // one runs now
  engine.submit(request_of({1}, 4));
  EXPECT_THROW(engine.submit(request_of({1}, 4)), QueueFull);
  EXPECT_EQ(run_all(engine).size(), 3u);
  EXPECT_EQ(engine.stats().requests_refused, 3u);
  options.max_waiting = 0;
  EXPECT_EQ(error_of([&] { Engine(tiny_model(), options); }).code(), ErrorCode::kInvalidArgument);
}

TEST(Engine, NoTokensAreNoWork) {
  Engine engine(tiny_model(), tiny_options());
  const RequestId id = engine.submit(request_of({1, 2}, 0));
  const Result result = run_all(engine).at(id);
  EXPECT_EQ(result.events.size(), 1u);
  EXPECT_EQ(result.last().stop_reason, StopReason::kMaxTokens);
  EXPECT_EQ(engine.stats().steps, 0u);
}

// ---- Threads

TEST(EngineThreads, SubmitAndCancelWhileAnotherSteps) {
  Engine engine(tiny_model(), tiny_options());
  const RequestId first = engine.submit(request_of(counting_prompt(5), 6, 1, 9));
  const std::vector<std::int32_t> expected = run_all(engine).at(first).tokens;
  constexpr int kThreads = 3, kRequests = 8;
  std::atomic<int> num_submitting = kThreads;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        const RequestId id = engine.submit(request_of(counting_prompt(5), 6, 1, 9));
        if ((t + i) % 3 == 0) engine.cancel(id);
        engine.stats();
      }
      --num_submitting;
      engine.wake();
    });
  }
  std::map<RequestId, Result> results;
  while (num_submitting > 0 || engine.has_work()) {
    if (engine.wait(std::chrono::seconds(60))) collect(engine.step(), results);
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(results.size(), static_cast<std::size_t>(kThreads * kRequests));
  for (const auto& [id, result] : results) {
    if (result.last().stop_reason == StopReason::kCancelled) continue;
    EXPECT_EQ(result.last().type, Event::Type::kFinished);
    EXPECT_EQ(result.tokens, expected);
  }
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.requests_submitted, stats.requests_finished);
  EXPECT_EQ(stats.running + stats.waiting + stats.kv_pages_used, 0);
}

TEST(EngineThreads, WaitEndsWithWorkAndWithAWake) {
  Engine engine(tiny_model(), tiny_options());
  EXPECT_FALSE(engine.wait(std::chrono::milliseconds(0)));
  engine.wake();
  EXPECT_FALSE(engine.wait(std::chrono::hours(1)));
  std::thread client([&] { engine.submit(request_of({1}, 1)); });
  EXPECT_TRUE(engine.wait(std::chrono::hours(1)));
  client.join();
}

TEST(EngineThreads, AWaitMayBeOfAnyLength) {
  Engine engine(tiny_model(), tiny_options());
  EXPECT_FALSE(engine.wait(std::chrono::milliseconds::min()));
  std::atomic<bool> wakes = false;
  std::thread client([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    wakes = true;
    engine.wake();
  });
  EXPECT_FALSE(engine.wait(std::chrono::milliseconds::max()));
  EXPECT_TRUE(wakes);
  client.join();
}

// SentencePiece's tokens have the space before a word, which a text that begins doesn't have.
TEST(EngineText, GoesOnFromThePromptsText) {
  LanguageModel model = LanguageModel::load(read_golden_fixture("llama2").model, golden_options("cpu"));
  const std::int32_t the = model.encode("the").at(1);
  GenerateOptions options;
  options.max_tokens = 2;
  options.sampling.logit_bias = {{the, 1000.0f}};
  const auto text_behind = [&](std::string_view prompt) {
    std::string text;
    model.generate(model.encode(prompt), options, [&](std::int32_t, std::string_view piece) {
      text += piece;
      return true;
    });
    return text;
  };
  EXPECT_EQ(text_behind("in"), " the the");
  EXPECT_EQ(text_behind(""), "the the");  // behind the token that opens texts
}

}  // namespace
}  // namespace tessera
