// How a decode's work is shared out (common/decode_parts.cuh), for random lengths: every tile of every head
// in exactly one part, where the combination looks for it.

#include "common/decode_parts.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "simt/executor.h"

namespace tessera::kernels {
namespace {

constexpr int kBlockN = 64;

struct FoundPiece {
  int part;
  int tile_begin;
  int tile_end;
  bool is_first;
  bool is_whole;
  int num_pieces;
};

/// The pieces of each (sequence, kv head), by parts; and how many positions the fullest part has.
struct FoundCut {
  std::map<std::pair<int, int>, std::vector<FoundPiece>> pieces;
  int length = 0;
  int used_parts = 0;
};

FoundCut cut(const AttentionParams& p, const DecodeParts& d) {
  FoundCut found;
  simt::run_grid({"find_part", {d.num_parts, 1, 1}, kWarpSize, 0, kWarpSize}, [&] {
    const Part part = find_part(p, d, block_x());
    if (thread_x() != 0) return;
    found.length = std::max(found.length, part.end - part.begin);
    found.used_parts += part.end > part.begin ? 1 : 0;
    for_each_piece(p, d, part, [&](const Piece& piece) {
      found.pieces[{piece.b, piece.kv_head}].push_back(
          {part.index, piece.tile_begin, piece.tile_end, piece.is_first, piece.is_whole, piece.num_pieces});
    });
  });
  return found;
}

AttentionParams params(int batch, int kv_heads, int most) {
  AttentionParams p = {};
  p.batch = batch;
  p.num_heads = p.num_kv_heads = kv_heads;
  p.seq_len_q = 1;
  p.seq_len_kv = most;
  p.window_left = p.window_right = kUnlimitedWindow;
  return p;
}

/// Every head's tiles in pieces that follow one another, of consecutive parts, as many as the first says.
void expect_covers(const AttentionParams& p, const FoundCut& found) {
  ASSERT_EQ(found.pieces.size(), static_cast<std::size_t>(p.batch * p.num_kv_heads));
  for (const auto& [head, pieces] : found.pieces) {
    const TilesOfSequence tiles = tiles_of_sequence(p, load_sequence(p, head.first), kBlockN);
    int tile = tiles.begin;
    for (std::size_t n = 0; n < pieces.size(); ++n) {
      EXPECT_EQ(pieces[n].tile_begin, tile);
      EXPECT_GT(pieces[n].tile_end, tile);
      EXPECT_EQ(pieces[n].part, pieces[0].part + static_cast<int>(n));
      EXPECT_EQ(pieces[n].is_first, n == 0);
      EXPECT_EQ(pieces[n].is_whole, pieces.size() == 1);
      tile = pieces[n].tile_end;
    }
    EXPECT_EQ(tile, tiles.end);
    EXPECT_EQ(pieces[0].num_pieces, static_cast<int>(pieces.size()));
    EXPECT_LE(pieces.size(), static_cast<std::size_t>(kMaxSplits));
  }
}

TEST(DecodeParts, HaveEveryTileOnce) {
  std::mt19937 random(1);
  for (const int batch : {1, 3, 31, 32, 33, 64, 65, 100}) {
    for (const int kv_heads : {1, 2, 5}) {
      for (const int num_parts : {1, 2, 7, 40, 264}) {
        for (const int piece_cost : {0, 1, 3}) {
          std::vector<int> lengths(static_cast<std::size_t>(batch));
          for (int& length : lengths)
            length = static_cast<int>(std::exp(std::uniform_real_distribution<>(-1, 9.9)(random)));
          AttentionParams p = params(batch, kv_heads, 20000);
          p.seq_lens_kv = lengths.data();
          if (random() % 4 == 0) p.window_left = 1000;
          const FoundCut found = cut(p, {num_parts, kBlockN, piece_cost, 0, 0, nullptr});
          expect_covers(p, found);
          // Equal shares, but for the limit on the pieces of a head.
          int total = 0;
          int most = 0;
          for (int b = 0; b < batch; ++b) {
            const int count = tiles_of_sequence(p, load_sequence(p, b), kBlockN).count() + piece_cost;
            total += count * kv_heads;
            most = std::max(most, count);
          }
          EXPECT_LE(found.length, std::max((total + num_parts - 1) / num_parts, most / (kMaxSplits - 1) + 1));
        }
      }
    }
  }
}

TEST(DecodeParts, OfEqualLengthsAreThoseOfLengthsOnTheDevice) {
  for (const int num_parts : {1, 6, 13, 100}) {
    const AttentionParams dense = params(6, 2, 1000);
    const std::vector<int> lengths(6, 1000);
    AttentionParams padded = dense;
    padded.seq_lens_kv = lengths.data();
    const DecodeParts d = {num_parts, kBlockN, 1, 0, 0, nullptr};
    const FoundCut one = cut(dense, d);
    const FoundCut other = cut(padded, d);
    expect_covers(dense, one);
    ASSERT_EQ(one.pieces.size(), other.pieces.size());
    for (const auto& [head, pieces] : one.pieces) {
      const std::vector<FoundPiece>& others = other.pieces.at(head);
      ASSERT_EQ(pieces.size(), others.size());
      for (std::size_t n = 0; n < pieces.size(); ++n) EXPECT_EQ(pieces[n].tile_begin, others[n].tile_begin);
      const DecodePiecesOfHead known =
          pieces_of_uniform_head(dense, d, head.first * dense.num_kv_heads + head.second);
      EXPECT_EQ(known.first_part, pieces[0].part);
      EXPECT_EQ(known.count, static_cast<int>(pieces.size()));
    }
  }
}

TEST(DecodeParts, AreWholeHeadsWhereLengthsAreNearlyEqualAndThatIsPreferred) {
  const DecodeParts d = {40, kBlockN, 2, 1, 0, nullptr};
  AttentionParams p = params(5, 4, 20000);
  std::vector<int> lengths = {9000, 8900, 8600, 9050, 8700};
  p.seq_lens_kv = lengths.data();
  const FoundCut nearly = cut(p, d);
  expect_covers(p, nearly);
  EXPECT_EQ(nearly.used_parts, 20);
  for (const auto& [head, pieces] : nearly.pieces) EXPECT_TRUE(pieces[0].is_whole);
  lengths[2] = 100;  // no longer
  const FoundCut ragged = cut(p, d);
  expect_covers(p, ragged);
  EXPECT_GT(ragged.used_parts, 30);
}

// Of a head that has a block or a cluster for itself: its pieces are shared out by its own length.
TEST(DecodeParts, FillClusters) {
  const std::vector<int> lengths = {0, 1, 4 * kBlockN, 17 * kBlockN - 5, 31 * kBlockN, 100 * kBlockN + 1};
  const int batch = static_cast<int>(lengths.size());
  for (const int window : {kUnlimitedWindow, 500}) {
    for (const int blocks : {1, 2, 4, 8}) {
      AttentionParams p = params(batch, 3, 101 * kBlockN);
      p.seq_lens_kv = lengths.data();
      p.window_left = window;
      const FoundCut found = cut(p, {batch * 3 * blocks, kBlockN, 2, 0, blocks, nullptr});
      expect_covers(p, found);
      for (const auto& [head, pieces] : found.pieces) {
        const int tiles = tiles_of_sequence(p, load_sequence(p, head.first), kBlockN).count();
        const int length = (tiles + blocks - 1) / blocks;
        EXPECT_EQ(pieces[0].part, (head.first * 3 + head.second) * blocks);
        EXPECT_EQ(pieces.size(), static_cast<std::size_t>((tiles + length - 1) / length));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels
