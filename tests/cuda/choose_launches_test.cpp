// Which calls are launched in two parts, and what each is for: pure functions.

#include "backends/gpu/attention/choose_launches.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "cuda/chosen.h"
#include "gpu/dense_problem.h"

namespace tessera::cuda {
namespace {

using gpu::LaunchChoice;

/// `singles` sequences of one query and `prompts` of 512, causal, over pages of up to 4096 keys.
AttentionProblem mixed(std::int64_t singles, std::int64_t prompts, int num_heads = 32, int num_kv_heads = 8) {
  AttentionProblem p =
      testing::dense_problem(DeviceKind::kCuda, DType::kBF16, 512, 4096, num_heads, num_kv_heads, 128);
  p.batch = singles + prompts;
  testing::use_pages(p);
  p.ragged_q = RaggedTokens{nullptr, singles + 512 * prompts};
  p.scores.diagonal = DiagonalMask::causal();
  return p;
}

std::vector<LaunchChoice> choose(const AttentionProblem& p, const AttentionConfig& forced = {}) {
  return gpu::choose_launches(attention_kernels(), p, h200(), forced);
}

TEST(ChooseLaunches, TakesSingleQueriesOutOfPrompts) {
  const std::vector<LaunchChoice> launches = choose(mixed(32, 1));
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(gpu::kernel_names(launches), "sm90/prefill + sm90/decode");
  EXPECT_EQ(launches[0].seq_len_q, 512);
  EXPECT_EQ(launches[1].seq_len_q, 16);
  EXPECT_LE(launches[1].choice.config.block_m, 64);
}

TEST(ChooseLaunches, FewQueriesAreAsManyAsDecodeTakes) {
  AttentionProblem p = testing::dense_problem(DeviceKind::kCuda, DType::kBF16, 512, 4096, 16, 8, 256);
  p.batch = 33;
  p.ragged_q = RaggedTokens{nullptr, 32 + 512};
  const std::vector<LaunchChoice> launches = choose(p);
  EXPECT_EQ(gpu::kernel_names(launches), "sm90/prefill + sm90/decode");
  EXPECT_EQ(launches.back().seq_len_q, 16);  // as few as count as few; 32 of its 64 rows
}

// Of 71 heads of one kv head no decode kernel has all rows, nor of head_dim 320, but tiles have all heads.
TEST(ChooseLaunches, TilesOfAllHeadsTakeWhatNoDecodeKernelDoes) {
  std::vector<LaunchChoice> launches = choose(mixed(32, 1, 71, 1));
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(gpu::kernel_names(launches), "sm90/prefill + sm90/prefill");
  EXPECT_EQ(launches[1].seq_len_q, 1);
  EXPECT_EQ(launches[1].choice.pack_heads, 71);

  AttentionProblem p = testing::dense_problem(DeviceKind::kCuda, DType::kBF16, 512, 4096, 32, 8, 320);
  p.batch = 33;
  p.ragged_q = RaggedTokens{nullptr, 32 + 512};
  launches = choose(p);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(gpu::kernel_names(launches), "sm90/prefill_wide + sm90/prefill_wide");
  EXPECT_EQ(launches[1].seq_len_q, 16);
  EXPECT_EQ(launches[0].choice.pack_heads, 1);
  EXPECT_EQ(launches[1].choice.pack_heads, 4);
}

// Kernels of batch-invariant problems have the same bits.
TEST(ChooseLaunches, BatchInvariantSingleQueriesAreTakenOutAsWell) {
  AttentionProblem p = mixed(32, 1);
  p.batch_invariant = true;
  const std::vector<LaunchChoice> launches = choose(p);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[1].choice.kernel->name, "sm80/decode_segments");
  EXPECT_EQ(launches[1].seq_len_q, 4);  // 16 rows with four heads a group
  EXPECT_EQ(launches[0].choice.keys_per_segment, launches[1].choice.keys_per_segment);
}

TEST(ChooseLaunches, EverySequenceBelongsToOneLaunch) {
  std::byte* const workspace = reinterpret_cast<std::byte*>(4096);  // nobody follows it
  for (const AttentionProblem& p : {mixed(32, 1), mixed(32, 1, 64, 8), mixed(48, 2, 32, 1)}) {
    const std::vector<LaunchChoice> launches = choose(p);
    ASSERT_EQ(launches.size(), 2u);
    const auto of_many = gpu::attention_params(p, launches[0].choice, workspace);
    const auto of_few = gpu::attention_params(gpu::problem_of_launch(p, launches[1].seq_len_q),
                                              launches[1].choice, workspace);
    EXPECT_EQ(of_many.most_q, 0);
    EXPECT_EQ(of_few.fewest_q, 0);
    EXPECT_EQ(of_few.most_q + 1, of_many.fewest_q);
    EXPECT_EQ(of_few.most_q, of_few.seq_len_q);
    EXPECT_LE(of_few.most_q * (p.num_heads / p.num_kv_heads), 64);
  }
}

TEST(ChooseLaunches, OneIsForAllWhereNothingIsGained) {
  const auto count = [](const AttentionProblem& p, const AttentionConfig& forced = {}) {
    return choose(p, forced).size();
  };
  EXPECT_EQ(count(mixed(0, 4)), 1u);           // nothing but prompts
  EXPECT_EQ(count(mixed(1, 4)), 1u);           // too little
  EXPECT_EQ(count(mixed(32, 1, 32, 32)), 1u);  // no groups to pack
  EXPECT_EQ(count(mixed(32, 1), {.block_m = 128}), 1u);
  AttentionProblem p = mixed(32, 1);
  p.scores.diagonal = DiagonalMask::sliding_window(100, 0);
  EXPECT_EQ(count(p), 1u);
  // Prompts so short that tiles have all heads of a group.
  p = testing::dense_problem(DeviceKind::kCuda, DType::kBF16, 60, 8192, 32, 8, 128);
  p.batch = 32;
  p.ragged_q = RaggedTokens{nullptr, 31 + 60};
  EXPECT_EQ(count(p), 1u);
  p = mixed(32, 1);
  p.ragged_q.reset();
  EXPECT_EQ(count(p), 1u);
  // Documents of different lengths that attend to themselves: short ones have few keys.
  p = testing::dense_problem(DeviceKind::kCuda, DType::kBF16, 4096, 4096, 32, 8, 128);
  p.batch = 32;
  p.ragged_q = p.ragged_kv = RaggedTokens{nullptr, 8192};
  EXPECT_EQ(count(p), 1u);
}

TEST(ChooseLaunches, ManySequencesLeaveFewerQueriesToADecodesLaunch) {
  const std::vector<LaunchChoice> launches = choose(mixed(1023, 1));
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[1].seq_len_q, 2);
}

}  // namespace
}  // namespace tessera::cuda
