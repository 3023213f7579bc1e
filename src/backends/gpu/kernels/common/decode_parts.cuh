#pragma once

#include "common/decode_parts.h"
#include "common/visible_tiles.cuh"

// The cut of decode_parts.h. Positions count tiles and costs from the first tile of (sequence 0, kv head 0)
// on; the host has made sure that 32 bits hold them.

namespace tessera::kernels {

/// The key tiles of which some query of a sequence sees some key: at least one, so that every head has a
/// piece.
struct TilesOfSequence {
  int begin;
  int end;

  TESSERA_DEVICE int count() const { return end - begin; }
};

TESSERA_DEVICE TilesOfSequence tiles_of_sequence(const AttentionParams& p, const Sequence& s, int block_n) {
  const int begin = keys_of_query(p, s, 0).begin / block_n;
  const int end = (keys_of_query(p, s, s.len_q - 1).end + block_n - 1) / block_n;
  return {begin, maximum(end, begin + 1)};
}

/// A part's positions, and where the first is.
struct Part {
  int index;
  int begin;
  int end;     // the part is empty if it is not above begin
  int length;  // of all parts but the last ones
  int b;
  int kv_head;
  int head_begin;  // position of the kv head's first tile
};

TESSERA_DEVICE bool is_uniform(const AttentionParams& p) {
  return p.cu_seqlens_q == nullptr && p.cu_seqlens_kv == nullptr && p.seq_lens_kv == nullptr;
}

/// Most positions that a part has to have so that num_parts hold `total` and the combination can take all
/// pieces of a head of `most`.
TESSERA_DEVICE int part_length(const DecodeParts& d, int total, int most) {
  const int share = (total + d.num_parts - 1) / d.num_parts;
  return maximum(share, most / (kMaxSplits - 1) + 1);
}

/// A head's part of its own. Positions count the head's own tiles.
TESSERA_DEVICE Part part_of_head(const AttentionParams& p, const DecodeParts& d, int index) {
  const int head = index / d.parts_of_head;
  const int b = head / p.num_kv_heads;
  const int count = tiles_of_sequence(p, load_sequence(p, b), d.block_n).count();
  const int length = (count + d.parts_of_head - 1) / d.parts_of_head;
  const int begin = index % d.parts_of_head * length;
  return {index, begin, minimum(begin + length, count), length, b, head - b * p.num_kv_heads, 0};
}

/// By all lanes of a warp; every lane gets the result.
TESSERA_DEVICE Part find_part(const AttentionParams& p, const DecodeParts& d, int index) {
  if (d.parts_of_head > 0) return part_of_head(p, d, index);
  const int lane = thread_x() % kWarpSize;
  const bool uniform = is_uniform(p);
  const auto weight_of = [&](int b) {
    if (b >= p.batch) return 0;
    return tiles_of_sequence(p, load_sequence(p, b), d.block_n).count() + d.piece_cost;
  };
  Part part = {index, 0, 0, 0, 0, 0, 0};
  int total = 0;  // of one kv head
  int most = 0;
  if (uniform) {
    most = weight_of(0);
    total = most * p.batch;
  } else {
    for (int first = 0; first < p.batch; first += kWarpSize) {
      const int weight = weight_of(first + lane);
      total += weight;
      most = maximum(most, weight);
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      total += shuffle_xor(total, mask);
      most = maximum(most, shuffle_xor(most, mask));
    }
  }
  if (!uniform && d.prefers_whole != 0 && most <= total / p.batch + total / p.batch / 16) {
    if (index >= p.batch * p.num_kv_heads) return part;
    part.b = index / p.num_kv_heads;
    part.kv_head = index - part.b * p.num_kv_heads;
    part.length = most;
    part.begin = part.head_begin = index * most;
    part.end = part.begin + weight_of(part.b);
    return part;
  }
  part.length = part_length(d, total * p.num_kv_heads, most);
  part.begin = index * part.length;
  part.end = minimum(part.begin + part.length, total * p.num_kv_heads);
  if (part.begin >= part.end) return part;
  // The sequence in which one kv head's positions reach this one: all heads have the same.
  const int target = part.begin / p.num_kv_heads;
  int before = 0;  // positions of the sequences before b
  int weight = most;
  if (uniform) {
    part.b = target / most;
    before = part.b * most;
  } else {
    for (int first = 0;; first += kWarpSize) {
      weight = weight_of(first + lane);
      int through = weight;  // positions of this chunk's sequences up to this lane's
      for (int step = 1; step < kWarpSize; step *= 2) {
        const int other = shuffle(through, maximum(lane - step, 0));
        if (lane >= step) through += other;
      }
      const int chunk = shuffle(through, kWarpSize - 1);
      if (target >= before + chunk) {
        before += chunk;
        continue;
      }
      // The first lane that reaches beyond the target.
      int found = target < before + through ? lane : kWarpSize;
      for (int mask = kWarpSize / 2; mask > 0; mask /= 2) found = minimum(found, shuffle_xor(found, mask));
      before += shuffle(through - weight, found);
      weight = shuffle(weight, found);
      part.b = first + found;
      break;
    }
  }
  part.kv_head = (part.begin - before * p.num_kv_heads) / weight;
  part.head_begin = before * p.num_kv_heads + part.kv_head * weight;
  return part;
}

/// What the block that has a head's first tile notes of its pieces, known without memory where is_uniform()
/// and parts are not of heads.
TESSERA_DEVICE DecodePiecesOfHead pieces_of_uniform_head(const AttentionParams& p, const DecodeParts& d,
                                                         int head) {
  const int tiles = tiles_of_sequence(p, load_sequence(p, 0), d.block_n).count();
  const int most = tiles + d.piece_cost;
  const int length = part_length(d, most * p.batch * p.num_kv_heads, most);
  const int first_part = head * most / length;
  return {first_part, (head * most + tiles - 1) / length - first_part + 1};
}

/// A kv head's tiles in a part.
struct Piece {
  Sequence sequence;
  int b;
  int kv_head;
  int tile_begin;
  int tile_end;
  bool is_first;   // of the head's
  int num_pieces;  // of the head, if it is the first
  bool is_whole;
};

/// Calls f(piece) for the pieces of a part, in order.
template <class F>
TESSERA_DEVICE void for_each_piece(const AttentionParams& p, const DecodeParts& d, const Part& part, F f) {
  Piece piece;
  piece.b = part.b;
  piece.kv_head = part.kv_head;
  int head_begin = part.head_begin;
  int position = part.begin;
  while (position < part.end) {
    piece.sequence = load_sequence(p, piece.b);
    const TilesOfSequence tiles = tiles_of_sequence(p, piece.sequence, d.block_n);
    for (; piece.kv_head < p.num_kv_heads && position < part.end; ++piece.kv_head) {
      const int tiles_end = head_begin + tiles.count();
      piece.tile_begin = tiles.begin + position - head_begin;
      piece.tile_end = tiles.begin + minimum(part.end, tiles_end) - head_begin;
      piece.is_first = position == head_begin;
      piece.is_whole = piece.is_first && tiles_end <= part.end;
      piece.num_pieces = (tiles_end - 1 - part.begin) / part.length + 1;
      // A part may begin within the cost of a head whose tiles have all been in the part before.
      if (piece.tile_begin < piece.tile_end && piece.sequence.len_q > 0) f(piece);
      head_begin = tiles_end + d.piece_cost;
      position = head_begin;
    }
    piece.kv_head = 0;
    ++piece.b;
  }
}

/// The rows of a piece's head.
TESSERA_DEVICE TileRows rows_of_piece(const AttentionParams& p, const Piece& piece) {
  const int group = p.num_heads / p.num_kv_heads;
  const int first_head = piece.kv_head * group;
  return {piece.sequence, piece.b, 0, piece.sequence.len_q - 1, first_head, first_head + group - 1};
}

/// for_each_piece() with other tiles where a modifier's mask hides some: as large a part of those that
/// somebody sees as the piece is of the head's. That may be none. All lanes of a warp take part.
template <class F>
TESSERA_DEVICE void for_each_visible_piece(const AttentionParams& p, const DecodeParts& d, const Part& part,
                                           F f) {
  for_each_piece(p, d, part, [&](const Piece& piece) {
    if constexpr (!kHidesTiles) {
      f(piece);
    } else {
      const TilesOfSequence tiles = tiles_of_sequence(p, piece.sequence, d.block_n);
      const TileRange found = VisibleTiles(p, rows_of_piece(p, piece), d.block_n)
                                  .part({tiles.begin, tiles.end}, piece.tile_begin - tiles.begin,
                                        piece.tile_end - tiles.begin, tiles.count());
      Piece seen = piece;
      seen.tile_begin = found.begin;
      seen.tile_end = found.end;
      f(seen);
    }
  });
}

/// Where a piece's partial rows begin.
TESSERA_DEVICE int64 partial_row_of_piece(const AttentionParams& p, int part, int b, int kv_head) {
  const int rows = p.seq_len_q * (p.num_heads / p.num_kv_heads);
  return (static_cast<int64>(part) + b * p.num_kv_heads + kv_head) * rows;
}

}  // namespace tessera::kernels
