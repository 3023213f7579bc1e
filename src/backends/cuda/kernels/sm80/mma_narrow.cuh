#pragma once

#include "sm80/mma_copies.cuh"
#include "sm80/narrow_rows.cuh"

// Tiles of keys and values of 8 bits (e4m3) for attention_mma.cu: a row is copied as it is to where its
// 16-bit row begins, and widened there, exactly, by the warp that has asked for it.

namespace tessera::kernels {

/// Four elements. NaN stays NaN.
TESSERA_DEVICE void widen_word(unsigned x, unsigned& low, unsigned& high) {
  unsigned even, odd;
  unsigned found_nan = 0;
  widen_e4m3<T>(x, even, odd, found_nan);
  low = byte_permute(even, odd, 0x5410u);
  high = byte_permute(even, odd, 0x7632u);
  if ((found_nan & kFoundNan) == 0) return;
  const auto element = [&](int i) {
    const f8e4m3 narrow = {static_cast<unsigned char>(x >> 8 * i)};
    return static_cast<unsigned>(from_float<T>(to_float(narrow)).bits);
  };
  low = element(0) | element(1) << 16;
  high = element(2) | element(3) << 16;
}

template <int kColumns, int kStride>
struct TileLoader<kColumns, kStride, true> {
  static constexpr int kOwnRows = kBlockN / kNumWarps;  // of a warp
  static constexpr int kRowBytes = kStride * 2;
  static constexpr int kChunks = kColumns / 16;  // of 16 bytes as stored
  // Of rows that are widened at once: what a lane holds of them is a chunk.
  static constexpr int kMostAtOnce = kChunks < 32 ? 32 / kChunks : 1;
  static constexpr int kRowsAtOnce = kMostAtOnce < kOwnRows ? kMostAtOnce : kOwnRows;
  static constexpr int kChunksOfLane = (kRowsAtOnce * kChunks + 31) / 32;

  const AttentionParams& p;
  const TensorArgument& x;
  const Kv* from;  // the sequence's key 0 of the head; paged: page 0
  const int* block_table;
  unsigned to;  // of the first buffer
  int len_kv;
  int head_dim;

  TESSERA_DEVICE TileLoader(const AttentionParams& params, const TensorArgument& tensor, const Sequence& s,
                            int b, int kv_head, int dim, T* smem, int, int end_key)
      : p(params), x(tensor), len_kv(minimum(s.len_kv, end_key)), head_dim(dim) {
    from = static_cast<const Kv*>(x.data) + kv_head * x.head_stride;
    block_table = kPaged ? p.block_table + b * p.block_table_stride : nullptr;
    if (!kPaged) from += (p.cu_seqlens_kv != nullptr ? 0 : b * x.batch_stride) + s.kv_begin * x.seq_stride;
    to = shared_address(smem);
  }

  TESSERA_DEVICE const Kv* row_of_key(int key) const {
    if (!kPaged) return from + key * x.seq_stride;
    return from + look_up_page(p, block_table, key, len_kv) * x.batch_stride +
           token_in_page(p, key) * x.seq_stride;
  }

  /// Nothing: each tile is asked for by its first key.
  TESSERA_DEVICE void skip(int) const {}

  /// The tile that starts at first_key, into the buffer `offset_bytes` after the first.
  TESSERA_DEVICE void load(unsigned offset_bytes, int first_key) const {
    load_rows_of_warp<Kv, kColumns, kRowBytes>(to + offset_bytes, first_key, len_kv, head_dim,
                                               [&](int key) { return row_of_key(key); });
  }

  /// After this thread's copies into the buffer have ended.
  TESSERA_DEVICE void widen(unsigned offset_bytes) const {
    sync_warp();
    const int lane = thread_x() % 32;
    TESSERA_UNROLL_BY(1)
    for (int first = 0; first < kOwnRows; first += kRowsAtOnce) {
      const unsigned rows =
          to + offset_bytes + static_cast<unsigned>((warp_index() * kOwnRows + first) * kRowBytes);
      const int num_chunks = minimum(kRowsAtOnce, kOwnRows - first) * kChunks;
      unsigned narrow[kChunksOfLane][4];
      TESSERA_UNROLL
      for (int n = 0; n < kChunksOfLane; ++n) {
        const int c = lane + 32 * n;
        if (c < num_chunks) load_shared_16(narrow[n], rows + c / kChunks * kRowBytes + c % kChunks * 16);
      }
      sync_warp();  // what follows overwrites what others have just read
      TESSERA_UNROLL
      for (int n = 0; n < kChunksOfLane; ++n) {
        const int c = lane + 32 * n;
        if (c >= num_chunks) continue;
        const unsigned wide = rows + c / kChunks * kRowBytes + c % kChunks * 32;
        TESSERA_UNROLL
        for (int half = 0; half < 2; ++half) {
          unsigned words[4];
          widen_word(narrow[n][2 * half], words[0], words[1]);
          widen_word(narrow[n][2 * half + 1], words[2], words[3]);
          store_shared_16_bytes(wide + half * 16, words);
        }
      }
    }
  }
};

}  // namespace tessera::kernels
