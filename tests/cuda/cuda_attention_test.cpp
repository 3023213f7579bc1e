// Attention on device tensors as other programs call it: their streams, graphs, threads and sizes. What is
// computed is the conformance suite's business (`tessera verify --backend cuda`).

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "backends/cuda/runtime/cuda_gpu.h"
#include "core/element.h"
#include "cuda/needs_gpu.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using gpu::Gpu;

const ::testing::Environment* const needs_gpu =
    ::testing::AddGlobalTestEnvironment(new tessera::testing::NeedsGpu);

Gpu& gpu() { return cuda::gpu_device(0); }

/// Elements between neighbours of a dimension.
struct Strides {
  std::int64_t batch, seq, head;
};

struct Shape {
  DType dtype = DType::kBF16;
  std::int64_t batch = 2, seq_len_q = 80, seq_len_kv = 100;
  int num_heads = 4, num_kv_heads = 2, head_dim = 64;

  Strides compact(std::int64_t tokens, int heads) const {
    return {tokens * heads * head_dim, std::int64_t{heads} * head_dim, head_dim};
  }
};

/// Causal attention of random numbers on the GPU.
class Call {
 public:
  /// Tensors that lie one after the other.
  Call(const Shape& shape, unsigned seed)
      : Call(shape, seed, shape.compact(shape.seq_len_q, shape.num_heads),
             shape.compact(shape.seq_len_kv, shape.num_kv_heads)) {}

  /// Tensors with these strides.
  Call(const Shape& shape, unsigned seed, const Strides& q_strides, const Strides& kv_strides)
      : shape_(shape), q_strides_(q_strides) {
    const auto span = [&](const Strides& s, std::int64_t tokens, int heads) {
      return (shape.batch - 1) * s.batch + (tokens - 1) * s.seq + (heads - 1) * s.head + shape.head_dim;
    };
    const std::int64_t q_size = span(q_strides, shape.seq_len_q, shape.num_heads);
    const std::int64_t kv_size = span(kv_strides, shape.seq_len_kv, shape.num_kv_heads);
    q_ = allocate(q_size);
    k_ = allocate(kv_size);
    v_ = allocate(kv_size);
    o_ = allocate(q_size);
    std::mt19937 generator(seed);
    fill(q_.get(), q_strides, shape.seq_len_q, shape.num_heads, generator);
    fill(k_.get(), kv_strides, shape.seq_len_kv, shape.num_kv_heads, generator);
    fill(v_.get(), kv_strides, shape.seq_len_kv, shape.num_kv_heads, generator);
    problem_.device = gpu().device();
    problem_.batch = shape.batch;
    problem_.seq_len_q = shape.seq_len_q;
    problem_.seq_len_kv = shape.seq_len_kv;
    problem_.num_heads = shape.num_heads;
    problem_.num_kv_heads = shape.num_kv_heads;
    problem_.head_dim_qk = problem_.head_dim_v = shape.head_dim;
    problem_.q = {q_.get(), shape.dtype, q_strides.batch, q_strides.seq, q_strides.head};
    problem_.k = {k_.get(), shape.dtype, kv_strides.batch, kv_strides.seq, kv_strides.head};
    problem_.v = {v_.get(), shape.dtype, kv_strides.batch, kv_strides.seq, kv_strides.head};
    problem_.o = {o_.get(), shape.dtype, q_strides.batch, q_strides.seq, q_strides.head};
    problem_.scores.diagonal = DiagonalMask::causal();
    plan_ = plan_attention(problem_);
    workspace_ = gpu().allocate(plan_.workspace_bytes, "test workspace");
    gpu().synchronize({});
  }

  const AttentionPlan& plan() const { return plan_; }

  void run(Stream stream) const {
    attention_forward(problem_, plan_, {workspace_.get(), plan_.workspace_bytes}, {stream});
  }

  /// Plans again with these values forced.
  void force(const AttentionConfig& config) {
    AttentionOptions options;
    options.config = config;
    plan_ = plan_attention(problem_, options);
    workspace_ = gpu().allocate(plan_.workspace_bytes, "test workspace");
  }

  /// Other numbers into q.
  void refill(unsigned seed) {
    std::mt19937 generator(seed);
    fill(q_.get(), q_strides_, shape_.seq_len_q, shape_.num_heads, generator);
    gpu().synchronize({});
  }

  /// The bytes of o, row after row.
  std::vector<std::byte> result(Stream stream) const {
    const std::size_t row_bytes = dtype_bytes(shape_.dtype, static_cast<std::size_t>(shape_.head_dim));
    std::vector<std::byte> bytes;
    for_each_row(q_strides_, shape_.seq_len_q, shape_.num_heads, [&](std::size_t offset_bytes) {
      bytes.resize(bytes.size() + row_bytes);
      gpu().download(bytes.data() + bytes.size() - row_bytes, o_.get() + offset_bytes, row_bytes, stream);
    });
    gpu().synchronize(stream);
    return bytes;
  }

 private:
  std::shared_ptr<std::byte> allocate(std::int64_t elements) const {
    return gpu().allocate(dtype_bytes(shape_.dtype, static_cast<std::size_t>(elements)), "test tensor");
  }

  template <class F>
  void for_each_row(const Strides& strides, std::int64_t tokens, int heads, const F& f) const {
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (int h = 0; h < heads; ++h) {
          const std::int64_t element = b * strides.batch + t * strides.seq + h * strides.head;
          f(dtype_bytes(shape_.dtype, static_cast<std::size_t>(element)));
        }
      }
    }
  }

  void fill(std::byte* tensor, const Strides& strides, std::int64_t tokens, int heads,
            std::mt19937& generator) const {
    std::normal_distribution<double> normal;
    std::vector<std::byte> row(dtype_bytes(shape_.dtype, static_cast<std::size_t>(shape_.head_dim)));
    for_each_row(strides, tokens, heads, [&](std::size_t offset_bytes) {
      for (int d = 0; d < shape_.head_dim; ++d) store_element(row.data(), shape_.dtype, d, normal(generator));
      // From memory that is not page-locked: it has been read when the call returns.
      gpu().upload(tensor + offset_bytes, row.data(), row.size(), {});
    });
  }

  Shape shape_;
  Strides q_strides_;
  AttentionProblem problem_;
  AttentionPlan plan_;
  std::shared_ptr<std::byte> q_, k_, v_, o_, workspace_;
};

Shape prefill_shape() { return {}; }

/// Enough keys for several splits.
Shape decode_shape() {
  Shape shape;
  shape.seq_len_q = 1;
  shape.seq_len_kv = 4000;
  return shape;
}

std::vector<double> elements(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<double> values(bytes.size() / dtype_bytes(dtype, 1));
  for (std::size_t n = 0; n < values.size(); ++n)
    values[n] = load_element(bytes.data(), dtype, static_cast<std::int64_t>(n));
  return values;
}

TEST(CudaAttention, AGraphReplaysTheBitsOfDirectCalls) {
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
  EXPECT_GT(Call(decode_shape(), 1).plan().config.num_splits, 1);
}

// The conformance suite's problems are small and get small tiles; large problems get the others.
TEST(CudaAttention, TilesOfMoreRowsGiveTheSameF32Bits) {
  for (const int head_dim : {64, 128, 256}) {
    Shape shape;
    shape.dtype = DType::kF32;
    shape.head_dim = head_dim;
    shape.seq_len_q = shape.seq_len_kv = 300;
    Call call(shape, 3);
    const gpu::OwnedStream stream(gpu());
    const auto bits_with = [&](int block_m, int num_warps) {
      call.force({.block_m = block_m, .num_warps = num_warps, .num_splits = 1});
      call.run(stream.handle());
      return call.result(stream.handle());
    };
    const std::vector<std::byte> small = bits_with(64, 4);
    EXPECT_EQ(bits_with(128, head_dim == 64 ? 4 : 8), small) << head_dim;
  }
}

// The conformance suite's problems are too small for the blocks of eight warps that decode has for itself on
// a multiprocessor.
TEST(CudaAttention, DecodeWithTwiceTheWarpsDiffersByRoundingOnly) {
  for (const int head_dim : {64, 80, 128}) {
    Shape shape = decode_shape();
    shape.head_dim = head_dim;
    shape.seq_len_kv = 1234;
    Call call(shape, 5);
    const gpu::OwnedStream stream(gpu());
    const auto numbers_with = [&](int num_warps, int num_splits) {
      call.force({.num_warps = num_warps, .num_splits = num_splits});
      EXPECT_EQ(call.plan().config.num_warps, num_warps);
      call.run(stream.handle());
      return elements(call.result(stream.handle()), shape.dtype);
    };
    const std::vector<double> expected = numbers_with(4, 1);
    for (const int num_splits : {1, 3}) {
      const std::vector<double> wide = numbers_with(8, num_splits);
      ASSERT_EQ(wide.size(), expected.size());
      for (std::size_t n = 0; n < wide.size(); ++n) {
        // Of each: the weights rounded to bf16, 2^-9 of values below 6, and the result.
        EXPECT_NEAR(wide[n], expected[n], 2 * std::ldexp(6 + std::abs(expected[n]), -9)) << head_dim;
      }
    }
  }
}

TEST(CudaAttention, ThreadsMayCallOnStreamsOfTheirOwn) {
  const Call alone(prefill_shape(), 7);
  alone.run({});
  const std::vector<std::byte> expected = alone.result({});
  std::array<bool, 4> right = {};
  std::vector<std::thread> threads;
  for (bool& is_right : right) {
    threads.emplace_back([&] {
      const Call call(prefill_shape(), 7);
      const gpu::OwnedStream stream(gpu());
      for (int i = 0; i < 50; ++i) call.run(stream.handle());
      is_right = call.result(stream.handle()) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool is_right : right) EXPECT_TRUE(is_right);
}

TEST(CudaAttention, ReturnsBeforeTheWorkIsDone) {
  Shape shape = prefill_shape();
  shape.num_heads = 32;
  shape.seq_len_q = shape.seq_len_kv = 1024;
  const Call call(shape, 3);
  const gpu::OwnedStream stream(gpu());
  gpu::GpuTimer timer(gpu());
  call.run(stream.handle());  // loads the kernel
  gpu().synchronize(stream.handle());
  constexpr int kCalls = 500;
  timer.start(stream.handle());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call.run(stream.handle());
  const std::chrono::duration<double, std::milli> host = std::chrono::steady_clock::now() - begin;
  timer.stop(stream.handle());
  EXPECT_LT(host.count(), timer.elapsed_ms() / 2);
}

TEST(CudaAttention, RunningOutOfMemoryIsSaidAndLeavesTheGpuUsable) {
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
}  // namespace tessera
