// Attention of few queries over many keys, bound by reading K and V once, with mma.m16n8k16 and cp.async;
// fp32 by three products in fp16 (split_f32.cuh). Flash-Decoding (Dao et al., 2023); the heads of a group are
// packed into the rows, so that they share every byte.
//
// Grid: (row tiles, kv heads, batch * splits). A block of up to TESSERA_NUM_WARPS warps takes 16 packed rows;
// each of its warps streams every num_warps-th group of 16 keys through buffers of its own, with no barrier
// between warps, and the warps' states are merged at the end. Blocks that are launched as a cluster, along x,
// take the keys as one block of all their warps would: no other kernel has to merge what they find.
//
// Defined by the build: TESSERA_DTYPE (f32, f16, bf16), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of
// 16), TESSERA_NUM_WARPS (at most), TESSERA_STAGES, and TESSERA_TERMS, TESSERA_MASK_DTYPE, TESSERA_PAGED and
// TESSERA_VECTOR and TESSERA_PIECE_BYTES as in attention_mma.cu. TESSERA_KV_DTYPE=f8e4m3: keys and values of
// 8 bits beside a 16-bit TESSERA_DTYPE, which are widened to it in registers (narrow_rows.cuh); their scales,
// one a head at most, join softmax_scale and the results.

#include "common/attention_constants.cuh"
#include "common/attention_row.cuh"
#include "sm80/attention_decode_traits.h"
#include "sm80/cluster.cuh"
#include "sm80/decode_copies.cuh"
#include "sm80/narrow_rows.cuh"
#include "sm80/ptx.cuh"
#include "sm80/split_f32.cuh"

namespace tessera::kernels {

/// What the tensor cores multiply.
template <class T>
struct MmaOperand {
  using Type = T;
};
template <>
struct MmaOperand<f32> {
  using Type = f16;
};
using Operand = MmaOperand<T>::Type;

constexpr int kStages = TESSERA_STAGES;
constexpr int kBlockM = kDecodeRows;
constexpr int kKeysPerWarp = kDecodeWarpKeys;
constexpr int kMaxWarps = TESSERA_NUM_WARPS;
// Of a multiprocessor: the stages leave room for one. Unless told, the compiler spills registers to make more
// fit; at 256 dims it spills if told.
constexpr int kMinBlocks = kHeadDimV > 128 ? 0 : 1;
constexpr int kOutTiles = kHeadDimV / 8;
constexpr bool kIsF32 = sizeof(T) == 4;
static_assert(!kIsNarrow || sizeof(T) == 2, "8 bits are widened to 16");
// Rows that a warp splits at once, as many as their registers allow.
constexpr int kSplitRows = kHeadDimQk > 128 || kHeadDimV > 128 ? 4 : 8;
constexpr DecodeLayout kLayout = decode_layout(sizeof(T), sizeof(Kv), kHeadDimQk, kHeadDimV);
constexpr int kStrideQ = kLayout.stride_q;
constexpr int kStrideK = kLayout.stride_k;
constexpr int kStrideV = kLayout.stride_v;

// The merge at the end reuses the stages' memory: each warp leaves 16 rows of o, max and sum.
constexpr int kMergeStride = decode_merge_stride(kHeadDimV);
constexpr int kMergeFloats = kBlockM * kMergeStride;
static_assert(kMaxWarps <= kMostDecodeWarps, "more leave a thread too few registers");
static_assert(kMergeFloats * 4 <= kStages * kLayout.stage * int{sizeof(Kv)},
              "the merge fits into the stages");

// Of each of k and v, that a block asks for before the kernels before it have ended.
constexpr int kPrefetchBytes = 32 * 1024;

/// What warps, or the blocks of a cluster, left of a row: `count` states, `stride` floats apart, each the sum
/// of weights times v of kHeadDimV columns, the largest score in units of log2, and the sum of weights.
template <int kMostStates>
class RowStates {
 public:
  TESSERA_DEVICE RowStates(const float* states, int stride, int count) : states_(states), stride_(stride) {
    TESSERA_UNROLL
    for (int n = 0; n < kMostStates; ++n) {
      max_[n] = n < count ? states[n * stride + kHeadDimV] : -infinity();
      top_ = fmaxf(top_, max_[n]);
    }
    TESSERA_UNROLL
    for (int n = 0; n < kMostStates; ++n) {
      weights_[n] = max_[n] == -infinity() ? 0.0f : ex2(max_[n] - top_);
      if (n < count) sum_ += weights_[n] * states[n * stride + kHeadDimV + 1];
    }
  }
  TESSERA_DEVICE float top() const { return top_; }
  TESSERA_DEVICE float sum() const { return sum_; }
  TESSERA_DEVICE bool has_keys() const { return top_ != -infinity(); }
  /// Whether weights have got lost: a maximum above 2^24 is off by rounding so much that even its own score's
  /// weight, else above 1/2, may be as good as 0; a sum of NaN says so of a state.
  TESSERA_DEVICE bool is_lost() const { return sum_ != sum_ || (has_keys() && sum_ < 0.25f); }
  /// The sum of weights times v, of column d.
  TESSERA_DEVICE float value(int d) const {
    float value = 0.0f;
    TESSERA_UNROLL
    for (int n = 0; n < kMostStates; ++n) {
      if (max_[n] != -infinity()) value += weights_[n] * states_[n * stride_ + d];
    }
    return value;
  }

 private:
  const float* states_;
  int stride_;
  float max_[kMostStates];
  float weights_[kMostStates];
  float top_ = -infinity();
  float sum_ = 0.0f;
};

/// Writes a row, or its part of split keys, by a warp. Whether it has to be done again by the plain loop.
template <int kMostStates>
TESSERA_DEVICE bool finish_row(const AttentionParams& p, const Sequence& s, int b, int split,
                               const RowIndex& index, const RowStates<kMostStates>& states, float v_scale,
                               bool is_bad) {
  const bool is_partial = p.num_splits > 1;
  const int lane = thread_x() % 32;
  const RowNorm norm = row_norm(states.top() * kLn2, states.sum(), sink_of_head(p, index.h));
  const int64 partial =
      static_cast<int64>(split) * p.batch * p.num_heads * p.seq_len_q + partial_row(p, b, index.h, index.i);
  is_bad = is_bad || states.is_lost();
  TESSERA_UNROLL
  for (int first = 0; first < kHeadDimV; first += 32) {
    const int d = first + lane;
    if (d >= p.head_dim_v) break;
    float value = states.has_keys() ? states.value(d) * norm.factor : 0.0f;
    if constexpr (kIsNarrow) value *= v_scale;
    is_bad = is_bad || value * 0.0f != 0.0f;  // NaN or infinite
    if (is_partial) {
      p.o_partial[partial * p.head_dim_v + d] = value;
    } else {
      static_cast<T*>(p.o.data)[query_offset(p, p.o, s, b, index.h, index.i) + d] = from_float<T>(value);
    }
  }
  if (lane == 0) {
    if (is_partial) {
      p.lse_partial[partial] = norm.lse;
    } else if (p.lse.data != nullptr) {
      p.lse.data[lse_offset(p, s, b, index.h, index.i)] = norm.lse;
    }
  }
  return warp_any(is_bad);
}

/// Splits a stage's keys and values of fp32 in place and writes their rows' 2^e; true if one of these is
/// not 1. small_values: this lane's bits of groups of v's columns (split_rows).
TESSERA_DEVICE bool split_stage(Kv* k_smem, Kv* v_smem, float* k_power, float* v_power,
                                unsigned& small_values) {
  bool is_scaled = false;
  TESSERA_UNROLL
  for (int first = 0; first < kKeysPerWarp; first += kSplitRows) {
    split_rows<kSplitRows, kHeadDimQk>(reinterpret_cast<unsigned char*>(k_smem + first * kStrideK),
                                       [&](int row, int e, unsigned) {
                                         k_power[first + row] = power_of_two(e);
                                         is_scaled = is_scaled || e != 0;
                                       });
    split_rows<kSplitRows, kHeadDimV, true>(reinterpret_cast<unsigned char*>(v_smem + first * kStrideV),
                                            [&](int row, int e, unsigned small) {
                                              v_power[first + row] = power_of_two(e);
                                              is_scaled = is_scaled || e != 0;
                                              small_values |= small;
                                            });
  }
  sync_warp();
  return warp_any(is_scaled);
}

/// scores = q k^T of 16 rows and 16 keys.  found_nan: see widen_e4m3.
TESSERA_DEVICE void multiply_q_k(const T* q_smem, const Kv* k_smem, float (&scores)[2][4],
                                 unsigned& found_nan) {
  if constexpr (kIsNarrow) {
    multiply_q_narrow_k<T, kHeadDimQk>(shared_address(q_smem), kStrideQ * int{sizeof(T)},
                                       shared_address(k_smem), kStrideK, scores, found_nan);
    return;
  }
  constexpr int kStepBytes = 16 * sizeof(T);
  constexpr int kHalfBytes = kStepBytes / 2;
  const int lane = thread_x() % 32;
  const unsigned q_address = shared_address(q_smem + lane % 16 * kStrideQ) + lane / 16 * kHalfBytes;
  const unsigned k_address =
      shared_address(k_smem + (lane % 8 + lane / 16 * 8) * kStrideK) + lane / 8 % 2 * kHalfBytes;
  float parts[3][2][4] = {};
  TESSERA_UNROLL_BY(kIsF32 ? 2 : kHeadDimQk / 16)  // fp32's registers are scarce
  for (int k = 0; k < kHeadDimQk / 16; ++k) {
    unsigned q[4];
    unsigned key[4];
    ldmatrix_x4(q, q_address + k * kStepBytes);
    ldmatrix_x4(key, k_address + k * kStepBytes);
    if constexpr (kIsF32) {
      unsigned q_low[4];
      unsigned key_low[4];
      ldmatrix_x4(q_low, q_address + k * kStepBytes + 16);
      ldmatrix_x4(key_low, k_address + k * kStepBytes + 16);
      TESSERA_UNROLL
      for (int n = 0; n < 2; ++n) {
        mma_m16n8k16<Operand>(parts[0][n], q, key[2 * n], key[2 * n + 1]);
        mma_m16n8k16<Operand>(parts[1][n], q, key_low[2 * n], key_low[2 * n + 1]);
        mma_m16n8k16<Operand>(parts[2][n], q_low, key[2 * n], key[2 * n + 1]);
      }
    } else {
      TESSERA_UNROLL
      for (int n = 0; n < 2; ++n) mma_m16n8k16<Operand>(parts[0][n], q, key[2 * n], key[2 * n + 1]);
    }
  }
  TESSERA_UNROLL
  for (int n = 0; n < 2; ++n) {
    TESSERA_UNROLL
    for (int e = 0; e < 4; ++e) {
      scores[n][e] = kIsF32 ? fmaf(parts[1][n][e] + parts[2][n][e], kUnlow, parts[0][n][e]) : parts[0][n][e];
    }
  }
}

/// o += p v of 16 keys, p being the scores' registers after the softmax.
TESSERA_DEVICE void multiply_p_v(const float (&p)[2][4], const Kv* v_smem, float (&o)[kOutTiles][4],
                                 unsigned& found_nan) {
  const int lane = thread_x() % 32;
  constexpr int kHalfBytes = 8 * sizeof(T);
  const unsigned v_address = shared_address(v_smem + lane % 16 * kStrideV) + lane / 16 * kHalfBytes;
  unsigned a[1][4];
  unsigned a_low[1][4];
  constexpr float kScale = 1 << kWeightShift;
  TESSERA_UNROLL
  for (int part = 0; part < 4; ++part) {
    const float first = p[part / 2][part % 2 * 2];
    const float second = p[part / 2][part % 2 * 2 + 1];
    if constexpr (kIsF32) {
      split_pair(first * kScale, second * kScale, a[0][part], a_low[0][part]);
    } else {
      a[0][part] = cvt_x2<Operand>(first, second);
    }
  }
  if constexpr (kIsNarrow) {
    multiply_p_narrow_v<T, kHeadDimV>(a[0], shared_address(v_smem), kStrideV, o, found_nan);
    return;
  }
  TESSERA_UNROLL
  for (int n = 0; n < kOutTiles / 2; ++n) {
    unsigned v[4];
    ldmatrix_x4_trans(v, v_address + n * 2 * kHalfBytes);
    if constexpr (kIsF32) {
      unsigned v_low[4];
      ldmatrix_x4_trans(v_low, v_address + n * 2 * kHalfBytes + 16);
      float sum[1][2][4] = {};
      float cross[1][2][4] = {};
      multiply_split<1>(a, a_low, v, v_low, sum, cross);
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        o[2 * n][e] += fmaf(cross[0][0][e], kUnlow, sum[0][0][e]);
        o[2 * n + 1][e] += fmaf(cross[0][1][e], kUnlow, sum[0][1][e]);
      }
    } else {
      mma_m16n8k16<Operand>(o[2 * n], a[0], v[0], v[1]);
      mma_m16n8k16<Operand>(o[2 * n + 1], a[0], v[2], v[3]);
    }
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kMaxWarps * 32, kMinBlocks)
    attention_decode(const __grid_constant__ AttentionParams p) {
  const int cluster = cluster_size();
  const int rank = cluster_rank();
  // Which keys a block reads is known here unless other kernels may write that. Where keys may be written it
  // matters to blocks of few keys only, whose time is short.
  const bool is_settled = !kHidesTiles && p.settled_kv != 0;
  const bool has_few_keys = p.num_splits > 1 || cluster > 1;
  const bool is_uniform =
      !kPaged && p.cu_seqlens_q == nullptr && p.cu_seqlens_kv == nullptr && p.seq_lens_kv == nullptr;
  const bool knows_keys = is_settled || (!kHidesTiles && has_few_keys && is_uniform);
  TESSERA_DYNAMIC_SHARED(shared_bytes);
  T* q_smem = reinterpret_cast<T*>(shared_bytes);
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;
  const int num_warps = block_size() / 32;
  Kv* const all_stages = reinterpret_cast<Kv*>(q_smem + kLayout.q);
  float* const floats = reinterpret_cast<float*>(all_stages + num_warps * kStages * kLayout.stage);
  float* const inbox_barrier = floats + decode_num_powers(sizeof(T), num_warps);
  if (cluster > 1) {
    if (thread_x() == 0) start_inbox(shared_address(inbox_barrier));
    cluster_arrive_relaxed();
  }
  if (!knows_keys) wait_for_prior_kernels();
  const int block_n = kKeysPerWarp * num_warps * cluster;
  const int first_of_warp = kKeysPerWarp * (rank * num_warps + warp);  // of a tile's keys
  Kv* stages = all_stages + warp * kStages * kLayout.stage;

  const int b = p.batch_begin + block_z() / p.num_splits;
  const int split = block_z() % p.num_splits;
  const Sequence s = load_sequence(p, b);
  const int group = p.num_heads / p.num_kv_heads;
  const int pack = p.pack_heads;
  const int kv_head = pack == 1 ? block_y() / group : block_y();
  const int first_head = block_y() * pack;
  const int num_rows = s.len_q * pack;
  const int row_begin = block_x() / cluster * kBlockM;
  if (row_begin >= num_rows) {
    wait_for_prior_kernels();  // or the next kernel would start before them, if no block has rows
    return;
  }
  const auto row_index = [&](int row) { return packed_row_index(row, pack, first_head); };

  const int last_row = minimum(row_begin + kBlockM, num_rows) - 1;
  const KeyRange first_keys = keys_of_query(p, s, row_index(row_begin).i);
  const KeyRange last_keys = keys_of_query(p, s, row_index(last_row).i);
  const TileRows tile_rows = packed_tile_rows(s, b, row_begin, last_row, pack, first_head);
  const KeyRange share = visible_share(p, tile_rows, block_n, split);
  const int tile_begin = maximum(first_keys.begin, share.begin) / block_n;
  const int tile_end = (minimum(last_keys.end, share.end) + block_n - 1) / block_n;
  const int full_begin = maximum(last_keys.begin, share.begin);
  const int full_end = minimum(first_keys.end, share.end);

  const int* block_table = kPaged ? p.block_table + b * p.block_table_stride : nullptr;
  const Kv* k_base = head_keys(p, p.k, s, b, kv_head);
  const Kv* v_base = head_keys(p, p.v, s, b, kv_head);
  if (knows_keys && !is_settled) {
    // Before the wait comes all that reads nothing a kernel before may write: it costs no time then. Memory
    // would stand still until that kernel has ended and the first tiles are on their way. What is prefetched
    // is not read yet, so that a kernel before may still write it.
    if constexpr (kVector) {
      constexpr int kPrefetchedKeys =
          kPrefetchBytes / ((kHeadDimQk > kHeadDimV ? kHeadDimQk : kHeadDimV) * int{sizeof(Kv)});
      const int first = maximum(first_keys.begin, share.begin);
      const int begin = cluster > 1 ? first / block_n * block_n + kKeysPerWarp * rank * num_warps : first;
      const int most = cluster > 1 ? minimum(kPrefetchedKeys, kKeysPerWarp * num_warps) : kPrefetchedKeys;
      const int end = minimum(minimum(last_keys.end, share.end), begin + most);
      prefetch_rows(k_base, p.k.seq_stride, p.head_dim_qk, begin, end);
      prefetch_rows(v_base, p.v.seq_stride, p.head_dim_v, begin, end);
    }
  }

  int keys_begin[2];
  int keys_end[2];
  RowIndex rows[2];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    rows[r] = row_index(minimum(row_begin + lane / 4 + 8 * r, num_rows - 1));
    const KeyRange keys = keys_of_query(p, s, rows[r].i);
    keys_begin[r] = maximum(keys.begin, share.begin);
    keys_end[r] = minimum(keys.end, share.end);
  }

  const auto first_key_of = [&](int tile) { return tile * block_n + first_of_warp; };
  // Of pages: the key whose page this lane looks up.
  const auto key_of_lane = [&](int tile) { return first_key_of(tile) + lane % kKeysPerWarp; };
  const auto copy_stage = [&](int tile, int place, int page) {
    if (tile < tile_end) {
      Kv* k_smem = stages + place * kLayout.stage;
      Kv* v_smem = k_smem + kKeysPerWarp * kStrideK;
      const StageKeys keys = {first_key_of(tile), s.len_kv, page,
                              kPaged ? token_in_page(p, key_of_lane(tile)) : 0};
      load_keys<kHeadDimQk, kStrideK>(p, k_smem, k_base, p.k, p.head_dim_qk, keys);
      load_keys<kHeadDimV, kStrideV>(p, v_smem, v_base, p.v, p.head_dim_v, keys);
    }
  };
  int pages[kStages];  // of the first stages, all asked for before any is waited for
  const auto look_up = [&](int tile) {
    return kPaged && tile < tile_end ? look_up_page(p, block_table, key_of_lane(tile), s.len_kv) : 0;
  };
  TileQueue<kStages> tiles(VisibleTiles(p, tile_rows, block_n), tile_begin, tile_end);
  TESSERA_UNROLL
  for (int stage = 0; stage < kStages; ++stage) pages[stage] = look_up(tiles.tile(stage));

  // Keys that the kernel before doesn't write are read before it has ended.
  const auto is_early = [&](int tile) {
    return is_settled && first_key_of(tile) + kKeysPerWarp <= s.len_kv - s.len_q;
  };
  TESSERA_UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (is_early(tiles.tile(stage))) copy_stage(tiles.tile(stage), tiles.place(stage), pages[stage]);
  }
  if (knows_keys) wait_for_prior_kernels();
  load_rows<kHeadDimQk, kStrideQ>(q_smem, thread_x(), block_size(), p.head_dim_qk, [&](int r) -> const T* {
    if (row_begin + r >= num_rows) return nullptr;
    const RowIndex index = row_index(row_begin + r);
    return static_cast<const T*>(p.q.data) + query_offset(p, p.q, s, b, index.h, index.i);
  });
  cp_async_commit();
  TESSERA_UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (!is_early(tiles.tile(stage))) copy_stage(tiles.tile(stage), tiles.place(stage), pages[stage]);
    cp_async_commit();
  }
  int next_page = pages[kStages - 1];
  allow_next_kernel();  // not before: the weights that it copies would come ahead of these keys
  cp_async_wait<kStages - 1>();
  sync_threads();
  if constexpr (kIsNarrow) {
    order_for_narrow_k<kHeadDimQk, kStrideQ>(q_smem);
    sync_threads();
  }

  float o[kOutTiles][4];
  TESSERA_UNROLL
  for (int n = 0; n < kOutTiles; ++n) {
    TESSERA_UNROLL
    for (int e = 0; e < 4; ++e) o[n][e] = 0.0f;
  }
  float row_max[2] = {-infinity(), -infinity()};
  float row_sum[2] = {0.0f, 0.0f};
  float row_shift[2] = {0.0f, 0.0f};  // of fp32: o = sum 2^(s - max - shift) v, see scale_weights
  // What turns a row's products into scores in units of log2.
  float unit = kHasTerms ? 1.0f : p.softmax_scale * kLog2E;
  float k_scale = 1.0f;
  float v_scale = 1.0f;
  if constexpr (kIsNarrow) {
    k_scale = product_scale_of_head(p, b, kv_head);
    v_scale = scale_of_head(p, p.kv_scales.v, b, kv_head);
    if (!kHasTerms) unit *= k_scale;
  }
  unsigned found_nan = 0;  // of narrow keys and values
  float q_factor[2] = {unit, unit};
  const auto load_q_factors = [&] {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) q_factor[r] = floats[lane / 4 + 8 * r] * unit;
  };
  float* k_power = nullptr;  // of fp32: this warp's keys' and values' 2^e
  float* v_power = nullptr;
  if (kIsF32) {
    k_power = floats + kBlockM + warp * 2 * kKeysPerWarp;
    v_power = k_power + kKeysPerWarp;
    if (warp == 0) {
      TESSERA_UNROLL
      for (int first = 0; first < kBlockM; first += kSplitRows) {
        split_rows<kSplitRows, kHeadDimQk>(
            reinterpret_cast<unsigned char*>(q_smem + first * kStrideQ),
            [&](int row, int e, unsigned) { floats[first + row] = power_of_two(e - 2 * kRowShift); });
      }
    }
    sync_threads();
    load_q_factors();
  }

  // Of fp32 (split_f32.cuh): groups of columns with values that lost more than they should; bit r: row r has
  // scores that did; kScaled: some power of two has not been 1, so that row_shift may not be 0.
  constexpr unsigned kScaled = 4;
  unsigned small_values = 0;
  unsigned flags = 0;
  const float most_factor = kHasTerms ? fabsf(p.softmax_scale) * kLog2E : 1.0f;
  if (kIsF32 && warp_any(fmaxf(fabsf(q_factor[0]), fabsf(q_factor[1])) * most_factor > kMostScale))
    flags = kScaled;
  for (; tiles.tile(0) < tile_end; tiles.advance()) {
    const int tile = tiles.tile(0);
    // The stage that is filled next is the one that this warp finished with in the last step.
    sync_warp();
    copy_stage(tiles.tile(kStages - 1), tiles.place(kStages - 1), next_page);
    cp_async_commit();
    next_page = look_up(tiles.tile(kStages));
    cp_async_wait<kStages - 1>();
    sync_warp();
    Kv* k_smem = stages + tiles.place(0) * kLayout.stage;
    Kv* v_smem = k_smem + kKeysPerWarp * kStrideK;
    if (kIsF32 && split_stage(k_smem, v_smem, k_power, v_power, small_values)) flags |= kScaled;
    const bool is_scaled = kIsF32 && (flags & kScaled) != 0;

    if constexpr (kIsF32 && kPaged) load_q_factors();  // not kept: fp32 with pages is short of registers
    float scores[1][2][4];
    multiply_q_k(q_smem, k_smem, scores[0], found_nan);
    if (is_scaled) scale_scores(k_power, scores);

    const int first_key = first_key_of(tile);
    const bool needs_hiding = first_key < full_begin || first_key + kKeysPerWarp > full_end;
    TESSERA_UNROLL
    for (int n = 0; n < 2; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int j = first_key + n * 8 + lane % 4 * 2 + e % 2;
        if (kHasTerms && s.len_kv > 0) {
          const float product = kIsF32      ? scores[0][n][e] * q_factor[e / 2]
                                : kIsNarrow ? scores[0][n][e] * k_scale
                                            : scores[0][n][e];
          scores[0][n][e] = modified_score<TESSERA_TERMS, TESSERA_MASK_DTYPE>(
                                p, s, product, b, rows[e / 2].h, rows[e / 2].i, minimum(j, s.len_kv - 1)) *
                            kLog2E;
        }
        if (needs_hiding && (j < keys_begin[e / 2] || j >= keys_end[e / 2])) scores[0][n][e] = -infinity();
      }
    }
    if (is_scaled) {
      TESSERA_UNROLL
      for (int n = 0; n < 2; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float factor = q_factor[e / 2] * most_factor * k_power[n * 8 + lane % 4 * 2 + e % 2];
          if (fabsf(factor) > kMostScale && scores[0][n][e] != -infinity()) flags |= 1u << (e / 2);
        }
      }
    }
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float scale = kHasTerms ? 1.0f : q_factor[r];  // with terms it is in the scores already
      float top = -infinity();
      TESSERA_UNROLL
      for (int n = 0; n < 2; ++n) top = fmaxf(top, fmaxf(scores[0][n][2 * r], scores[0][n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      // A whole number for fp32, so that rescaling by it is exact.
      top = fmaxf(row_max[r], kIsF32 ? ceilf(top * scale) : top * scale);
      const float base = top == -infinity() ? 0.0f : top;
      const float moved = row_max[r] == top ? 0.0f : top - row_max[r];
      float rescale = ex2(-moved);
      row_max[r] = top;
      row_sum[r] *= rescale;
      TESSERA_UNROLL
      for (int n = 0; n < 2; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          scores[0][n][2 * r + e] = ex2(scores[0][n][2 * r + e] * scale - base);
          row_sum[r] += scores[0][n][2 * r + e];
        }
      }
      if (is_scaled) rescale = scale_weights(v_power, 0, r, moved, row_shift[r], scores);
      if (warp_any(rescale != 1.0f)) {  // seldom after the first keys
        TESSERA_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          o[n][2 * r] *= rescale;
          o[n][2 * r + 1] *= rescale;
        }
      }
    }
    multiply_p_v(scores[0], v_smem, o, found_nan);
  }
  // Their products took a NaN for a number: all rows are done again.
  if (kIsNarrow && warp_any((found_nan & kFoundNan) != 0)) row_sum[0] = row_sum[1] = not_a_number();
  cp_async_wait<0>();
  sync_threads();

  // Rows of fp32 to be done again by the plain loop: bit r of row lane / 4 + 8 r.
  unsigned* bad_rows = reinterpret_cast<unsigned*>(q_smem);  // q has been read
  if (kIsF32) {
    if (thread_x() == 0) *bad_rows = 0;
    TESSERA_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) small_values |= __shfl_xor_sync(0xffffffffu, small_values, mask);
    sync_threads();
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float sum = sum_of_lanes(row_sum[r]);
      // Scaled weights are at most 1; of how many keys is not known here.
      const float weights = (flags & kScaled) != 0 ? fmaxf(sum, static_cast<float>(s.len_kv)) : sum;
      bool is_bad = (flags >> r & 1u) != 0;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        if ((small_values >> n & 1u) == 0) continue;
        is_bad = is_bad || !is_faithful(o[n][2 * r], weights) || !is_faithful(o[n][2 * r + 1], weights);
      }
      if (is_bad && sum != 0.0f) atomicOr(bad_rows, 1u << (lane / 4 + 8 * r));
    }
  }

  // Each warp leaves its rows in shared memory; all warps then merge and write, one row after another.
  const int rows_there = minimum(num_rows - row_begin, kBlockM);
  float* merge = reinterpret_cast<float*>(q_smem + kLayout.q);
  float* own = merge + warp * kMergeFloats;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    const float unshift = ex2(row_shift[r] - (kRowShift + kWeightShift));
    const float sum = sum_of_lanes(row_sum[r]);
    if (row >= rows_there) continue;
    TESSERA_UNROLL
    for (int n = 0; n < kOutTiles; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = kIsNarrow ? narrow_v_column(n, lane % 4, e) : n * 8 + lane % 4 * 2 + e;
        own[row * kMergeStride + column] = kIsF32 ? o[n][2 * r + e] * unshift : o[n][2 * r + e];
      }
    }
    if (lane % 4 == 0) {
      own[row * kMergeStride + kHeadDimV] = row_max[r];
      own[row * kMergeStride + kHeadDimV + 1] = sum;
    }
  }
  sync_threads();
  unsigned rows_again = 0;  // of this warp, to be done again by the plain loop
  const auto states_of_warps = [&](int row) {
    return RowStates<kMaxWarps>(merge + row * kMergeStride, kMergeFloats, num_warps);
  };
  const auto is_bad_row = [&](int row) { return kIsF32 && (*bad_rows >> row & 1u) != 0; };
  if (cluster == 1) {
    for (int row = warp; row < rows_there; row += num_warps) {
      const RowStates<kMaxWarps> states = states_of_warps(row);
      if (finish_row(p, s, b, split, row_index(row_begin + row), states, v_scale, is_bad_row(row)))
        rows_again |= 1u << row;
    }
  } else {
    // Each block finishes every cluster-th row: the others bring their states of it there.
    constexpr int kStride = decode_inbox_stride(kHeadDimV);
    float* const inbox = inbox_barrier + kDecodeInboxBarrier / 4;
    const auto inbox_of = [&](int row) { return inbox + row / cluster * cluster * kStride; };
    const unsigned barrier = shared_address(inbox_barrier);
    const int own_rows = maximum(rows_there - rank + cluster - 1, 0) / cluster;
    if (thread_x() == 0) expect_in_inbox(barrier, own_rows * cluster * kStride * 4);
    cluster_wait();  // until all blocks have started
    for (int row = warp; row < rows_there; row += num_warps) {
      const RowStates<kMaxWarps> states = states_of_warps(row);
      const int to = row % cluster;
      const unsigned there = shared_of_rank(shared_address(inbox_of(row) + rank * kStride), to);
      const unsigned counter = shared_of_rank(barrier, to);
      for (int d = lane * 4; d < kHeadDimV; d += 128) {
        store_async_in_cluster(there + d * 4, states.value(d), states.value(d + 1), states.value(d + 2),
                               states.value(d + 3), counter);
      }
      if (lane == 0) {
        const bool is_bad = is_bad_row(row) || states.is_lost();
        store_async_in_cluster(there + kHeadDimV * 4, states.top(), is_bad ? not_a_number() : states.sum(),
                               0.0f, 0.0f, counter);
      }
    }
    wait_for_inbox(barrier);
    for (int row = rank + warp * cluster; row < rows_there; row += num_warps * cluster) {
      const RowStates<kMostDecodeCluster> states(inbox_of(row), kStride, cluster);
      if (finish_row(p, s, b, split, row_index(row_begin + row), states, v_scale, false))
        rows_again |= 1u << row;
    }
  }
  // Not in the loop above, whose registers would have to be kept over the calls. A hidden key's value may
  // have been NaN: 0 * NaN. The plain loop never reads hidden values.
  for (int row = 0; rows_again >> row != 0; ++row) {
    if ((rows_again >> row & 1u) == 0) continue;
    const RowIndex index = row_index(row_begin + row);
    const KeyRange keys = keys_of_query(p, s, index.i);
    redo_row<T, Kv>(p, s, b, index.h, index.i, maximum(keys.begin, share.begin), minimum(keys.end, share.end),
                    split);
  }
}
