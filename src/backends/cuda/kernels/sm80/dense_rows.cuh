#pragma once

#include "common/attention_params.h"
#include "sm80/ptx.cuh"

// Copies of keys or values that lie at equal distances, 16 bytes at a time, by one warp.

namespace tessera::kernels {

/// Whether load_dense_rows takes kRows rows: a row's chunks divide a warp's lanes, or are divided by them.
template <class T, int kRows, int kColumns>
constexpr bool kHasRegularChunks = 32 * 16 % (kColumns * sizeof(T)) == 0
                                       ? kRows % (32 * 16 / (kColumns * sizeof(T))) == 0
                                       : kColumns * sizeof(T) % (32 * 16) == 0;

/// Copies rows [first_row, first_row + kRows) into shared memory, padded with zeros to kColumns and after
/// num_rows. What a lane copies is in the same columns of each row, so that an addition gives the next
/// address. kStrideBytes: between rows in shared memory; row_0 16-byte aligned as are the rows' distances.
/// kOfLines: by cp_async_16_of_line.
template <class T, int kRows, int kColumns, int kStrideBytes, bool kOfLines = false>
TESSERA_DEVICE void load_dense_rows(void* smem, int head_dim, const T* row_0, int64 seq_stride, int first_row,
                                    int num_rows) {
  constexpr int kElements = 16 / sizeof(T);  // of a chunk
  constexpr int kChunks = kColumns / kElements;
  constexpr int kRowsAtOnce = kChunks < 32 ? 32 / kChunks : 1;
  const int lane = thread_x() % 32;
  const int row = first_row + lane / kChunks;
  const int column = lane % kChunks * kElements;
  const T* from = row_0 + row * seq_stride + column;
  const unsigned to =
      shared_address(smem) + static_cast<unsigned>(lane / kChunks * kStrideBytes + lane % kChunks * 16);
  TESSERA_UNROLL
  for (int r = 0; r < kRows; r += kRowsAtOnce) {
    TESSERA_UNROLL
    for (int c = 0; c < kColumns; c += 32 * kElements) {
      const bool valid = row + r < num_rows && column + c < head_dim;
      const unsigned target = to + static_cast<unsigned>(r * kStrideBytes + c * int{sizeof(T)});
      if (kOfLines) {
        cp_async_16_of_line(target, from + c, valid);
      } else {
        cp_async_16(target, from + c, valid);
      }
    }
    from += kRowsAtOnce * seq_stride;
  }
}

}  // namespace tessera::kernels
