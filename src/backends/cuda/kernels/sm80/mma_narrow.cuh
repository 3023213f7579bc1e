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
  static_assert(kBlockN % kNumWarps == 0, "each warp has as many of a tile's rows");

  const AttentionParams& p;
  const TensorArgument& x;
  const Kv* from;  // the sequence's key 0 of the head; paged: page 0
  const int* block_table;
  unsigned to;  // of this warp's first row in the first buffer
  int len_kv;
  int head_dim;

  TESSERA_DEVICE TileLoader(const AttentionParams& params, const TensorArgument& tensor, const Sequence& s,
                            int b, int kv_head, int dim, T* smem, int, int end_key)
      : p(params), x(tensor), len_kv(minimum(s.len_kv, end_key)), head_dim(dim) {
    from = static_cast<const Kv*>(x.data) + kv_head * x.head_stride;
    block_table = kPaged ? p.block_table + b * p.block_table_stride : nullptr;
    if (!kPaged) from += (p.cu_seqlens_kv != nullptr ? 0 : b * x.batch_stride) + s.kv_begin * x.seq_stride;
    to = shared_address(smem) + static_cast<unsigned>(warp_index() * kOwnRows * kRowBytes);
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
    constexpr int kElements = kVector ? 16 : 1;
    constexpr int kPieces = kColumns / kElements;
    const int own_key = first_key + warp_index() * kOwnRows;
    for (int c = thread_x() % 32; c < kOwnRows * kPieces; c += 32) {
      const int row = c / kPieces;
      const int column = c % kPieces * kElements;
      const bool valid = column < head_dim && own_key + row < len_kv;
      const Kv* source = valid ? row_of_key(own_key + row) + column : from;
      const unsigned target = to + offset_bytes + static_cast<unsigned>(row * kRowBytes);
      if (kVector) {
        cp_async_16(target + column, source, valid);
      } else {
        store_shared_16(target + column * 2, valid ? from_float<T>(to_float(*source)).bits : 0);
      }
    }
  }

  /// After this thread's copies into the buffer have ended.
  TESSERA_DEVICE void widen(unsigned offset_bytes) const {
    if (!kVector) return;  // each element was on its way
    sync_warp();
    const int lane = thread_x() % 32;
    TESSERA_UNROLL_BY(1)
    for (int first = 0; first < kOwnRows; first += kRowsAtOnce) {
      const unsigned rows = to + offset_bytes + static_cast<unsigned>(first * kRowBytes);
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
