// What running a prepared plan asks of the driver, on a GPU that is pretended: launches, and nothing else.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "pretended_gpu.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera {
namespace {

PretendedGpuCalls calls() {
  static const auto counted = reinterpret_cast<decltype(&pretended_gpu_calls)>(
      ::dlsym(::dlopen(TESSERA_PRETENDED_GPU, RTLD_NOW), "pretended_gpu_calls"));
  return counted();
}

/// A paged or dense call in the pretended memory.
class Call {
 public:
  Call(std::int64_t seq_len_q, std::int64_t seq_len_kv, int head_dim, bool is_paged = false) {
    constexpr int kHeads = 32, kKvHeads = 8;
    memory_.resize(1 << 16);
    p.device = {DeviceKind::kCuda, 0};
    p.batch = 1;
    p.seq_len_q = seq_len_q;
    p.seq_len_kv = seq_len_kv;
    p.num_heads = kHeads;
    p.num_kv_heads = kKvHeads;
    p.head_dim_qk = p.head_dim_v = head_dim;
    constexpr auto kLayout = AttentionLayout::kBatchSeqHeads;
    p.q = attention_input(kLayout, address(), DType::kBF16, seq_len_q, kHeads, head_dim);
    p.k = attention_input(kLayout, address(), DType::kBF16, is_paged ? 16 : seq_len_kv, kKvHeads, head_dim);
    p.v = p.k;
    p.o = attention_output(kLayout, far_address(), DType::kBF16, seq_len_q, kHeads, head_dim);
    p.scores.diagonal = DiagonalMask::causal();
    if (!is_paged) return;
    auto* numbers = static_cast<std::int32_t*>(address());
    p.ragged_q = RaggedTokens{numbers, seq_len_q};
    p.paged_kv = PagedKv{numbers, numbers, 4096, 4096, 4096, 16};
  }

  std::span<std::byte> workspace(const AttentionPlan& plan) {
    workspace_.resize(plan.workspace_bytes + 256);
    std::byte* bytes = workspace_.data() + 256 - reinterpret_cast<std::uintptr_t>(workspace_.data()) % 256;
    return {bytes, plan.workspace_bytes};
  }

  /// An aligned address that no kernel follows.
  void* address() { return memory_.data() + 64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64; }

  /// Another, that no tensor at address() reaches.
  void* far_address() {
    constexpr std::uintptr_t kDistance = std::uintptr_t{1} << 32;
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address()) + kDistance);
  }

  AttentionProblem p;

 private:
  std::vector<std::byte> memory_, workspace_;
};

TEST(PreparedAttention, LaunchesAndAsksTheDriverForNothingElse) {
  for (const int head_dim : {64, 128, 256, 512}) {
    for (const std::int64_t seq_len_q : {1, 2048}) {
      for (const bool is_paged : {false, true}) {
        Call call(seq_len_q, 60000, head_dim, is_paged);
        const AttentionPlan plan = prepare_attention(call.p, {.backend = "cuda", .config = {}});
        const PretendedGpuCalls before = calls();
        for (int i = 0; i < 10; ++i) attention_forward(call.p, plan, call.workspace(plan));
        const PretendedGpuCalls after = calls();
        const long launches = plan.config.num_splits > 1 ? 20 : 10;  // and the splits' combination
        EXPECT_EQ(after.launches - before.launches, launches) << plan.kernel;
        // Each launch makes the context current.
        EXPECT_EQ(after.calls - before.calls, 2 * launches) << plan.kernel;
        EXPECT_EQ(after.loads, before.loads) << plan.kernel;
      }
    }
  }
}

TEST(PreparedAttention, LoadsWhenPreparedAndAPlanWhenItFirstRuns) {
  Call call(1, 5000, 48);
  const PretendedGpuCalls at_first = calls();
  const AttentionPlan plan = plan_attention(call.p, {.backend = "cuda", .config = {}});
  EXPECT_EQ(calls().loads, at_first.loads) << "planning loads nothing";
  attention_forward(call.p, plan, call.workspace(plan));
  EXPECT_GT(calls().loads, at_first.loads);
  Call other(1, 5000, 32);
  const PretendedGpuCalls before = calls();
  prepare_attention(other.p, {.backend = "cuda", .config = {}});
  EXPECT_GT(calls().loads, before.loads);
  EXPECT_EQ(calls().launches, before.launches);
}

TEST(PreparedAttention, RunsWhatWasPlannedWhateverIsWrittenIntoThePlan) {
  Call call(1, 60000, 128);
  AttentionPlan plan = prepare_attention(call.p, {.backend = "cuda", .config = {.num_splits = 7}});
  EXPECT_EQ(plan.config.num_splits, 7);
  const std::span<std::byte> workspace = call.workspace(plan);
  const long before = calls().launches;
  plan.config = {};
  attention_forward(call.p, plan, workspace);
  EXPECT_EQ(calls().launches - before, 2) << "seven splits and their combination";
}

TEST(PreparedAttention, IsForTensorsAlignedAsThoseItWasMadeFor) {
  Call call(1, 5000, 128);
  const AttentionPlan plan = prepare_attention(call.p, {.backend = "cuda", .config = {}});
  AttentionProblem shifted = call.p;
  shifted.k.data = static_cast<const std::byte*>(shifted.k.data) + 2;
  try {
    attention_forward(shifted, plan, call.workspace(plan));
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find("multiples of 16 bytes"), std::string::npos) << error.message();
  }
  const AttentionPlan slower = prepare_attention(shifted, {.backend = "cuda", .config = {}});
  attention_forward(shifted, slower, call.workspace(slower));
  attention_forward(call.p, slower, call.workspace(slower));
}

TEST(PreparedAttention, WidensQueriesOf8BitsWithOneLaunchMore) {
  for (const std::int64_t seq_len_q : {1, 2048}) {
    for (const bool is_paged : {false, true}) {
      Call call(seq_len_q, 60000, 128, is_paged);
      call.p.k.dtype = call.p.v.dtype = DType::kF8E4M3;
      const AttentionPlan wide = prepare_attention(call.p, {.backend = "cuda", .config = {}});
      call.p.q.dtype = DType::kF8E4M3;
      call.p.q_scales = QScales{static_cast<const float*>(call.address()), 8, 1};
      const AttentionPlan plan = prepare_attention(call.p, {.backend = "cuda", .config = {}});
      if (plan.kernel != wide.kernel) continue;  // one that takes them as they are
      const auto bytes = static_cast<std::size_t>(2 * seq_len_q * 32 * 128);
      EXPECT_GE(plan.workspace_bytes, wide.workspace_bytes + bytes) << plan.kernel;
      EXPECT_TRUE(std::ranges::any_of(plan.notes, [](const std::string& note) {
        return note.starts_with("q of f8e4m3 is widened to bf16");
      }));
      const PretendedGpuCalls before = calls();
      attention_forward(call.p, plan, call.workspace(plan));
      EXPECT_EQ(calls().launches - before.launches, plan.config.num_splits > 1 ? 3 : 2) << plan.kernel;
      EXPECT_EQ(calls().loads, before.loads) << "all were loaded when it was prepared";
      AttentionProblem shifted = call.p;
      shifted.q.data = static_cast<const std::byte*>(shifted.q.data) + 1;
      attention_forward(shifted, plan, call.workspace(plan));  // only the widened ones have to be aligned
      shifted.k.data = static_cast<const std::byte*>(shifted.k.data) + 1;
      EXPECT_THROW(attention_forward(shifted, plan, call.workspace(plan)), Error);
    }
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::filesystem::path cache =
      std::filesystem::temp_directory_path() / ("tessera_pretended_" + std::to_string(::getpid()));
  ::setenv("TESSERA_CUDA_LIBRARY", TESSERA_PRETENDED_GPU, 1);
  ::setenv("TESSERA_NVRTC_LIBRARY", TESSERA_PRETENDED_GPU, 1);
  ::setenv("TESSERA_CACHE_DIR", cache.c_str(), 1);
  const int result = RUN_ALL_TESTS();
  std::filesystem::remove_all(cache);
  return result;
}
