#pragma once

#include "sm90/attention_softmax.cuh"

// A score modifier in attention_wgmma.cu, where the module is compiled with one: which tiles of keys a tile
// of queries sees (modifier_tile, by one warp for all), and what happens to the scores of those.
//
// Whoever asks for a tile's copy leaves a note beside the buffer of its keys, before the copy may start;
// whoever computes reads it once the keys are there. So all agree on the tiles without a list of them,
// however long the sequences are.

namespace tessera::kernels {

/// A tile of keys in the order in which they come, which is from the last to the first.
struct KeyTileNote {
  int tile;
  bool is_first, is_last;  // of its tile of queries
  bool hides;              // whether the modifier may hide some of its keys from some query
};

#ifdef TESSERA_MODIFIER
/// Of the buffers of keys; see RingBarriers.
TESSERA_DEVICE int* key_tile_notes() {
  __shared__ int notes[kStages];
  return notes;
}

/// Before the copy of the keys is asked for.
TESSERA_DEVICE void leave_note(int k_count, const KeyTileNote& note) {
  key_tile_notes()[k_count % kStages] =
      note.tile << 3 | (note.is_first ? 4 : 0) | (note.is_last ? 2 : 0) | (note.hides ? 1 : 0);
}

/// Once the keys are there, and before their buffer is released. The same for all lanes; read by that which
/// releases.
TESSERA_DEVICE KeyTileNote read_note(int k_count) {
  const int read = thread_x() % 32 == 0 ? key_tile_notes()[k_count % kStages] : 0;
  const int note = __shfl_sync(0xffffffffu, read, 0);
  return {note >> 3, (note & 4) != 0, (note & 2) != 0, (note & 1) != 0};
}

/// The tiles of keys that some query of a tile sees. All lanes of a warp find out together, a tile each.
class VisibleTiles {
 public:
  TESSERA_DEVICE VisibleTiles(const AttentionParams& p, const QueryTile& t, const KeyTiles& tiles)
      : m_(p.modifier),
        place_(modifier_place(p, t.sequence, t.b, t.head)),
        queries_{t.row, minimum(t.row + kBlockM, t.sequence.len_q) - 1},
        tiles_(tiles),
        end_(tiles.end) {}

  /// The next tile towards the first, times 2, and 1 more if some of its keys may be hidden; -1: none.
  TESSERA_DEVICE int next() {
    while (seen_ == 0) {
      if (groups_ == 0) {
        if (end_ <= tiles_.begin) return -1;
        find_groups();
        continue;
      }
      const int group = 31 - __clz(static_cast<int>(groups_));
      groups_ ^= 1u << group;
      find_tiles_of(first_group_ + group);
    }
    const int bit = 31 - __clz(static_cast<int>(seen_));
    seen_ ^= 1u << bit;
    return (first_ + bit) * 2 + static_cast<int>(~full_ >> bit & 1u);
  }

 private:
  static constexpr int kGroup = 32;  // tiles

  TESSERA_DEVICE ModifierRange classify(int begin, int end) const {
    const int last_key = minimum(end * kBlockN, maximum(place_.len_kv, 1)) - 1;
    return modifier_tile(m_, place_, queries_, {begin * kBlockN, maximum(last_key, begin * kBlockN)},
                         range_of_number(place_.h));
  }

  /// Which of the last 32 groups before end_ have a tile that is seen.
  TESSERA_DEVICE void find_groups() {
    first_group_ = (end_ - 1) / (kGroup * 32) * 32;
    const int begin = maximum((first_group_ + copying_lane()) * kGroup, tiles_.begin);
    const int end = minimum((first_group_ + copying_lane() + 1) * kGroup, end_);
    const bool is_seen = begin < end && classify(begin, end).hi != 0;
    groups_ = __ballot_sync(0xffffffffu, is_seen);
    end_ = first_group_ * kGroup;
  }

  TESSERA_DEVICE void find_tiles_of(int group) {
    first_ = group * kGroup;
    const int tile = first_ + copying_lane();
    const ModifierRange range = classify(tile, tile + 1);
    const bool exists = tile >= tiles_.begin && tile < tiles_.end;
    seen_ = __ballot_sync(0xffffffffu, exists && range.hi != 0);
    full_ = __ballot_sync(0xffffffffu, range.lo != 0);
  }

  const ModifierArguments& m_;
  ModifierPlace place_;
  ModifierRange queries_;
  KeyTiles tiles_;
  int end_;              // of the groups that are not looked at yet: a tile
  int first_group_ = 0;  // of the bits of groups_
  unsigned groups_ = 0;  // that have tiles, and are still to come
  int first_ = 0;        // tile of the bits of seen_ and full_
  unsigned seen_ = 0;    // and still to come
  unsigned full_ = 0;
};

/// The modifier's score of each of a thread's scores, which are in natural units, and -inf where it hides the
/// key.
TESSERA_DEVICE void modify_scores(const AttentionParams& p, const TileSlot& slot, const TileView& t,
                                  int key_begin, bool hides, float (&scores)[kBlockN / 2]) {
  constexpr bool kHasScore = (kTerms & kTermModifier) != 0;
  if (!hides && !kHasScore) return;
  const ModifierArguments& m = p.modifier;
  const ModifierPlace place = modifier_place(p, slot.tile.sequence, slot.tile.b, slot.tile.head);
  const ModifierUniform uniform = modifier_uniform(m, place);
  const int first_key = key_begin + thread_x() % 4 * 2;
  const ModifierRow rows[2] = {modifier_row(m, uniform, t.row_of_thread(0)),
                               modifier_row(m, uniform, t.row_of_thread(1))};
  if (kHasScore) {
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 8; ++i) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        const ModifierKey key = modifier_key(m, uniform, first_key, 8 * i + e % 2);
        float& score = scores[4 * i + e];
        const float modified = modifier_score(m, uniform, rows[e / 2], key, score);
        // A key that the additive mask hides stays hidden.
        score = (kTerms & kTermAdditiveMask) != 0 && score == -infinity() ? score : modified;
      }
    }
  }
  if (!hides) return;
  TESSERA_UNROLL
  for (int i = 0; i < kBlockN / 8; ++i) {
    TESSERA_UNROLL
    for (int e = 0; e < 4; ++e) {
      const ModifierKey key = modifier_key(m, uniform, first_key, 8 * i + e % 2);
      if (!modifier_visible(m, uniform, rows[e / 2], key)) scores[4 * i + e] = -infinity();
    }
  }
}

#else
TESSERA_DEVICE KeyTileNote read_note(int) { return {}; }
TESSERA_DEVICE void modify_scores(const AttentionParams&, const TileSlot&, const TileView&, int, bool,
                                  float (&)[kBlockN / 2]) {}
#endif

}  // namespace tessera::kernels
