// o = softmax(softmax_scale * q k^T + terms) v with mma.m16n8k16 and cp.async, for fp16 and bf16.
// FlashAttention-2: Dao (2023), algorithm 1; bottom-right masks and packed query heads as in its section 3.
//
// Grid: (query tiles, kv heads or query heads, batch * splits). A block of kNumWarps warps takes kBlockM
// rows; a row is a query of one head, or with pack_heads a (query, head of the group) pair, so that a group's
// heads read K and V once. Each warp has kBlockM / kNumWarps rows and all keys. K and V tiles pass through
// kStages buffers each.
//
// Defined by the build: TESSERA_DTYPE (bf16, f16), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 16;
// the tensors' own may be smaller), TESSERA_BLOCK_M, TESSERA_BLOCK_N, TESSERA_NUM_WARPS, TESSERA_STAGES,
// TESSERA_MIN_BLOCKS, TESSERA_TERMS (ScoreTermFlags), TESSERA_MASK_DTYPE (of an additive mask),
// TESSERA_PAGED, TESSERA_VECTOR (1: rows are 16-byte aligned and head_dims multiples of 8).

#include "sm80/attention_block.cuh"
#include "sm80/ptx.cuh"

namespace tessera::kernels {

using T = TESSERA_DTYPE;

constexpr int kHeadDimQk = TESSERA_HEAD_DIM_QK;
constexpr int kHeadDimV = TESSERA_HEAD_DIM_V;
constexpr int kBlockM = TESSERA_BLOCK_M;
constexpr int kBlockN = TESSERA_BLOCK_N;
constexpr int kNumWarps = TESSERA_NUM_WARPS;
constexpr int kStages = TESSERA_STAGES;
constexpr bool kHasTerms = TESSERA_TERMS != 0;
constexpr bool kPaged = TESSERA_PAGED != 0;
constexpr bool kVector = TESSERA_VECTOR != 0;
constexpr int kThreads = kNumWarps * 32;
constexpr int kRowTiles = kBlockM / kNumWarps / 16;  // 16-row tiles of a warp
constexpr int kScoreTiles = kBlockN / 8;             // 8-key tiles of a score row
constexpr int kOutTiles = kHeadDimV / 8;
// 16 bytes of padding a row make the eight rows that ldmatrix reads at once fall into different banks.
constexpr int kStrideQk = kHeadDimQk + 8;
constexpr int kStrideV = kHeadDimV + 8;
constexpr int kStrideO = kHeadDimV + 8;
constexpr int kQElements =
    kBlockM * (kStrideQk > kStrideO ? kStrideQk : kStrideO);  // o leaves through q's space
constexpr int kKElements = kBlockN * kStrideQk;
constexpr int kVElements = kBlockN * kStrideV;

static_assert(kHeadDimQk % 16 == 0 && kHeadDimV % 16 == 0, "head_dims are padded to the mma's k");
static_assert(kBlockM % (16 * kNumWarps) == 0 && kBlockN % 16 == 0, "tiles are whole mma tiles");
static_assert(kStages == 1 || kStages == 2, "the loop's waits are for one or two buffers");

/// Copies rows of q into shared memory, padded with zeros to kHeadDimQk. row_of(r) is the address of row r,
/// or null for zeros.
template <class RowOf>
TESSERA_DEVICE void load_q(T* smem, int head_dim, RowOf row_of) {
  constexpr int kElements = kVector ? 8 : 1;
  constexpr int kPieces = kHeadDimQk / kElements;
  for (int c = thread_x(); c < kBlockM * kPieces; c += kThreads) {
    const int r = c / kPieces;
    const int column = c % kPieces * kElements;
    const T* row = row_of(r);
    const bool valid = row != nullptr && column < head_dim;
    T* to = smem + r * kStrideQk + column;
    if (kVector) {
      cp_async_16(shared_address(to), valid ? row + column : nullptr, valid);
    } else {
      *to = valid ? row[column] : T{0};
    }
  }
}

/// Copies tiles of keys or values into shared memory, padded with zeros to kColumns and after the last key.
/// What a thread copies lies in one column of 16-byte chunks where the chunks of a row divide the threads;
/// then all but one addition a chunk is done here once.
template <int kColumns, int kStride>
struct TileLoader {
  static constexpr int kChunks = kColumns / 8;
  static constexpr bool kRegular = kVector && kThreads % kChunks == 0 && kBlockN % (kThreads / kChunks) == 0;
  static constexpr int kRowsPerPass = kRegular ? kThreads / kChunks : 1;

  const AttentionParams& p;
  int len_kv;
  const T*
      base;  // key 0 of the sequence and head if not paged, else page 0; regular: this thread's column of it
  const TensorArgument& x;
  const int* block_table;
  int head_dim;
  int first_row;        // regular: of this thread
  unsigned first_byte;  // regular: its place in the tile

  TESSERA_DEVICE TileLoader(const AttentionParams& params, const TensorArgument& tensor, const Sequence& s,
                            int b, int kv_head, int dim)
      : p(params), len_kv(s.len_kv), x(tensor), head_dim(dim) {
    base = static_cast<const T*>(x.data) + kv_head * x.head_stride;
    block_table = kPaged ? p.block_table + b * p.block_table_stride : nullptr;
    if (!kPaged) base += (p.cu_seqlens_kv != nullptr ? 0 : b * x.batch_stride) + s.kv_begin * x.seq_stride;
    first_row = thread_x() / kChunks;
    const int column = thread_x() % kChunks * 8;
    first_byte = static_cast<unsigned>(first_row * kStride + column) * 2;
    if (kRegular) {
      base += column;
      if (!kPaged) base += first_row * x.seq_stride;
    }
  }

  TESSERA_DEVICE const T* paged_row(int key) const {
    const int page = p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
    return base + block_table[page] * x.batch_stride + (key - page * p.page_size) * x.seq_stride;
  }

  TESSERA_DEVICE void load(T* smem, int first_key) const {
    const int valid_rows = len_kv - first_key;
    if (kRegular) {
      const bool valid_column = thread_x() % kChunks * 8 < head_dim;
      const unsigned to = shared_address(smem) + first_byte;
      const T* from = base + (kPaged ? 0 : first_key * x.seq_stride);
      TESSERA_UNROLL
      for (int pass = 0; pass < kBlockN / kRowsPerPass; ++pass) {
        const int row = first_row + pass * kRowsPerPass;
        const bool valid = valid_column && row < valid_rows;
        if (kPaged && valid) from = paged_row(first_key + row);
        cp_async_16(to + pass * kRowsPerPass * kStride * 2, from, valid);
        if (!kPaged) from += kRowsPerPass * x.seq_stride;
      }
      return;
    }
    constexpr int kElements = kVector ? 8 : 1;
    constexpr int kPieces = kColumns / kElements;
    for (int c = thread_x(); c < kBlockN * kPieces; c += kThreads) {
      const int row = c / kPieces;
      const int column = c % kPieces * kElements;
      const bool valid = column < head_dim && row < valid_rows;
      const T* from = base;
      if (valid)
        from = (kPaged ? paged_row(first_key + row) : base + (first_key + row) * x.seq_stride) + column;
      T* to = smem + row * kStride + column;
      if (kVector) {
        cp_async_16(shared_address(to), from, valid);
      } else {
        *to = valid ? *from : T{0};
      }
    }
  }
};

/// scores[m][n] (16 x 8 each) = q k^T of this warp's rows.
TESSERA_DEVICE void multiply_q_k(const T* q_smem, const T* k_smem,
                                 float (&scores)[kRowTiles][kScoreTiles][4]) {
  const int lane = thread_x() % 32;
  const int warp_row = thread_x() / 32 * (16 * kRowTiles);
  const unsigned q_base =
      shared_address(q_smem) + static_cast<unsigned>((warp_row + lane % 16) * kStrideQk + lane / 16 * 8) * 2;
  const unsigned k_base =
      shared_address(k_smem) +
      static_cast<unsigned>((lane % 8 + lane / 16 * 8) * kStrideQk + lane / 8 % 2 * 8) * 2;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < kScoreTiles; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) scores[m][n][e] = 0.0f;
    }
  }
  TESSERA_UNROLL
  for (int k = 0; k < kHeadDimQk / 16; ++k) {
    unsigned a[kRowTiles][4];
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) ldmatrix_x4(a[m], q_base + (m * 16 * kStrideQk + k * 16) * 2);
    TESSERA_UNROLL
    for (int n = 0; n < kScoreTiles / 2; ++n) {
      unsigned b[4];
      ldmatrix_x4(b, k_base + (n * 16 * kStrideQk + k * 16) * 2);
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        mma_m16n8k16<T>(scores[m][2 * n], a[m], b[0], b[1]);
        mma_m16n8k16<T>(scores[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// o += p v, p being the scores' registers after the softmax.
TESSERA_DEVICE void multiply_p_v(const float (&p)[kRowTiles][kScoreTiles][4], const T* v_smem,
                                 float (&o)[kRowTiles][kOutTiles][4]) {
  const int lane = thread_x() % 32;
  const unsigned v_base =
      shared_address(v_smem) + static_cast<unsigned>(lane % 16 * kStrideV + lane / 16 * 8) * 2;
  TESSERA_UNROLL
  for (int k = 0; k < kBlockN / 16; ++k) {
    unsigned a[kRowTiles][4];
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      a[m][0] = cvt_x2<T>(p[m][2 * k][0], p[m][2 * k][1]);
      a[m][1] = cvt_x2<T>(p[m][2 * k][2], p[m][2 * k][3]);
      a[m][2] = cvt_x2<T>(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
      a[m][3] = cvt_x2<T>(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
    }
    TESSERA_UNROLL
    for (int n = 0; n < kOutTiles / 2; ++n) {
      unsigned b[4];
      ldmatrix_x4_trans(b, v_base + (k * 16 * kStrideV + n * 16) * 2);
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        mma_m16n8k16<T>(o[m][2 * n], a[m], b[0], b[1]);
        mma_m16n8k16<T>(o[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Turns scores into exp2(scores * scale - max), updates the rows' max and sum and rescales o.
TESSERA_DEVICE void online_softmax_step(float scale, float (&scores)[kRowTiles][kScoreTiles][4],
                                        float (&row_max)[kRowTiles][2], float (&row_sum)[kRowTiles][2],
                                        float (&o)[kRowTiles][kOutTiles][4]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      float tile_max = row_max[m][r];
      TESSERA_UNROLL
      for (int n = 0; n < kScoreTiles; ++n) {
        tile_max = fmaxf(tile_max, fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
      }
      tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, 1));
      tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, 2));
      // A row that has seen no key yet keeps -inf; its exponents are taken against 0 and come to 0.
      const float base = tile_max == -infinity() ? 0.0f : tile_max * scale;
      // Exactly 1 if the maximum stays: a tile that hides all keys leaves every bit of the row as it was.
      const float rescale = row_max[m][r] == tile_max ? 1.0f : ex2((row_max[m][r] - tile_max) * scale);
      row_max[m][r] = tile_max;
      float sum = row_sum[m][r] * rescale;
      TESSERA_UNROLL
      for (int n = 0; n < kScoreTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = scores[m][n][2 * r + e];
          score = ex2(score * scale - base);
          sum += score;
        }
      }
      row_sum[m][r] = sum;
      if (warp_any(rescale != 1.0f)) {  // seldom after the first tiles
        TESSERA_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          o[m][n][2 * r] *= rescale;
          o[m][n][2 * r + 1] *= rescale;
        }
      }
    }
  }
}

/// Writes the normalised rows, or the partial results if the keys are split. Rows that came out as NaN
/// although their own keys may be finite (a hidden key's value was not) are done again one by one.
TESSERA_DEVICE void store_rows(const AttentionParams& p, const BlockWork& w, float scale, T* o_smem,
                               const float (&row_max)[kRowTiles][2], const float (&row_sum)[kRowTiles][2],
                               float (&o)[kRowTiles][kOutTiles][4]) {
  const int split_begin = p.num_splits > 1 ? w.split * p.keys_per_split : 0;
  const int split_end =
      p.num_splits > 1 ? minimum(split_begin + p.keys_per_split, w.sequence.len_kv) : w.sequence.len_kv;
  const int lane = thread_x() % 32;
  const int warp_row = thread_x() / 32 * (16 * kRowTiles);
  const bool is_partial = p.num_splits > 1;
  const int64 partial_base = static_cast<int64>(w.split) * p.batch * p.num_heads * p.seq_len_q;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sum = row_sum[m][r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const int local_row = warp_row + m * 16 + r * 8 + lane / 4;
      const int row = w.row_begin + local_row;
      const RowIndex index = row_index(w, minimum(row, w.num_rows - 1));
      const bool has_keys = row_max[m][r] != -infinity() && sum != 0.0f;
      const RowNorm norm = row_norm(row_max[m][r] * scale * kLn2, sum, sink_of_head(p, index.h));
      bool is_nan = sum != sum;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& value = o[m][n][2 * r + e];
          is_nan = is_nan || value != value;
          value = has_keys ? value * norm.factor : 0.0f;
        }
      }
      if (row < w.num_rows) {
        if (is_nan) spoilt |= 1u << (m * 2 + r);
        if (is_partial) {
          const int64 partial = partial_base + partial_row(p, w.b, index.h, index.i);
          float* out = p.o_partial + partial * p.head_dim_v;
          TESSERA_UNROLL
          for (int n = 0; n < kOutTiles; ++n) {
            TESSERA_UNROLL
            for (int e = 0; e < 2; ++e) {
              const int d = n * 8 + lane % 4 * 2 + e;
              if (d < p.head_dim_v) out[d] = o[m][n][2 * r + e];
            }
          }
          if (lane % 4 == 0) p.lse_partial[partial] = norm.lse;
        } else if (lane % 4 == 0 && p.lse != nullptr) {
          p.lse[lse_offset(p, w.sequence, w.b, index.h, index.i)] = norm.lse;
        }
      }
      if (!is_partial) {
        TESSERA_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          *reinterpret_cast<unsigned*>(o_smem + local_row * kStrideO + n * 8 + lane % 4 * 2) =
              cvt_x2<T>(o[m][n][2 * r], o[m][n][2 * r + 1]);
        }
      }
    }
  }
  sync_warp();
  if (!is_partial) {
    constexpr int kChunks = kHeadDimV / 8;
    for (int c = lane; c < 16 * kRowTiles * kChunks; c += 32) {
      const int local_row = warp_row + c / kChunks;
      const int column = c % kChunks * 8;
      const int row = w.row_begin + local_row;
      if (row >= w.num_rows || column >= p.head_dim_v) continue;
      const RowIndex index = row_index(w, row);
      T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, w.sequence, w.b, index.h, index.i) + column;
      const T* from = o_smem + local_row * kStrideO + column;
      if (kVector) {
        *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int e = 0; e < 8 && column + e < p.head_dim_v; ++e) out[e] = from[e];
      }
    }
  }
  redo_rows<T, kRowTiles>(p, w, spoilt, split_begin, split_end);
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kThreads, TESSERA_MIN_BLOCKS)
    attention_mma(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  T* q_smem = reinterpret_cast<T*>(shared_bytes);
  T* k_smem = q_smem + kQElements;
  T* v_smem = k_smem + kStages * kKElements;
  KeyRange* row_keys = reinterpret_cast<KeyRange*>(v_smem + kStages * kVElements);

  const BlockWork w = block_work<kBlockM>(p);
  if (w.row_begin >= w.num_rows) return;
  const int warp_row = w.row_begin + thread_x() / 32 * (16 * kRowTiles);

  // Keys that the block's rows see, in whole tiles counted from key 0, and of these the split's share.
  const int last_row = minimum(w.row_begin + kBlockM, w.num_rows) - 1;
  const int first_query = row_index(w, w.row_begin).i;
  const int last_query = row_index(w, last_row).i;
  const int split_begin = p.num_splits > 1 ? w.split * p.keys_per_split : 0;
  const int split_end =
      p.num_splits > 1 ? minimum(split_begin + p.keys_per_split, w.sequence.len_kv) : w.sequence.len_kv;
  const KeyRange first_keys = keys_of_query(p, w.sequence, first_query);
  const KeyRange last_keys = keys_of_query(p, w.sequence, last_query);
  const int tile_begin = maximum(first_keys.begin, split_begin) / kBlockN;
  const int tile_end = (minimum(last_keys.end, split_end) + kBlockN - 1) / kBlockN;
  // Tiles within [full_begin, full_end) keys are seen whole by every row.
  const int full_begin = maximum(last_keys.begin, split_begin);
  const int full_end = minimum(first_keys.end, split_end);

  for (int r = thread_x(); r < kBlockM; r += kThreads) {
    const KeyRange keys = keys_of_query(p, w.sequence, row_index(w, minimum(w.row_begin + r, last_row)).i);
    row_keys[r] = {maximum(keys.begin, split_begin), minimum(keys.end, split_end)};
  }

  const auto q_row = [&](int r) -> const T* {
    const int row = w.row_begin + r;
    if (row >= w.num_rows) return nullptr;
    const RowIndex index = row_index(w, row);
    return static_cast<const T*>(p.q.data) + query_offset(p, p.q, w.sequence, w.b, index.h, index.i);
  };
  const TileLoader<kHeadDimQk, kStrideQk> k_loader(p, p.k, w.sequence, w.b, w.kv_head, p.head_dim_qk);
  const TileLoader<kHeadDimV, kStrideV> v_loader(p, p.v, w.sequence, w.b, w.kv_head, p.head_dim_v);
  const auto load_k = [&](int tile) {
    if (tile < tile_end) k_loader.load(k_smem + (kStages == 2 ? (tile & 1) : 0) * kKElements, tile * kBlockN);
    cp_async_commit();
  };
  const auto load_v = [&](int tile) {
    if (tile < tile_end) v_loader.load(v_smem + (kStages == 2 ? (tile & 1) : 0) * kVElements, tile * kBlockN);
    cp_async_commit();
  };

  float o[kRowTiles][kOutTiles][4];
  float row_max[kRowTiles][2];
  float row_sum[kRowTiles][2];
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    row_max[m][0] = row_max[m][1] = -infinity();
    row_sum[m][0] = row_sum[m][1] = 0.0f;
    TESSERA_UNROLL
    for (int n = 0; n < kOutTiles; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) o[m][n][e] = 0.0f;
    }
  }
  // With terms the scores come in natural units times log2(e) already.
  const float scale = kHasTerms ? 1.0f : p.softmax_scale * kLog2E;

  if (tile_begin < tile_end) {
    load_q(q_smem, p.head_dim_qk, q_row);
    load_k(tile_begin);
    if (kStages == 2) {
      load_v(tile_begin);
      load_k(tile_begin + 1);
    }
  }
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    const int stage = kStages == 2 ? (tile & 1) : 0;
    // K of this tile is there, and everyone has finished with V of the tile before.
    cp_async_wait<kStages == 2 ? 2 : 0>();
    sync_threads();
    load_v(kStages == 2 ? tile + 1 : tile);
    float scores[kRowTiles][kScoreTiles][4];
    multiply_q_k(q_smem, k_smem + stage * kKElements, scores);
    const int key_begin = tile * kBlockN;
    if (kHasTerms) apply_terms<TESSERA_TERMS, TESSERA_MASK_DTYPE>(p, w, warp_row, key_begin, scores);
    if (key_begin < full_begin || key_begin + kBlockN > full_end) hide_keys(row_keys, key_begin, scores);
    online_softmax_step(scale, scores, row_max, row_sum, o);
    // V of this tile is there, and everyone has finished with its K.
    cp_async_wait<kStages == 2 ? 2 : 0>();
    sync_threads();
    load_k(kStages == 2 ? tile + 2 : tile + 1);
    multiply_p_v(scores, v_smem + stage * kVElements, o);
  }
  cp_async_wait<0>();
  // What the block's work is gets computed again: kept through the loop it would cost registers there.
  store_rows(p, block_work<kBlockM>(p), scale, q_smem, row_max, row_sum, o);
}
