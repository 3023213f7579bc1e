#pragma once

#include "common/score_terms.cuh"

// Which tiles of keys a few rows see by a modifier's mask (modifier_tile of score_modifier.cuh), for kernels
// that take a row's keys tile by tile: what nobody sees is neither read nor computed, and parts of the keys
// have as many tiles that somebody sees. Nothing is stored: who needs it asks again, 32 tiles or groups of
// tiles at once. In modules without such a mask nothing of this is left.
//
// All lanes of a warp call these functions together.

namespace tessera::kernels {

/// Tiles [begin, end).
struct TileRange {
  int begin;
  int end;
};

/// Queries and query heads [first, last] of a sequence, which read one kv head.
struct TileRows {
  Sequence sequence;
  int b;
  int first_query, last_query;
  int first_head, last_head;
};

/// Packed rows [first, last] of heads [first_head, first_head + pack).
TESSERA_DEVICE TileRows packed_tile_rows(const Sequence& s, int b, int first, int last, int pack,
                                         int first_head) {
  return {s,
          b,
          packed_row_index(first, pack, first_head).i,
          packed_row_index(last, pack, first_head).i,
          first_head,
          first_head + pack - 1};
}

/// What rows see of some keys.
struct Sight {
  bool some;  // some row may see some key
  bool all;   // all rows see all
};

#ifdef TESSERA_MODIFIER
/// Whether there is something to find out.
constexpr bool kHidesTiles = kModifierHasMask;

/// What the mask says of keys [begin, end), of which there is one. Each lane may ask of others.
TESSERA_DEVICE Sight sight_of(const AttentionParams& p, const TileRows& rows, int begin, int end) {
  const Sequence& s = rows.sequence;
  const ModifierRange range = modifier_tile(
      p.modifier, modifier_place(p, s, rows.b, rows.first_head), {rows.first_query, rows.last_query},
      {begin, maximum(minimum(end, s.len_kv) - 1, begin)}, {rows.first_head, rows.last_head});
  return {range.hi != 0, range.lo != 0};
}

/// Looks for tiles of keys that some row may see. SightOf: sight_of(begin, end) is what a mask says of tiles
/// [begin, end), of which there is one.
template <class SightOf>
class TileSearch {
 public:
  /// Of the first `count` tiles.
  TESSERA_DEVICE TileSearch(const SightOf& sight, int count) : sight_(sight), count_(count) {}

  /// The first tile from `tile` on, below `end`, of which some row may see a key; `end` if there is none.
  TESSERA_DEVICE int next(int tile, int end) {
    while (tile < end) {
      // Groups of 32 tiles first: there may be many that nobody sees.
      const int group = tile / 32;
      const bool finds_groups = first_group_ != group / 32 * 32;
      if (!finds_groups) {
        const unsigned groups = groups_ >> (group % 32);
        if ((groups & 1u) == 0) {
          tile = (groups == 0 ? first_group_ + 32 : group + lowest_bit(groups)) * 32;
          continue;
        }
        if (first_ == group * 32) {
          const unsigned tiles = tiles_ >> (tile % 32);
          if (tiles != 0) return minimum(tile + lowest_bit(tiles), end);
          tile = first_ + 32;
          continue;
        }
      }
      // Asked in one place, since each takes the compiler another copy of the mask's bounds.
      const int first = finds_groups ? group / 32 * 32 : group;
      const unsigned found = seen(first * 32, finds_groups ? 32 : 1);
      if (finds_groups) {
        first_group_ = first;
        groups_ = found;
      } else {
        first_ = first * 32;
        tiles_ = found;
      }
    }
    return end;
  }

  /// Of `all` the tiles from `from` / `of` to `to` / `of` of those that somebody sees: parts that follow one
  /// another have none in common and leave none out.
  TESSERA_DEVICE TileRange part(const TileRange& all, int from, int to, int of) const {
    const int count = maximum(all.end - all.begin, 0);
    const auto share = [&](int tiles, int parts) {
      return static_cast<int>(static_cast<int64>(tiles) * parts / of);
    };
    const TileRange equal = {all.begin + share(count, from), all.begin + share(count, to)};
    constexpr int kFewParts = 8;
    const int fine = (count + 1023) / 1024;
    int unit = 32 * fine;
    int num_words = 0;
    unsigned units_of_lane = 0;  // the word of units that the lane keeps
    int total = 0;
    // Of 32 parts first, as word -1, then of 1024 of few of these, or of 256. Asked in one place, as above.
    unsigned parts = 0;
    for (int word = -1; word < num_words; ++word) {
      if (word >= 0 && (num_words == 32 ? parts >> word & 1u : parts >> (4 * word) & 15u) == 0) continue;
      const int first = minimum(all.begin + (maximum(word, 0) * 32 + lane()) * unit, all.end);
      const int last = minimum(first + unit, all.end);
      const Sight sight = first < last ? sight_(first, last) : Sight{false, true};
      const unsigned found = ballot_32(sight.some);
      if (word >= 0) {
        if (lane() == word) units_of_lane = found;
        total += count_bits(found) * unit;
      } else {
        if (!warp_any(!sight.all)) return equal;  // all is seen whole
        parts = found;
        const bool are_few = count_bits(parts) <= kFewParts;
        unit = are_few ? fine : 4 * fine;
        num_words = are_few ? 32 : 8;
      }
    }
    const int begin = share(total, from);
    const int end = share(total, to);
    TileRange found = {all.end, all.end};
    int before = 0;
    for (int word = 0; word < num_words; ++word) {
      const unsigned units = shuffle(units_of_lane, word);
      const int through = before + count_bits(units) * unit;
      const auto place = [&](int tile) {  // of the tile-th tile that is seen
        const int n = (tile - before) / unit;
        const unsigned below = units & ((1u << lane() % 32) - 1u);
        const int bit = lowest_bit(ballot_32((units >> lane() % 32 & 1u) != 0 && count_bits(below) == n));
        return minimum(all.begin + (word * 32 + bit) * unit + (tile - before) % unit, all.end);
      };
      if (begin >= before && begin < through) found.begin = place(begin);
      if (end >= before && end < through) found.end = place(end);
      before = through;
    }
    return found;
  }

 private:
  TESSERA_DEVICE static int lane() { return thread_x() % kWarpSize; }

  /// Bit n: some row may see a key of tiles [first + n width, first + (n + 1) width).
  TESSERA_DEVICE unsigned seen(int first, int width) const {
    const int begin = first + lane() * width;
    return ballot_32(begin < count_ && sight_(begin, minimum(begin + width, count_)).some);
  }

  SightOf sight_;
  int count_;
  // What next() has found out last.
  int first_group_ = -1;
  int first_ = -1;
  unsigned groups_ = 0;
  unsigned tiles_ = 0;
};

/// What the modifier's mask says of some rows' tiles of block_n keys.
struct MaskOfTiles {
  const AttentionParams& p;
  TileRows rows;
  int block_n;

  TESSERA_DEVICE Sight operator()(int begin, int end) const {
    return sight_of(p, rows, begin * block_n, end * block_n);
  }
};

class VisibleTiles {
 public:
  TESSERA_DEVICE VisibleTiles(const AttentionParams& p, const TileRows& rows, int block_n)
      : search_({p, rows, block_n}, (rows.sequence.len_kv + block_n - 1) / block_n) {}

  TESSERA_DEVICE int next(int tile, int end) {
    if constexpr (!kHidesTiles) return tile;
    return search_.next(tile, end);
  }
  TESSERA_DEVICE TileRange part(const TileRange& all, int from, int to, int of) const {
    return search_.part(all, from, to, of);
  }

 private:
  TileSearch<MaskOfTiles> search_;
};

#else
constexpr bool kHidesTiles = false;

TESSERA_DEVICE Sight sight_of(const AttentionParams&, const TileRows&, int, int) { return {true, true}; }

class VisibleTiles {
 public:
  TESSERA_DEVICE VisibleTiles(const AttentionParams&, const TileRows&, int) {}
  TESSERA_DEVICE int next(int tile, int) { return tile; }
  TESSERA_DEVICE TileRange part(const TileRange& all, int, int, int) const { return all; }
};
#endif

/// Keys that a split has of all that some of the rows may see; it may have others besides.
TESSERA_DEVICE KeyRange visible_share(const AttentionParams& p, const TileRows& rows, int block_n,
                                      int split) {
  KeyRange share = keys_of_split(p, rows.sequence, split);
  if (kHidesTiles && p.num_splits > 1) {
    const int begin = keys_of_query(p, rows.sequence, rows.first_query).begin;
    const int end = keys_of_query(p, rows.sequence, rows.last_query).end;
    const TileRange all = {begin / block_n, (end + block_n - 1) / block_n};
    const TileRange tiles = VisibleTiles(p, rows, block_n).part(all, split, split + 1, p.num_splits);
    share = {tiles.begin * block_n, tiles.end * block_n};
  }
  return share;
}

/// The tiles that a kernel takes one after the other, with those that come next, kAhead of them, and the
/// places of a ring of kStages buffers where they are copied to.
template <int kStages, int kAhead = kStages>
class TileQueue {
 public:
  /// Of tiles [begin, end).
  TESSERA_DEVICE TileQueue(const VisibleTiles& visible, int begin, int end) : visible_(visible), end_(end) {
    restart(begin);
  }
  /// From `begin` on.
  TESSERA_DEVICE void restart(int begin) {
    count_ = begin;
    if constexpr (kHidesTiles) {
      TESSERA_UNROLL
      for (int n = 0; n < kKept; ++n) tiles_[n] = begin - 1;
      TESSERA_UNROLL_BY(1)
      for (int n = 0; n < kKept; ++n) take_next();
    }
  }
  /// The n-th from the present one on, up to kAhead; not below the end if there are no more.
  TESSERA_DEVICE int tile(int n) const { return kHidesTiles ? tiles_[n] : count_ + n; }
  TESSERA_DEVICE int place(int n) const { return (count_ + n) % kStages; }
  TESSERA_DEVICE void advance() {
    ++count_;
    if constexpr (kHidesTiles) take_next();
  }

 private:
  static constexpr int kKept = kAhead + 1;

  TESSERA_DEVICE void take_next() {
    TESSERA_UNROLL
    for (int n = 0; n + 1 < kKept; ++n) tiles_[n] = tiles_[n + 1];
    tiles_[kKept - 1] = visible_.next(tiles_[kKept - 1] + 1, end_);
  }

  VisibleTiles visible_;
  const int end_;
  int count_;
  int tiles_[kKept];
};

}  // namespace tessera::kernels
