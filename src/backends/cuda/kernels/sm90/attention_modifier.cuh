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

/// Whether a mask may have hidden keys before the modifier comes.
constexpr bool kHidesBefore = (kTerms & (kTermAdditiveMask | kTermBooleanMask)) != 0;
/// Whether scores come to the modifier as products, which it scales.
constexpr bool kScalesInModifier = (kTerms & ~kTermModifier) == 0 && (kTerms & kTermModifier) != 0;

#ifdef TESSERA_MODIFIER
TESSERA_DEVICE ModifierPlace place_of(const AttentionParams& p, const QueryTile& t) {
  return {t.b, t.head, t.kv_head, t.sequence.len_q, t.sequence.len_kv, t.sequence.shift, p.num_heads};
}

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

/// The tiles of keys that some query of a tile sees. All lanes of a warp find out together, a tile each: the
/// first 32 while other queries are computed (find), the others when they come (next).
class TilesOfSlot {
 public:
  /// What is known of tiles that are still to come.
  struct Found {
    int end;          // of the groups that are not looked at yet: a tile
    int first_group;  // of the bits of `groups`
    unsigned groups;  // that may have tiles
    int first;        // tile of the bits of `seen` and `full`
    unsigned seen, full;
  };

  /// slot: of shared memory, which stays as it is. Little of it is kept: there are few registers here.
  TESSERA_DEVICE TilesOfSlot(const AttentionParams& p, const TileSlot& slot, const Found& found)
      : p_(p), slot_(slot), found_(found) {}

  /// Looks on until there is a tile, or there are none.
  TESSERA_DEVICE const Found& find() {
    while (found_.seen == 0 && (found_.groups != 0 || found_.end > slot_.keys.begin)) {
      const KeyTiles tiles = slot_.keys;
      const bool finds_groups = found_.groups == 0;
      if (finds_groups) {
        found_.first_group = (found_.end - 1) / (kGroup * 32) * 32;
        // Few groups are looked into at once.
        if (found_.end - maximum(found_.first_group * kGroup, tiles.begin) <= 2 * kGroup) {
          const int first = maximum(tiles.begin / kGroup - found_.first_group, 0);
          const int last = (found_.end - 1) / kGroup - found_.first_group;
          found_.groups = (2u << last) - (1u << first);
          found_.end = found_.first_group * kGroup;
          continue;
        }
      } else {
        const int group = 31 - __clz(static_cast<int>(found_.groups));
        found_.groups ^= 1u << group;
        found_.first = (found_.first_group + group) * kGroup;
      }
      const int step = finds_groups ? kGroup : 1;
      const int first = finds_groups ? found_.first_group * kGroup : found_.first;
      const int end_of_all = finds_groups ? found_.end : tiles.end;
      const int begin = maximum(first + copying_lane() * step, tiles.begin);
      const int end = minimum(first + (copying_lane() + 1) * step, end_of_all);
      const ModifierRange range = classify(begin, maximum(end, begin + 1));
      const unsigned seen = __ballot_sync(0xffffffffu, begin < end && range.hi != 0);
      if (finds_groups) {
        found_.groups = seen;
        found_.end = first;
      } else {
        found_.seen = seen;
        found_.full = __ballot_sync(0xffffffffu, range.lo != 0);
      }
    }
    return found_;
  }

  /// The next tile towards the first, times 2, and 1 more if some of its keys may be hidden; -1: none.
  TESSERA_DEVICE int next() {
    find();
    if (found_.seen == 0) return -1;
    const int bit = 31 - __clz(static_cast<int>(found_.seen));
    found_.seen ^= 1u << bit;
    return (found_.first + bit) * 2 + static_cast<int>(~found_.full >> bit & 1u);
  }

 private:
  static constexpr int kGroup = 32;  // tiles

  TESSERA_DEVICE ModifierRange classify(int begin, int end) const {
    const QueryTile& t = slot_.tile;
    const int last_query = minimum(t.row + kBlockM, t.sequence.len_q) - 1;
    const int last_key = minimum(end * kBlockN, maximum(t.sequence.len_kv, 1)) - 1;
    return modifier_tile(p_.modifier, place_of(p_, t), {t.row, last_query},
                         {begin * kBlockN, maximum(last_key, begin * kBlockN)}, range_of_number(t.head));
  }

  const AttentionParams& p_;
  const TileSlot& slot_;
  Found found_;
};

// What takes long of a row or a key is computed once for all threads that need it: of rows by the warp that
// finds tiles of queries, of keys by the one that asks for their copies, before the keys are there. So nobody
// who computes waits for a captured tensor.

constexpr bool kScoreReadsStored = (kTerms & kTermModifier) != 0 && kModifierScoreReadsStored;

/// What is found out for a query tile before it is computed: of TileSlots.
template <bool kHasRows>
struct ModifierSlotOf {
  TilesOfSlot::Found tiles;
  ModifierStoredUniform uniform;
  alignas(16) ModifierStoredRow rows[kHasRows ? kBlockM : 1];
};
/// Of a tile of keys. There is one more than buffers of keys, which are released before their scores are
/// modified.
struct ModifierStage {
  alignas(16) ModifierStoredKey keys[kBlockN];
};
constexpr int kNumModifierStages = kStages + 1;
constexpr int kModifierBytes = kTileSlots * static_cast<int>(sizeof(ModifierSlotOf<true>)) +
                               kNumModifierStages * static_cast<int>(sizeof(ModifierStage));
/// Else there is no room, or nothing takes long, and each thread computes all for itself.
constexpr bool kSharesStored = (kModifierScoreReadsStored || kModifierMaskReadsStored) &&
                               kSharedBytes + kModifierBytes + 256 <= 227 * 1024;

using ModifierSlot = ModifierSlotOf<kSharesStored>;
TESSERA_DEVICE ModifierSlot& modifier_slot(int count) {
  __shared__ ModifierSlot slots[kTileSlots];
  return slots[count % kTileSlots];
}
TESSERA_DEVICE ModifierStage& modifier_stage(int k_count) {
  __shared__ ModifierStage stages[kSharesStored ? kNumModifierStages : 1];
  return stages[kSharesStored ? k_count % kNumModifierStages : 0];
}

/// Fills it in, by all lanes of a warp.
TESSERA_DEVICE void fill_modifier_slot(const AttentionParams& p, const TileSlot& slot, int count) {
  const ModifierArguments& m = p.modifier;
  const ModifierPlace place = place_of(p, slot.tile);
  const ModifierStoredUniform stored = modifier_stored_uniform(m, place);
  ModifierSlot& to = modifier_slot(count);
  if (kSharesStored) {
    const ModifierUniform uniform = modifier_uniform(m, place, stored);
    for (int r = copying_lane(); r < kBlockM; r += 32)
      to.rows[r] = modifier_stored_row(m, uniform, slot.tile.row + r);
  }
  TilesOfSlot visible(p, slot, {slot.keys.end, 0, 0, 0, 0, 0});
  const TilesOfSlot::Found& found = visible.find();
  if (copying_lane() == 0) {
    to.tiles = found;
    to.uniform = stored;
  }
  sync_warp();
}

/// A lane's part of a tile's ModifierStage.
class StoredKeys {
 public:
  /// tile: as TilesOfSlot::next() gives it.
  TESSERA_DEVICE StoredKeys(const AttentionParams& p, const TileSlot& slot, int count, int tile)
      : are_read_(kSharesStored && (kScoreReadsStored || tile % 2 != 0)) {
    if (!are_read_) return;
    const ModifierUniform uniform =
        modifier_uniform(p.modifier, place_of(p, slot.tile), modifier_slot(count).uniform);
    TESSERA_UNROLL
    for (int n = 0; n < kOfLane; ++n)
      keys_[n] = modifier_stored_key(p.modifier, uniform, tile / 2 * kBlockN, copying_lane() + 32 * n);
  }
  /// Once the keys of the tile before the last are released.
  TESSERA_DEVICE void leave(int k_count) const {
    if (!are_read_) return;
    TESSERA_UNROLL
    for (int n = 0; n < kOfLane; ++n) modifier_stage(k_count).keys[copying_lane() + 32 * n] = keys_[n];
    sync_warp();
  }

 private:
  static constexpr int kOfLane = kBlockN / 32;
  static_assert(kBlockN % 32 == 0, "as many keys of each lane");
  bool are_read_;
  ModifierStoredKey keys_[kOfLane];
};

/// What a thread's scores of a tile have in common.
struct ModifierTile {
  const ModifierArguments& m;
  ModifierUniform uniform;
  ModifierRow rows[2];
  int first_key;  // of the thread
  const ModifierStage& stage;

  TESSERA_DEVICE ModifierKey key(int offset) const {
    return modifier_key(m, uniform, first_key, offset,
                        kSharesStored ? stage.keys[thread_x() % 4 * 2 + offset]
                                      : modifier_stored_key(m, uniform, first_key, offset));
  }
  /// Calls use(score, row, key) for all of the thread.
  template <class Use>
  TESSERA_DEVICE void for_scores(float (&scores)[kBlockN / 2], Use use) const {
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 8; ++i) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) use(scores[4 * i + e], rows[e / 2], key(8 * i + e % 2));
    }
  }
};

template <bool kTanhIsSmall, int kSide>
TESSERA_DEVICE void modify_all(const ModifierTile& tile, float scale, float (&scores)[kBlockN / 2]) {
  tile.for_scores(scores, [&](float& score, const ModifierRow& row, const ModifierKey& key) {
    const float modified =
        modifier_scaled_score<kTanhIsSmall, kSide>(tile.m, tile.uniform, row, key, score, scale);
    // A key that a mask hides stays hidden.
    score = kHidesBefore && score == -infinity() ? score : modified;
  });
}

/// The sign of the distances of all of a warp's scores, where they are at least as large as a tile: sums of a
/// row's and a key's part lose bits of smaller ones. 0: it is not known.
TESSERA_DEVICE int side_of(const ModifierTile& tile) {
  float least = infinity();
  float most = -infinity();
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    TESSERA_UNROLL
    for (int end = 0; end < 2; ++end) {
      const ModifierKey key = tile.key(end == 0 ? 0 : kBlockN - 7);
      const float distance = modifier_distance(tile.m, tile.uniform, tile.rows[r], key);
      least = fminf(least, distance);
      most = fmaxf(most, distance);
    }
  }
  if (!warp_any(least < static_cast<float>(kBlockN))) return 1;
  return warp_any(most > -static_cast<float>(kBlockN)) ? 0 : -1;
}

/// The modifier's score of each of a thread's scores, which times `scale` are in natural units, and -inf
/// where it hides the key. slot: the query tile's, of `count`; k_count: of the tile of keys.
TESSERA_DEVICE void modify_scores(const AttentionParams& p, const TileSlot& slot, int count, int k_count,
                                  const TileView& t, int key_begin, bool hides, float scale,
                                  float (&scores)[kBlockN / 2]) {
  constexpr bool kHasScore = (kTerms & kTermModifier) != 0;
  if (!hides && !kHasScore) return;
  const ModifierArguments& m = p.modifier;
  const ModifierUniform uniform = modifier_uniform(m, place_of(p, slot.tile), modifier_slot(count).uniform);
  const int first_key = key_begin + thread_x() % 4 * 2;
  const auto row = [&](int r) {
    const int i = t.query_of_thread(p, r);
    return modifier_row(
        m, uniform, i,
        kSharesStored ? modifier_slot(count).rows[i - slot.tile.row] : modifier_stored_row(m, uniform, i));
  };
  const ModifierTile tile = {m, uniform, {row(0), row(1)}, first_key, modifier_stage(k_count)};
  if (kHasScore) {
    bool is_small = false;
    if (kModifierHasTanh && !kHidesBefore) {
      unsigned bits = 0;
      tile.for_scores(scores, [&](float& score, const ModifierRow& r, const ModifierKey& k) {
        bits |= modifier_tanh_bits<true, 0>(m, uniform, r, k, score, scale);
      });
      is_small = !warp_any((bits & kBeyondPolynomial) != 0);
    }
    const int side = kModifierHasDistance ? side_of(tile) : 0;
    if (kModifierHasTanh && is_small) {
      modify_all<true, 0>(tile, scale, scores);
    } else if (kModifierHasDistance && side > 0) {
      modify_all<false, 1>(tile, scale, scores);
    } else if (kModifierHasDistance && side < 0) {
      modify_all<false, -1>(tile, scale, scores);
    } else {
      modify_all<false, 0>(tile, scale, scores);
    }
  }
  if (!hides) return;
  tile.for_scores(scores, [&](float& score, const ModifierRow& r, const ModifierKey& k) {
    if (!modifier_visible(m, uniform, r, k)) score = -infinity();
  });
}

#else
TESSERA_DEVICE KeyTileNote read_note(int) { return {}; }
TESSERA_DEVICE void modify_scores(const AttentionParams&, const TileSlot&, int, int, const TileView&, int,
                                  bool, float, float (&)[kBlockN / 2]) {}
#endif

}  // namespace tessera::kernels
