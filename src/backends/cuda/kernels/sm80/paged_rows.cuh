#pragma once

#include "common/attention_params.h"
#include "sm80/dense_rows.cuh"
#include "sm80/ptx.cuh"

// Copies of keys or values that lie in pages, by one warp. Each lane looks up the page of one row and has
// that row's address; whoever copies from a row takes it from there. So all rows' look-ups wait together, may
// be made long before the copies, and pages may have any size.

namespace tessera::kernels {

constexpr int kLookedUpRows = 16;  // at once, by each half of a warp

TESSERA_DEVICE int page_of_key(const AttentionParams& p, int key) {
  return p.page_shift >= 0 ? key >> p.page_shift : key / p.page_size;
}

/// The page of row lane % 16 of those that start with key `first_key`; 0 after the last key.
TESSERA_DEVICE int look_up_page(const AttentionParams& p, const int* block_table, int first_key, int len_kv) {
  const int key = first_key + thread_x() % kLookedUpRows;
  return key < len_kv ? block_table[page_of_key(p, key)] : 0;
}

/// Where in its page the same row is.
TESSERA_DEVICE int token_in_page(const AttentionParams& p, int first_key) {
  const int key = first_key + thread_x() % kLookedUpRows;
  return key - page_of_key(p, key) * p.page_size;
}

/// Copies 16 rows into shared memory, padded with zeros to kColumns and after num_rows.  row_of_lane: the
/// address of row lane % 16; kStrideBytes: between rows in shared memory; kVector: by 16 bytes at a time.
template <class T, int kColumns, int kStrideBytes, bool kVector>
TESSERA_DEVICE void load_paged_rows(T* smem, int head_dim, const T* row_of_lane, int num_rows) {
  constexpr int kElements = kVector ? 16 / sizeof(T) : 1;  // of a chunk
  constexpr int kChunks = kColumns / kElements;
  const unsigned lane = thread_x() % 32;
  const auto address = reinterpret_cast<unsigned long long>(row_of_lane);
  const auto row_from = [&](int r) { return reinterpret_cast<const T*>(shuffle(address, r)); };
  if constexpr (kVector && kHasRegularChunks<T, kLookedUpRows, kColumns>) {
    // As load_dense_rows: a lane's columns are the same in each row.
    constexpr int kRowsAtOnce = kChunks < 32 ? 32 / kChunks : 1;
    const int row = kChunks < 32 ? lane / kChunks : 0;
    const int column = lane % kChunks * kElements;
    const unsigned to = shared_address(smem) + row * kStrideBytes + lane % kChunks * 16;
    TESSERA_UNROLL
    for (int r = 0; r < kLookedUpRows; r += kRowsAtOnce) {
      const T* from = row_from(r + row) + column;
      TESSERA_UNROLL
      for (int c = 0; c < kColumns; c += 32 * kElements) {
        cp_async_16_of_line(to + r * kStrideBytes + c * int{sizeof(T)}, from + c,
                            r + row < num_rows && column + c < head_dim);
      }
    }
    return;
  }
  constexpr unsigned kAll = kLookedUpRows * kChunks;
  TESSERA_UNROLL_BY(kVector ? kAll / 32 + 1 : 1)
  for (unsigned first = 0; first < kAll; first += 32) {
    const unsigned c = first + lane;
    const int r = c / kChunks;
    const int column = c % kChunks * kElements;
    const T* row = row_from(r % kLookedUpRows);  // by all lanes
    if (kAll % 32 != 0 && c >= kAll) continue;
    const bool valid = r < num_rows && column < head_dim;
    if constexpr (kVector) {
      cp_async_16_of_line(shared_address(smem) + r * kStrideBytes + c % kChunks * 16, row + column, valid);
    } else {
      smem[r * (kStrideBytes / int{sizeof(T)}) + column] = valid ? row[column] : T{};
    }
  }
}

}  // namespace tessera::kernels
