// Batch-invariant attention of few queries over many keys, f16 and bf16: a block takes segments of the keys
// (common/attention_segments.cuh), and joins them itself or leaves that to attention_join.cu. A row's bits
// are those of attention_mma.cu and of sm90/attention_wgmma.cu, since 64 keys raise its base together and 16
// keys come after the other by the same instructions (row_bases.cuh).
//
//   tile of 64 keys | weights of the warp's own 16 keys | barrier
//                   | o of the warp's own columns of v, with the weights of all 64 keys, 16 after the other;
//                   | by turns with it scores of the warp's own 16 keys of the next tile
//
// Weights are taken against the rows' bases as they are. Where a row's has to be raised, which is seldom
// after a segment's first tile, warps tell each other their largest scores and weigh their keys again.
//
// Each warp copies its 16 keys of a tile, and a step's values with the next step's keys: both are read first
// behind the same barrier, and their places are free behind the same.
//
// Grid: (row tiles, kv heads, batch * splits). The heads of a group are packed into 16 rows.
//
// Defined by the build: TESSERA_DTYPE (f16, bf16), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 16,
// up to 128), TESSERA_STAGES, and TESSERA_TERMS, TESSERA_MASK_DTYPE, TESSERA_PAGED and TESSERA_VECTOR as in
// attention_mma.cu.

#include "common/attention_segments.cuh"
#include "sm80/attention_decode_traits.h"
#include "sm80/decode_copies.cuh"
#include "sm80/row_bases.cuh"

namespace tessera::kernels {

constexpr int kStages = TESSERA_STAGES;
constexpr int kWarps = kSegmentWarps;
constexpr int kTileKeys = kWarps * kDecodeWarpKeys;
constexpr int kStepsQk = kHeadDimQk / 16;
constexpr int kColumnGroups = kHeadDimV / 16;  // warp w has groups w, w + kWarps, ...
constexpr int kOwnGroups = (kColumnGroups + kWarps - 1) / kWarps;
constexpr int kOwnTiles = 2 * kOwnGroups;
constexpr DecodeLayout kLayout = decode_layout(sizeof(T), sizeof(Kv), kHeadDimQk, kHeadDimV);
constexpr int kPrefetchedKeys = 128;                   // before the kernels in front have ended
constexpr int kStageK = kTileKeys * kLayout.stride_k;  // elements; values follow
constexpr int kStage = kWarps * kLayout.stage;
static_assert(sizeof(T) == 2 && !kIsNarrow && kHeadDimQk <= 128 && kHeadDimV <= 128,
              "attention_mma.cu takes others' keys in another order");

/// What a block has: 16 packed rows of a sequence and a kv head.
struct DecodeRows {
  const AttentionParams& p;
  Sequence s;
  int b;
  int kv_head;
  int first_head;
  int row_begin;
  int num_rows;

  TESSERA_DEVICE bool has(int row) const { return row_begin + row < num_rows; }
  TESSERA_DEVICE RowIndex index(int row) const {
    return packed_row_index(minimum(row_begin + row, num_rows - 1), p.pack_heads, first_head);
  }
};

TESSERA_DEVICE int warp_index() { return thread_x() / 32; }
TESSERA_DEVICE int lane_index() { return thread_x() % 32; }

/// A tile's values in its place among the stages.
TESSERA_DEVICE T* values_of(T* stages, int place) { return stages + place * kStage + kStageK; }
/// This warp's 16 of its keys and values.
TESSERA_DEVICE T* own_keys(T* stages, int place) {
  return stages + place * kStage + warp_index() * kDecodeWarpKeys * kLayout.stride_k;
}
TESSERA_DEVICE T* own_values(T* stages, int place) {
  return values_of(stages, place) + warp_index() * kDecodeWarpKeys * kLayout.stride_v;
}

/// Copies a tile's keys or values, this warp's 16 of them.
struct TileCopies {
  const DecodeRows& w;
  const T* k;
  const T* v;
  const int* block_table;

  TESSERA_DEVICE TileCopies(const DecodeRows& rows) : w(rows) {
    k = head_keys(w.p, w.p.k, w.s, w.b, w.kv_head);
    v = head_keys(w.p, w.p.v, w.s, w.b, w.kv_head);
    block_table = kPaged ? w.p.block_table + w.b * w.p.block_table_stride : nullptr;
  }
  TESSERA_DEVICE static int first_key(int tile) { return tile * kTileKeys + warp_index() * kDecodeWarpKeys; }
  TESSERA_DEVICE static int key_of_lane(int tile) { return first_key(tile) + lane_index() % kDecodeWarpKeys; }
  /// Of this lane's key.
  TESSERA_DEVICE int look_up(int tile) const {
    return kPaged ? look_up_page(w.p, block_table, key_of_lane(tile), w.s.len_kv) : 0;
  }
  TESSERA_DEVICE StageKeys keys_of(int tile, int page) const {
    return {first_key(tile), w.s.len_kv, page, kPaged ? token_in_page(w.p, key_of_lane(tile)) : 0};
  }
  TESSERA_DEVICE void load_k(T* stages, int tile, int place, int page) const {
    load_keys<kHeadDimQk, kLayout.stride_k>(w.p, own_keys(stages, place), k, w.p.k, w.p.head_dim_qk,
                                            keys_of(tile, page));
  }
  TESSERA_DEVICE void load_v(T* stages, int tile, int place, int page) const {
    load_keys<kHeadDimV, kLayout.stride_v>(w.p, own_values(stages, place), v, w.p.v, w.p.head_dim_v,
                                           keys_of(tile, page));
  }
};

/// Puts 0 in place of infinities and NaN in this warp's values of a tile.
TESSERA_DEVICE void clean_values(T* v_smem) {
  sync_warp();
  for (int c = lane_index(); c < kDecodeWarpKeys * kHeadDimV; c += 32) {
    T& x = v_smem[c / kHeadDimV * kLayout.stride_v + c % kHeadDimV];
    if (to_float(x) * 0.0f != 0.0f) x = from_float<T>(0.0f);
  }
}

/// scores = q k^T of 16 rows and this warp's keys of a tile, so many columns after the other.
struct ScoreProducts {
  const unsigned (&q)[kStepsQk][4];
  unsigned address;  // of the part of the keys that the lane loads

  TESSERA_DEVICE ScoreProducts(const unsigned (&q_fragments)[kStepsQk][4], const T* k_smem) : q(q_fragments) {
    const int lane = lane_index();
    address = shared_address(k_smem + (lane % 8 + lane / 16 * 8) * kLayout.stride_k + lane / 8 % 2 * 8);
  }
  /// Columns [16 begin, 16 end).
  TESSERA_DEVICE void add(int begin, int end, float (&scores)[1][2][4]) const {
    TESSERA_UNROLL
    for (int k = begin; k < end; ++k) {
      unsigned key[4];
      ldmatrix_x4(key, address + k * 32);
      mma_m16n8k16<T>(scores[0][0], q[k], key[0], key[1]);
      mma_m16n8k16<T>(scores[0][1], q[k], key[2], key[3]);
    }
  }
};

TESSERA_DEVICE void multiply_q_k(const unsigned (&q)[kStepsQk][4], const T* k_smem,
                                 float (&scores)[1][2][4]) {
  TESSERA_UNROLL
  for (int e = 0; e < 8; ++e) scores[0][e / 4][e % 4] = 0.0f;
  ScoreProducts(q, k_smem).add(0, kStepsQk, scores);
}

/// What the warps tell each other of their keys of a tile, each lane those of the same place: weights as
/// operands, and their sums.
struct SharedWeights {
  uint4 weights[kWarps][32];
  float2 sums[kWarps][32];
};
/// A tile's are written while some warp may still read those of the tile before.
struct SharedTiles {
  SharedWeights tile[2];
  float tops[kWarps][kDecodeRows];  // largest scores, where bases are raised
};
static_assert(sizeof(SharedTiles) <= kSegmentStaticBytes - 128, "the host counts it");

TESSERA_DEVICE void put_weights(SharedWeights& shared, const unsigned (&weights)[1][4],
                                const float (&part)[1][2]) {
  shared.weights[warp_index()][lane_index()] = {weights[0][0], weights[0][1], weights[0][2], weights[0][3]};
  shared.sums[warp_index()][lane_index()] = {part[0][0], part[0][1]};
}

/// o += weights v of 16 keys, in this warp's columns.
TESSERA_DEVICE void multiply_p_v(const unsigned (&weights)[4], const T* v_smem, float (&o)[1][kOwnTiles][4]) {
  const int lane = lane_index();
  const unsigned address =
      shared_address(v_smem + lane % 16 * kLayout.stride_v + lane / 16 * 8 + warp_index() * 16);
  TESSERA_UNROLL
  for (int n = 0; n < kOwnGroups; ++n) {
    // Behind the last columns is what nobody wrote, which may be NaN and would spoil the row.
    if ((n + 1) * kWarps > kColumnGroups && warp_index() + n * kWarps >= kColumnGroups) break;
    unsigned v[4];
    ldmatrix_x4_trans(v, address + n * kWarps * 32);
    mma_m16n8k16<T>(o[0][2 * n], weights, v[0], v[1]);
    mma_m16n8k16<T>(o[0][2 * n + 1], weights, v[2], v[3]);
  }
}

/// Adds warp k's keys to sums and o.
TESSERA_DEVICE void add_keys(const SharedWeights& shared, int k, const T* v_smem, float (&row_sum)[1][2],
                             float (&o)[1][kOwnTiles][4]) {
  const uint4 words = shared.weights[k][lane_index()];
  const float2 sums = shared.sums[k][lane_index()];
  row_sum[0][0] += sums.x;
  row_sum[0][1] += sums.y;
  multiply_p_v({words.x, words.y, words.z, words.w}, v_smem + k * kDecodeWarpKeys * kLayout.stride_v, o);
}

/// Raises the bases that are too low for a tile's scores, `top` of them the warp's own, and weighs its keys
/// again. All threads take part.
TESSERA_DEVICE void raise_and_weigh(SharedTiles& tiles, SharedWeights& shared, float scale,
                                    const float (&scores)[1][2][4], float (&top)[1][2],
                                    float (&row_base)[1][2], float (&row_sum)[1][2],
                                    float (&o)[1][kOwnTiles][4]) {
  join_lanes(top);
  const int row = lane_index() / 4;
  if (lane_index() % 4 == 0) {
    tiles.tops[warp_index()][row] = top[0][0];
    tiles.tops[warp_index()][row + 8] = top[0][1];
  }
  sync_threads();
  bool raise[1][2];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    TESSERA_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) top[0][r] = fmaxf(top[0][r], tiles.tops[warp][row + 8 * r]);
    raise[0][r] = is_too_low(row_base[0][r], scale, top[0][r]);
  }
  raise_base(scale, top, raise, row_base, row_sum, o);
  float part[1][2];
  unsigned weights[1][4];
  weigh<T>(0, scale, scores, row_base, part, weights);
  put_weights(shared, weights, part);
  sync_threads();
}

/// Calls use(column of v, n, e) for the numbers o[0][n][e] that the thread has of its row lane / 4 + 8 r.
template <class Use>
TESSERA_DEVICE void for_own_values(const DecodeRows& w, int r, Use use) {
  TESSERA_UNROLL
  for (int n = 0; n < kOwnTiles; ++n) {
    const int d = (warp_index() + n / 2 * kWarps) * 16 + n % 2 * 8 + lane_index() % 4 * 2;
    TESSERA_UNROLL
    for (int e = 0; e < 2; ++e) {
      if (d + e < w.p.head_dim_v) use(d + e, n, 2 * r + e);
    }
  }
}

/// Bit r of `spoilt`: row lane / 4 + 8 r is spoilt in the thread's columns. Sets the rows' bits in rows_smem,
/// which are whole after the block's next barrier. All threads take part.
TESSERA_DEVICE void share_spoilt(unsigned spoilt, unsigned& rows_smem) {
  if (thread_x() == 0) rows_smem = 0;
  sync_threads();
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    if ((spoilt >> r & 1u) != 0) atomicOr(&rows_smem, 1u << (lane_index() / 4 + 8 * r));
  }
}

/// Bit `row`: the row is spoilt in some warp's columns, or sees an infinite value or NaN among keys [begin,
/// end). All threads take part.
TESSERA_DEVICE unsigned find_spoilt_rows(const DecodeRows& w, unsigned spoilt, int begin, int end,
                                         unsigned& rows_smem) {
  share_spoilt(spoilt, rows_smem);
  for (int row = warp_index(); row < kDecodeRows && w.has(row); row += kWarps) {
    const RowIndex index = w.index(row);
    const KeyRange keys = keys_of_query(w.p, w.s, index.i);
    const bool sees = adds_spoilt_value<T, Kv>(w.p, w.s, w.b, index.h, index.i, maximum(keys.begin, begin),
                                               minimum(keys.end, end));
    if (sees && lane_index() == 0) atomicOr(&rows_smem, 1u << row);
  }
  sync_threads();
  return rows_smem;
}

/// Writes a segment's results, for attention_join.cu.
TESSERA_DEVICE void store_segment(const DecodeRows& w, int segment, unsigned spoilt_rows,
                                  const float (&lse)[1][2], const float (&o)[1][kOwnTiles][4]) {
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = lane_index() / 4 + 8 * r;
    if (!w.has(row)) continue;
    const RowIndex index = w.index(row);
    const int64 partial = partial_of_segment(w.p, segment, partial_row(w.p, w.b, index.h, index.i));
    float* out = w.p.o_partial + partial * w.p.head_dim_v;
    for_own_values(w, r, [&](int d, int n, int e) { out[d] = o[0][n][e]; });
    if (thread_x() % 4 == 0 && warp_index() == 0)
      w.p.lse_partial[partial] = (spoilt_rows >> row & 1u) != 0 ? lse_of_spoilt_row() : lse[0][r];
  }
}

/// Writes rows of which the block has all segments. Those in spoilt_rows, and those that come out as NaN or
/// infinite, as sums of finite segments may, are done by the plain loop.
TESSERA_DEVICE void store_rows(const DecodeRows& w, unsigned spoilt_rows, const JoinedRow (&rows)[2],
                               const float (&o)[1][kOwnTiles][4], unsigned& rows_smem) {
  const AttentionParams& p = w.p;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = lane_index() / 4 + 8 * r;
    if (!w.has(row) || (spoilt_rows >> row & 1u) != 0) continue;
    const RowIndex index = w.index(row);
    const RowNorm norm = joined_norm(rows[r], sink_of_head(p, index.h));
    T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, w.s, w.b, index.h, index.i);
    for_own_values(w, r, [&](int d, int n, int e) {
      const float value = o[0][n][e] * norm.factor;
      if (!is_finite_as<T>(value)) spoilt |= 1u << r;
      out[d] = from_float<T>(value);
    });
    if (thread_x() % 4 == 0 && warp_index() == 0 && p.lse.data != nullptr)
      p.lse.data[lse_offset(p, w.s, w.b, index.h, index.i)] = norm.lse;
  }
  if (__syncthreads_or(spoilt != 0) != 0) {
    share_spoilt(spoilt, rows_smem);
    sync_threads();
    spoilt_rows |= rows_smem;
  }
  for (int row = warp_index(); row < kDecodeRows && w.has(row); row += kWarps) {
    if ((spoilt_rows >> row & 1u) == 0) continue;
    const RowIndex index = w.index(row);
    const KeyRange keys = keys_of_query(p, w.s, index.i);
    redo_row<T, Kv>(p, w.s, w.b, index.h, index.i, keys.begin, keys.end, 0);
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kWarps * 32, 2)
    attention_decode_segments(const __grid_constant__ AttentionParams p) {
  // With splits a block's time is short, and which keys it reads is known here unless other kernels may write
  // that.
  const bool knows_keys = !kHidesTiles && p.num_splits > 1 && !kPaged && kVector &&
                          p.cu_seqlens_q == nullptr && p.cu_seqlens_kv == nullptr && p.seq_lens_kv == nullptr;
  if (!knows_keys) wait_for_prior_kernels();
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  __shared__ unsigned rows_smem;
  __shared__ SharedTiles tiles;
  T* const q_smem = reinterpret_cast<T*>(shared_bytes);
  T* const stages = q_smem + kLayout.q;

  const int group = p.num_heads / p.num_kv_heads;
  const int b = p.batch_begin + block_z() / p.num_splits;
  const Sequence s = load_sequence(p, b);
  const DecodeRows w = {p,
                        s,
                        b,
                        p.pack_heads == 1 ? block_y() / group : block_y(),
                        block_y() * p.pack_heads,
                        block_x() * kDecodeRows,
                        s.len_q * p.pack_heads};
  if (w.row_begin >= w.num_rows) return;

  // Keys that some of the rows see; attention_join.cu asks for no segment that has none of these.
  const KeyRange share = keys_of_split(p, s, block_z() % p.num_splits);
  const KeyRange first_keys = keys_of_query(p, s, w.index(0).i);
  const KeyRange last_keys = keys_of_query(p, s, w.index(kDecodeRows - 1).i);
  const int tile_begin = maximum(first_keys.begin, share.begin) / kTileKeys;
  const int tile_end = (minimum(last_keys.end, share.end) + kTileKeys - 1) / kTileKeys;
  if (p.num_splits > 1 && tile_begin >= tile_end) return;
  const int tiles_of_segment = p.keys_per_segment / kTileKeys;
  int keys_begin[2];
  int keys_end[2];
  RowIndex rows[2];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    rows[r] = w.index(lane_index() / 4 + 8 * r);
    const KeyRange keys = keys_of_query(p, s, rows[r].i);
    keys_begin[r] = keys.begin;
    keys_end[r] = keys.end;
  }

  const TileCopies copies(w);
  if (knows_keys) {
    // Memory would stand still until the kernel before has ended and the first tiles are on their way. What
    // is prefetched is not read yet, so that a kernel before may still write it.
    const int begin = tile_begin * kTileKeys;
    const int end = minimum(minimum(tile_end * kTileKeys, s.len_kv), begin + kPrefetchedKeys);
    prefetch_rows(copies.k, p.k.seq_stride, p.head_dim_qk, begin, end);
    prefetch_rows(copies.v, p.v.seq_stride, p.head_dim_v, begin, end);
    wait_for_prior_kernels();
  }
  const int last_row = minimum(w.row_begin + kDecodeRows, w.num_rows) - 1;
  const TileRows tile_rows = packed_tile_rows(s, b, w.row_begin, last_row, p.pack_heads, w.first_head);
  TileQueue<kStages, kStages + 1> queue(VisibleTiles(p, tile_rows, kTileKeys), tile_begin, tile_end);
  int values_page = 0;
  int keys_page = copies.look_up(queue.tile(0));
  // The keys of the n-th tile of the queue, and the values of the one before.
  const auto load_step = [&](int n) {
    if (queue.tile(n) < tile_end) copies.load_k(stages, queue.tile(n), queue.place(n), keys_page);
    if (n > 0 && queue.tile(n - 1) < tile_end)
      copies.load_v(stages, queue.tile(n - 1), queue.place(n - 1), values_page);
    cp_async_commit();
    values_page = keys_page;
    if (queue.tile(n + 1) < tile_end) keys_page = copies.look_up(queue.tile(n + 1));
  };
  load_rows<kHeadDimQk, kLayout.stride_q>(
      q_smem, thread_x(), kWarps * 32, p.head_dim_qk, [&](int r) -> const T* {
        if (!w.has(r)) return nullptr;
        const RowIndex index = w.index(r);
        return static_cast<const T*>(p.q.data) + query_offset(p, p.q, s, b, index.h, index.i);
      });
  TESSERA_UNROLL
  for (int stage = 0; stage < kStages; ++stage) load_step(stage);
  allow_next_kernel();
  cp_async_wait<kStages - 1>();
  sync_threads();
  unsigned q[kStepsQk][4];
  TESSERA_UNROLL
  for (int k = 0; k < kStepsQk; ++k) {
    ldmatrix_x4(
        q[k], shared_address(q_smem + lane_index() % 16 * kLayout.stride_q + lane_index() / 16 * 8) + k * 32);
  }

  const float scale = kHasTerms ? 1.0f : p.softmax_scale * kLog2E;
  float o[1][kOwnTiles][4];
  float row_base[1][2];
  float row_sum[1][2];
  const auto begin_segment = [&] {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      row_base[0][r] = kLowestBase;
      row_sum[0][r] = 0.0f;
    }
    TESSERA_UNROLL
    for (int n = 0; n < kOwnTiles; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) o[0][n][e] = 0.0f;
    }
  };
  // Of the segments so far, where the block has all of its rows.
  float joined_o[1][kOwnTiles][4] = {};
  JoinedRow joined_rows[2] = {{-infinity(), 0.0f}, {-infinity(), 0.0f}};
  unsigned spoilt_rows = 0;
  bool cleans = false;  // this segment's values: some row of it came out spoilt
  begin_segment();
  // Scores of this warp's keys of a tile with what is not a product: terms, and keys that a row doesn't see.
  const auto finish_scores = [&](int tile, float(&scores)[1][2][4]) {
    const int first_key = TileCopies::first_key(tile);
    const bool whole = first_key >= last_keys.begin && first_key + kDecodeWarpKeys <= first_keys.end;
    if (!kHasTerms && !kMasksOnly && whole) return;
    TESSERA_UNROLL
    for (int n = 0; n < 2; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int j = first_key + n * 8 + lane_index() % 4 * 2 + e % 2;
        float& score = scores[0][n][e];
        if (kHasTerms) {
          score = modified_score<TESSERA_TERMS, TESSERA_MASK_DTYPE>(p, s, score, b, rows[e / 2].h,
                                                                    rows[e / 2].i, minimum(j, s.len_kv - 1)) *
                  kLog2E;
        }
        if (kMasksOnly && !modifier_shows(p, s, b, rows[e / 2].h, rows[e / 2].i, j)) score = -infinity();
        if (!whole && (j < keys_begin[e / 2] || j >= keys_end[e / 2])) score = -infinity();
      }
    }
  };
  float scores[1][2][4];
  if (queue.tile(0) < tile_end) {
    multiply_q_k(q, own_keys(stages, queue.place(0)), scores);
    finish_scores(queue.tile(0), scores);
  }
  // Of tiles from the one after `tile` on nobody sees any before `next`: the segments that lie between have
  // no keys, which attention_join.cu doesn't know.
  const auto store_hidden_segments = [&](int tile, int next) {
    if (!kHidesTiles || p.num_splits == 1) return;
    const float no_lse[1][2] = {{-infinity(), -infinity()}};
    const float no_o[1][kOwnTiles][4] = {};
    const int end = (next < tile_end ? next : tile_end + tiles_of_segment - 1) / tiles_of_segment;
    for (int segment = tile / tiles_of_segment; segment < end; ++segment)
      store_segment(w, segment, 0, no_lse, no_o);
  };
  store_hidden_segments(tile_begin, queue.tile(0));
  for (int step = 0; queue.tile(0) < tile_end; ++step) {
    const int tile = queue.tile(0);
    SharedWeights& shared = tiles.tile[step % 2];
    float part[1][2];
    unsigned weights[1][4];
    float top[1][2];
    top_scores(0, 2, scores, top);
    weigh<T>(0, scale, scores, row_base, part, weights);
    put_weights(shared, weights, part);
    cp_async_wait<kStages - 2>();
    if (cleans) clean_values(own_values(stages, queue.place(0)));
    // Behind this all weights and values are there, and everyone has finished with the tile before.
    const bool raises = __syncthreads_or(is_too_low(row_base[0][0], scale, top[0][0]) ||
                                         is_too_low(row_base[0][1], scale, top[0][1])) != 0;
    load_step(kStages);
    if (raises) raise_and_weigh(tiles, shared, scale, scores, top, row_base, row_sum, o);
    T* const v_smem = values_of(stages, queue.place(0));
    float next_scores[1][2][4] = {};  // after the last tile of what was there, for nothing
    // By turns, since products of one kind wait for each other.
    const ScoreProducts products(q, own_keys(stages, queue.place(1)));
    TESSERA_UNROLL
    for (int k = 0; k < kWarps; ++k) {
      products.add(k * kStepsQk / kWarps, (k + 1) * kStepsQk / kWarps, next_scores);
      add_keys(shared, k, v_smem, row_sum, o);
    }
    TESSERA_UNROLL
    for (int e = 0; e < 8; ++e) scores[0][e / 4][e % 4] = next_scores[0][e / 4][e % 4];
    const int next = queue.tile(1);
    finish_scores(next, scores);

    const int segment = tile / tiles_of_segment;
    if (next < tile_end && next < (segment + 1) * tiles_of_segment) {
      queue.advance();
      continue;
    }
    float lse[1][2];
    const unsigned spoilt = close_rows(
        row_base, [&](int m, int r) { return sum_of_lanes(row_sum[m][r]); }, 1.0f, o, lse);
    unsigned again = 0;  // bit `row`: by the plain loop, with all its keys
    if (cleans) {
      again = find_spoilt_rows(w, spoilt, segment * p.keys_per_segment, (segment + 1) * p.keys_per_segment,
                               rows_smem);
      cleans = false;
    } else if (__syncthreads_or(spoilt != 0) != 0) {  // once more, with 0 in place of infinities and NaN
      cleans = true;
      const int first = maximum(segment * tiles_of_segment, tile_begin);
      cp_async_wait<0>();
      sync_threads();
      queue.restart(first);
      keys_page = copies.look_up(queue.tile(0));
      for (int n = 0; n < kStages; ++n) load_step(n);
      cp_async_wait<kStages - 1>();
      sync_warp();
      multiply_q_k(q, own_keys(stages, queue.place(0)), scores);
      finish_scores(queue.tile(0), scores);
      begin_segment();
      continue;
    }
    if (p.num_splits > 1) {
      store_segment(w, segment, again, lse, o);
    } else {
      spoilt_rows |= again;
      TESSERA_UNROLL
      for (int r = 0; r < 2; ++r) {
        const JoinFactors f = join_row(lse[0][r], joined_rows[r]);
        TESSERA_UNROLL
        for (int n = 0; n < kOwnTiles; ++n) {
          TESSERA_UNROLL
          for (int e = 2 * r; e < 2 * r + 2; ++e)
            joined_o[0][n][e] = joined(f, joined_o[0][n][e], o[0][n][e]);
        }
      }
    }
    begin_segment();
    store_hidden_segments((segment + 1) * tiles_of_segment, next);
    queue.advance();
  }
  cp_async_wait<0>();
  if (p.num_splits == 1) store_rows(w, spoilt_rows, joined_rows, joined_o, rows_smem);
}
