// Batch-invariant attention of few queries over many keys, f16 and bf16: a block takes segments of the keys
// (common/attention_segments.cuh), and joins them itself or leaves that to attention_join.cu. A row's bits
// are those of attention_mma.cu, since 16 keys come after the other by the same instructions (row_bases.cuh).
//
//   tile of 64 keys | each warp: 16 of them copied | barrier | scores and weights of its own 16 keys |
//   barrier
//                   | o of its own columns of v, with the weights of all 64 keys, 16 after the other
//
// Weights are taken against the rows' bases as they are. Where a row's has to be raised, which is seldom
// after a segment's first tile, warps weigh their keys in turn.
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

/// Copies a tile's keys and values, this warp's 16 of them.
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
  TESSERA_DEVICE void load(T* stage, int tile, int page) const {
    const StageKeys keys = {first_key(tile), w.s.len_kv, page,
                            kPaged ? token_in_page(w.p, key_of_lane(tile)) : 0};
    T* const k_smem = stage + warp_index() * kDecodeWarpKeys * kLayout.stride_k;
    T* const v_smem = stage + kStageK + warp_index() * kDecodeWarpKeys * kLayout.stride_v;
    load_keys<kHeadDimQk, kLayout.stride_k>(k_smem, k, w.p.k, w.p.head_dim_qk, keys);
    load_keys<kHeadDimV, kLayout.stride_v>(v_smem, v, w.p.v, w.p.head_dim_v, keys);
  }
};

/// Puts 0 in place of infinities and NaN in this warp's values of a tile.
TESSERA_DEVICE void clean_values(T* stage) {
  T* const v_smem = stage + kStageK + warp_index() * kDecodeWarpKeys * kLayout.stride_v;
  sync_warp();
  for (int c = lane_index(); c < kDecodeWarpKeys * kHeadDimV; c += 32) {
    T& x = v_smem[c / kHeadDimV * kLayout.stride_v + c % kHeadDimV];
    if (to_float(x) * 0.0f != 0.0f) x = from_float<T>(0.0f);
  }
}

/// scores = q k^T of 16 rows and 16 keys.
TESSERA_DEVICE void multiply_q_k(const unsigned (&q)[kStepsQk][4], const T* k_smem,
                                 float (&scores)[1][2][4]) {
  const int lane = lane_index();
  const unsigned address =
      shared_address(k_smem + (lane % 8 + lane / 16 * 8) * kLayout.stride_k + lane / 8 % 2 * 8);
  TESSERA_UNROLL
  for (int e = 0; e < 4; ++e) scores[0][0][e] = scores[0][1][e] = 0.0f;
  TESSERA_UNROLL
  for (int k = 0; k < kStepsQk; ++k) {
    unsigned key[4];
    ldmatrix_x4(key, address + k * 32);
    mma_m16n8k16<T>(scores[0][0], q[k], key[0], key[1]);
    mma_m16n8k16<T>(scores[0][1], q[k], key[2], key[3]);
  }
}

/// What the warps tell each other of their keys, each lane those of the same place: weights as operands,
/// their sums, and bases where they were raised.
struct SharedWeights {
  uint4 weights[kWarps][32];
  float2 sums[kWarps][32];
  float2 bases[32];
};
static_assert(sizeof(SharedWeights) <= kSegmentStaticBytes - 128, "the host counts it");

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
    if (n > 0 && warp_index() + n * kWarps >= kColumnGroups) break;
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
/// end), by the plain loop. All threads take part.
TESSERA_DEVICE unsigned find_spoilt_rows(const DecodeRows& w, unsigned spoilt, int begin, int end,
                                         unsigned& rows_smem) {
  share_spoilt(spoilt, rows_smem);
  for (int row = warp_index(); row < kDecodeRows && w.has(row); row += kWarps) {
    const RowIndex index = w.index(row);
    const KeyRange keys = keys_of_query(w.p, w.s, index.i);
    RowState state;
    attend_row<T, Kv>(w.p, w.s, w.b, index.h, index.i, maximum(keys.begin, begin), minimum(keys.end, end),
                      state);
    if (has_overflown(state) && lane_index() == 0) atomicOr(&rows_smem, 1u << row);
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
  const bool knows_keys = p.num_splits > 1 && !kPaged && kVector && p.cu_seqlens_q == nullptr &&
                          p.cu_seqlens_kv == nullptr && p.seq_lens_kv == nullptr;
  if (!knows_keys) wait_for_prior_kernels();
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  __shared__ unsigned rows_smem;
  __shared__ SharedWeights shared;
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
  int next = tile_begin;  // to be copied
  int next_page = copies.look_up(next);
  const auto load_next = [&] {
    if (next < tile_end) copies.load(stages + next % kStages * kStage, next, next_page);
    cp_async_commit();
    ++next;
    if (next < tile_end) next_page = copies.look_up(next);
  };
  load_rows<kHeadDimQk, kLayout.stride_q>(
      q_smem, thread_x(), kWarps * 32, p.head_dim_qk, [&](int r) -> const T* {
        if (!w.has(r)) return nullptr;
        const RowIndex index = w.index(r);
        return static_cast<const T*>(p.q.data) + query_offset(p, p.q, s, b, index.h, index.i);
      });
  cp_async_commit();
  TESSERA_UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) load_next();
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
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    T* const stage = stages + tile % kStages * kStage;
    cp_async_wait<kStages - 2>();
    if (cleans) clean_values(stage);
    sync_threads();  // the tile is there, and everyone has finished with the one before
    load_next();

    float scores[1][2][4];
    multiply_q_k(q, stage + warp_index() * kDecodeWarpKeys * kLayout.stride_k, scores);
    const int first_key = TileCopies::first_key(tile);
    const bool whole = first_key >= last_keys.begin && first_key + kDecodeWarpKeys <= first_keys.end;
    if (kHasTerms || !whole) {
      TESSERA_UNROLL
      for (int n = 0; n < 2; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int j = first_key + n * 8 + lane_index() % 4 * 2 + e % 2;
          float& score = scores[0][n][e];
          if (kHasTerms) {
            score = modified_score<TESSERA_TERMS, TESSERA_MASK_DTYPE>(
                        p, s, score, b, rows[e / 2].h, rows[e / 2].i, minimum(j, s.len_kv - 1)) *
                    kLog2E;
          }
          if (!whole && (j < keys_begin[e / 2] || j >= keys_end[e / 2])) score = -infinity();
        }
      }
    }
    // Weights against the rows' bases as they are, of all keys but those of warps whose turn has been; as
    // long as some row's are too large, one warp after the other raises bases.
    for (int turn = 0; turn < kWarps; ++turn) {
      float part[1][2];
      unsigned weights[1][4];
      weigh<T>(0, scale, scores, row_base, part, weights);
      if (warp_index() >= turn) put_weights(shared, weights, part);
      const bool raises = warp_index() >= turn && fmaxf(part[0][0], part[0][1]) > kMostWeights;
      if (__syncthreads_or(raises) == 0) {
        TESSERA_UNROLL
        for (int k = 0; k < kWarps; ++k) {
          if (k >= turn) add_keys(shared, k, stage + kStageK, row_sum, o);
        }
        break;
      }
      if (warp_index() == turn) {
        float base[1][2] = {{row_base[0][0], row_base[0][1]}};
        float no_sum[1][2] = {};
        float no_o[1][1][4] = {};
        settle<T, true>(0, scale, scores, part, weights, base, no_sum, no_o);
        put_weights(shared, weights, part);
        shared.bases[lane_index()] = {base[0][0], base[0][1]};
      }
      sync_threads();
      const float2 bases = shared.bases[lane_index()];
      move_bases({bases.x, bases.y}, row_base, row_sum, o);
      add_keys(shared, turn, stage + kStageK, row_sum, o);
    }

    if ((tile + 1) % tiles_of_segment != 0 && tile + 1 < tile_end) continue;
    const int segment = tile / tiles_of_segment;
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
      next = maximum(segment * tiles_of_segment, tile_begin);
      next_page = copies.look_up(next);
      tile = next - 1;
      cp_async_wait<0>();
      sync_threads();
      for (int n = 0; n < kStages - 1; ++n) load_next();
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
  }
  cp_async_wait<0>();
  if (p.num_splits == 1) store_rows(w, spoilt_rows, joined_rows, joined_o, rows_smem);
}
