// Steps that are started before the tokens of the step before are known: nobody sees it in what comes out.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "model/recording_ops.h"
#include "model/tiny_engine.h"
#include "model/tiny_requests.h"

namespace tessera {
namespace {

/// A device that works by itself, as far as an engine can tell: its kernels run in the order of its queue,
/// and what is read back is what stood there in that order.
class QueueingOps : public RecordingOps {
 public:
  QueueingOps() : RecordingOps(make_ops_backend("cpu")) {}

  std::unique_ptr<Readback> make_readback(std::size_t most_bytes) override {
    return std::make_unique<LoggedReadback>(*this, most_bytes);
  }
  void sample(const SampleArguments& a, Stream s) override {
    if (num_good_samples && (*num_good_samples)-- == 0)
      throw Error(ErrorCode::kDevice, "the device is lost, says a test");
    RecordingOps::sample(a, s);
  }

  std::string log;  ///< 's': a step is started, 'w': one is waited for
  std::optional<int> num_good_samples;

 private:
  class LoggedReadback : public Readback {
   public:
    LoggedReadback(QueueingOps& ops, std::size_t most_bytes) : ops_(ops), memory_(most_bytes) {}
    void start(const void* source, std::size_t size_bytes, Stream) override {
      ops_.log += 's';
      ASSERT_LE(size_bytes, memory_.size());
      std::memcpy(memory_.data(), source, size_bytes);
      size_bytes_ = size_bytes;
    }
    std::span<const std::byte> wait() override {
      ops_.log += 'w';
      return std::span(memory_).first(size_bytes_);
    }

   private:
    QueueingOps& ops_;
    std::vector<std::byte> memory_;
    std::size_t size_bytes_ = 0;
  };
};

std::vector<std::int32_t> alone(const Request& request, std::vector<std::int32_t> end_tokens = {}) {
  const auto ops = make_ops_backend("cpu");
  return TinyEngine(*ops, /*batch_invariant=*/true, false, std::move(end_tokens)).generate({request})[0];
}

TEST(RunningAhead, AStepIsStartedBeforeTheOneBeforeIsWaitedFor) {
  QueueingOps ops;
  TinyEngine engine(ops, /*batch_invariant=*/true);
  const Request request = request_of(some_tokens(7, 1), 6, 0.8f, 3);
  EXPECT_EQ(engine.generate({request})[0], alone(request));
  EXPECT_EQ(ops.log, "sswswswsww") << "the prompt's step draws the first token, five steps follow";
}

TEST(RunningAhead, NothingIsStartedBehindAStepThatMayBeFollowedByAnother) {
  QueueingOps ops;
  TinyEngine engine(ops, /*batch_invariant=*/true);
  engine.core->add(0, request_of(some_tokens(7, 1), 20));
  for (int i = 0; i < 4; ++i) engine.core->step();
  ops.log.clear();
  engine.core->add(1, request_of(some_tokens(9, 2), 3));
  engine.core->step();
  EXPECT_EQ(ops.log, "w") << "the other's prompt comes next";
  engine.core->step();
  EXPECT_EQ(ops.log, "w") << "a step with a prompt is waited for as a whole";
  engine.core->step();
  EXPECT_EQ(ops.log, "wssw");
  engine.core->step();
  EXPECT_EQ(ops.log, "wssww") << "the second ends with this one";
}

TEST(RunningAhead, WhatTheHostHasASayInIsWaitedFor) {
  const Request plain = request_of(some_tokens(7, 1), 5);
  std::vector<Request> requests(4, plain);
  requests[0].sampling.repetition_penalty = 1.2f;
  requests[1].sampling.logit_bias = {{3, 1.0f}};
  requests[2].top_logprobs = 2;
  requests[3].sampling.presence_penalty = 0.5f;
  for (const Request& request : requests) {
    QueueingOps ops;
    TinyEngine engine(ops, /*batch_invariant=*/true);
    EXPECT_EQ(engine.generate({request, plain})[1], alone(plain));
    EXPECT_EQ(ops.log, "");
  }
}

TEST(RunningAhead, ATokenThatEndsASequenceLeavesNothingBehind) {
  const Request first = request_of(some_tokens(7, 1), 40, 1.0f, 3),
                second = request_of(some_tokens(12, 2), 40, 1.0f, 4);
  const std::vector<std::int32_t> drawn = alone(first);
  const std::vector<std::int32_t> end = {drawn[9]};
  QueueingOps ops;
  TinyEngine engine(ops, /*batch_invariant=*/true, /*prefix_cache=*/true, end);
  for (int round = 0; round < 3; ++round) {  // the same ids, and pages that were used before
    const std::vector<std::vector<std::int32_t>> tokens = engine.generate({first, second});
    EXPECT_EQ(tokens[0], alone(first, end));
    EXPECT_EQ(tokens[1], alone(second, end));
    EXPECT_EQ(engine.generate({second})[0], alone(second, end));
    EXPECT_EQ(engine.cache->pages().num_free(), engine.cache->pages().num_pages());
  }
}

TEST(RunningAhead, AnErrorOfTheDeviceEndsThoseItMeetsAndTheEngineGoesOn) {
  QueueingOps ops;
  TinyEngine engine(ops, /*batch_invariant=*/true);
  const Request request = request_of(some_tokens(7, 1), 12);
  engine.core->add(0, request);
  for (int i = 0; i < 3; ++i) engine.core->step();
  ops.num_good_samples = 0;  // the step that would be started next; the device is itself again then
  std::vector<std::int32_t> tokens;
  for (const Event& event : engine.core->step()) tokens.push_back(event.token);
  EXPECT_EQ(tokens.size(), 1u) << "what was under way";
  ops.num_good_samples = 0;
  std::vector<Event> events = engine.core->step();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].type, Event::Type::kError);
  ops.num_good_samples.reset();
  EXPECT_FALSE(engine.core->has_work());
  EXPECT_EQ(engine.generate({request})[0], alone(request));
}

/// Requests come and are cancelled at random, end by tokens and by number, and find few pages.
TEST(RunningAhead, TokensAreThoseOfEachRequestAlone) {
  const std::vector<std::int32_t> end = {5, 77, 130, 131, 256, 300, 444, 490};
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    QueueingOps ops;
    TinyEngine engine(ops, /*batch_invariant=*/true, /*prefix_cache=*/seed % 2 == 0, end);
    KvSequence others(*engine.cache);
    others.reserve(seed % 3 == 0 ? 1 : 8 * (64 - 20));
    std::vector<Request> requests;
    std::vector<std::vector<std::int32_t>> tokens(14);
    std::vector<bool> is_cancelled(14);
    for (int i = 0; i < 14; ++i) {
      requests.push_back(request_of(some_tokens(1 + below(40), below(3)), 1 + below(30),
                                    below(2) == 0 ? 0.0f : 1.0f, static_cast<std::uint64_t>(i)));
      if (below(6) == 0) requests.back().top_logprobs = 1;
    }
    std::size_t next = 0;
    while (next < requests.size() || engine.core->has_work()) {
      if (next < requests.size() && (below(5) == 0 || !engine.core->has_work())) {
        engine.core->add(next, requests[next]);
        ++next;
      }
      if (next > 0 && below(20) == 0) {
        const auto id = static_cast<std::size_t>(below(static_cast<int>(next)));
        if (engine.core->cancel(id)) is_cancelled[id] = true;
      }
      for (const Event& event : engine.core->step()) {
        EXPECT_NE(event.type, Event::Type::kError) << event.error_message;
        if (event.type == Event::Type::kToken) tokens[event.id].push_back(event.token);
      }
    }
    EXPECT_NE(ops.log.find("sws"), std::string::npos);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i].top_logprobs.reset();
      std::vector<std::int32_t> expected = alone(requests[i], end);
      if (is_cancelled[i]) {
        ASSERT_LE(tokens[i].size(), expected.size());
        expected.resize(tokens[i].size());
      }
      EXPECT_EQ(tokens[i], expected) << "request " << i;
    }
    others.release();
    EXPECT_EQ(engine.cache->pages().num_free(), engine.cache->pages().num_pages());
  }
}

}  // namespace
}  // namespace tessera
