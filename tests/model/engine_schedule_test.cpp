// What the scheduler may do without anyone seeing it in the tokens: cut prompts, mix them with decoding,
// preempt, take pages of earlier requests. And who gets how much of a step.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "model/recording_ops.h"
#include "model/tiny_engine.h"
#include "model/tiny_requests.h"
#include "tessera/engine.h"

namespace tessera {
namespace {

struct Result {
  std::vector<std::int32_t> tokens;
  Event last;
};

void collect(std::vector<Event> events, std::map<RequestId, Result>& results) {
  for (Event& event : events) {
    if (event.type == Event::Type::kToken) {
      results[event.id].tokens.push_back(event.token);
    } else {
      results[event.id].last = std::move(event);
    }
  }
}

std::map<RequestId, Result> run_all(Engine& engine) {
  std::map<RequestId, Result> results;
  while (engine.has_work()) collect(engine.step(), results);
  return results;
}

// ---- Tokens don't depend on the schedule

class Schedules : public testing::TestWithParam<const char*> {};

/// Prompts some of which begin alike, for pages of any size.
std::vector<Request> random_requests(std::mt19937& random, int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    const int length = 1 + static_cast<int>(random() % 36), common = static_cast<int>(random() % 50);
    std::vector<std::int32_t> prompt = some_tokens(length, 1 + static_cast<int>(random() % 5));
    const std::vector<std::int32_t> beginning = some_tokens(std::min(length, common), 0);
    std::ranges::copy(beginning, prompt.begin());
    requests.push_back(request_of(std::move(prompt), 1 + static_cast<std::int64_t>(random() % 28),
                                  random() % 2 == 0 ? 0.0f : 1.0f, random()));
    requests.back().use_prefix_cache = random() % 8 != 0;
  }
  return requests;
}

TEST_P(Schedules, GiveTheTokensOfEachPromptAlone) {
  const Model model = tiny_model(GetParam());
  ModelOptions alone_options;
  alone_options.max_seq_len = 64;
  alone_options.batch_invariant = true;
  LanguageModel alone(model, alone_options);
  std::mt19937 random(7);
  std::vector<Request> requests = random_requests(random, 20);
  std::vector<std::vector<std::int32_t>> expected;
  for (const Request& request : requests) {
    GenerateOptions options;
    options.max_tokens = request.max_tokens;
    options.sampling = request.sampling;
    expected.push_back(alone.generate(request.prompt, options).tokens);
  }

  EngineStats sums;
  for (int schedule = 0; schedule < 12; ++schedule) {
    EngineOptions options;
    options.max_seq_len = 64;
    options.batch_invariant = true;
    options.max_batch = 1 + static_cast<int>(random() % 7);
    options.page_size = 1 + static_cast<int>(random() % (schedule % 2 == 0 ? 4 : 17));
    options.prefill_chunk = 1 + static_cast<int>(random() % 70);
    options.max_kv_tokens = 64 + static_cast<std::int64_t>(random() % 40);  // one fits, two often don't
    options.prefix_cache = schedule % 4 != 0;
    Engine engine(model, options);
    std::vector<std::size_t> order(requests.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, random);
    std::map<RequestId, std::size_t> submitted;
    std::map<RequestId, bool> cancelled;
    std::map<RequestId, Result> results;
    for (const std::size_t i : order) {
      const RequestId id = engine.submit(requests[i]);
      submitted[id] = i;
      if (random() % 8 == 0) cancelled[id] = engine.cancel(id);
      for (unsigned steps = random() % 4; steps > 0; --steps) collect(engine.step(), results);
      if (random() % 8 == 0) {
        const RequestId victim = 1 + random() % id;
        if (engine.cancel(victim)) cancelled[victim] = true;
      }
    }
    while (engine.has_work()) collect(engine.step(), results);
    ASSERT_EQ(results.size(), requests.size());
    for (const auto& [id, result] : results) {
      ASSERT_EQ(result.last.type, Event::Type::kFinished) << result.last.error_message;
      const std::vector<std::int32_t>& all = expected[submitted.at(id)];
      if (cancelled.contains(id)) {
        ASSERT_EQ(result.last.stop_reason, StopReason::kCancelled);
        ASSERT_LE(result.tokens.size(), all.size());
        ASSERT_TRUE(std::ranges::equal(result.tokens, std::span(all).first(result.tokens.size())));
      } else {
        ASSERT_EQ(result.tokens, all) << "prompt " << submitted.at(id) << " schedule " << schedule
                                      << " chunk " << options.prefill_chunk << " batch " << options.max_batch
                                      << " page " << options.page_size << " tokens " << options.max_kv_tokens;
      }
    }
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.kv_pages_used, 0);
    EXPECT_EQ(stats.requests_finished, requests.size());
    if (!options.prefix_cache) {
      EXPECT_EQ(stats.cached_tokens, 0u);
      EXPECT_EQ(stats.kv_pages_cached, 0);
    }
    sums.preemptions += stats.preemptions;
    sums.cached_tokens += stats.cached_tokens;
    sums.computed_tokens += stats.computed_tokens;
  }
  EXPECT_GT(sums.preemptions, 10u);
  EXPECT_GT(sums.cached_tokens, 200u);
}

INSTANTIATE_TEST_SUITE_P(Backends, Schedules, testing::Values("reference", "cpu"),
                         [](const auto& test) { return test.param; });

TEST(Preemption, LeavesEmbeddingsAndAttentionAsTheyAre) {
  const Model model = tiny_model();
  const auto result_of = [&](bool is_preempted, auto request) {
    EngineOptions options;
    options.max_seq_len = 64;
    options.batch_invariant = true;
    options.prefill_chunk = 4;
    options.page_size = 1;
    options.max_kv_tokens = 50;
    options.prefix_cache = false;
    Engine engine(model, options);
    if (is_preempted) {
      engine.submit(request_of(some_tokens(4, 1), 30));  // takes a page a step
      engine.step();
    }
    const RequestId id = engine.submit(request);
    Event last = run_all(engine).at(id).last;
    EXPECT_EQ(last.type, Event::Type::kFinished) << last.error_message;
    EXPECT_EQ(engine.stats().preemptions, is_preempted ? 1u : 0u);
    return last;
  };
  const EmbeddingRequest embedding{some_tokens(40, 0), Pooling::kMean, true};
  EXPECT_EQ(result_of(true, embedding).embedding, result_of(false, embedding).embedding);
  const AttentionRequest attention{some_tokens(40, 0), {3, 11, 30}, {}};
  EXPECT_EQ(result_of(true, attention).attention, result_of(false, attention).attention);
}

// ---- The prefix cache

/// Keeps the logits that tokens are drawn from, a row a token.
class SeenLogits : public RecordingOps {
 public:
  explicit SeenLogits(const char* backend) : RecordingOps(make_ops_backend(backend)) {}
  void sample(const SampleArguments& a, Stream stream) override {
    for (std::int64_t row = 0; row < a.logits.rows; ++row) {
      const float* logits = static_cast<const float*>(a.logits.data) + row * a.logits.row_stride;
      rows_.emplace_back(logits, logits + a.logits.columns);
    }
    RecordingOps::sample(a, stream);
  }
  std::vector<std::vector<float>> take() { return std::exchange(rows_, {}); }

 private:
  std::vector<std::vector<float>> rows_;
};

TEST(PrefixCacheOfTheEngine, WithBatchInvariantTheLogitsBitsAreThoseWithoutIt) {
  for (const char* backend : {"reference", "cpu"}) {
    SeenLogits with_ops(backend), without_ops(backend);
    TinyEngine with(with_ops, /*batch_invariant=*/true, /*prefix_cache=*/true);
    TinyEngine without(without_ops, /*batch_invariant=*/true, /*prefix_cache=*/false);
    std::vector<std::int32_t> prompt = some_tokens(45, 0);
    for (int turn = 0; turn < 4; ++turn) {
      const std::uint64_t cached_before = with.core->stats().cached_tokens;
      const std::vector<std::int32_t> tokens = with.generate({request_of(prompt, 11)}).front();
      EXPECT_EQ(without.generate({request_of(prompt, 11)}).front(), tokens);
      const std::vector<std::vector<float>> actual = with_ops.take(), expected = without_ops.take();
      ASSERT_EQ(actual.size(), 11u);
      ASSERT_EQ(expected.size(), 11u);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        EXPECT_EQ(std::memcmp(actual[i].data(), expected[i].data(), actual[i].size() * sizeof(float)), 0)
            << backend << " turn " << turn << " token " << i;
      }
      // All full pages of the turn before, drawn tokens included but for the last, which is in no cache yet.
      const std::uint64_t known = turn == 0 ? 0 : (prompt.size() - 3 - 1) / 8 * 8;
      EXPECT_EQ(with.core->stats().cached_tokens - cached_before, known) << turn;
      prompt.insert(prompt.end(), tokens.begin(), tokens.end());
      for (const std::int32_t token : {7, 8, 9}) prompt.push_back(token);
    }
  }
}

TEST(PrefixCacheOfTheEngine, RequestsSubmittedTogetherComputeACommonBeginningOnce) {
  EngineOptions options;
  options.max_seq_len = 64;
  options.max_batch = 4;
  options.prefill_chunk = 16;  // so that computing it takes several steps
  Engine engine(tiny_model(), options);
  const std::vector<std::int32_t> prompt = some_tokens(50, 1);
  std::map<RequestId, std::uint64_t> seeds;
  for (std::uint64_t i = 0; i < 4; ++i) seeds[engine.submit(request_of(prompt, 3, 1, i))] = i;
  const std::map<RequestId, Result> results = run_all(engine);
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.prompt_tokens, 4u * 50);
  EXPECT_EQ(stats.cached_tokens, 3u * 48);
  EXPECT_EQ(stats.computed_tokens, 50u + 3 * 2 + 4 * 2) << "the prompt, three ends of it, what was drawn";
  for (const auto& [id, result] : results) {
    EXPECT_EQ(result.last.stats.cached_tokens, seeds.at(id) == 0 ? 0 : 48);
    EXPECT_EQ(result.tokens.size(), 3u);
  }
}

TEST(PrefixCacheOfTheEngine, ARequestMayKeepOutOfIt) {
  EngineOptions options;
  options.max_seq_len = 64;
  Engine engine(tiny_model(), options);
  Request request = request_of(some_tokens(50, 1), 1);
  request.use_prefix_cache = false;
  engine.submit(request);
  run_all(engine);
  EXPECT_EQ(engine.stats().kv_pages_cached, 0) << "it leaves nothing";
  request.use_prefix_cache = true;
  for (int i = 0; i < 2; ++i) {
    engine.submit(request);
    run_all(engine);
  }
  EXPECT_EQ(engine.stats().cached_tokens, 48u);
  request.use_prefix_cache = false;
  engine.submit(request);
  run_all(engine);
  EXPECT_EQ(engine.stats().cached_tokens, 48u) << "it takes nothing";
}

TEST(PrefixCacheOfTheEngine, GivesWayToRequestsThatNeedThePages) {
  EngineOptions options;
  options.max_seq_len = 64;
  options.max_kv_tokens = 128;  // 8 pages
  Engine engine(tiny_model(), options);
  for (int i = 0; i < 6; ++i) {
    const RequestId id = engine.submit(request_of(some_tokens(60, i), 2));
    EXPECT_EQ(run_all(engine).at(id).tokens.size(), 2u);
    EXPECT_EQ(engine.stats().kv_pages_used, 0);
    EXPECT_EQ(engine.stats().kv_pages_cached, std::min(3 * (i + 1), 7)) << "one is always free again";
  }
  engine.submit(request_of(some_tokens(60, 5), 1));
  engine.submit(request_of(some_tokens(60, 4), 1));
  run_all(engine);
  EXPECT_EQ(engine.stats().cached_tokens, 2u * 48) << "the two that came last";
}

// ---- Who gets how much of a step

TEST(Fairness, AShortPromptDoesNotWaitForLongOnes) {
  EngineOptions options;
  options.max_seq_len = 64;
  options.max_batch = 4;
  options.prefill_chunk = 4;
  Engine engine(tiny_model(), options);
  const RequestId first = engine.submit(request_of(some_tokens(40, 0), 1));
  const RequestId second = engine.submit(request_of(some_tokens(40, 1), 1));
  const RequestId brief = engine.submit(request_of(some_tokens(4, 2), 1));
  std::map<RequestId, Result> results;
  std::map<RequestId, int> step_of_end;
  for (int step = 1; engine.has_work(); ++step) {
    collect(engine.step(), results);
    for (const auto& [id, result] : results) step_of_end.try_emplace(id, step);
  }
  // Chunks of four tokens take turns.
  EXPECT_EQ(step_of_end.at(brief), 3);
  EXPECT_EQ(step_of_end.at(first), 20);
  EXPECT_EQ(step_of_end.at(second), 21);
}

TEST(Fairness, DecodingGoesOnInEveryStepOfALongPrompt) {
  EngineOptions options;
  options.max_seq_len = 128;
  options.max_batch = 2;
  options.prefill_chunk = 8;
  Engine engine(tiny_model(), options);
  const RequestId decoding = engine.submit(request_of({1, 2, 3}, 100));
  std::map<RequestId, Result> results;
  collect(engine.step(), results);
  engine.submit(request_of(some_tokens(80, 0), 1));
  for (std::size_t step = 1; step <= 10; ++step) {
    collect(engine.step(), results);
    EXPECT_EQ(results.at(decoding).tokens.size(), 1 + step);
  }
  EXPECT_EQ(results.size(), 2u) << "the prompt took ten steps";
}

TEST(Fairness, RequestsBeginInTheOrderInWhichTheyCameEvenIfALaterOneWouldFit) {
  EngineOptions options;
  options.max_seq_len = 64;
  options.max_kv_tokens = 96;  // 6 pages
  Engine engine(tiny_model(), options);
  engine.submit(request_of(some_tokens(50, 0), 6));                          // 4 pages
  const RequestId large = engine.submit(request_of(some_tokens(40, 1), 2));  // 3 pages
  const RequestId small = engine.submit(request_of(some_tokens(3, 2), 20));  // 1 page, and one more
  std::map<RequestId, Result> results;
  for (int i = 0; i < 5; ++i) collect(engine.step(), results);
  EXPECT_EQ(engine.stats().running, 1);
  EXPECT_FALSE(results.contains(large) || results.contains(small));
  while (engine.has_work()) collect(engine.step(), results);
  EXPECT_EQ(results.at(large).tokens.size(), 2u);
  EXPECT_EQ(results.at(small).tokens.size(), 20u);
}

// ---- One request's failure

/// Makes what the model knows of token 7 NaN.
class PoisonedToken : public RecordingOps {
 public:
  explicit PoisonedToken(const char* backend) : RecordingOps(make_ops_backend(backend)) {}
  void embedding(const EmbeddingArguments& a, Stream stream) override {
    RecordingOps::embedding(a, stream);
    for (std::int64_t row = 0; row < a.out.rows; ++row) {
      if (a.tokens[row] != 7) continue;
      float* const out = static_cast<float*>(a.out.data) + row * a.out.row_stride;
      std::fill(out, out + a.out.columns, std::nanf(""));
    }
  }
};

TEST(Failures, LogitsThatAreNaNEndTheirOwnRequestAndLeaveTheOthersTokens) {
  for (const char* backend : {"reference", "cpu"}) {
    PoisonedToken ops(backend);
    TinyEngine engine(ops, /*batch_invariant=*/true, /*prefix_cache=*/true);
    const Request good = request_of(some_tokens(20, 2), 9, 1, 4), other = request_of(some_tokens(9, 3), 9);
    ASSERT_EQ(std::ranges::count(good.prompt, 7) + std::ranges::count(other.prompt, 7), 0);
    const std::vector<std::vector<std::int32_t>> expected = engine.generate({good, other});
    Request bad = request_of({1, 2, 7, 3}, 9);
    std::map<RequestId, Result> results;
    for (RequestId id : {1, 2, 3}) engine.core->add(id, id == 2 ? bad : id == 1 ? good : other);
    while (engine.core->has_work()) collect(engine.core->step(), results);
    EXPECT_EQ(results.at(2).last.type, Event::Type::kError);
    EXPECT_NE(results.at(2).last.error_message.find("NaN"), std::string::npos);
    EXPECT_TRUE(results.at(2).tokens.empty());
    EXPECT_EQ(results.at(1).tokens, expected[0]);
    EXPECT_EQ(results.at(3).tokens, expected[1]);
    // And one whose logits the host looks at.
    bad.top_logprobs = 2;
    engine.core->add(4, bad);
    engine.core->add(5, good);
    while (engine.core->has_work()) collect(engine.core->step(), results);
    EXPECT_EQ(results.at(4).last.type, Event::Type::kError);
    EXPECT_EQ(results.at(5).tokens, expected[0]);
    EXPECT_EQ(engine.core->stats().kv_pages_used, 0);
  }
}

/// A device that fails when a test says so.
class FailingOps : public RecordingOps {
 public:
  FailingOps() : RecordingOps(make_ops_backend("cpu")) {}
  void rms_norm(const RmsNormArguments& a, Stream stream) override {
    if (fails) throw Error(ErrorCode::kDevice, "the device is gone");
    RecordingOps::rms_norm(a, stream);
  }

  bool fails = false;
};

TEST(Failures, OfTheDeviceEndWhatTookPartAndTheEngineGoesOn) {
  FailingOps ops;
  TinyEngine engine(ops, true, true);
  const Request request = request_of(some_tokens(20, 2), 5);
  const std::vector<std::vector<std::int32_t>> expected = engine.generate({request});
  for (RequestId id = 1; id <= 5; ++id)
    engine.core->add(id, request_of(some_tokens(20, static_cast<int>(id)), 5));
  std::map<RequestId, Result> results;
  collect(engine.core->step(), results);
  ops.fails = true;
  collect(engine.core->step(), results);
  ops.fails = false;
  while (engine.core->has_work()) collect(engine.core->step(), results);
  std::size_t num_failed = 0;
  for (const auto& [id, result] : results) {
    if (result.last.type != Event::Type::kError) continue;
    ++num_failed;
    EXPECT_EQ(result.last.error_code, ErrorCode::kDevice);
    EXPECT_EQ(result.last.error_message, "the device is gone");
  }
  EXPECT_EQ(num_failed, 4u) << "the batch";
  EXPECT_EQ(results.at(5).tokens.size(), 5u);
  EXPECT_EQ(engine.core->stats().kv_pages_used, 0);
  EXPECT_EQ(engine.generate({request}), expected);
}

}  // namespace
}  // namespace tessera
