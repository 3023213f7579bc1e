// Attention on device tensors as other programs call it: their streams, graphs, threads and sizes. What is
// computed is the conformance suite's business (`tessera verify`).

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <tuple>
#include <vector>

#include "gpu/attention_call.h"
#include "tessera/error.h"

namespace tessera::testing {
namespace {

const ::testing::Environment* const needs_gpu = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

gpu::Gpu& gpu() { return tested_gpu(); }

TEST(GpuAttention, AGraphReplaysTheBitsOfDirectCalls) {
  for (const Shape& shape : {prefill_shape(), decode_shape()}) {
    Call call(shape, 1);
    const gpu::OwnedStream stream(gpu());
    call.run(stream.handle());
    const std::vector<std::byte> first = call.result(stream.handle());
    const auto graph = gpu().capture(stream.handle(), [&] { call.run(stream.handle()); });
    call.refill(2);
    graph->launch(stream.handle());
    const std::vector<std::byte> replayed = call.result(stream.handle());
    call.run(stream.handle());
    EXPECT_EQ(replayed, call.result(stream.handle())) << call.plan().kernel;
    EXPECT_NE(replayed, first) << "new queries must give new results";
  }
}

// An engine captures a step once and replays it while its sequences grow, end and give way to others.
TEST(GpuAttention, AGraphFollowsLengthsThatChangeOnTheDevice) {
  for (const std::int64_t seq_len_q : {1, 3, 80}) {
    Shape shape = decode_shape();
    shape.batch = 3;
    shape.seq_len_q = seq_len_q;
    const std::vector<std::vector<std::int32_t>> steps = {
        {4000, 4000, 4000}, {1, 3999, 64}, {100, 0, 2000}, {3990, 4000, 3980}, {80, 65, 129}};
    Call captured(shape, 1);
    captured.set_lengths(steps[0]);
    const gpu::OwnedStream stream(gpu());
    captured.run(stream.handle());
    const auto graph = gpu().capture(stream.handle(), [&] { captured.run(stream.handle()); });
    for (const std::vector<std::int32_t>& lengths : steps) {
      captured.set_lengths(lengths);
      graph->launch(stream.handle());
      const std::vector<std::byte> replayed = captured.result(stream.handle());
      Call fresh(shape, 1);
      fresh.set_lengths(lengths);
      fresh.run({});
      EXPECT_EQ(replayed, fresh.result({}))
          << captured.plan().kernel << ", lengths from " << lengths[0] << " on";
    }
  }
}

TEST(GpuAttention, ThreadsMayCallOnStreamsOfTheirOwn) {
  const Call alone(prefill_shape(), 7);
  alone.run({});
  const std::vector<std::byte> expected = alone.result({});
  const int calls = tested_gpu_is_slow() ? 4 : 50;
  std::array<bool, 4> right = {};
  std::vector<std::thread> threads;
  for (bool& is_right : right) {
    threads.emplace_back([&] {
      const Call call(prefill_shape(), 7);
      const gpu::OwnedStream stream(gpu());
      for (int i = 0; i < calls; ++i) call.run(stream.handle());
      is_right = call.result(stream.handle()) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool is_right : right) EXPECT_TRUE(is_right);
}

TEST(GpuAttention, RunningOutOfMemoryIsSaidAndLeavesTheGpuUsable) {
  const Call call(prefill_shape(), 5);
  const std::size_t too_much = 2 * gpu().properties().total_memory_bytes;
  try {
    gpu().allocate(too_much, "a tensor for giants");
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    for (const char* part : {"MB for a tensor for giants", "MB are free", "test tensor"}) {
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    }
  }
  EXPECT_NO_THROW({
    call.run({});
    gpu().synchronize({});
  });
}

enum class Stretch { kBatch, kSeq, kHead };

class HugeStrides : public ::testing::TestWithParam<std::tuple<DType, std::int64_t, Stretch>> {};

TEST_P(HugeStrides, GiveTheBitsOfCompactTensors) {
  constexpr std::size_t kNeededBytes = std::size_t{60} << 30;
  if (gpu().free_memory_bytes() < kNeededBytes) GTEST_SKIP() << "needs 60 GB of free memory on the GPU";
  Shape shape;
  shape.dtype = std::get<0>(GetParam());
  shape.seq_len_q = std::get<1>(GetParam());
  shape.num_kv_heads = 4;
  const auto stretched = [&](std::int64_t tokens) {
    constexpr std::int64_t kPast31Bits = (std::int64_t{1} << 31) + 64;
    Strides strides = shape.compact(tokens, 4);
    switch (std::get<2>(GetParam())) {
      case Stretch::kBatch:
        strides.batch = kPast31Bits;
        break;
      case Stretch::kSeq:  // the last token lies beyond 2^31 elements
        strides.seq = tokens == 1 ? strides.seq : (kPast31Bits / (tokens - 1) / 8 + 1) * 8;
        strides.batch = std::int64_t{4} * shape.head_dim;  // the sequences lie side by side within it
        break;
      case Stretch::kHead:
        strides.head = kPast31Bits / 3 / 8 * 8 + 8;
        strides.seq = shape.head_dim;
        strides.batch = tokens * shape.head_dim;
        break;
    }
    return strides;
  };
  const Call compact(shape, 11);
  const Call huge(shape, 11, stretched(shape.seq_len_q), stretched(shape.seq_len_kv));
  ASSERT_EQ(huge.plan().kernel, compact.plan().kernel);
  compact.run({});
  huge.run({});
  EXPECT_EQ(huge.result({}), compact.result({})) << compact.plan().kernel;
}

INSTANTIATE_TEST_SUITE_P(Kernels, HugeStrides,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(std::int64_t{80}, std::int64_t{4}),
                                            ::testing::Values(Stretch::kBatch, Stretch::kSeq,
                                                              Stretch::kHead)));

}  // namespace
}  // namespace tessera::testing
