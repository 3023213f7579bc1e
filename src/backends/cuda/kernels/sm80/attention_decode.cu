// Attention of few queries over many keys, bound by reading K and V once: fp16 and bf16 with mma.m16n8k16 and
// cp.async. Flash-Decoding (Dao et al., 2023); the heads of a group are packed into the rows, so that they
// share every byte.
//
// Grid: (row tiles, kv heads, batch * splits). A block takes 16 packed rows; each of its warps streams every
// fourth group of 16 keys through buffers of its own, with no barrier between warps, and the warps' states
// are merged at the end.
//
// Defined by the build: TESSERA_DTYPE, TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 16),
// TESSERA_STAGES, and TESSERA_TERMS, TESSERA_MASK_DTYPE, TESSERA_PAGED and TESSERA_VECTOR as in
// attention_mma.cu.

#include "common/attention_row.cuh"
#include "sm80/ptx.cuh"

namespace tessera::kernels {

using T = TESSERA_DTYPE;

constexpr int kHeadDimQk = TESSERA_HEAD_DIM_QK;
constexpr int kHeadDimV = TESSERA_HEAD_DIM_V;
constexpr int kStages = TESSERA_STAGES;
constexpr bool kHasTerms = TESSERA_TERMS != 0;
constexpr bool kPaged = TESSERA_PAGED != 0;
constexpr bool kVector = TESSERA_VECTOR != 0;
constexpr int kBlockM = 16;
constexpr int kKeysPerWarp = 16;
constexpr int kNumWarps = 4;
constexpr int kBlockN = kKeysPerWarp * kNumWarps;
constexpr int kThreads = kNumWarps * 32;
constexpr int kOutTiles = kHeadDimV / 8;
constexpr int kStrideQk = kHeadDimQk + 8;  // padding against bank conflicts of ldmatrix
constexpr int kStrideV = kHeadDimV + 8;
constexpr int kQElements = kBlockM * kStrideQk;
constexpr int kStageElements = kKeysPerWarp * (kStrideQk + kStrideV);
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// The merge at the end reuses the stages' memory: each warp leaves 16 rows of o, max and sum.
constexpr int kMergeFloats = kBlockM * (kHeadDimV + 2);
static_assert(kNumWarps * kMergeFloats * 4 <= kNumWarps * kStages * kStageElements * 2,
              "the merge fits into the stages");

/// Copies 16 rows into shared memory, padded with zeros to kColumns. row_of(r) is the address of row r, or
/// null for zeros.
template <int kColumns, int kStride, int kNumThreads, class RowOf>
TESSERA_DEVICE void load_rows(T* smem, int thread, int head_dim, RowOf row_of) {
  if (!kVector) {
    for (int c = thread; c < 16 * kColumns; c += kNumThreads) {
      const int r = c / kColumns;
      const int column = c % kColumns;
      const T* row = row_of(r);
      smem[r * kStride + column] = row != nullptr && column < head_dim ? row[column] : T{0};
    }
    return;
  }
  constexpr int kChunks = kColumns / 8;
  const unsigned base = shared_address(smem);
  TESSERA_UNROLL
  for (int first = 0; first < 16 * kChunks; first += kNumThreads) {
    const int c = first + thread;
    if (16 * kChunks % kNumThreads != 0 && c >= 16 * kChunks) break;
    const int r = c / kChunks;
    const int column = c % kChunks * 8;
    const T* row = row_of(r);
    const bool valid = row != nullptr && column < head_dim;
    cp_async_16(base + static_cast<unsigned>(r * kStride + column) * 2, valid ? row + column : nullptr,
                valid);
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    attention_decode(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  T* q_smem = reinterpret_cast<T*>(shared_bytes);
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;
  T* stages = q_smem + kQElements + warp * kStages * kStageElements;

  const int b = p.batch_begin + block_z() / p.num_splits;
  const int split = block_z() % p.num_splits;
  const Sequence s = load_sequence(p, b);
  const int group = p.num_heads / p.num_kv_heads;
  const int pack = p.pack_heads;
  const int kv_head = pack == 1 ? block_y() / group : block_y();
  const int first_head = block_y() * pack;
  const int num_rows = s.len_q * pack;
  const int row_begin = block_x() * kBlockM;
  if (row_begin >= num_rows) return;
  const auto row_index = [&](int row) { return packed_row_index(row, pack, first_head); };

  const int last_row = minimum(row_begin + kBlockM, num_rows) - 1;
  const KeyRange first_keys = keys_of_query(p, s, row_index(row_begin).i);
  const KeyRange last_keys = keys_of_query(p, s, row_index(last_row).i);
  const int split_begin = p.num_splits > 1 ? split * p.keys_per_split : 0;
  const int split_end = p.num_splits > 1 ? minimum(split_begin + p.keys_per_split, s.len_kv) : s.len_kv;
  const int tile_begin = maximum(first_keys.begin, split_begin) / kBlockN;
  const int tile_end = (minimum(last_keys.end, split_end) + kBlockN - 1) / kBlockN;
  const int full_begin = maximum(last_keys.begin, split_begin);
  const int full_end = minimum(first_keys.end, split_end);

  int keys_begin[2];
  int keys_end[2];
  RowIndex rows[2];
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    rows[r] = row_index(minimum(row_begin + lane / 4 + 8 * r, num_rows - 1));
    const KeyRange keys = keys_of_query(p, s, rows[r].i);
    keys_begin[r] = maximum(keys.begin, split_begin);
    keys_end[r] = minimum(keys.end, split_end);
  }

  const int* block_table = kPaged ? p.block_table + b * p.block_table_stride : nullptr;
  const auto kv_base = [&](const TensorArgument& x) {
    const int64 offset =
        kPaged ? 0 : (p.cu_seqlens_kv != nullptr ? 0 : b * x.batch_stride) + s.kv_begin * x.seq_stride;
    return static_cast<const T*>(x.data) + kv_head * x.head_stride + offset;
  };
  const T* k_base = kv_base(p.k);
  const T* v_base = kv_base(p.v);
  const auto row_of_key = [&](const T* base, const TensorArgument& x, int key) -> const T* {
    if (key >= s.len_kv) return nullptr;
    if (!kPaged) return base + key * x.seq_stride;
    const int page = p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
    return base + block_table[page] * x.batch_stride + (key - page * p.page_size) * x.seq_stride;
  };
  const auto load_stage = [&](int tile) {
    if (tile < tile_end) {
      T* k_smem = stages + tile % kStages * kStageElements;
      const int first_key = tile * kBlockN + warp * kKeysPerWarp;
      load_rows<kHeadDimQk, kStrideQk, 32>(k_smem, lane, p.head_dim_qk,
                                           [&](int r) { return row_of_key(k_base, p.k, first_key + r); });
      load_rows<kHeadDimV, kStrideV, 32>(k_smem + kKeysPerWarp * kStrideQk, lane, p.head_dim_v,
                                         [&](int r) { return row_of_key(v_base, p.v, first_key + r); });
    }
    cp_async_commit();
  };

  load_rows<kHeadDimQk, kStrideQk, kThreads>(q_smem, thread_x(), p.head_dim_qk, [&](int r) -> const T* {
    if (row_begin + r >= num_rows) return nullptr;
    const RowIndex index = row_index(row_begin + r);
    return static_cast<const T*>(p.q.data) + query_offset(p, p.q, s, b, index.h, index.i);
  });
  cp_async_commit();
  TESSERA_UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) load_stage(tile_begin + stage);
  cp_async_wait<kStages - 1>();
  sync_threads();

  float o[kOutTiles][4];
  TESSERA_UNROLL
  for (int n = 0; n < kOutTiles; ++n) {
    TESSERA_UNROLL
    for (int e = 0; e < 4; ++e) o[n][e] = 0.0f;
  }
  float row_max[2] = {-infinity(), -infinity()};
  float row_sum[2] = {0.0f, 0.0f};
  const float scale = kHasTerms ? 1.0f : p.softmax_scale * kLog2E;

  const unsigned q_base =
      shared_address(q_smem) + static_cast<unsigned>(lane % 16 * kStrideQk + lane / 16 * 8) * 2;
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    // The stage that is filled next is the one that this warp finished with in the last step.
    sync_warp();
    load_stage(tile + kStages - 1);
    cp_async_wait<kStages - 1>();
    sync_warp();
    const T* k_smem = stages + tile % kStages * kStageElements;
    const T* v_smem = k_smem + kKeysPerWarp * kStrideQk;

    float scores[2][4] = {};
    const unsigned k_address =
        shared_address(k_smem) +
        static_cast<unsigned>((lane % 8 + lane / 16 * 8) * kStrideQk + lane / 8 % 2 * 8) * 2;
    TESSERA_UNROLL
    for (int k = 0; k < kHeadDimQk / 16; ++k) {
      unsigned a[4];
      unsigned bk[4];
      ldmatrix_x4(a, q_base + k * 32);
      ldmatrix_x4(bk, k_address + k * 32);
      mma_m16n8k16<T>(scores[0], a, bk[0], bk[1]);
      mma_m16n8k16<T>(scores[1], a, bk[2], bk[3]);
    }

    const int first_key = tile * kBlockN + warp * kKeysPerWarp;
    const bool needs_hiding = first_key < full_begin || first_key + kKeysPerWarp > full_end;
    TESSERA_UNROLL
    for (int n = 0; n < 2; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int j = first_key + n * 8 + lane % 4 * 2 + e % 2;
        if (kHasTerms && j < s.len_kv) {
          scores[n][e] = modified_score<TESSERA_TERMS, TESSERA_MASK_DTYPE>(p, s, scores[n][e], b,
                                                                           rows[e / 2].h, rows[e / 2].i, j) *
                         kLog2E;
        }
        if (needs_hiding && (j < keys_begin[e / 2] || j >= keys_end[e / 2])) scores[n][e] = -infinity();
      }
    }
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      float top = row_max[r];
      TESSERA_UNROLL
      for (int n = 0; n < 2; ++n) top = fmaxf(top, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float base = top == -infinity() ? 0.0f : top * scale;
      const float rescale = row_max[r] == top ? 1.0f : ex2((row_max[r] - top) * scale);
      row_max[r] = top;
      row_sum[r] *= rescale;
      TESSERA_UNROLL
      for (int n = 0; n < 2; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          scores[n][2 * r + e] = ex2(scores[n][2 * r + e] * scale - base);
          row_sum[r] += scores[n][2 * r + e];
        }
      }
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        o[n][2 * r] *= rescale;
        o[n][2 * r + 1] *= rescale;
      }
    }
    unsigned a[4];
    a[0] = cvt_x2<T>(scores[0][0], scores[0][1]);
    a[1] = cvt_x2<T>(scores[0][2], scores[0][3]);
    a[2] = cvt_x2<T>(scores[1][0], scores[1][1]);
    a[3] = cvt_x2<T>(scores[1][2], scores[1][3]);
    const unsigned v_address =
        shared_address(v_smem) + static_cast<unsigned>(lane % 16 * kStrideV + lane / 16 * 8) * 2;
    TESSERA_UNROLL
    for (int n = 0; n < kOutTiles / 2; ++n) {
      unsigned bv[4];
      ldmatrix_x4_trans(bv, v_address + n * 32);
      mma_m16n8k16<T>(o[2 * n], a, bv[0], bv[1]);
      mma_m16n8k16<T>(o[2 * n + 1], a, bv[2], bv[3]);
    }
  }
  cp_async_wait<0>();
  sync_threads();

  // Each warp leaves its rows in shared memory; all warps then merge and write, one row after another.
  float* merge = reinterpret_cast<float*>(q_smem + kQElements);
  float* own = merge + warp * kMergeFloats;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    float sum = row_sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    TESSERA_UNROLL
    for (int n = 0; n < kOutTiles; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 2; ++e) own[row * (kHeadDimV + 2) + n * 8 + lane % 4 * 2 + e] = o[n][2 * r + e];
    }
    if (lane % 4 == 0) {
      own[row * (kHeadDimV + 2) + kHeadDimV] = row_max[r] * scale;
      own[row * (kHeadDimV + 2) + kHeadDimV + 1] = sum;
    }
  }
  sync_threads();
  const bool is_partial = p.num_splits > 1;
  for (int row = warp; row < kBlockM && row_begin + row < num_rows; row += kNumWarps) {
    const RowIndex index = row_index(row_begin + row);
    float top = -infinity();
    TESSERA_UNROLL
    for (int n = 0; n < kNumWarps; ++n)
      top = fmaxf(top, merge[n * kMergeFloats + row * (kHeadDimV + 2) + kHeadDimV]);
    const bool has_keys = top != -infinity();
    float weights[kNumWarps];
    float sum = 0.0f;
    TESSERA_UNROLL
    for (int n = 0; n < kNumWarps; ++n) {
      const float* state = merge + n * kMergeFloats + row * (kHeadDimV + 2) + kHeadDimV;
      weights[n] = state[0] == -infinity() ? 0.0f : ex2(state[0] - top);
      sum += weights[n] * state[1];
    }
    const RowNorm norm = row_norm(top * kLn2, sum, sink_of_head(p, index.h));
    const int64 partial =
        static_cast<int64>(split) * p.batch * p.num_heads * p.seq_len_q + partial_row(p, b, index.h, index.i);
    bool is_nan = sum != sum;
    for (int d = lane; d < p.head_dim_v; d += 32) {
      float value = 0.0f;
      TESSERA_UNROLL
      for (int n = 0; n < kNumWarps; ++n) {
        if (weights[n] != 0.0f) value += weights[n] * merge[n * kMergeFloats + row * (kHeadDimV + 2) + d];
      }
      is_nan = is_nan || value != value;
      value = has_keys ? value * norm.factor : 0.0f;
      if (is_partial) {
        p.o_partial[partial * p.head_dim_v + d] = value;
      } else {
        static_cast<T*>(p.o.data)[query_offset(p, p.o, s, b, index.h, index.i) + d] = from_float<T>(value);
      }
    }
    if (lane == 0) {
      if (is_partial) {
        p.lse_partial[partial] = norm.lse;
      } else if (p.lse != nullptr) {
        p.lse[lse_offset(p, s, b, index.h, index.i)] = norm.lse;
      }
    }
    if (!warp_any(is_nan)) continue;
    // A hidden key's value may have been NaN: 0 * NaN. The plain loop never reads hidden values.
    const KeyRange keys = keys_of_query(p, s, index.i);
    RowState state;
    attend_row<T>(p, s, b, index.h, index.i, maximum(keys.begin, split_begin), minimum(keys.end, split_end),
                  state);
    store_row<T>(p, s, b, index.h, index.i, split, state);
  }
}
