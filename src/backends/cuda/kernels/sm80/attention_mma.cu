// o = softmax(softmax_scale * q k^T + terms) v with mma.m16n8k16 and cp.async, for fp16 and bf16.
// FlashAttention-2: Dao (2023), algorithm 1; bottom-right masks and packed query heads as in its section 3.
//
// Grid: (row tiles * heads_at_once, groups of heads_at_once heads counted through all sequences, splits), as
// block_work() of common/attention_block.cuh reads it. A block of kNumWarps warps takes kBlockM rows; a row
// is a query of one head, or with pack_heads a (query, head of the group) pair, so that a group's heads read
// K and V once. Each warp has its own rows and all keys, or with large heads two warps share their rows
// (kSharesRows). K and V tiles pass through kStages buffers each.
//
// Defined by the build: TESSERA_DTYPE (bf16, f16), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 16;
// the tensors' own may be smaller), TESSERA_BLOCK_M, TESSERA_BLOCK_N, TESSERA_NUM_WARPS, TESSERA_STAGES,
// TESSERA_MIN_BLOCKS, TESSERA_TERMS (ScoreTermFlags), TESSERA_MASK_DTYPE (of an additive mask),
// TESSERA_PAGED, TESSERA_VECTOR (1: rows are 16-byte aligned and head_dims multiples of 8), and for
// batch-invariant problems TESSERA_INVARIANT.

#include "sm80/attention_block.cuh"
#include "sm80/attention_mma_traits.h"
#include "sm80/paged_rows.cuh"
#include "sm80/ptx.cuh"

namespace tessera::kernels {

constexpr int kBlockM = TESSERA_BLOCK_M;
constexpr int kBlockN = TESSERA_BLOCK_N;
constexpr int kNumWarps = TESSERA_NUM_WARPS;
constexpr int kStages = TESSERA_STAGES;
constexpr int kThreads = kNumWarps * 32;
constexpr MmaTiles kTiles = {kBlockM, kBlockN, kNumWarps, kStages, TESSERA_MIN_BLOCKS};
constexpr MmaLayout kLayout = mma_layout(kTiles, kHeadDimQk, kHeadDimV);
constexpr bool kSharesRows = kLayout.shares_rows;
constexpr int kWarpColumns = kSharesRows ? 2 : 1;
constexpr int kWarpRows = kBlockM / kNumWarps * kWarpColumns;
// Keys whose scores a warp holds at once. Half a tile leaves registers for a third block where heads are
// small.
constexpr int kChunkKeys =
    kHeadDimQk <= 64 && kHeadDimV <= 64 && kStages == 2 && kBlockN % 32 == 0 ? 32 : kBlockN;
// With the rows shared the next tile is asked for after the first product: its copies would stand before the
// product's operands in the queue to shared memory. Elsewhere the registers for that spill.
constexpr bool kLoadsLate = kSharesRows && kStages == 2;
// Two buffers of large heads: warps wait for one another's copies and reads of a buffer only, by barriers of
// its own, so that one may be some of a tile ahead of another. Three blocks of small heads hide what that
// saves; blocks that may start over do without, because the barriers would be in an unknown phase.
constexpr bool kBufferBarriers = !kInvariant && kStages == 2 && (kHeadDimQk > 64 || kHeadDimV > 64);
constexpr int kWarpKeys = kChunkKeys / kWarpColumns;
constexpr int kWarpDims = kHeadDimV / kWarpColumns;
constexpr int kRowTiles = kWarpRows / 16;   // 16-row tiles of a warp
constexpr int kScoreTiles = kWarpKeys / 8;  // 8-key tiles of a score row
constexpr int kOutTiles = kWarpDims / 8;
constexpr int kStrideQk = kLayout.stride_qk;
constexpr int kStrideV = kLayout.stride_v;
constexpr int kStrideO = kLayout.stride_v;
constexpr int kStrideP = kLayout.stride_p;

static_assert(kHeadDimQk % 16 == 0 && kHeadDimV % 16 == 0, "head_dims are padded to the mma's k");
static_assert(kBlockM % (16 * kNumWarps) == 0 && kBlockN % 16 == 0, "tiles are whole mma tiles");
static_assert(kBlockN % kChunkKeys == 0 && (kStages == 2 || kChunkKeys == kBlockN), "tiles are whole chunks");
static_assert(kStages == 1 || kStages == 2, "the loop's waits are for one or two buffers");

TESSERA_DEVICE int warp_index() { return thread_x() / 32; }
/// First of this warp's rows in the block, and what of keys and columns is its own.
TESSERA_DEVICE int warp_first_row() { return warp_index() / kWarpColumns * kWarpRows; }
TESSERA_DEVICE int warp_column() { return kSharesRows ? warp_index() % 2 : 0; }

/// Waits for the warps that share this warp's rows.
TESSERA_DEVICE void sync_rows() {
  if (kSharesRows) {
    named_barrier_sync(1 + warp_index() / 2, 64);
  } else {
    sync_warp();
  }
}

/// Whether `value` holds in any thread of the warps that share this warp's rows.
TESSERA_DEVICE bool rows_any(bool value) {
  return kSharesRows ? named_barrier_any(1 + warp_index() / 2, 64, value) : warp_any(value);
}

/// The barriers of the two buffers of K and V, in shared memory: when a tile's copies are there, and when all
/// threads have read it.
struct BufferBarriers {
  unsigned long long filled[2];
  unsigned long long emptied[2];
};

/// Waits for the end of the phase that `use` (counted from 0) of the barrier's buffer belongs to.
TESSERA_DEVICE void wait_for_use(const unsigned long long& barrier, int use) {
  const unsigned address = shared_address(&barrier);
  while (!mbarrier_has_ended(address, use & 1)) {
  }
}

/// Arrives at a buffer's `filled` once this thread's copies are done.
TESSERA_DEVICE void arrive_when_copied(const unsigned long long& barrier) {
  if (kVector) {
    cp_async_mbarrier_arrive(shared_address(&barrier));
  } else {
    mbarrier_arrive(shared_address(&barrier));
  }
}

/// What a block keeps in shared memory beside its tiles.
struct BlockState {
  BufferBarriers buffers;
  BlockWork work;  // not in registers, which the loop needs
};
static_assert(sizeof(BlockState) == kMmaStateBytes, "mma_shared_bytes counts its bytes");

/// This block's row r of q or o, as far as it is a row of the problem.
TESSERA_DEVICE T* row_of(const AttentionParams& p, const TensorArgument& x, const BlockWork& w, int r) {
  const RowIndex index = row_index(w, w.row_begin + r);
  return static_cast<T*>(x.data) + query_offset(p, x, w.sequence, w.b, index.h, index.i);
}

/// Which 16-byte chunks of a tile of kRows rows a thread copies: chunks kThreadsPerRow apart in every
/// kRowsPerPass-th row. Neighbouring threads take neighbouring chunks, and a thread's next row is one
/// addition away, its other chunks of the row none.
template <int kColumns, int kRows>
struct TileChunks {
  static constexpr int kChunks = kColumns / 8;
  static constexpr int kThreadsPerRow = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  static constexpr int kPerThread = kChunks / kThreadsPerRow;
  static constexpr int kRowsPerPass = kThreads / kThreadsPerRow;
  static constexpr bool kRegular = kVector && kRows % kRowsPerPass == 0;

  static TESSERA_DEVICE int first_row() { return thread_x() / kThreadsPerRow; }
  static TESSERA_DEVICE int first_column() { return thread_x() % kThreadsPerRow * 8; }

  /// Copies row `from` to `to` (both of this thread's first chunk), as far as it is valid and below head_dim:
  /// that is padded to 16, so that only the row's last chunk can be padding.
  static TESSERA_DEVICE void copy_row(unsigned to, const T* from, bool valid, bool last_is_padding) {
    TESSERA_UNROLL
    for (int n = 0; n < kPerThread; ++n) {
      cp_async_16(to + n * kThreadsPerRow * 16, from + n * kThreadsPerRow * 8,
                  n + 1 < kPerThread ? valid : valid && !last_is_padding);
    }
  }
  static TESSERA_DEVICE bool last_is_padding(int head_dim) {
    return first_column() + (kPerThread - 1) * kThreadsPerRow * 8 >= head_dim;
  }
};

/// Copies the block's rows of q into shared memory, padded with zeros to kHeadDimQk and after the last row.
TESSERA_DEVICE void load_q(const AttentionParams& p, const BlockWork& w, T* smem) {
  using Chunks = TileChunks<kHeadDimQk, kBlockM>;
  if (Chunks::kRegular && w.pack == 1) {
    const T* from = row_of(p, p.q, w, Chunks::first_row()) + Chunks::first_column();
    const unsigned to = shared_address(smem + Chunks::first_row() * kStrideQk + Chunks::first_column());
    const int valid_rows = w.num_rows - w.row_begin - Chunks::first_row();
    const bool last_is_padding = Chunks::last_is_padding(p.head_dim_qk);
    TESSERA_UNROLL
    for (int r = 0; r < kBlockM; r += Chunks::kRowsPerPass) {
      Chunks::copy_row(to + static_cast<unsigned>(r * kStrideQk) * 2, from, r < valid_rows, last_is_padding);
      from += Chunks::kRowsPerPass * p.q.seq_stride;
    }
    return;
  }
  constexpr int kElements = kVector ? 8 : 1;
  constexpr int kPieces = kHeadDimQk / kElements;
  for (int c = thread_x(); c < kBlockM * kPieces; c += kThreads) {
    const int r = c / kPieces;
    const int column = c % kPieces * kElements;
    const bool valid = w.row_begin + r < w.num_rows && column < p.head_dim_qk;
    const T* from = valid ? row_of(p, p.q, w, r) + column : static_cast<const T*>(p.q.data);
    T* to = smem + r * kStrideQk + column;
    if (kVector) {
      cp_async_16(shared_address(to), from, valid);
    } else {
      *to = valid ? *from : T{0};
    }
  }
}

/// Copies one tile of keys or values after the other into shared memory, padded with zeros to kColumns and
/// after the last key.
template <int kColumns, int kStride>
struct TileLoader {
  using Chunks = TileChunks<kColumns, kBlockN>;

  const AttentionParams& p;
  const TensorArgument& x;
  // Not paged: the sequence's key 0 of the head, or if regular this thread's part of the next tile. Paged:
  // page 0.
  const T* from;
  const int* block_table;
  unsigned to;  // regular: of this thread's first chunk in the first buffer
  int len_kv;
  int head_dim;
  bool last_is_padding;

  TESSERA_DEVICE TileLoader(const AttentionParams& params, const TensorArgument& tensor, const Sequence& s,
                            int b, int kv_head, int dim, T* smem, int first_key, int end_key)
      : p(params), x(tensor), to(shared_address(smem)), len_kv(minimum(s.len_kv, end_key)), head_dim(dim) {
    from = static_cast<const T*>(x.data) + kv_head * x.head_stride;
    block_table = kPaged ? p.block_table + b * p.block_table_stride : nullptr;
    if (!kPaged) from += (p.cu_seqlens_kv != nullptr ? 0 : b * x.batch_stride) + s.kv_begin * x.seq_stride;
    last_is_padding = Chunks::last_is_padding(dim);
    if (Chunks::kRegular) {
      if (!kPaged) from += (first_key + Chunks::first_row()) * x.seq_stride + Chunks::first_column();
      to += static_cast<unsigned>(Chunks::first_row() * kStride + Chunks::first_column()) * 2;
    }
  }

  TESSERA_DEVICE const T* paged_row(int key) const {
    return from + look_up_page(p, block_table, key, len_kv) * x.batch_stride +
           token_in_page(p, key) * x.seq_stride;
  }

  /// Of pages: the threads of a row look up one each of the rows that they copy, and have its address.
  TESSERA_DEVICE void load_paged(unsigned offset_bytes, int first_key) const {
    constexpr int kLanesOfRow = Chunks::kThreadsPerRow;
    constexpr int kPasses = kBlockN / Chunks::kRowsPerPass;
    constexpr int kAtOnce = kPasses < kLanesOfRow ? kPasses : kLanesOfRow;
    const int first = first_key + Chunks::first_row();
    TESSERA_UNROLL
    for (int done = 0; done < kPasses; done += kAtOnce) {
      const int own = (done + thread_x() % kLanesOfRow % kAtOnce) * Chunks::kRowsPerPass;
      const auto own_row = reinterpret_cast<unsigned long long>(paged_row(first + own));
      TESSERA_UNROLL
      for (int pass = done; pass < done + kAtOnce && pass < kPasses; ++pass) {
        const int r = pass * Chunks::kRowsPerPass;
        const auto* row =
            reinterpret_cast<const T*>(__shfl_sync(0xffffffffu, own_row, pass - done, kLanesOfRow));
        Chunks::copy_row(to + offset_bytes + r * kStride * 2, row + Chunks::first_column(),
                         first + r < len_kv, last_is_padding);
      }
    }
  }

  /// The tile that starts at first_key, into the buffer `offset_bytes` after the first. Tiles come in order.
  TESSERA_DEVICE void load(unsigned offset_bytes, int first_key) {
    if constexpr (Chunks::kRegular && kPaged) {
      load_paged(offset_bytes, first_key);
      return;
    }
    if (Chunks::kRegular) {
      const int first = first_key + Chunks::first_row();
      const int64 step = Chunks::kRowsPerPass * x.seq_stride;
      TESSERA_UNROLL
      for (int r = 0; r < kBlockN; r += Chunks::kRowsPerPass) {
        Chunks::copy_row(to + offset_bytes + r * kStride * 2, from, first + r < len_kv, last_is_padding);
        from += step;
      }
      return;
    }
    constexpr int kElements = kVector ? 8 : 1;
    constexpr int kPieces = kColumns / kElements;
    for (int c = thread_x(); c < kBlockN * kPieces; c += kThreads) {
      const int row = c / kPieces;
      const int column = c % kPieces * kElements;
      const int key = first_key + row;
      const bool valid = column < head_dim && key < len_kv;
      const T* source = from;
      if (valid) source = (kPaged ? paged_row(key) : from + key * x.seq_stride) + column;
      const unsigned target = to + offset_bytes + static_cast<unsigned>(row * kStride + column) * 2;
      if (kVector) {
        cp_async_16(target, source, valid);
      } else {
        store_shared_16(target, valid ? source->bits : 0);
      }
    }
  }
};

/// Stores a tile of values with 0 in place of infinities and NaN, for the few blocks that meet some.
TESSERA_DEVICE void load_finite_values(const AttentionParams& p, const BlockWork& w, T* smem, int first_key,
                                       int end_key) {
  const int len_kv = minimum(w.sequence.len_kv, end_key);
  for (int c = thread_x(); c < kBlockN * kHeadDimV; c += kThreads) {
    const int row = c / kHeadDimV;
    const int column = c % kHeadDimV;
    T value{0};
    if (first_key + row < len_kv && column < p.head_dim_v) {
      value = kv_row<T>(p, p.v, w.sequence, w.b, w.kv_head, first_key + row)[column];
      if (to_float(value) * 0.0f != 0.0f) value = T{0};
    }
    smem[row * kStrideV + column] = value;
  }
}

/// scores[m][n] (16 x 8 each) = q k^T of this warp's rows and its keys among those at k_smem.
TESSERA_DEVICE void multiply_q_k(const T* q_smem, const T* k_smem,
                                 float (&scores)[kRowTiles][kScoreTiles][4]) {
  const int lane = thread_x() % 32;
  const unsigned q_base =
      shared_address(q_smem) +
      static_cast<unsigned>((warp_first_row() + lane % 16) * kStrideQk + lane / 16 * 8) * 2;
  const int first_key = warp_column() * kWarpKeys;
  const unsigned k_base =
      shared_address(k_smem) +
      static_cast<unsigned>((first_key + lane % 8 + lane / 16 * 8) * kStrideQk + lane / 8 % 2 * 8) * 2;
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

/// Joins a value a row with that of the other warp of the same rows. All lanes of a row hold the same value.
template <class Join>
TESSERA_DEVICE void share_with_rows(float2* row_pairs, float (&value)[kRowTiles][2], Join join) {
  const int lane = thread_x() % 32;
  float2* own = row_pairs + warp_first_row() + lane / 4;
  sync_rows();
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    if (lane % 4 == 0) (warp_column() == 0 ? own[8 * i].x : own[8 * i].y) = value[i / 2][i % 2];
  }
  sync_rows();
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) value[i / 2][i % 2] = join(own[8 * i].x, own[8 * i].y);
}

// row_base: what a row's exponents are taken against, in units of log2. It stays where it is until the
// weights grow too large; then it becomes the row's largest score, and sums and o are rescaled. Each row
// decides for itself, so that its bits do not depend on the rows beside it.

/// How far (in powers of two) a row's scores may rise above its base. Weights up to 2^8 lose nothing: f16
/// holds them, and the sums are fp32.
constexpr float kMaxRise = 8.0f;
constexpr float kMostWeights = 256.0f;  // 2^kMaxRise
/// A row's base before its first key: the weight of any score above it is infinite, which is too large.
constexpr float kLowestBase = -3.402823466e+38f;

/// The rows' largest scores from score tile `first` on.
TESSERA_DEVICE void top_scores(int first, const float (&scores)[kRowTiles][kScoreTiles][4],
                               float (&top)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      // Two chains of comparisons, which do not wait for each other.
      float even = scores[m][first][2 * r];
      float odd = scores[m][first][2 * r + 1];
      TESSERA_UNROLL
      for (int n = first + 1; n < kScoreTiles; ++n) {
        even = fmaxf(even, scores[m][n][2 * r]);
        odd = fmaxf(odd, scores[m][n][2 * r + 1]);
      }
      top[m][r] = fmaxf(even, odd);
    }
  }
}

/// The largest of the four lanes that hold a row.
TESSERA_DEVICE void join_lanes(float (&value)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      value[m][r] = fmaxf(value[m][r], __shfl_xor_sync(0xffffffffu, value[m][r], 1));
      value[m][r] = fmaxf(value[m][r], __shfl_xor_sync(0xffffffffu, value[m][r], 2));
    }
  }
}

/// Makes the largest score the base of the rows to raise.
TESSERA_DEVICE void raise_base(float scale, const float (&top)[kRowTiles][2],
                               const bool (&raise)[kRowTiles][2], float (&row_base)[kRowTiles][2],
                               float (&row_sum)[kRowTiles][2], float (&o)[kRowTiles][kOutTiles][4]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float base = raise[m][r] ? top[m][r] * scale : row_base[m][r];
      const float rescale = raise[m][r] ? ex2(row_base[m][r] - base) : 1.0f;
      row_base[m][r] = base;
      row_sum[m][r] *= rescale;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        o[m][n][2 * r] *= rescale;
        o[m][n][2 * r + 1] *= rescale;
      }
    }
  }
}

/// For rows that two warps share: decides by the scores, before there are weights to hand over.
TESSERA_DEVICE void raise_shared_base(float scale, const float (&scores)[kRowTiles][kScoreTiles][4],
                                      float2* row_pairs, float (&row_base)[kRowTiles][2],
                                      float (&row_sum)[kRowTiles][2], float (&o)[kRowTiles][kOutTiles][4]) {
  float top[kRowTiles][2];
  bool raise[kRowTiles][2];
  top_scores(0, scores, top);
  bool any = false;
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i)
    any = any || fmaf(top[i / 2][i % 2], scale, -row_base[i / 2][i % 2]) > kMaxRise;
  if (!rows_any(any)) return;  // nearly always after the first tile
  join_lanes(top);
  share_with_rows(row_pairs, top, [](float a, float b) { return fmaxf(a, b); });
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i)
    raise[i / 2][i % 2] = fmaf(top[i / 2][i % 2], scale, -row_base[i / 2][i % 2]) > kMaxRise;
  raise_base(scale, top, raise, row_base, row_sum, o);
}

/// exp2(scores * scale - base) of 16 keys as fragments, and this lane's part of the rows' sums.
TESSERA_DEVICE void weigh(int k, float scale, const float (&scores)[kRowTiles][kScoreTiles][4],
                          const float (&row_base)[kRowTiles][2], float (&part)[kRowTiles][2],
                          unsigned (&weights)[kRowTiles][4]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sums[2];
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float* s = &scores[m][2 * k + half][2 * r];
        const float low = ex2(fmaf(s[0], scale, -row_base[m][r]));
        const float high = ex2(fmaf(s[1], scale, -row_base[m][r]));
        sums[half] = low + high;
        weights[m][2 * half + r] = cvt_x2<T>(low, high);
      }
      part[m][r] = sums[0] + sums[1];
    }
  }
}

TESSERA_DEVICE void add_to_sums(const float (&part)[kRowTiles][2], float (&row_sum)[kRowTiles][2]) {
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) row_sum[i / 2][i % 2] += part[i / 2][i % 2];
}

/// Adds the sums of 16 keys' weights. Where they are too large, raises the base and weighs the keys again:
/// looking at sums, which are needed anyway, saves comparing every score.
TESSERA_DEVICE void settle(int k, float scale, const float (&scores)[kRowTiles][kScoreTiles][4],
                           float (&part)[kRowTiles][2], unsigned (&weights)[kRowTiles][4],
                           float (&row_base)[kRowTiles][2], float (&row_sum)[kRowTiles][2],
                           float (&o)[kRowTiles][kOutTiles][4]) {
  float most = part[0][0];
  TESSERA_UNROLL
  for (int i = 1; i < 2 * kRowTiles; ++i) most = fmaxf(most, part[i / 2][i % 2]);
  if (warp_any(most > kMostWeights)) {  // seldom after the first tile
    float top[kRowTiles][2];
    bool raise[kRowTiles][2];
    top_scores(2 * k, scores, top);
    join_lanes(top);
    join_lanes(part);
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kRowTiles; ++i) raise[i / 2][i % 2] = part[i / 2][i % 2] > kMostWeights;
    raise_base(scale, top, raise, row_base, row_sum, o);
    weigh(k, scale, scores, row_base, part, weights);
  }
  add_to_sums(part, row_sum);
}

/// o += weights v for 16 keys. v_address: of this lane's part of the first of them.
TESSERA_DEVICE void multiply_p_v(const unsigned (&weights)[kRowTiles][4], unsigned v_address,
                                 float (&o)[kRowTiles][kOutTiles][4]) {
  TESSERA_UNROLL
  for (int n = 0; n < kOutTiles / 2; ++n) {
    unsigned b[4];
    ldmatrix_x4_trans(b, v_address + n * 32);
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      mma_m16n8k16<T>(o[m][2 * n], weights[m], b[0], b[1]);
      mma_m16n8k16<T>(o[m][2 * n + 1], weights[m], b[2], b[3]);
    }
  }
}

/// Leaves this warp's weights for the other warp of its rows.
TESSERA_DEVICE void store_weights(const unsigned (&weights)[kScoreTiles / 2][kRowTiles][4], T* p_smem) {
  const int lane = thread_x() % 32;
  T* own = p_smem + (warp_first_row() + lane / 4) * kStrideP + warp_column() * kWarpKeys + lane % 4 * 2;
  TESSERA_UNROLL
  for (int k = 0; k < kScoreTiles / 2; ++k) {
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<unsigned*>(own + (m * 16 + i % 2 * 8) * kStrideP + k * 16 + i / 2 * 8) =
            weights[k][m][i];
      }
    }
  }
}

/// Where a split's results of a row are.
TESSERA_DEVICE int64 partial_of(const AttentionParams& p, const BlockWork& w, const RowIndex& index) {
  return static_cast<int64>(w.split) * p.batch * p.num_heads * p.seq_len_q +
         partial_row(p, w.b, index.h, index.i);
}

/// What the rows' o is multiplied by: 1 / sum, with a sink's part if there is one. Writes lse where it is
/// wanted.
TESSERA_DEVICE void norm_rows(const AttentionParams& p, const BlockWork& w,
                              const float (&row_base)[kRowTiles][2], const float (&sums)[kRowTiles][2],
                              float (&factors)[kRowTiles][2]) {
  const int lane = thread_x() % 32;
  const bool is_partial = p.num_splits > 1;
  const bool plain = !is_partial && p.lse.data == nullptr && p.sinks == nullptr;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float max = row_base[m][r] * kLn2;
      factors[m][r] = row_norm(max, sums[m][r], nullptr).factor;
      if (plain) continue;
      const int row = w.row_begin + warp_first_row() + m * 16 + r * 8 + lane / 4;
      const RowIndex index = row_index(w, minimum(row, w.num_rows - 1));
      const RowNorm norm = row_norm(max, sums[m][r], sink_of_head(p, index.h));
      factors[m][r] = norm.factor;
      if (row >= w.num_rows || lane % 4 != 0 || warp_column() != 0) continue;
      if (is_partial) {
        p.lse_partial[partial_of(p, w, index)] = norm.lse;
      } else if (p.lse.data != nullptr) {
        p.lse.data[lse_offset(p, w.sequence, w.b, index.h, index.i)] = norm.lse;
      }
    }
  }
}

/// Leaves the finished rows in shared memory. Bit m * 2 + r of the result: some value of the row is NaN, or
/// infinite, which the plain loop then finds again.
TESSERA_DEVICE unsigned stage_rows(T* o_smem, const float (&factors)[kRowTiles][2],
                                   const float (&o)[kRowTiles][kOutTiles][4]) {
  const int lane = thread_x() % 32;
  T* to = o_smem + (warp_first_row() + lane / 4) * kStrideO + warp_column() * kWarpDims + lane % 4 * 2;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      unsigned probe = 0;  // stays zeros of either sign
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        const unsigned pair = cvt_x2<T>(o[m][n][2 * r] * factors[m][r], o[m][n][2 * r + 1] * factors[m][r]);
        probe = fma_x2<T>(pair, 0, probe);
        *reinterpret_cast<unsigned*>(to + (m * 16 + r * 8) * kStrideO + n * 8) = pair;
      }
      if ((probe & 0x7fff7fffu) != 0) spoilt |= 1u << (m * 2 + r);
    }
  }
  return spoilt;
}

/// From shared memory to the tensor.
TESSERA_DEVICE void copy_rows(const AttentionParams& p, const BlockWork& w, const T* o_smem) {
  constexpr int kChunks = kWarpDims / 8;
  const int lane = thread_x() % 32;
  const int warp_row = warp_first_row();
  const int first_column = warp_column() * kWarpDims;
  if (kVector && 32 % kChunks == 0 && w.pack == 1) {
    const int column = first_column + lane % kChunks * 8;
    const int first_row = warp_row + lane / kChunks;
    const int valid_rows = column < p.head_dim_v ? w.num_rows - w.row_begin : 0;
    T* out = row_of(p, p.o, w, first_row) + column;
    const T* from = o_smem + first_row * kStrideO + column;
    TESSERA_UNROLL
    for (int r = 0; r < kWarpRows; r += 32 / kChunks) {
      if (first_row + r < valid_rows) {
        *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from + r * kStrideO);
      }
      out += 32 / kChunks * p.o.seq_stride;
    }
    return;
  }
  for (int c = lane; c < kWarpRows * kChunks; c += 32) {
    const int local_row = warp_row + c / kChunks;
    const int column = first_column + c % kChunks * 8;
    const int row = w.row_begin + local_row;
    if (row >= w.num_rows || column >= p.head_dim_v) continue;
    T* out = row_of(p, p.o, w, local_row) + column;
    const T* from = o_smem + local_row * kStrideO + column;
    if (kVector) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int e = 0; e < 8 && column + e < p.head_dim_v; ++e) out[e] = from[e];
    }
  }
}

/// Writes the rows of a split of the keys; the result is that of stage_rows.
TESSERA_DEVICE unsigned store_partial_rows(const AttentionParams& p, const BlockWork& w,
                                           const float (&factors)[kRowTiles][2],
                                           const float (&o)[kRowTiles][kOutTiles][4]) {
  const int lane = thread_x() % 32;
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = w.row_begin + warp_first_row() + m * 16 + r * 8 + lane / 4;
      if (row >= w.num_rows) continue;
      float* out = p.o_partial + partial_of(p, w, row_index(w, row)) * p.head_dim_v;
      float probe = 0.0f;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int d = warp_column() * kWarpDims + n * 8 + lane % 4 * 2 + e;
          const float value = o[m][n][2 * r + e] * factors[m][r];
          probe += value * 0.0f;
          if (d < p.head_dim_v) out[d] = value;
        }
      }
      if (probe != probe) spoilt |= 1u << (m * 2 + r);
    }
  }
  return spoilt;
}

/// Writes the normalised rows, or the partial results if the keys are split. Bit m * 2 + r of the result: the
/// row came out as NaN or infinite although its own keys may be finite (a hidden key's value was not). Of
/// warps that share rows the first alone says so.
TESSERA_DEVICE unsigned store_rows(const AttentionParams& p, const BlockWork& w, T* o_smem, float2* row_pairs,
                                   const float (&row_base)[kRowTiles][2],
                                   const float (&row_sum)[kRowTiles][2],
                                   const float (&o)[kRowTiles][kOutTiles][4]) {
  float sums[kRowTiles][2];
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      sums[m][r] = row_sum[m][r];
      sums[m][r] += __shfl_xor_sync(0xffffffffu, sums[m][r], 1);
      sums[m][r] += __shfl_xor_sync(0xffffffffu, sums[m][r], 2);
    }
  }
  if (kSharesRows) share_with_rows(row_pairs, sums, [](float a, float b) { return a + b; });
  float factors[kRowTiles][2];
  norm_rows(p, w, row_base, sums, factors);
  // A base above 2^24 is off by rounding so much that even its own score's weight, else 1, may be small: NaN,
  // so that the row is found spoilt.
  TESSERA_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    if (sums[i / 2][i % 2] < 0.5f && row_base[i / 2][i % 2] != kLowestBase)
      factors[i / 2][i % 2] = float_of_bits(0x7fffffffu);
  }
  unsigned spoilt = 0;
  if (p.num_splits > 1) {
    spoilt = store_partial_rows(p, w, factors, o);
  } else {
    // o goes where q was: the warp's own rows, or if the rows have another length, others' too.
    if (kStrideQk == kStrideO) {
      sync_warp();
    } else {
      sync_threads();
    }
    spoilt = stage_rows(o_smem, factors, o);
    sync_warp();
    copy_rows(p, w, o_smem);
  }
  if (kSharesRows) {
    if (!rows_any(spoilt != 0)) return 0;
    // Each warp has looked at its own columns; one of them does the rows again.
    spoilt = join_found(spoilt);
    float bits[kRowTiles][2];
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kRowTiles; ++i) bits[i / 2][i % 2] = (spoilt >> i & 1u) != 0 ? 1.0f : 0.0f;
    share_with_rows(row_pairs, bits, [](float a, float b) { return fmaxf(a, b); });
    if (warp_column() != 0) return 0;
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kRowTiles; ++i) spoilt |= bits[i / 2][i % 2] != 0.0f ? 1u << i : 0u;
  }
  return spoilt;
}

/// Does spoilt rows again.
TESSERA_DEVICE void redo_spoilt_rows(const AttentionParams& p, const BlockWork& w, unsigned spoilt,
                                     unsigned cleaned) {
  const int split_begin = p.num_splits > 1 ? w.split * p.keys_per_split : 0;
  const int split_end =
      p.num_splits > 1 ? minimum(split_begin + p.keys_per_split, w.sequence.len_kv) : w.sequence.len_kv;
  redo_rows<T, kRowTiles>(p, w, spoilt, cleaned, split_begin, split_end, warp_first_row());
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kThreads, TESSERA_MIN_BLOCKS)
    attention_mma(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  T* q_smem = reinterpret_cast<T*>(shared_bytes);
  T* k_smem = q_smem + kLayout.q;
  T* v_smem = k_smem + kStages * kLayout.k;
  T* p_smem = v_smem + kStages * kLayout.v;
  BlockState& state = *reinterpret_cast<BlockState*>(p_smem + kLayout.p);
  KeyRange* row_keys = reinterpret_cast<KeyRange*>(&state + 1);
  float2* row_pairs = reinterpret_cast<float2*>(row_keys + kBlockM);

  const BlockWork w = block_work<kBlockM>(p);
  if (w.row_begin >= w.num_rows) return;
  const int warp_row = w.row_begin + warp_first_row();

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

  unsigned first_spoilt = 0;
  for (int pass = 0; pass < kMostPasses; ++pass) {
    TileLoader<kHeadDimQk, kStrideQk> k_loader(p, p.k, w.sequence, w.b, w.kv_head, p.head_dim_qk, k_smem,
                                               tile_begin * kBlockN, tile_end * kBlockN);
    TileLoader<kHeadDimV, kStrideV> v_loader(p, p.v, w.sequence, w.b, w.kv_head, p.head_dim_v, v_smem,
                                             tile_begin * kBlockN, tile_end * kBlockN);
    const auto load_k = [&](int step) {
      k_loader.load(kStages == 2 ? (step & 1) * (kLayout.k * 2) : 0, (tile_begin + step) * kBlockN);
      cp_async_commit();
    };
    const auto load_v = [&](int step) {
      if (kInvariant && pass > 0) {
        load_finite_values(p, state.work, v_smem + (kStages == 2 ? (step & 1) * kLayout.v : 0),
                           (tile_begin + step) * kBlockN, tile_end * kBlockN);
      } else {
        v_loader.load(kStages == 2 ? (step & 1) * (kLayout.v * 2) : 0, (tile_begin + step) * kBlockN);
      }
      cp_async_commit();
    };
    // Both of the tile after `step`, into the buffer of the one before it.
    const auto load_next = [&](int step) {
      const int buffer = (step + 1) & 1;
      if (kBufferBarriers && step > 0) wait_for_use(state.buffers.emptied[buffer], (step - 1) >> 1);
      load_k(step + 1);
      load_v(step + 1);
      if (kBufferBarriers) arrive_when_copied(state.buffers.filled[buffer]);
    };

    float o[kRowTiles][kOutTiles][4];
    float row_base[kRowTiles][2];
    float row_sum[kRowTiles][2];
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      row_base[m][0] = row_base[m][1] = kLowestBase;
      row_sum[m][0] = row_sum[m][1] = 0.0f;
      TESSERA_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        TESSERA_UNROLL
        for (int e = 0; e < 4; ++e) o[m][n][e] = 0.0f;
      }
    }
    // With terms the scores come in natural units times log2(e) already.
    const float scale = kHasTerms ? 1.0f : p.softmax_scale * kLog2E;

    const int local_row = warp_first_row();
    const int lane = thread_x() % 32;
    const auto v_lane =
        static_cast<unsigned>(lane % 16 * kStrideV + warp_column() * kWarpDims + lane / 16 * 8) * 2;
    const auto p_lane = static_cast<unsigned>((local_row + lane % 16) * kStrideP + lane / 16 * 8) * 2;
    const int num_steps = tile_end - tile_begin;
    if (num_steps > 0) {
      load_q(p, w, q_smem);
      load_k(0);
      if (kStages == 2) load_v(0);
    }
    if (thread_x() == 0 && pass == 0) {  // a second pass reads it from its first tile on
      state.work = w;
      for (int buffer = 0; kBufferBarriers && buffer < 2; ++buffer) {
        mbarrier_init(shared_address(&state.buffers.filled[buffer]), kThreads);
        mbarrier_init(shared_address(&state.buffers.emptied[buffer]), kThreads);
      }
    }
    for (int r = thread_x(); r < kBlockM; r += kThreads) {
      const KeyRange keys = keys_of_query(p, w.sequence, row_index(w, minimum(w.row_begin + r, last_row)).i);
      row_keys[r] = {maximum(keys.begin, split_begin), minimum(keys.end, split_end)};
    }
    sync_threads();
    if (kBufferBarriers) arrive_when_copied(state.buffers.filled[0]);
    for (int step = 0; step < num_steps; ++step) {
      const int stage = kStages == 2 ? (step & 1) : 0;
      if (kBufferBarriers) {
        wait_for_use(state.buffers.filled[stage], step >> 1);
      } else {
        // Two buffers: K and V of this tile are there, and everyone has finished with the tile before. One: K
        // is there, and everyone has finished with V of the tile before.
        cp_async_wait<0>();
        sync_threads();
      }
      if (kStages == 1) {
        load_v(step);
      } else if (!kLoadsLate && step + 1 < num_steps) {
        load_next(step);
      }
      TESSERA_UNROLL
      for (int chunk = 0; chunk < kBlockN; chunk += kChunkKeys) {
        const int key_begin = (tile_begin + step) * kBlockN + chunk;
        const bool whole = key_begin >= full_begin && key_begin + kChunkKeys <= full_end;
        // Near a diagonal some warps' rows see nothing of these keys. The warps that share rows agree.
        const bool seen = whole || (key_begin < row_keys[local_row + kWarpRows - 1].end &&
                                    key_begin + kChunkKeys > row_keys[local_row].begin);
        float scores[kRowTiles][kScoreTiles][4];
        unsigned weights[kScoreTiles / 2][kRowTiles][4];
        float part[kRowTiles][2];
        if (seen) multiply_q_k(q_smem, k_smem + stage * kLayout.k + chunk * kStrideQk, scores);
        if (kLoadsLate) load_next(step);  // of no key behind the last tile
        if (seen) {
          const int own_key = key_begin + warp_column() * kWarpKeys;
          if (kHasTerms) apply_terms<TESSERA_TERMS, TESSERA_MASK_DTYPE>(p, w, warp_row, own_key, scores);
          if (!whole) hide_keys(row_keys, own_key, scores, local_row);
          if (kSharesRows) {
            raise_shared_base(scale, scores, row_pairs, row_base, row_sum, o);
            TESSERA_UNROLL
            for (int k = 0; k < kScoreTiles / 2; ++k) {
              weigh(k, scale, scores, row_base, part, weights[k]);
              add_to_sums(part, row_sum);
            }
            store_weights(weights, p_smem);
          } else {
            weigh(0, scale, scores, row_base, part, weights[0]);
          }
        }
        if (kStages == 1) {
          // V of this tile is there, and everyone has finished with its K and left their weights.
          cp_async_wait<0>();
          sync_threads();
          if (step + 1 < num_steps) load_k(step + 1);
        } else if (kSharesRows) {
          sync_rows();
        }
        if (!seen) continue;
        const unsigned v_address = shared_address(v_smem + stage * kLayout.v + chunk * kStrideV) + v_lane;
        TESSERA_UNROLL
        for (int k = 0; k < kScoreTiles / 2; ++k) {
          if (!kSharesRows) {
            settle(k, scale, scores, part, weights[k], row_base, row_sum, o);
            // The weights of the next 16 keys are computed while the products of these are under way.
            if (k + 1 < kScoreTiles / 2) weigh(k + 1, scale, scores, row_base, part, weights[k + 1]);
          }
          multiply_p_v(weights[k], v_address + (warp_column() * kWarpKeys + k * 16) * kStrideV * 2, o);
        }
        if (kSharesRows) {
          const int others_keys = (1 - warp_column()) * kWarpKeys;
          const unsigned p_address = shared_address(p_smem) + p_lane + others_keys * 2;
          TESSERA_UNROLL
          for (int k = 0; k < kScoreTiles / 2; ++k) {
            unsigned others[kRowTiles][4];
            TESSERA_UNROLL
            for (int m = 0; m < kRowTiles; ++m)
              ldmatrix_x4(others[m], p_address + (m * 16 * kStrideP + k * 16) * 2);
            multiply_p_v(others, v_address + (others_keys + k * 16) * kStrideV * 2, o);
          }
        }
      }
      if (kBufferBarriers) mbarrier_arrive(shared_address(&state.buffers.emptied[stage]));
    }
    cp_async_wait<0>();
    const unsigned spoilt = store_rows(p, state.work, q_smem, row_pairs, row_base, row_sum, o);
    if (!kInvariant) {
      redo_spoilt_rows(p, state.work, spoilt, 0);
    } else if (pass > 0) {
      redo_spoilt_rows(p, state.work, spoilt | first_spoilt, ~join_found(spoilt));
    } else {
      if (__syncthreads_or(spoilt != 0) == 0) return;
      first_spoilt = spoilt;
    }
  }
}
