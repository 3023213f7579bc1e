// What the conformance suite's small problems do not reach of NVIDIA's attention kernels.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <vector>

#include "gpu/attention_call.h"

namespace tessera::testing {
namespace {

const ::testing::Environment* const needs_gpu = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

gpu::Gpu& gpu() { return tested_gpu(); }

std::vector<double> elements(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<double> values(bytes.size() / dtype_bytes(dtype, 1));
  for (std::size_t n = 0; n < values.size(); ++n)
    values[n] = load_element(bytes.data(), dtype, static_cast<std::int64_t>(n));
  return values;
}

TEST(CudaAttention, DecodeOverManyKeysIsSplit) {
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
      // Splits, which Hopper's kernel of whole keys leaves to this one.
      call.force({.block_m = block_m, .num_warps = num_warps, .num_splits = 2});
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
  for (const int head_dim : {48, 80, 112}) {  // that Hopper's own kernel doesn't take
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

// Heads that are whole, cut anywhere, or shared out to a cluster.
TEST(CudaAttention, DecodeCutDifferentlyDiffersByRoundingOnly) {
  for (const int head_dim : {64, 128}) {
    Shape shape = decode_shape();
    shape.head_dim = head_dim;
    shape.seq_len_kv = 1234;
    Call call(shape, 5);
    const gpu::OwnedStream stream(gpu());
    const auto numbers_with = [&](AttentionConfig config) {
      call.force(config);
      call.run(stream.handle());
      return elements(call.result(stream.handle()), shape.dtype);
    };
    const std::vector<double> expected = numbers_with({.num_splits = 1});
    for (const AttentionConfig config :
         {AttentionConfig{}, {.num_splits = 3}, {.num_splits = 50}, {.num_parts = 1}, {.num_parts = 7}}) {
      const std::vector<double> cut = numbers_with(config);
      ASSERT_EQ(cut.size(), expected.size());
      for (std::size_t n = 0; n < cut.size(); ++n) {
        // As above.
        EXPECT_NEAR(cut[n], expected[n], 2 * std::ldexp(6 + std::abs(expected[n]), -9))
            << config.num_splits << " splits, " << config.num_parts << " parts";
      }
    }
  }
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

}  // namespace
}  // namespace tessera::testing
