#include "engine/share_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace tessera {
namespace {

using Tokens = std::vector<std::int64_t>;

TEST(ShareBudget, GivesAllTheSameAndTheRestToThoseInFront) {
  EXPECT_EQ(share_budget(12, 1, Tokens{100, 100, 100}), (Tokens{4, 4, 4}));
  EXPECT_EQ(share_budget(14, 1, Tokens{100, 100, 100}), (Tokens{5, 5, 4}));
  EXPECT_EQ(share_budget(12, 1, Tokens{100}), (Tokens{12}));
  EXPECT_EQ(share_budget(12, 1, Tokens{}), (Tokens{}));
}

TEST(ShareBudget, WhatOneDoesNotNeedGoesToTheOthers) {
  EXPECT_EQ(share_budget(12, 1, Tokens{100, 2, 100}), (Tokens{5, 2, 5}));
  EXPECT_EQ(share_budget(13, 1, Tokens{1, 100, 2, 100}), (Tokens{1, 5, 2, 5}));
  EXPECT_EQ(share_budget(12, 1, Tokens{3, 4}), (Tokens{3, 4}));
}

TEST(ShareBudget, MakesNoShareSmallerThanTheLeastWhileSomeoneWaits) {
  EXPECT_EQ(share_budget(12, 6, Tokens{100, 100, 100}), (Tokens{6, 6, 0}));
  EXPECT_EQ(share_budget(12, 5, Tokens{100, 100, 100}), (Tokens{6, 6, 0}));
  EXPECT_EQ(share_budget(12, 50, Tokens{100, 100, 100}), (Tokens{12, 0, 0}));
  EXPECT_EQ(share_budget(12, 6, Tokens{1, 2, 3, 4, 100}), (Tokens{1, 2, 3, 4, 0}))
      << "the last would have two";
}

TEST(ShareBudget, SpendsAllThatAnyoneNeedsAndNoMore) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    Tokens pending(random() % 9);
    for (std::int64_t& tokens : pending) tokens = 1 + random() % (random() % 2 == 0 ? 5 : 60);
    const std::int64_t budget = 1 + random() % 80;
    const Tokens shares = share_budget(budget, 1, pending);
    std::int64_t smallest_cut = budget, largest = 0;
    for (std::size_t k = 0; k < pending.size(); ++k) {
      ASSERT_LE(shares[k], pending[k]);
      if (shares[k] < pending[k]) smallest_cut = std::min(smallest_cut, shares[k]);
      largest = std::max(largest, shares[k]);
    }
    const std::int64_t needed = std::accumulate(pending.begin(), pending.end(), std::int64_t{0});
    ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), std::min(budget, needed));
    if (needed <= budget) continue;
    ASSERT_GE(smallest_cut, largest - 1) << "somebody has more than one who lacks some";
  }
}

}  // namespace
}  // namespace tessera
