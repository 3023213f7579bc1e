// What modules and launches have of a score modifier.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "cuda/built_ahead.h"
#include "cuda/chosen.h"

namespace tessera::cuda {
namespace {

using gpu::KernelChoice;

ScoreModifier soft_window(const float* bias, const std::int32_t* ids, double cap) {
  return {"cap*tanh(score/cap) + bias[h]",
          "ids[q_idx] == ids[kv_idx]",
          {{"bias", bias, DType::kF32, {32}, {1}}, {"ids", ids, DType::kI32, {1000}, {1}}},
          {{"cap", cap}}};
}

TEST(ChooseKernel, ModifiersAreCompiledIntoModulesThatTheirNumbersDontTellApart) {
  const std::array<float, 32> bias = {};
  const std::array<std::int32_t, 1000> ids = {};
  for (const std::int64_t seq_len_q : {4096, 1}) {
    AttentionProblem p = problem(DType::kBF16, seq_len_q, 4096, 32, 8, 128);
    const KernelChoice plain = choose_kernel(p, h200(), {});
    EXPECT_TRUE(plain.module.modifier.empty());
    p.scores.modifier = soft_window(bias.data(), ids.data(), 20);
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel, plain.kernel);
    EXPECT_NE(choice.module.modifier.find("modifier_score"), std::string::npos);
    EXPECT_FALSE(is_built_ahead(choice.module, "sm_90a"));
    // Other numbers and names, and another score.
    p.scores.modifier = soft_window(bias.data() + 1, ids.data(), 30);
    p.scores.modifier->scalars[0].first = "limit";
    p.scores.modifier->score = "limit * tanh(score / limit) + bias[h]";
    EXPECT_EQ(choose_kernel(p, h200(), {}).module, choice.module);
    p.scores.modifier->score = "score + bias[h]";
    EXPECT_NE(choose_kernel(p, h200(), {}).module, choice.module);
  }
}

TEST(ChooseKernel, BoundsOfAModifiersTensorsHaveTheEndOfTheWorkspace) {
  const std::array<float, 32> bias = {};
  const std::array<std::int32_t, 1000> ids = {};
  AttentionProblem p = problem(DType::kBF16, 4096, 4096, 32, 8, 128);
  const std::size_t without = choose_kernel(p, h200(), {}).partial_bytes;
  p.scores.modifier = soft_window(bias.data(), ids.data(), 20);
  const KernelChoice choice = choose_kernel(p, h200(), {});
  EXPECT_EQ(choice.modifier_block_bytes, 16 * sizeof(kernels::ModifierBounds)) << "1000 / 64, rounded up";
  EXPECT_GE(choice.partial_bytes, without + choice.modifier_block_bytes);
  EXPECT_EQ((choice.partial_bytes - choice.modifier_block_bytes) % 64, 0);
  p.scores.modifier->visible.clear();
  EXPECT_EQ(choose_kernel(p, h200(), {}).modifier_block_bytes, 0u) << "the score alone wants none";
}

TEST(ChooseKernel, AMaskAloneLeavesProductsToTheKernelsOfTiles) {
  const std::array<float, 32> bias = {};
  const std::array<std::int32_t, 1000> ids = {};
  const auto terms = [&](DType dtype, int queries, bool has_score, bool invariant) {
    AttentionProblem p = problem(dtype, queries, 4096, 32, 8, 128);
    p.batch_invariant = invariant;
    p.scores.modifier = soft_window(bias.data(), ids.data(), 20);
    if (!has_score) p.scores.modifier->score.clear();
    const KernelChoice choice = choose_kernel(p, a100(), {});
    EXPECT_GT(choice.modifier_block_bytes, 0u) << choice.kernel->name << " leaves tiles out";
    const auto& defines = choice.module.defines;
    return *std::ranges::find_if(defines,
                                 [](const std::string& d) { return d.starts_with("TESSERA_TERMS="); });
  };
  for (const bool invariant : {false, true}) {
    EXPECT_EQ(terms(DType::kBF16, 4096, false, invariant), "TESSERA_TERMS=0");
    EXPECT_EQ(terms(DType::kF32, 4096, false, invariant), "TESSERA_TERMS=0");
    EXPECT_EQ(terms(DType::kBF16, 4096, true, invariant), "TESSERA_TERMS=32");
  }
  // sm80/decode_segments, which has the same bits, and sm80/decode.
  EXPECT_EQ(terms(DType::kBF16, 1, false, true), "TESSERA_TERMS=0");
  EXPECT_EQ(terms(DType::kBF16, 1, false, false), "TESSERA_TERMS=32");
}

TEST(ChooseKernel, AModifiersArgumentsFollowTheParamsWhateverComesBehindThem) {
  struct Arguments {
    kernels::AttentionParams params;
    std::array<int, 3> behind;
  };
  Arguments a = {};
  a.params.batch = 5;
  a.behind = {7, 8, 9};
  gpu::KernelArguments arguments(a);
  kernels::ModifierArguments modifier = {};
  modifier.integers[3] = 11;
  arguments.add_modifier(modifier);
  const auto* bytes = static_cast<const std::byte*>(arguments.data());
  EXPECT_EQ(std::memcmp(bytes, &a.params, sizeof a.params), 0);
  EXPECT_EQ(std::memcmp(bytes + sizeof a.params, &modifier, sizeof modifier), 0);
  EXPECT_EQ(std::memcmp(bytes + sizeof a.params + sizeof modifier, a.behind.data(), sizeof a.behind), 0);
}

}  // namespace
}  // namespace tessera::cuda
