// The order in which blocks take tiles of queries (sm90/query_tiles.cuh), for random lengths: skipping from
// tile to tile meets all that exist, each once. With TESSERA_PACKS also which rows and keys tiles have.

#include "sm90/query_tiles.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
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
    const QueryTile tile = query_tile<kBlockM>(p, index);
    if (tile.exists()) {
      tiles.push_back(index++);
    } else {
      const int next = next_query_tile<kBlockM>(p, tile, index);
      EXPECT_GT(next, index);
      if (next <= index) break;
      index = next;
    }
  }
  return tiles;
}

/// A problem of random lengths, which it keeps.
class RandomProblem {
 public:
  explicit RandomProblem(std::mt19937& random) : random_(random) {
    p.batch = draw(1, 12);
    p.num_heads = 1 << draw(0, 3);
    p.num_kv_heads = 1;
    p.seq_len_q = draw(1, 200);
    p.seq_len_kv = draw(1, 500);
    p.window_left = p.window_right = kUnlimitedWindow;
    p.pack_heads = p.num_splits = 1;
    if (kPacks) {
      p.num_heads = draw(1, 13);
      p.pack_heads = draw(0, 3) == 0 ? 1 : p.num_heads;
      p.num_splits = draw(1, 5);
      p.omits_splits = 1;
      const int tiles = (p.seq_len_kv + kBlockN - 1) / kBlockN;
      p.keys_per_split = (tiles + p.num_splits - 1) / p.num_splits * kBlockN;
      p.num_splits = (p.seq_len_kv + p.keys_per_split - 1) / p.keys_per_split;
    }
    // A part of a sequence's heads, or those of several sequences.
    const int heads = p.num_heads / p.pack_heads;
    p.heads_at_once = heads * draw(1, p.batch);
    if (draw(0, 1) == 0) p.heads_at_once = heads % 2 == 0 ? heads / 2 : heads;
    const int missing_share = draw(0, 3);
    for (int b = 0; b < p.batch; ++b) {
      cu_seqlens_.push_back(cu_seqlens_.back() +
                            (draw(0, 3) < missing_share ? draw(0, 1) : draw(0, p.seq_len_q)));
      lens_kv_.push_back(draw(0, p.seq_len_kv));
    }
    p.cu_seqlens_q = cu_seqlens_.data();
    p.seq_lens_kv = lens_kv_.data();
    if (draw(0, 1) == 1) p.fewest_q = draw(0, 40);
    if (draw(0, 1) == 1) p.window_right = 0;
    if (draw(0, 2) == 0) p.window_left = draw(0, 100);
  }
  RandomProblem(const RandomProblem&) = delete;

  static constexpr int kBlockN = 16;
  AttentionParams p = {};

 private:
  int draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  std::mt19937& random_;
  std::vector<int> cu_seqlens_ = {0};
  std::vector<int> lens_kv_;
};

TEST(QueryTiles, SkippingMeetsAllThatExist) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const RandomProblem problem(random);
    EXPECT_EQ(tiles_in_turn(problem.p), existing_tiles(problem.p)) << "round " << round;
  }
}

// Every key that a query of a head sees is in one tile of keys of one query tile that has the query's row.
TEST(QueryTiles, TogetherHaveEachKeyOfEachRowOnce) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const RandomProblem problem(random);
    const AttentionParams& p = problem.p;
    std::map<std::tuple<int, int, int>, std::vector<int>> keys_of_rows;  // of a sequence, head and query
    for (const int index : existing_tiles(p)) {
      const QueryTile t = query_tile<kBlockM>(p, index);
      const KeyTiles tiles = key_tiles<kBlockM, RandomProblem::kBlockN>(p, t);
      for (int local = 0; local < kBlockM; ++local) {
        const TileRow row = row_of_tile<kBlockM>(p, t, local);
        if (!row.exists) continue;
        ASSERT_LT(row.h, p.num_heads);
        std::vector<int>& keys = keys_of_rows[{t.b, row.h, row.i}];
        const KeyRange seen = keys_of_tile_query(p, t, row.i);
        for (int key = seen.begin; key < seen.end; ++key) {
          ASSERT_GE(key, tiles.begin * RandomProblem::kBlockN);
          ASSERT_LT(key, tiles.end * RandomProblem::kBlockN);
          keys.push_back(key);
        }
      }
    }
    for (int b = 0; b < p.batch; ++b) {
      const Sequence s = load_sequence(p, b);
      for (int h = 0; h < p.num_heads; ++h) {
        for (int i = 0; i < s.len_q; ++i) {
          const auto found = keys_of_rows.find({b, h, i});
          ASSERT_NE(found, keys_of_rows.end()) << "round " << round << ", query " << i << " of head " << h;
          std::ranges::sort(found->second);
          std::vector<int> expected;
          const KeyRange seen = keys_of_query(p, s, i);
          for (int key = seen.begin; key < seen.end; ++key) expected.push_back(key);
          ASSERT_EQ(found->second, expected) << "round " << round << ", query " << i << " of head " << h;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels
