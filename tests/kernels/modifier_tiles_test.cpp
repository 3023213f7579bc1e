// Which tiles a mask leaves empty or full: never wrong, and found on the masks that models have.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/modifier_examples.h"
#include "kernels/modifier_trees.h"
#include "modifier/parse.h"
#include "modifier/tiles.h"
#include "tessera/error.h"

namespace tessera::modifier {
namespace {

struct Tile {
  std::int32_t q0, q1, k0, k1, h0, h1;  ///< first and last of each
};

TileClass brute_force(Evaluator<double>& evaluator, Variables variables, const Tile& tile) {
  bool any = false, all = true;
  for (variables[static_cast<std::size_t>(Variable::kHead)] = tile.h0;
       variables[static_cast<std::size_t>(Variable::kHead)] <= tile.h1;
       ++variables[static_cast<std::size_t>(Variable::kHead)]) {
    for (std::int32_t q = tile.q0; q <= tile.q1; ++q) {
      variables[static_cast<std::size_t>(Variable::kQuery)] = q;
      evaluator.begin_query(variables);
      for (std::int32_t k = tile.k0; k <= tile.k1; ++k) {
        const bool visible = evaluator.is_visible(k);
        any |= visible;
        all &= visible;
      }
    }
  }
  return all ? TileClass::kFull : any ? TileClass::kMixed : TileClass::kEmpty;
}

TileClass classify(const TileClassifier& classifier, const Variables& variables, const Tile& tile) {
  return classifier.classify(
      tile_bounds(variables, {tile.q0, tile.q1}, {tile.k0, tile.k1}, {tile.h0, tile.h1}));
}

TEST(TileClassifier, IsNeverWrongOnRandomTiles) {
  int tiles = 0, decided = 0, found = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    Trees trees(seed);
    const Tree visible = trees.condition(2);
    const ScoreModifier m = trees.modifier({}, visible);
    const Program program = parse(m).program;
    const TileClassifier classifier(program, m);
    Evaluator<double> evaluator(program, m);
    std::mt19937 random(seed);
    for (int n = 0; n < 8; ++n) {
      Tile tile;
      tile.q0 = static_cast<std::int32_t>(random() % 90);
      tile.q1 = tile.q0 + static_cast<std::int32_t>(random() % 12);
      tile.k0 = static_cast<std::int32_t>(random() % 90);
      tile.k1 = tile.k0 + static_cast<std::int32_t>(random() % 12);
      tile.h0 = static_cast<std::int32_t>(random() % 3);
      tile.h1 = tile.h0 + static_cast<std::int32_t>(random() % 2);
      const TileClass exact = brute_force(evaluator, {}, tile);
      const TileClass claimed = classify(classifier, {}, tile);
      ++tiles;
      if (claimed != TileClass::kMixed) {
        EXPECT_EQ(claimed, exact) << visible.text;
      }
      decided += exact != TileClass::kMixed;
      found += claimed != TileClass::kMixed;
    }
  }
  EXPECT_EQ(tiles, 12000);
  EXPECT_GT(found, decided * 8 / 10) << found << " of " << decided;
}

// int32 that wraps around is bounded by nothing, also where it goes through sums.
TEST(TileClassifier, IsNotMisledByNumbersThatWrapAround) {
  const std::vector<std::int32_t> big = {2147483647, 2147483600, -2147483647, 5};
  for (const char* text :
       {"big[q_idx] + 1 > 0", "big[q_idx] + kv_idx > big[q_idx]", "big[q_idx] * 2 > kv_idx",
        "abs(big[q_idx] - 2) >= 0", "-big[q_idx] + big[kv_idx] < 7", "big[q_idx] + 9 - 9 > 3",
        "big[q_idx] * 4 / 4 == big[q_idx]", "bit(big[q_idx] + 1, 31) == 0"}) {
    ScoreModifier m;
    m.visible = text;
    m.tensors = {{"big", big.data(), DType::kI32, {4}, {1}}};
    const Program program = parse(m).program;
    const TileClassifier classifier(program, m);
    Evaluator<double> evaluator(program, m);
    for (std::int32_t q0 = 0; q0 < 4; ++q0) {
      for (std::int32_t q1 = q0; q1 < 4; ++q1) {
        const Tile tile{q0, q1, q0, q1, 0, 0};
        const TileClass claimed = classify(classifier, {}, tile);
        if (claimed != TileClass::kMixed) {
          EXPECT_EQ(claimed, brute_force(evaluator, {}, tile)) << text;
        }
      }
    }
  }
}

TEST(TileClassifier, IsExactOnTheMasksThatModelsHave) {
  constexpr std::int32_t kLength = 1024;
  const ModifierExamples examples;
  for (const std::int32_t tile_rows : {128, 192}) {
    for (const auto& [name, modifier] : examples.all()) {
      // That of padding has tiles whose two conditions both hold somewhere, but nowhere together.
      if (modifier.visible.empty() || name == "padding") continue;
      ScoreModifier m = modifier;
      for (auto& [scalar, value] : m.scalars) {
        if (scalar == "W") value = 32;
        if (scalar == "w" || scalar == "c") value = 256;
      }
      const Program program = parse(m).program;
      const TileClassifier classifier(program, m);
      Evaluator<double> evaluator(program, m);
      Variables variables = {};
      int of_class[3] = {}, missed = 0;
      // Queries from 960 on are a draft of 64 after a prompt of 960.
      const bool is_draft = name == "draft tree";
      if (is_draft) variables[static_cast<std::size_t>(Variable::kShift)] = 960;
      for (std::int32_t q0 = 0; q0 < (is_draft ? 32 : kLength); q0 += tile_rows) {
        for (std::int32_t k0 = 0; k0 < (is_draft ? 992 : kLength); k0 += 128) {
          const Tile tile{q0, std::min(q0 + tile_rows, is_draft ? 32 : kLength) - 1,
                          k0, std::min(k0 + 128, is_draft ? 992 : kLength) - 1,
                          0,  0};
          const TileClass exact = brute_force(evaluator, variables, tile);
          const TileClass claimed = classify(classifier, variables, tile);
          ++of_class[static_cast<int>(exact)];
          if (claimed == TileClass::kMixed) {
            missed += exact != TileClass::kMixed;
          } else {
            EXPECT_EQ(claimed, exact) << name;
          }
        }
      }
      EXPECT_EQ(missed, 0) << name << " in tiles of " << tile_rows << ": " << of_class[0] << " empty, "
                           << of_class[1] << " mixed, " << of_class[2] << " full";
    }
  }
}

}  // namespace
}  // namespace tessera::modifier
