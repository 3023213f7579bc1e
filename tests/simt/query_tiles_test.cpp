// The order in which blocks take tiles of queries (sm90/query_tiles.cuh), for random lengths: skipping from
// tile to tile meets all that exist, each once.

#include "sm90/query_tiles.cuh"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tessera::kernels {
namespace {

constexpr int kBlockM = 32;

std::vector<int> existing_tiles(const AttentionParams& p) {
  std::vector<int> tiles;
  for (int index = 0; index < num_query_tiles<kBlockM>(p); ++index) {
    if (query_tile<kBlockM>(p, index).exists()) tiles.push_back(index);
  }
  return tiles;
}

/// As a block alone would take them.
std::vector<int> tiles_in_turn(const AttentionParams& p) {
  std::vector<int> tiles;
  for (int index = 0; index < num_query_tiles<kBlockM>(p);) {
    if (query_tile<kBlockM>(p, index).exists()) {
      tiles.push_back(index++);
    } else {
      const int next = next_query_tile<kBlockM>(p, index);
      EXPECT_GT(next, index);
      if (next <= index) break;
      index = next;
    }
  }
  return tiles;
}

TEST(QueryTiles, SkippingMeetsAllThatExist) {
  std::mt19937 random(7);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    AttentionParams p = {};
    p.batch = draw(1, 12);
    p.num_heads = 1 << draw(0, 3);
    p.num_kv_heads = 1;
    p.seq_len_q = draw(1, 200);
    p.seq_len_kv = 64;
    // A part of a sequence's heads, or those of several sequences.
    p.heads_at_once = draw(0, 1) == 0 ? p.num_heads >> draw(0, 1) : p.num_heads * draw(1, p.batch);
    if (p.heads_at_once == 0) p.heads_at_once = 1;
    const int missing_share = draw(0, 3);
    std::vector<int> cu_seqlens = {0};
    for (int b = 0; b < p.batch; ++b)
      cu_seqlens.push_back(cu_seqlens.back() +
                           (draw(0, 3) < missing_share ? draw(0, 1) : draw(0, p.seq_len_q)));
    p.cu_seqlens_q = cu_seqlens.data();
    if (draw(0, 1) == 1) p.fewest_q = draw(0, 40);
    EXPECT_EQ(tiles_in_turn(p), existing_tiles(p)) << "round " << round;
  }
}

}  // namespace
}  // namespace tessera::kernels
