// The code that kernels are compiled with for score modifiers, as printed: every score and every condition
// beside the interpreter's, and what is said of tiles beside a look at all of their pairs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "common/modifier_blocks.cu"
#include "common/score_terms.cuh"
#include "modifier/evaluate.h"
#include "modifier/kernel_text.h"
#include "modifier/parse.h"
#include "simt/executor.h"
#include "simt/modifier_texts.h"

namespace tessera {
namespace {

using kernels::ModifierArguments;
using kernels::ModifierBounds;
using kernels::ModifierPlace;
using kernels::ModifierRange;

struct Printed {
  bool (*visible)(const ModifierArguments& m, const ModifierPlace& place, int i, int j);
  float (*score)(const ModifierArguments& m, const ModifierPlace& place, int i, int j, float score);
  ModifierRange (*tile)(const ModifierArguments& m, const ModifierPlace& place, ModifierRange queries,
                        ModifierRange keys, ModifierRange heads);
};

#define TESSERA_PRINTED(space)                                                                             \
  {[](const ModifierArguments& m, const ModifierPlace& place, int i, int j) {                              \
     using namespace kernels::space;                                                                       \
     const auto u =                                                                                        \
         kernels::space::modifier_uniform(m, place, kernels::space::modifier_stored_uniform(m, place));    \
     return modifier_visible(                                                                              \
         m, u, modifier_row(m, u, i, modifier_stored_row(m, u, i)),                                        \
         modifier_key(m, u, j - j % 8, j % 8, modifier_stored_key(m, u, j - j % 8, j % 8)));               \
   },                                                                                                      \
   [](const ModifierArguments& m, const ModifierPlace& place, int i, int j, float score) {                 \
     using namespace kernels::space;                                                                       \
     const auto u =                                                                                        \
         kernels::space::modifier_uniform(m, place, kernels::space::modifier_stored_uniform(m, place));    \
     const auto row = modifier_row(m, u, i, modifier_stored_row(m, u, i));                                 \
     const auto key = modifier_key(m, u, j - j % 8, j % 8, modifier_stored_key(m, u, j - j % 8, j % 8));   \
     const unsigned bits = modifier_tanh_bits<true, 0>(m, u, row, key, score / 4, 4.0f);                   \
     const float exact = modifier_score(m, u, row, key, score);                                            \
     if (kModifierHasDistance) {                                                                           \
       const float distance = modifier_distance(m, u, row, key);                                           \
       const float other = distance < 0.0f ? modifier_scaled_score<false, -1>(m, u, row, key, score, 1.0f) \
                                           : modifier_scaled_score<false, 1>(m, u, row, key, score, 1.0f); \
       EXPECT_NEAR(other, exact, 1e-6f * std::max(std::abs(exact), 20.0f));                                \
     }                                                                                                     \
     if ((bits & kernels::kBeyondPolynomial) != 0) return exact;                                           \
     const float scaled = modifier_scaled_score<true, 0>(m, u, row, key, score / 4, 4.0f);                 \
     EXPECT_NEAR(scaled, exact, 1e-6f * std::max(std::abs(exact), 20.0f));                                 \
     return scaled;                                                                                        \
   },                                                                                                      \
   [](const ModifierArguments& m, const ModifierPlace& place, ModifierRange queries, ModifierRange keys,   \
      ModifierRange heads) { return kernels::space::modifier_tile(m, place, queries, keys, heads); }},

const std::vector<Printed>& printed() {
  static const std::vector<Printed> list = {TESSERA_ALL_PRINTED};
  return list;
}

ModifierArguments arguments_of(const ScoreModifier& modifier) {
  ModifierArguments a = {};
  for (std::size_t t = 0; t < modifier.tensors.size(); ++t) {
    const CapturedTensor& tensor = modifier.tensors[t];
    a.tensors[t].data = tensor.data;
    for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
      a.tensors[t].sizes[d] = static_cast<int>(tensor.sizes[d]);
      a.tensors[t].strides[d] = tensor.strides[d];
    }
  }
  for (std::size_t s = 0; s < modifier.scalars.size(); ++s) {
    a.integers[s] = static_cast<int>(modifier.scalars[s].second);
    a.reals[s] = static_cast<float>(modifier.scalars[s].second);
  }
  return a;
}

/// The bounds of blocks of the one-dimensional tensors of int32, bool and u8.
std::vector<std::vector<ModifierBounds>> add_blocks(const ScoreModifier& modifier, ModifierArguments& a) {
  std::vector<std::vector<ModifierBounds>> blocks(modifier.tensors.size());
  for (std::size_t t = 0; t < blocks.size(); ++t) {
    const CapturedTensor& tensor = modifier.tensors[t];
    if (tensor.sizes.size() != 1 || modifier::element_type(tensor.dtype) == modifier::Type::kFloat32)
      continue;
    for (std::int64_t i = 0; i < tensor.sizes[0]; ++i) {
      const int x = tensor.dtype == DType::kI32    ? static_cast<const std::int32_t*>(tensor.data)[i]
                    : tensor.dtype == DType::kBool ? static_cast<const std::uint8_t*>(tensor.data)[i] != 0
                                                   : static_cast<const std::uint8_t*>(tensor.data)[i];
      if (i % kernels::kModifierBlock == 0) blocks[t].push_back({x, x});
      blocks[t].back().lo = std::min(blocks[t].back().lo, x);
      blocks[t].back().hi = std::max(blocks[t].back().hi, x);
    }
    a.blocks[t] = blocks[t].data();
  }
  return blocks;
}

modifier::Variables variables_of(const ModifierPlace& place, int i) {
  using modifier::Variable;
  modifier::Variables v = {};
  v[static_cast<std::size_t>(Variable::kBatch)] = place.b;
  v[static_cast<std::size_t>(Variable::kHead)] = place.h;
  v[static_cast<std::size_t>(Variable::kKvHead)] = place.kv_h;
  v[static_cast<std::size_t>(Variable::kQuery)] = i;
  v[static_cast<std::size_t>(Variable::kLenQ)] = place.len_q;
  v[static_cast<std::size_t>(Variable::kLenKv)] = place.len_kv;
  v[static_cast<std::size_t>(Variable::kShift)] = place.shift;
  v[static_cast<std::size_t>(Variable::kNumHeads)] = place.num_heads;
  return v;
}

TEST(ModifierText, GivesTheInterpretersScoresAndConditions) {
  const ModifierTexts texts;
  const auto list = texts.all();
  ASSERT_EQ(list.size(), printed().size());
  std::mt19937 random(7);
  for (std::size_t n = 0; n < list.size(); ++n) {
    const ScoreModifier& m = list[n].modifier;
    const modifier::Program program = modifier::parse(m).program;
    const ModifierArguments a = arguments_of(m);
    modifier::Evaluator<double> exact(program, m);
    int hidden = 0;
    for (int count = 0; count < 4000; ++count) {
      const int h = static_cast<int>(random() % 4);
      const ModifierPlace place = {static_cast<int>(random() % 2), h, h / 2, 300, 420, 120, 4};
      const int i = static_cast<int>(random() % 300);
      const int j = count % 2 == 0 ? static_cast<int>(random() % 420) : (i + count % 160) % 420;
      const float score = static_cast<float>(random() % 4096) / 256.0f - 8.0f;
      exact.begin_query(variables_of(place, i));
      const bool is_visible = exact.is_visible(j);
      hidden += is_visible ? 0 : 1;
      EXPECT_EQ(printed()[n].visible(a, place, i, j), is_visible) << list[n].name << " at " << i << ", " << j;
      const double expected = exact.score(static_cast<double>(score));
      // A few operations of fp32, on numbers up to some hundreds.
      EXPECT_NEAR(static_cast<double>(printed()[n].score(a, place, i, j, score)), expected,
                  1e-5 * std::max(std::abs(expected), 20.0))
          << list[n].name << " at " << i << ", " << j << ", " << score;
    }
    if (!m.visible.empty()) {
      EXPECT_GT(hidden, 20) << list[n].name;
      EXPECT_LT(hidden, 3980) << list[n].name;
    }
  }
}

// What kernels ask before they compute for many threads at once.
TEST(ModifierText, SaysWhatTakesLongAndWhatIsLinear) {
  const ModifierExamples examples;
  const auto has = [&](const ScoreModifier& m, const char* text) {
    return modifier::kernel_text(modifier::parse(m).program, {.has_small_indices = true}).find(text) !=
           std::string::npos;
  };
  EXPECT_TRUE(has(examples.visible("doc[q_idx] == doc[kv_idx]"), "kModifierMaskReadsStored = true"));
  EXPECT_TRUE(has(examples.visible("q_idx / c == kv_idx / c"), "kModifierMaskReadsStored = true"));
  EXPECT_TRUE(has(examples.visible("kv_idx <= q_idx + w"), "kModifierMaskReadsStored = false"));
  EXPECT_TRUE(has(examples.visible("kv_idx < prefix[b]"), "kModifierMaskReadsStored = false"));
  EXPECT_TRUE(has(examples.score("score + bias[h, 3]"), "kModifierScoreReadsStored = false"));
  EXPECT_TRUE(has(examples.score("score / float(doc[q_idx] + 1)"), "kModifierScoreReadsStored = true"));
  EXPECT_TRUE(has(examples.score("score + slope[h] * float(kv_idx - q_idx)"), "fmaf(u.v"));
  EXPECT_TRUE(has(examples.score("score + slope[h] * float(abs(kv_idx - q_idx))"), "kSide == 0 ? u.v"));
  EXPECT_TRUE(
      has(examples.score("score + slope[h] * float(abs(kv_idx - q_idx)) - float(abs(kv_idx - w)) * slope[0]"),
          "kModifierHasDistance = true"));
  EXPECT_FALSE(has(
      examples.score("score + slope[h] * float(abs(kv_idx - q_idx)) - float(abs(q_idx - kv_idx)) * slope[0]"),
      "kModifierHasDistance = true"));
  EXPECT_TRUE(has(examples.score("cap * tanh(score / cap)"), "kModifierHasTanh = true"));
  EXPECT_FALSE(has(examples.score("score * tanh(slope[h])"), "kModifierHasTanh = true"));
}

TEST(ModifierBlocks, AreTheBoundsOfEverySixtyFourElements) {
  const ModifierTexts texts;
  const auto list = texts.all();
  for (const ScoreModifier& m : {list.front().modifier, list.back().modifier}) {
    ModifierArguments a = arguments_of(m);
    const auto expected = add_blocks(m, a);
    std::vector<std::vector<ModifierBounds>> found;
    kernels::ModifierBlocksParams params = {};
    int count = 0;
    std::size_t most = 0;
    for (std::size_t t = 0; t < m.tensors.size(); ++t) {
      if (expected[t].empty()) continue;
      found.emplace_back(expected[t].size() + 1, ModifierBounds{-7, -7});  // one is behind the end
      const DType dtype = m.tensors[t].dtype;
      params.tensors[count++] = {a.tensors[t],
                                 found.back().data(),
                                 1,
                                 dtype == DType::kI32  ? kernels::kModifierI32
                                 : dtype == DType::kU8 ? kernels::kModifierU8
                                                       : kernels::kModifierBool,
                                 1,
                                 static_cast<int>(expected[t].size())};
      most = std::max(most, expected[t].size());
    }
    const int warps = kernels::kModifierBlockThreads / kernels::kWarpSize;
    simt::run_grid({"modifier_blocks",
                    {(static_cast<int>(most) + warps - 1) / warps, count, 1},
                    kernels::kModifierBlockThreads,
                    0,
                    kernels::kWarpSize},
                   [&] { modifier_blocks(params); });
    count = 0;
    for (const auto& bounds : expected) {
      if (bounds.empty()) continue;
      const auto& of_kernel = found[static_cast<std::size_t>(count++)];
      for (std::size_t i = 0; i < bounds.size(); ++i) {
        EXPECT_EQ(of_kernel[i].lo, bounds[i].lo) << i;
        EXPECT_EQ(of_kernel[i].hi, bounds[i].hi) << i;
      }
      EXPECT_EQ(of_kernel.back().lo, -7) << "written past the end";
    }
    EXPECT_GT(count, 1);
  }
}

TEST(ModifierText, FindsQuotientsOfSmallNumbersByFp32) {
  std::mt19937 random(5);
  constexpr int kMost = 1 << 21;
  const auto check = [](int a, int b) {
    EXPECT_EQ(kernels::small_divide(a, b), kernels::floored_divide(a, b)) << a << " / " << b;
    EXPECT_EQ(kernels::small_modulo(a, b), kernels::floored_modulo(a, b)) << a << " % " << b;
    EXPECT_EQ(kernels::floored_divide(a, b), static_cast<int>(std::floor(static_cast<double>(a) / b)));
  };
  for (int count = 0; count < 200000; ++count) {
    const int b = static_cast<int>(random() % 4096) + 1;
    const int a = static_cast<int>(random() % (2 * kMost + 1)) - kMost;
    const int multiple = a / b * b;  // where a guess is off first
    for (const int sign : {1, -1}) {
      check(a, sign * b);
      check(multiple, sign * b);
      if (multiple > -kMost) check(multiple - 1, sign * b);
    }
  }
  for (const int a : {-kMost, -1, 0, 1, kMost}) {
    for (const int b : {1, -1, 3, kMost, -kMost, 2147483647, -2147483647}) check(a, b);
  }
}

TEST(ModifierText, SaysNothingOfATileThatIsNotSoAndFindsMostEmptyAndFullOnes) {
  const ModifierTexts texts;
  const auto list = texts.all();
  std::mt19937 random(11);
  int found_of_models = 0;
  int there_of_models = 0;
  for (std::size_t n = 0; n < list.size(); ++n) {
    const ScoreModifier& m = list[n].modifier;
    if (m.visible.empty()) continue;
    const modifier::Program program = modifier::parse(m).program;
    ModifierArguments a = arguments_of(m);
    const auto blocks = add_blocks(m, a);
    modifier::Evaluator<double> exact(program, m);
    for (int count = 0; count < 150; ++count) {
      const int h = static_cast<int>(random() % 4);
      const ModifierPlace place = {static_cast<int>(random() % 2), h, h / 2, 1000, 1200, 200, 4};
      const int rows = count % 3 == 0 ? 128 : 1 + static_cast<int>(random() % 40);
      const int keys = count % 3 == 0 ? 128 : 1 + static_cast<int>(random() % 40);
      const int q0 = count % 3 == 0 ? static_cast<int>(random() % 7) * 128 : static_cast<int>(random() % 900);
      const int k0 =
          count % 3 == 0 ? static_cast<int>(random() % 9) * 128 : static_cast<int>(random() % 1100);
      bool any = false, all = true;
      for (int i = q0; i < q0 + rows; ++i) {
        exact.begin_query(variables_of(place, i));
        for (int j = k0; j < k0 + keys; ++j) {
          const bool sees = exact.is_visible(j);
          any |= sees;
          all &= sees;
        }
      }
      const ModifierRange range =
          printed()[n].tile(a, place, {q0, q0 + rows - 1}, {k0, k0 + keys - 1}, {h, h});
      ASSERT_TRUE(range.lo == 0 || range.lo == 1);
      ASSERT_TRUE(range.hi == 0 || range.hi == 1);
      if (range.lo == 1) {
        EXPECT_TRUE(all) << list[n].name << " queries " << q0 << "+" << rows << " keys " << k0 << "+" << keys;
      }
      if (range.hi == 0) {
        EXPECT_FALSE(any) << list[n].name << " queries " << q0 << "+" << rows << " keys " << k0 << "+"
                          << keys;
      }
      if (n < 14 && (all || !any)) {
        ++there_of_models;
        found_of_models += range.lo == range.hi ? 1 : 0;
      }
    }
  }
  // What is missed is mostly of documents' borders within blocks and of draft trees.
  EXPECT_GT(there_of_models, 500);
  EXPECT_GT(found_of_models * 10, there_of_models * 8) << found_of_models << " of " << there_of_models;
}

}  // namespace
}  // namespace tessera
