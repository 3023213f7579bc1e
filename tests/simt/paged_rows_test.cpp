// Copies of rows that lie in pages (sm80/paged_rows.cuh) on the host: the kernels' text, but for the
// instructions of sm_80.

#include "sm80/paged_rows.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "simt/executor.h"

namespace tessera::testing {
namespace {

using kernels::bf16;
using kernels::f8e4m3;

constexpr int kFirstKeys[] = {0, 16, 48, 112};
constexpr int kPadding = 16;  // bytes after each row in shared memory

template <class T>
T element(int key, int column) {
  const auto value = static_cast<unsigned>(key * 37 + column * 5 + 1);
  T x;
  if constexpr (sizeof(T) == 4) {
    x = static_cast<T>(value);
  } else {
    x.bits = static_cast<decltype(x.bits)>(value);
  }
  return x;
}

/// A sequence of len_kv keys in pages of a pool that has others between and before them, all bytes of which
/// are 0xff, as is what lies behind the last key.
template <class T>
struct Pool {
  Pool(int page_size, int len_kv, int head_dim, int seq_stride)
      : page_size(page_size), seq_stride(seq_stride) {
    const int pages = (len_kv + page_size - 1) / page_size;
    elements.resize(static_cast<std::size_t>(2 * pages + 1) * page_size * seq_stride);
    std::fill_n(reinterpret_cast<unsigned char*>(elements.data()), elements.size() * sizeof(T), 0xff);
    for (int page = 0; page < pages; ++page) block_table.push_back(2 * (pages - page) - 1);
    for (int key = 0; key < len_kv; ++key) {
      for (int d = 0; d < head_dim; ++d) at(key)[d] = element<T>(key, d);
    }
  }
  T* at(int key) {
    const std::size_t token =
        static_cast<std::size_t>(block_table[key / page_size]) * page_size + key % page_size;
    return elements.data() + token * seq_stride;
  }

  int page_size, seq_stride;
  std::vector<T> elements;
  std::vector<int> block_table;
};

/// kBytes: copied at once.
template <class T, int kRows, int kColumns, int kBytes>
void expect_rows_arrive(int page_size, int len_kv, int head_dim) {
  constexpr int kStrideBytes = kColumns * int{sizeof(T)} + kPadding;
  SCOPED_TRACE(::testing::Message() << "pages of " << page_size << ", " << len_kv << " keys, head_dim "
                                    << head_dim << " of " << kColumns << ", " << sizeof(T) << " bytes, "
                                    << kRows << " rows, pieces of " << kBytes);
  constexpr int kPiece = kBytes / sizeof(T);  // elements, of which a row's distance is an odd multiple
  Pool<T> pool(page_size, len_kv, head_dim, (kColumns / kPiece | 1) * kPiece + 2 * kPiece);
  kernels::AttentionParams p = {};
  p.page_size = page_size;
  p.page_shift = std::has_single_bit(static_cast<unsigned>(page_size))
                     ? std::countr_zero(static_cast<unsigned>(page_size))
                     : -1;
  p.k.batch_stride = static_cast<kernels::int64>(page_size) * pool.seq_stride;
  p.k.seq_stride = pool.seq_stride;
  for (const int first_key : kFirstKeys) {
    std::vector<T> rows(kRows * kStrideBytes / sizeof(T));
    simt::Grid grid;
    grid.kernel = "load_paged_rows";
    grid.threads = 32;
    grid.shared_bytes = kRows * kStrideBytes;
    simt::run_grid(grid, [&] {
      T* smem = reinterpret_cast<T*>(simt::dynamic_shared());
      const int key = first_key + kernels::thread_x() % kRows;
      const int page = kernels::look_up_page(p, pool.block_table.data(), key, len_kv);
      const T* row =
          pool.elements.data() + page * p.k.batch_stride + kernels::token_in_page(p, key) * p.k.seq_stride;
      kernels::load_paged_rows<T, kRows, kColumns, kStrideBytes, kBytes, kBytes == 16>(
          kernels::shared_address(smem), head_dim, row, len_kv - first_key);
      kernels::sync_warp();
      if (kernels::thread_x() == 0) std::copy_n(smem, rows.size(), rows.begin());
    });
    for (int r = 0; r < kRows; ++r) {
      const T* row = rows.data() + r * kStrideBytes / sizeof(T);
      for (int d = 0; d < kColumns; ++d) {
        const T expected = first_key + r < len_kv && d < head_dim ? element<T>(first_key + r, d) : T{};
        ASSERT_EQ(std::memcmp(row + d, &expected, sizeof(T)), 0)
            << "key " << first_key + r << ", column " << d;
      }
    }
  }
}

template <class T, int kColumns, int kRows = 16>
void expect_rows_arrive() {
  for (const int page_size : {1, 3, 8, 16, 17, 64, 100}) {
    for (const int len_kv : {1, 57, 125}) {
      expect_rows_arrive<T, kRows, kColumns, 16>(page_size, len_kv, kColumns);
      expect_rows_arrive<T, kRows, kColumns, 16>(page_size, len_kv, kColumns - int{16 / sizeof(T)});
      expect_rows_arrive<T, kRows, kColumns, 8>(page_size, len_kv, kColumns - int{8 / sizeof(T)});
      expect_rows_arrive<T, kRows, kColumns, 4>(page_size, len_kv, kColumns - 3 * int{4 / sizeof(T)});
      expect_rows_arrive<T, kRows, kColumns, int{sizeof(T)}>(page_size, len_kv, kColumns - 7);
    }
  }
}

TEST(PagedRows, ArriveFromPagesOfAnySizeAndAreZeroBeyondTheSequence) {
  expect_rows_arrive<bf16, 64>();
  expect_rows_arrive<bf16, 128>();
  expect_rows_arrive<bf16, 256>();
  expect_rows_arrive<float, 64>();
  expect_rows_arrive<float, 256>();
  expect_rows_arrive<f8e4m3, 128>();
}

// Of which no lane has the same columns in each row, and of 8 bits not even all lanes a chunk in the last
// step.
TEST(PagedRows, OfUnusualHeadDimsTakeTheSame) {
  expect_rows_arrive<bf16, 80>();
  expect_rows_arrive<bf16, 96>();
  expect_rows_arrive<bf16, 192>();
  expect_rows_arrive<float, 112>();
  expect_rows_arrive<f8e4m3, 80>();
  expect_rows_arrive<f8e4m3, 16>();
}

TEST(PagedRows, AreAsManyAsAWarpHas) {
  expect_rows_arrive<float, 64, 32>();
  expect_rows_arrive<float, 128, 8>();
  expect_rows_arrive<float, 96, 4>();
  expect_rows_arrive<float, 256, 2>();
}

}  // namespace
}  // namespace tessera::testing
