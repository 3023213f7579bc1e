#pragma once

#include "common/attention_params.h"
#include "sm80/dense_rows.cuh"
#include "sm80/ptx.cuh"
#include "sm80/row_pieces.cuh"

// Copies of keys or values that lie in pages, by one warp. Each lane looks up the page of one row and has
// that row's address; whoever copies from a row takes it from there. So all rows' look-ups wait together, may
// be made long before the copies, and pages may have any size.

namespace tessera::kernels {

TESSERA_DEVICE int page_of_key(const AttentionParams& p, int key) {
  return p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
}

/// The key's page; 0 after the last key.
TESSERA_DEVICE int look_up_page(const AttentionParams& p, const int* block_table, int key, int len_kv) {
  return key < len_kv ? block_table[page_of_key(p, key)] : 0;
}

/// Where in its page the key is.
TESSERA_DEVICE int token_in_page(const AttentionParams& p, int key) {
  return key - page_of_key(p, key) * p.page_size;
}

/// What lane `lane` has as its `address`.
template <class T>
TESSERA_DEVICE const T* address_of_lane(const T* address, int lane) {
  return reinterpret_cast<const T*>(shuffle(reinterpret_cast<unsigned long long>(address), lane));
}

/// Copies kRows rows (a power of two, up to 32) into shared memory, from `smem` on, padded with zeros to
/// kColumns and after num_rows.  row_of_lane: the address of row lane % kRows; kStrideBytes: between rows in
/// shared memory; kBytes: copied at once; kOfLines: 16 by cp_async_16_of_line.
template <class T, int kRows, int kColumns, int kStrideBytes, int kBytes, bool kOfLines>
TESSERA_DEVICE void load_paged_rows(unsigned smem, int head_dim, const T* row_of_lane, int num_rows) {
  static_assert(32 % kRows == 0, "lanes have the rows in turn");
  constexpr int kElements = kBytes / sizeof(T);  // of a chunk
  constexpr int kChunks = kColumns / kElements;
  const unsigned lane = thread_x() % 32;
  const auto copy_16 = [&](unsigned to, const T* from, bool valid) {
    if (kOfLines) {
      cp_async_16_of_line(to, from, valid);
    } else {
      cp_async_16(to, from, valid);
    }
  };
  if constexpr (kBytes == 16 && kHasRegularChunks<T, kRows, kColumns>) {
    // As load_dense_rows: a lane's columns are the same in each row.
    constexpr int kRowsAtOnce = kChunks < 32 ? 32 / kChunks : 1;
    const int row = kChunks < 32 ? lane / kChunks : 0;
    const int column = lane % kChunks * kElements;
    const unsigned to = smem + row * kStrideBytes + lane % kChunks * 16;
    TESSERA_UNROLL
    for (int r = 0; r < kRows; r += kRowsAtOnce) {
      const T* from = address_of_lane(row_of_lane, r + row) + column;
      TESSERA_UNROLL
      for (int c = 0; c < kColumns; c += 32 * kElements) {
        copy_16(to + r * kStrideBytes + c * int{sizeof(T)}, from + c,
                r + row < num_rows && column + c < head_dim);
      }
    }
    return;
  }
  constexpr unsigned kAll = kRows * kChunks;
  if constexpr (kBytes < 16) {
    copy_pieces<kBytes, kAll>(lane, 32, [&](int c) -> PieceCopy {
      const int r = c / kChunks;
      const int column = c % kChunks * kElements;
      const T* row = address_of_lane(row_of_lane, r % kRows);
      return {smem + r * kStrideBytes + column * int{sizeof(T)},
              r < num_rows && column < head_dim ? row + column : nullptr};
    });
    return;
  }
  TESSERA_UNROLL
  for (unsigned first = 0; first < kAll; first += 32) {
    const unsigned c = first + lane;
    const int r = c / kChunks;
    const int column = c % kChunks * kElements;
    const T* row = address_of_lane(row_of_lane, r % kRows);  // by all lanes
    if (kAll % 32 != 0 && c >= kAll) continue;
    const bool valid = r < num_rows && column < head_dim;
    copy_16(smem + r * kStrideBytes + column * int{sizeof(T)}, row + column, valid);
  }
}

}  // namespace tessera::kernels
