#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "backends/cuda/ops/split_tiles.h"
#include "backends/cuda/ops/wgmma_products.h"

namespace tessera::cuda {
namespace {

using kernels::FewRowsShares;

gpu::DeviceProperties gpu_of(int multiprocessors, double memory_bytes_per_us = 4.9e6) {
  gpu::DeviceProperties device;
  device.num_multiprocessors = multiprocessors;
  device.memory_bytes_per_us = memory_bytes_per_us;
  return device;
}

/// Each step of each tile is one block's; the blocks that share a tile are those that it says, and each has
/// one place for its sums of it.
void expect_all_shared_out(const FewRowsShares& s) {
  std::map<std::pair<int, int>, int> times;  // of a tile's step
  std::map<int, std::set<int>> blocks_of_tile;
  for (int block = 0; block < s.blocks; ++block) {
    kernels::TileShares shares(s, block);
    kernels::TileShare share{};
    int split = 0;
    for (int count = 0; shares.next(share); ++count) {
      ASSERT_LT(share.begin, share.end);
      ASSERT_LE(share.end, s.steps);
      for (int step = share.begin; step < share.end; ++step) ++times[{share.tile, step}];
      if (share.tile >= s.split_tiles) {
        EXPECT_EQ(share.end - share.begin, s.steps);
        continue;
      }
      EXPECT_EQ(count, split++) << "split tiles come first";
      blocks_of_tile[share.tile].insert(block);
      const bool is_second = kernels::first_split_step(s, block) < std::int64_t{share.tile} * s.steps;
      EXPECT_EQ(is_second, split == 2);
    }
    EXPECT_LE(split, 2);
    const kernels::TileShare last = share;
    EXPECT_FALSE(shares.next(share));
    EXPECT_EQ(share.tile, last.tile);
    EXPECT_EQ(share.end, last.end);
  }
  ASSERT_EQ(times.size(), static_cast<std::size_t>(s.tiles) * static_cast<std::size_t>(s.steps));
  for (const auto& [place, count] : times) ASSERT_EQ(count, 1) << place.first << ", " << place.second;
  for (const auto& [tile, blocks] : blocks_of_tile) {
    const std::int64_t first_step = std::int64_t{tile} * s.steps;
    EXPECT_EQ(*blocks.begin(), kernels::block_of_split_step(s, first_step));
    EXPECT_EQ(*blocks.rbegin(), kernels::block_of_split_step(s, first_step + s.steps - 1));
    EXPECT_EQ(static_cast<int>(blocks.size()), *blocks.rbegin() - *blocks.begin() + 1);
  }
}

TEST(FewRowsShares, EachStepIsOneBlocks) {
  for (const int multiprocessors : {1, 7, 114, 132}) {
    for (const std::int64_t n : {1, 64, 65, 1000, 4096, 6144, 8448, 8449, 28672, 128256}) {
      for (const std::int64_t k : {8, 128, 520, 4096, 14336}) {
        SCOPED_TRACE(::testing::Message() << n << " x " << k << " on " << multiprocessors);
        expect_all_shared_out(share_few_rows(n, k, gpu_of(multiprocessors)));
      }
    }
  }
}

TEST(FewRowsShares, EachStepIsOneBlocksWhereASingleStepMayBeShared) {
  for (const int multiprocessors : {1, 7, 114, 132}) {
    for (const std::int64_t tiles : {1, 5, 16, 22, 64, 112, 131, 132, 150, 300}) {
      for (const std::int64_t steps : {1, 2, 3, 16, 56}) {
        SCOPED_TRACE(::testing::Message() << tiles << " of " << steps << " steps on " << multiprocessors);
        expect_all_shared_out(share_tiles(tiles, steps, 1, multiprocessors));
      }
    }
  }
}

TEST(FewRowsShares, BlocksHaveAsMuchToRead) {
  // Of a model's products none leaves a block with a tenth less than its part.
  for (const auto& [n, k] :
       {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}, {5120, 5120}}) {
    const FewRowsShares s = share_few_rows(n, k, gpu_of(132));
    EXPECT_GE(s.blocks, 95);
    const double part = static_cast<double>(s.tiles) * s.steps / s.blocks;
    for (int block = 0; block < s.blocks; ++block) {
      kernels::TileShares shares(s, block);
      kernels::TileShare share{};
      int steps = 0;
      while (shares.next(share)) steps += share.end - share.begin;
      EXPECT_NEAR(steps, part, 0.1 * part) << n << " x " << k << ", block " << block;
    }
  }
}

TEST(FewRowsShares, NearlyAsManyBlocksAsMultiprocessorsHaveWholeTilesOrWholeParts) {
  struct Case {
    std::int64_t n;
    int blocks, split_tiles;
  };
  for (const Case& c :
       {Case{6144, 96, 0}, {28672, 112, 0}, {128256, 126, 0}, {4096, 128, 64}, {2048, 128, 32}}) {
    const FewRowsShares s = share_few_rows(c.n, 4096, gpu_of(132));
    EXPECT_EQ(s.blocks, c.blocks) << c.n;
    EXPECT_EQ(s.split_tiles, c.split_tiles) << c.n;
    for (int block = 0; c.split_tiles > 0 && block < s.blocks; ++block) {
      kernels::TileShares shares(s, block);
      kernels::TileShare share{};
      int count = 0;
      while (shares.next(share)) ++count;
      EXPECT_EQ(count, 1) << c.n << ", block " << block;
    }
  }
  EXPECT_EQ(share_few_rows(5120, 4096, gpu_of(132)).blocks, 132) << "80 blocks would be too few";
  EXPECT_EQ(share_few_rows(5120, 4096, gpu_of(132, 3.35e6)).blocks, 80) << "but for slower memory";
  EXPECT_EQ(share_few_rows(4096, 4096, gpu_of(78, 4e6)).blocks, 78) << "few blocks of fast memory: all";
}

TEST(FewRowsShares, HalvesAreTheBlocksOfACluster) {
  int halved = 0;
  for (const std::int64_t n : {64, 2048, 4096, 4160, 6144, 8448}) {
    for (const std::int64_t k : {520, 1024, 4104, 14336}) {
      const FewRowsShares s = share_few_rows(n, k, gpu_of(132));
      if (!kernels::are_halves(s)) continue;
      ++halved;
      EXPECT_EQ(s.blocks, 2 * s.tiles);
      for (int block = 0; block < s.blocks; ++block) {
        kernels::TileShares shares(s, block);
        kernels::TileShare first{}, none{-1, 0, 0};
        ASSERT_TRUE(shares.next(first));
        EXPECT_FALSE(shares.next(none)) << "a share of another tile";
        EXPECT_EQ(first.tile, block / 2);
        EXPECT_EQ(first.begin == 0, block % 2 == 0) << n << " x " << k << ", block " << block;
      }
    }
  }
  EXPECT_GE(halved, 4);
}

}  // namespace
}  // namespace tessera::cuda
