// Which tiles of keys kernels leave out by a modifier's mask, and how those that are left are shared out
// (common/visible_tiles.cuh), beside a look at every tile.

#include "common/visible_tiles.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "simt/executor.h"

namespace tessera {
namespace {

using kernels::Sight;
using kernels::TileRange;
using kernels::TileSearch;

enum State : std::uint8_t { kHidden, kPartly, kWhole };

/// Says of tiles what is so.
struct Mask {
  const std::vector<State>* tiles;

  Sight operator()(int begin, int end) const {
    EXPECT_GE(begin, 0);
    EXPECT_LT(begin, end);
    EXPECT_LE(end, static_cast<int>(tiles->size()));
    const auto first = tiles->begin() + begin, last = tiles->begin() + end;
    const bool any = std::any_of(first, last, [](State s) { return s != kHidden; });
    const bool all = std::all_of(first, last, [](State s) { return s == kWhole; });
    return {any, all};
  }
};

struct Pattern {
  std::string name;
  std::vector<State> tiles;
};

std::vector<Pattern> patterns() {
  std::mt19937 random(5);
  std::vector<Pattern> list;
  for (const int count : {1, 31, 33, 200, 1024, 1025, 5000, 40000}) {
    const auto add = [&](const char* name, auto state) {
      Pattern pattern = {name + (" of " + std::to_string(count)), {}};
      for (int tile = 0; tile < count; ++tile) pattern.tiles.push_back(state(tile));
      list.push_back(std::move(pattern));
    };
    const int last = count - count / 20;
    add("none", [](int) { return kHidden; });
    add("all", [](int) { return kWhole; });
    add("a part of each", [](int) { return kPartly; });
    add("window", [&](int t) { return t < last - 4 || t > last ? kHidden : t == last ? kPartly : kWhole; });
    add("sinks and a long window", [&](int t) {
      return t == 0 ? kPartly : t < count / 2 || t > last ? kHidden : kWhole;
    });
    add("one of ten", [&](int) { return random() % 10 == 0 ? kPartly : kHidden; });
    add("one of a thousand", [&](int) { return random() % 1000 == 0 ? kPartly : kHidden; });
    add("blocks", [&](int t) { return t / 70 % 3 == 1 ? kWhole : kHidden; });
  }
  return list;
}

/// Calls f in every lane of a warp.
template <class F>
void run_warp(F f) {
  simt::run_grid({"visible_tiles", {1, 1, 1}, kernels::kWarpSize, 0, kernels::kWarpSize}, f);
}

TEST(VisibleTiles, AreThoseThatAreNotHiddenInTheirOrder) {
  for (const Pattern& pattern : patterns()) {
    SCOPED_TRACE(pattern.name);
    const int count = static_cast<int>(pattern.tiles.size());
    for (const auto& [begin, end] : {TileRange{0, count}, TileRange{count / 3, count - count / 4}}) {
      std::vector<int> expected;
      for (int tile = begin; tile < end; ++tile)
        if (pattern.tiles[static_cast<std::size_t>(tile)] != kHidden) expected.push_back(tile);
      std::vector<int> found;
      run_warp([&, begin = begin, end = end] {
        TileSearch<Mask> search({&pattern.tiles}, count);
        for (int tile = search.next(begin, end); tile < end; tile = search.next(tile + 1, end))
          if (kernels::thread_x() == 7) found.push_back(tile);
      });
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(VisibleTiles, AreSharedOutEvenlyAndNoneTwice) {
  for (const Pattern& pattern : patterns()) {
    const int count = static_cast<int>(pattern.tiles.size());
    const auto is_seen = [&](int tile) { return pattern.tiles[static_cast<std::size_t>(tile)] != kHidden; };
    for (const TileRange& all : {TileRange{0, count}, TileRange{count / 3, count - count / 4}}) {
      for (const int parts : {1, 2, 7, 100}) {
        SCOPED_TRACE(pattern.name + ", parts " + std::to_string(parts) + ", from " +
                     std::to_string(all.begin));
        std::vector<TileRange> found;
        run_warp([&] {
          const TileSearch<Mask> search({&pattern.tiles}, count);
          for (int n = 0; n < parts; ++n) {
            const TileRange part = search.part(all, n, n + 1, parts);
            if (kernels::thread_x() == 0) found.push_back(part);
          }
        });
        // What counts as seen: all of each group in which one tile is. Groups have a 256th of the tiles, or
        // where few of 32 parts are seen a 1024th, which lie in these.
        const int group = 4 * ((all.end - all.begin + 1023) / 1024);
        int most = 0;
        for (int first = all.begin; first < all.end; first += group) {
          bool any = false;
          for (int tile = first; tile < std::min(first + group, all.end); ++tile) any |= is_seen(tile);
          most += any ? group : 0;
        }
        int next = all.begin;
        for (const TileRange& part : found) {
          ASSERT_LE(part.begin, part.end);
          for (int tile = next; tile < part.begin; ++tile) EXPECT_FALSE(is_seen(tile)) << tile;
          if (part.begin < part.end) {
            ASSERT_GE(part.begin, next);
          }
          int seen = 0;
          for (int tile = part.begin; tile < part.end; ++tile) seen += is_seen(tile) ? 1 : 0;
          EXPECT_LE(seen, most / parts + 1);
          next = std::max(next, part.end);
        }
        EXPECT_LE(next, all.end);
        for (int tile = next; tile < all.end; ++tile) EXPECT_FALSE(is_seen(tile)) << tile;
      }
    }
  }
}

// With the text of the first example: causal.
TEST(VisibleTiles, OfRowsAreThoseOfTheirQueries) {
  ASSERT_TRUE(kernels::kHidesTiles);
  kernels::AttentionParams p = {};
  p.num_heads = 4;
  p.num_kv_heads = 2;
  constexpr int kBlockN = 16;
  for (const int first_query : {0, 1, 60}) {
    const kernels::Sequence s = {0, 0, 64, 1000,
                                 100};  // its queries are behind key 100, so that many see less
    const kernels::TileRows rows = {s, 1, first_query, first_query + 3, 2, 3};
    std::vector<int> found;
    run_warp([&] {
      kernels::VisibleTiles visible(p, rows, kBlockN);
      for (int tile = visible.next(0, 63); tile < 63; tile = visible.next(tile + 1, 63))
        if (kernels::thread_x() == 0) found.push_back(tile);
    });
    const int last = (first_query + 3 + s.shift) / kBlockN;
    ASSERT_EQ(static_cast<int>(found.size()), last + 1);
    for (int n = 0; n <= last; ++n) EXPECT_EQ(found[static_cast<std::size_t>(n)], n);
  }
}

}  // namespace
}  // namespace tessera
