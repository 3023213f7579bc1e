#pragma once

#include "sm90/attention_gathering.cuh"
#include "sm90/attention_products.cuh"
#include "sm90/attention_results.cuh"
#include "sm90/segments_again.cuh"

// Batch-invariant problems in attention_wgmma.cu: tiles of 64 keys from the first to the last, in segments
// (common/attention_segments.cuh). mma.sync and wgmma add up alike, so that a row's bits are those of
// sm80/attention_mma.cu and sm80/attention_decode_segments.cu.
//
//   products   s = q k(n + 1)^T ; o += w v(n)
//   softmax    of tile n + 1, beside the second; where that begins a segment, from a fresh state
//   segments   o of tiles up to n is whole then: normalised, and joined to what earlier segments left

namespace tessera::kernels {

/// A thread's two rows of a segment.
struct SegmentRows {
  float base[1][2];
  float sum[1][2];  // of this thread's keys

  TESSERA_DEVICE void clear() {
    base[0][0] = base[0][1] = kLowestBase;
    sum[0][0] = sum[0][1] = 0.0f;
  }
};

/// Those of its query tile, and of the segments before.
struct WholeRows {
  float o[kHeadDimV / 2];
  JoinedRow rows[2];
  bool is_spoilt;  // some segment came out infinite or NaN, in this thread's columns

  TESSERA_DEVICE void clear() {
    rows[0] = rows[1] = {-infinity(), 0.0f};
    is_spoilt = false;
    // A row without keys keeps these.
    TESSERA_UNROLL
    for (int i = 0; i < kHeadDimV / 2; ++i) o[i] = 0.0f;
  }
  /// o_of_segment: as it was added up. It stays as it is: the assembler takes it for a product's until the
  /// scores that are under way beside this are there.
  TESSERA_DEVICE void join(const SegmentRows& segment, const float (&o_of_segment)[kHeadDimV / 2]) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      float lse;
      const float factor = close_row(segment.base[0][r], sum_of_lanes(segment.sum[0][r]), 1.0f, lse);
      const JoinFactors f = join_row(lse, rows[r]);
      float probe = 0.0f;  // as in close_rows()
      TESSERA_UNROLL
      for (int i = 0; i < kHeadDimV / 8; ++i) {
        TESSERA_UNROLL
        for (int e = 4 * i + 2 * r; e < 4 * i + 2 * r + 2; ++e) {
          const float value = o_of_segment[e] * factor;
          probe += value * 0.0f;
          o[e] = joined(f, o[e], value);
        }
      }
      is_spoilt = is_spoilt || probe != probe;
    }
  }
};

/// Whether the base of some row of the warp is too low for a tile's scores. As may_rise(), but that it never
/// says no where is_too_low() says yes.
TESSERA_DEVICE bool may_be_too_low(float scale, const float (&scores)[kBlockN / 2], const SegmentRows& rows) {
  bool may = false;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const auto bits = [&](int i, int e) {
      return static_cast<int>(bits_of_float(scores[4 * i + 2 * r + e]));
    };
    int top = maximum(bits(0, 0), bits(0, 1));
    TESSERA_UNROLL
    for (int i = 1; i < kBlockN / 8; ++i) top = maximum(maximum(bits(i, 0), bits(i, 1)), top);
    // Numbers' bits have their order above 0 only; others can be too large for bases below -kMaxRise alone.
    may = may || rows.base[0][r] <= -kMaxRise || top > 0x7f800000 ||
          is_too_low(rows.base[0][r], scale, float_of_bits(static_cast<unsigned>(top)));
  }
  return warp_any(may);
}

/// Turns a tile's scores into weights, in place, and adds these to the rows' sums, 16 keys after the other.
/// Whether o has to be multiplied by `shrink` before the tile's values are added.
TESSERA_DEVICE bool weigh_segment(float scale, float (&scores)[kBlockN / 2], SegmentRows& rows,
                                  float (&shrink)[2]) {
  auto& tiles = *reinterpret_cast<float(*)[1][kBlockN / 8][4]>(&scores);
  const bool may = may_be_too_low(scale, scores, rows);
  if (may) {
    float ones[1][1][4] = {{{1.0f, 1.0f, 1.0f, 1.0f}}};  // in o's place, which is being added to
    raise_bases(scale, tiles, rows.base, rows.sum, ones);
    shrink[0] = ones[0][0][0];
    shrink[1] = ones[0][0][2];
  }
  TESSERA_UNROLL
  for (int k = 0; k < kBlockN / 16; ++k) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sums[2];
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        float* s = &tiles[0][2 * k + half][2 * r];
        s[0] = ex2(fmaf(s[0], scale, -rows.base[0][r]));
        s[1] = ex2(fmaf(s[1], scale, -rows.base[0][r]));
        sums[half] = s[0] + s[1];
      }
      rows.sum[0][r] += sums[0] + sums[1];
    }
  }
  return may;
}

/// Writes a tile's rows. Whether some row has to be done again, in this thread's.
TESSERA_DEVICE bool store_whole_rows(const AttentionParams& p, const TileSlot& slot, const WholeRows& whole) {
  const QueryTile& t = slot.tile;
  float factors[2];
  bool exists = false;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = t.row + consumer_warp() * 16 + thread_x() % 32 / 4 + 8 * r;
    const RowNorm norm = joined_norm(whole.rows[r], sink_of_head(p, t.head));
    factors[r] = norm.factor;
    if (row >= t.sequence.len_q) continue;
    exists = true;
    if (p.lse.data != nullptr && thread_x() % 4 == 0)
      p.lse.data[lse_offset(p, t.sequence, t.b, t.head, row)] = norm.lse;
  }
  const bool is_spoilt = write_rows(p, slot, factors, whole.o);
  return (is_spoilt || whole.is_spoilt) && exists;
}

/// What the warps of a warpgroup that computes do.
TESSERA_DEVICE void compute_segments(const WgmmaArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  const int consumer = consumer_index();
  const float scale = p.softmax_scale * kLog2E;
  const int tiles_of_segment = p.keys_per_segment / kBlockN;
  const unsigned q_smem = shared_address(smem.q) + consumer * (64 * 128);
  smem.tile_ring.wait_filled(0);
  if (smem.tiles[0].index == kNoTile) return;
  if (kTakesTurns && consumer == kConsumers - 1) named_barrier_arrive(1, 256);

  float scores[kBlockN / 2];
  float o[kHeadDimV / 2];
  unsigned weights[kBlockN / 4];
  SegmentRows rows;
  WholeRows whole;
  int count = 0;    // tiles of queries before this one
  int k_count = 0;  // tiles of keys before the one whose scores come next; of values one less
  int last_spoilt = kNoTile;
  const auto start_scores = [&] {
    start_q_k(q_smem + count % kQBuffers * static_cast<int>(sizeof smem.q[0]),
              shared_address(smem.k) + k_count % kStages * static_cast<int>(sizeof smem.k[0]), scores);
  };
  const auto start_values = [&](int v_count, bool accumulate) {
    fence_gathered();
    start_w_v(weights, shared_address(smem.v) + v_count % kStages * static_cast<int>(sizeof smem.v[0]),
              accumulate, o);
  };
  const auto wait_for_keys = [&] {
    smem.k_ring.wait_filled(k_count);
    fence_gathered();
  };
  // Query tiles of which some row of the warp has to be done again form a list, from the last to the first.
  const auto finish = [&](const TileSlot& slot) {
    whole.join(rows, o);
    if (!warp_any(store_whole_rows(p, slot, whole))) return;
    const int index = slot.index;
    if (thread_x() % 32 == 0) arguments.spoilt[index * kConsumerWarps + consumer_warp()] = last_spoilt;
    last_spoilt = index;
  };

  TileView view = view_of(arguments.params, smem.tiles[0]);
  int tile = view.keys.begin;
  smem.q_ring.wait_filled(0);
  wait_for_keys();
  start_scores();
  wgmma_wait_group<0>();
  rows.clear();
  whole.clear();
  bool accumulate = false;  // whether o has, or gets, values of the tile before
  for (;;) {
    // The products of key tile `tile` become weights, beside o += w v of the tile before it, if there is one.
    pin_registers(scores);
    smem.k_ring.release_by_warp(k_count);
    const bool ends = tile + 1 == view.keys.end;
    if (ends) smem.q_ring.release_by_warp(count);
    hide_keys(p, view, tile * kBlockN, scores);
    const bool begins_segment = accumulate && tile % tiles_of_segment == 0;
    const SegmentRows segment = rows;
    if (begins_segment) rows.clear();
    float shrink[2] = {1.0f, 1.0f};
    const bool shrinks = weigh_segment(scale, scores, rows, shrink);
    wgmma_wait_group<0>();
    pin_registers(o);
    if (accumulate) smem.v_ring.release_by_warp(k_count - 1);
    if (begins_segment) {
      whole.join(segment, o);
      accumulate = false;
    } else if (shrinks && accumulate) {
      TESSERA_UNROLL
      for (int i = 0; i < kHeadDimV / 2; ++i) o[i] *= shrink[i / 2 % 2];
    }
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) weights[i] = cvt_x2<T>(scores[2 * i], scores[2 * i + 1]);
    // Its values are multiplied beside the next scores, maybe of other queries.
    if (ends) {
      smem.tile_ring.wait_filled(count + 1);
      const TileSlot& next = smem.tiles[(count + 1) % kTileSlots];
      if (next.index == kNoTile) break;
      view = view_of(arguments.params, next);
      tile = view.keys.begin - 1;
    }
    ++tile;
    ++k_count;
    if (!ends) {
      wait_for_keys();
      if (kTakesTurns) named_barrier_sync(1 + consumer, 256);
      start_scores();
      smem.v_ring.wait_filled(k_count - 1);
      start_values(k_count - 1, accumulate);
      if (kTakesTurns) named_barrier_arrive(1 + (consumer + 1) % kConsumers, 256);
      accumulate = true;
      wgmma_wait_group<1>();
    } else {
      // The other way round, so that the rows leave while the next scores are multiplied.
      const TileSlot& slot = smem.tiles[count % kTileSlots];
      smem.v_ring.wait_filled(k_count - 1);
      if (kTakesTurns) named_barrier_sync(1 + consumer, 256);
      start_values(k_count - 1, accumulate);
      smem.q_ring.wait_filled(count + 1);
      wait_for_keys();
      ++count;
      start_scores();
      if (kTakesTurns) named_barrier_arrive(1 + (consumer + 1) % kConsumers, 256);
      accumulate = false;
      wgmma_wait_group<1>();
      pin_registers(o);
      smem.v_ring.release_by_warp(k_count - 1);
      finish(slot);
      smem.tile_ring.release_by_warp(count - 1);
      rows.clear();
      whole.clear();
      wgmma_wait_group<0>();
    }
  }
  smem.v_ring.wait_filled(k_count);
  start_values(k_count, accumulate);
  wgmma_wait_group<0>();
  pin_registers(o);
  finish(smem.tiles[count % kTileSlots]);
  sync_warp();
  while (last_spoilt != kNoTile) {
    const QueryTile t = query_tile<kBlockM>(p, last_spoilt);
    add_up_again(p, t);
    sync_warp();
    redo_rows(p, t);
    last_spoilt = arguments.spoilt[last_spoilt * kConsumerWarps + consumer_warp()];
  }
}

}  // namespace tessera::kernels
