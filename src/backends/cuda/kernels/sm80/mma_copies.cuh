#pragma once

#include "sm80/mma_block.cuh"
#include "sm80/paged_rows.cuh"

// How attention_mma.cu gets q and tiles of keys and values into shared memory.

namespace tessera::kernels {

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
  constexpr int kElements = kPieceBytes<T> / sizeof(T);
  constexpr int kPieces = kHeadDimQk / kElements;
  copy_pieces<kPieceBytes<T>, kBlockM * kPieces>(thread_x(), kThreads, [&](int c) -> PieceCopy {
    const int r = c / kPieces;
    const int column = c % kPieces * kElements;
    const bool valid = w.row_begin + r < w.num_rows && column < p.head_dim_qk;
    return {shared_address(smem + r * kStrideQk + column), valid ? row_of(p, p.q, w, r) + column : nullptr};
  });
}

/// Copies a warp's part of a tile's rows, of which row_of_key(key) is the address; keys from len_kv on are
/// zeros. `to`: of the tile's first row in shared memory.
template <class Element, int kColumns, int kStrideBytes, class RowOfKey>
TESSERA_DEVICE void load_rows_of_warp(unsigned to, int first_key, int len_kv, int head_dim,
                                      RowOfKey row_of_key) {
  static_assert(kBlockN % kNumWarps == 0, "each warp has as many of a tile's rows");
  constexpr int kRows = kBlockN / kNumWarps;
  constexpr int kAtOnce = kRows % 32 == 0 ? 32 : kRows & -kRows;  // a power of two
  const int own_row = warp_index() * kRows;
  TESSERA_UNROLL
  for (int first = 0; first < kRows; first += kAtOnce) {
    const int row = own_row + first;
    const int key = first_key + row + thread_x() % kAtOnce;
    load_paged_rows<Element, kAtOnce, kColumns, kStrideBytes, kPieceBytes<Element>, false>(
        to + static_cast<unsigned>(row * kStrideBytes), head_dim, row_of_key(key), len_kv - first_key - row);
  }
}

/// Copies one tile of keys or values after the other into shared memory, padded with zeros to kColumns and
/// after the last key.
template <int kColumns, int kStride, bool kWidens = kIsNarrow>
struct TileLoader {
  using Chunks = TileChunks<kColumns, kBlockN>;

  const AttentionParams& p;
  const TensorArgument& x;
  // Not paged: the sequence's key 0 of the head, or if regular this thread's part of it, or where no tile is
  // left out of the next tile. Paged: page 0.
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
      if (!kPaged) {
        from += ((kHidesTiles ? 0 : first_key) + Chunks::first_row()) * x.seq_stride + Chunks::first_column();
      }
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

  /// Leaves out some tiles, or goes back.
  TESSERA_DEVICE void skip(int tiles) {
    if (Chunks::kRegular && !kPaged && !kHidesTiles) from += int64{tiles} * kBlockN * x.seq_stride;
  }

  /// The tile that starts at first_key, into the buffer `offset_bytes` after the first. Tiles come in order
  /// (kDescends).
  TESSERA_DEVICE void load(unsigned offset_bytes, int first_key) {
    if constexpr (Chunks::kRegular && kPaged) {
      load_paged(offset_bytes, first_key);
      return;
    }
    if (Chunks::kRegular) {
      const int first = first_key + Chunks::first_row();
      const int64 step = Chunks::kRowsPerPass * x.seq_stride;
      const T* row = kHidesTiles ? from + first_key * x.seq_stride : from;
      TESSERA_UNROLL
      for (int r = 0; r < kBlockN; r += Chunks::kRowsPerPass) {
        Chunks::copy_row(to + offset_bytes + r * kStride * 2, row, first + r < len_kv, last_is_padding);
        row += step;
      }
      if (!kHidesTiles) from = kDescends ? row - int64{2 * kBlockN} * x.seq_stride : row;
      return;
    }
    load_rows_of_warp<T, kColumns, kStride * 2>(to + offset_bytes, first_key, len_kv, head_dim, [&](int key) {
      return kPaged ? paged_row(key) : from + key * x.seq_stride;
    });
  }

  /// Nothing: the tile is what the copies have brought.
  TESSERA_DEVICE void widen(unsigned) const {}
};

/// Stores a tile of values with 0 in place of infinities and NaN, for the few blocks that meet some.
TESSERA_DEVICE void load_finite_values(const AttentionParams& p, const BlockWork& w, T* smem, int first_key,
                                       int end_key) {
  const int len_kv = minimum(w.sequence.len_kv, end_key);
  for (int c = thread_x(); c < kBlockN * kHeadDimV; c += kThreads) {
    const int row = c / kHeadDimV;
    const int column = c % kHeadDimV;
    float value = 0.0f;
    if (first_key + row < len_kv && column < p.head_dim_v) {
      value = to_float(kv_row<Kv>(p, p.v, w.sequence, w.b, w.kv_head, first_key + row)[column]);
      if (value * 0.0f != 0.0f) value = 0.0f;
    }
    smem[row * kStrideV + column] = from_float<T>(value);
  }
}

}  // namespace tessera::kernels
