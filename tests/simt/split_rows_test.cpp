// Tensors of fp32 split into numbers of fp16 (common/split_rows.cu): each number's halves make it up to what
// may be lost, tiles say their scales and what they lose, zeros stand behind rows and sequences, and nothing
// else is written.

#include "backends/gpu/attention/split_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "backends/gpu/attention/launch_arguments.h"
#include "core/formats/numbers.h"
#include "core/rounding.h"
#include "simt/kernel_table.h"
#include "simt/stored_tensor.h"

namespace tessera {
namespace {

constexpr std::uint16_t kSentinel = 0xabcd;

struct Stored : simt::StoredTensor<float> {
  Stored(const TensorExtents& t, int gap, std::int64_t elements_in_front, unsigned seed)
      : StoredTensor(DType::kF32, t, gap, elements_in_front) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& x : memory) x = normal(random);
  }
};

/// One of q, k and v.
struct Expected {
  std::function<const float*(int b, int i, int head)> row;
  TensorExtents extents;  // as split
  int rows_of_tile;
  std::vector<int> begins, lens;  // of sequences, among the rows of their outer dimension
};

void expect_tile(const Expected& e, const gpu::SplitTensor& split, int b, int head, int tile) {
  const std::int64_t outer = e.extents.outer == 1 ? 0 : b;
  const int first = tile * e.rows_of_tile, end = std::min(first + e.rows_of_tile, e.lens[b]);
  if (first >= end) return;
  const kernels::SplitTile& said =
      split.tiles[(static_cast<std::int64_t>(b) * e.extents.heads + head) * split.tiles_of_head + tile];
  const int half = split.row_elements / 2;
  float largest = 0, least = std::numeric_limits<float>::infinity();
  bool loses = false;
  for (int i = first; i < end; ++i) {
    const std::int64_t token = e.begins[b] + i;
    const float* x = e.row(b, i, head);
    const auto* row = reinterpret_cast<const std::uint16_t*>(split.data) +
                      ((outer * e.extents.heads + head) * e.extents.tokens + token) * split.row_elements;
    float of_row = 0;
    for (int d = 0; d < half; ++d) {
      const auto number = [&](std::uint16_t bits) { return double{formats::float_of_half(bits)}; };
      if (d >= e.extents.head_dim) {
        ASSERT_EQ(row[d] | row[half + d], 0) << b << ' ' << head << ' ' << i << ' ' << d;
        continue;
      }
      if (!std::isfinite(x[d])) {
        ASSERT_FALSE(std::isfinite(number(row[d])));
        continue;
      }
      of_row = std::max(of_row, std::abs(x[d]));
      const double back = double{said.scale} * (number(row[d]) + number(row[half + d]) / 2048);
      const double lost = std::max(std::abs(double{x[d]}) * 0x1p-23, double{said.scale} * 0x1p-36);
      ASSERT_LE(std::abs(back - x[d]), lost) << b << ' ' << head << ' ' << i << ' ' << d << ' ' << x[d];
      loses = loses || (x[d] != 0 && std::abs(x[d]) < said.scale * 0x1p-14f);
    }
    largest = std::max(largest, of_row);
    least = std::min(least, of_row);
  }
  EXPECT_EQ(said.least, least);
  EXPECT_EQ(said.loses, loses ? 1 : 0);
  if (largest > 0x1p-100f) {
    EXPECT_GE(largest, said.scale * 0x1p14f);
    EXPECT_LT(largest / 2, said.scale * 0x1p14f);
  }
}

/// Every row that no sequence takes part with is as it was, or zeros if a tile in front goes on into it.
void expect_rest(const Expected& e, const gpu::SplitTensor& split) {
  const std::int64_t row_elements = split.row_elements;
  for (std::int64_t outer = 0; outer < e.extents.outer; ++outer) {
    std::vector<bool> is_taken(static_cast<std::size_t>(e.extents.tokens));
    for (std::size_t b = 0; b < e.lens.size(); ++b) {
      if (e.extents.outer > 1 && static_cast<std::int64_t>(b) != outer) continue;
      for (int i = 0; i < e.lens[b]; ++i) is_taken[static_cast<std::size_t>(e.begins[b] + i)] = true;
    }
    for (std::int64_t head = 0; head < e.extents.heads; ++head) {
      bool must_be_zero = false;  // within a tile behind a sequence's end
      std::int64_t since_taken = e.rows_of_tile;
      for (std::int64_t token = 0; token < e.extents.tokens; ++token) {
        since_taken = is_taken[static_cast<std::size_t>(token)] ? 0 : since_taken + 1;
        if (since_taken == 0) continue;
        must_be_zero = since_taken < e.rows_of_tile && token >= since_taken;
        const auto* row = reinterpret_cast<const std::uint16_t*>(split.data) +
                          ((outer * e.extents.heads + head) * e.extents.tokens + token) * row_elements;
        for (int d = 0; d < row_elements; ++d) {
          ASSERT_TRUE(row[d] == 0 || (!must_be_zero && row[d] == kSentinel)) << outer << ' ' << token;
        }
      }
    }
  }
}

struct Shape {
  int head_dim_qk, head_dim_v, gap, shift, block_n;
  bool is_ragged;
  int page_size = 0;
};

void expect_split(const Shape& shape) {
  SCOPED_TRACE(testing::Message() << shape.head_dim_qk << '/' << shape.head_dim_v << ", gap " << shape.gap
                                  << ", " << shape.block_n << (shape.is_ragged ? ", ragged" : ""));
  AttentionProblem p;
  p.batch = 4;
  p.seq_len_q = 150;
  p.seq_len_kv = 210;
  p.num_heads = 4;
  p.num_kv_heads = 2;
  p.head_dim_qk = shape.head_dim_qk;
  p.head_dim_v = shape.head_dim_v;
  // The second sequence has too few queries for the launch, the third no keys; tokens behind the last.
  std::vector<int> cu_q = {0, 150, 151, 190, 260}, cu_kv = {0, 131, 160, 160, 370};
  const std::vector<int> lens_kv = {210, 1, 0, 77};
  gpu::KernelChoice choice;
  choice.config = {128, shape.block_n, 12, 2, 1};
  if (shape.is_ragged) {
    p.ragged_q = RaggedTokens{.cu_seqlens = cu_q.data(), .total_tokens = 270};
    p.ragged_kv = RaggedTokens{.cu_seqlens = cu_kv.data(), .total_tokens = 400};
    choice.fewest_queries = 2;
  } else {
    p.seq_lens_kv = lens_kv.data();
  }
  // Pages of a sequence lie backwards, one apart.
  std::vector<int> block_table;
  if (shape.page_size > 0) {
    const int pages = static_cast<int>(divide_up(p.seq_len_kv, std::int64_t{shape.page_size}));
    for (int b = 0; b < p.batch; ++b) {
      for (int page = 0; page < pages; ++page) block_table.push_back(((b + 1) * pages - page) * 2 - 1);
    }
    p.paged_kv = PagedKv{.block_table = block_table.data(),
                         .seq_lens_kv = lens_kv.data(),
                         .block_table_stride = pages,
                         .num_pages = p.batch * pages * 2,
                         .max_pages_per_seq = pages,
                         .page_size = shape.page_size};
    p.seq_lens_kv = nullptr;
  }
  TensorExtents kv = key_extents(p);
  Stored q(query_extents(p), shape.gap, shape.shift, 1), k(kv, shape.gap, shape.shift, 2);
  kv.head_dim = p.head_dim_v;
  Stored v(kv, shape.gap, shape.shift, 3);
  const auto key_row = [&](Stored& stored, int b, int i, int head) {
    if (shape.is_ragged) return stored.row(0, cu_kv[static_cast<std::size_t>(b)] + i, head);
    if (shape.page_size == 0) return stored.row(b, i, head);
    const std::int64_t page = b * p.paged_kv->block_table_stride + i / shape.page_size;
    return stored.row(block_table[static_cast<std::size_t>(page)], i % shape.page_size, head);
  };
  // Tiles of all kinds: large, small, of zeros, with numbers that lose bits, infinite ones and NaN.
  q.row(0, 3, 1)[0] = 1e30f;
  key_row(k, 0, 5, 0)[0] = 1e-12f;
  key_row(k, 0, 100, 1)[0] = std::numeric_limits<float>::infinity();
  key_row(v, 0, 7, 0)[0] = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < 64; ++i) std::fill_n(q.row(0, i, 2), p.head_dim_qk, i % 2 == 0 ? 0.0f : 1e-40f);
  for (int i = 0; i < shape.block_n; ++i) std::fill_n(key_row(v, 0, i, 1), p.head_dim_v, 0.0f);
  p.q = q.tensor;
  p.k = k.tensor;
  p.v = v.tensor;

  const std::size_t bytes = gpu::split_rows_bytes(p, choice.config);
  EXPECT_EQ(bytes % 256, 0u);
  std::vector<std::uint16_t> copies(bytes / 2 + 192, kSentinel);
  auto* begin = reinterpret_cast<std::byte*>(copies.data());
  begin += (256 - reinterpret_cast<std::uintptr_t>(begin) % 256) % 256;
  gpu::SplitRowsLaunch launch =
      gpu::split_rows_launch(gpu::attention_params(p, choice, nullptr), p, choice, begin);
  simt::launch({gpu::split_rows_entry(p, choice.config),
                {static_cast<int>(launch.shape.grid[0]), static_cast<int>(launch.shape.grid[1]), 1},
                static_cast<int>(launch.shape.block[0])},
               &launch.params);
  const auto* end = reinterpret_cast<const std::uint16_t*>(begin + bytes);
  for (; end < copies.data() + copies.size(); ++end) ASSERT_EQ(*end, kSentinel);

  const auto tensors = gpu::split_tensors(p, choice.config, begin);
  const std::vector<int> all_q(4, 150), zeros(4, 0);
  const auto expect = [&](std::size_t i, Stored& stored, int rows_of_tile) {
    const bool is_q = i == 0;
    const TensorExtents& extents = tensors[i].extents;
    Expected e = {nullptr, extents, rows_of_tile, zeros, is_q ? all_q : lens_kv};
    if (shape.is_ragged) {
      e.begins = is_q ? std::vector{0, 150, 151, 190} : std::vector{0, 131, 160, 160};
      e.lens = is_q ? std::vector{150, 0, 39, 70} : std::vector{131, 0, 0, 210};
    }
    e.row = [&](int b, int row, int head) -> const float* {
      if (!is_q) return key_row(stored, b, row, head);
      return shape.is_ragged ? stored.row(0, cu_q[static_cast<std::size_t>(b)] + row, head)
                             : stored.row(b, row, head);
    };
    for (int b = 0; b < p.batch; ++b) {
      for (int head = 0; head < extents.heads; ++head) {
        for (int tile = 0; tile < tensors[i].tiles_of_head; ++tile) expect_tile(e, tensors[i], b, head, tile);
      }
    }
    expect_rest(e, tensors[i]);
  };
  expect(0, q, kernels::kSplitQueries);
  expect(1, k, shape.block_n);
  expect(2, v, shape.block_n);
}

TEST(SplitRows, HalvesMakeUpEachNumber) {
  for (const bool is_ragged : {false, true}) {
    expect_split({64, 64, 0, 0, 128, is_ragged});
    expect_split({128, 128, 4, 4, 80, is_ragged});
    expect_split({192, 128, 0, 0, 80, is_ragged});
    expect_split({256, 256, 2, 2, 48, is_ragged});
    expect_split({1, 7, 0, 0, 128, is_ragged});
    expect_split({66, 130, 1, 1, 80, is_ragged});
    expect_split({100, 250, 0, 3, 48, is_ragged});
  }
  for (const int page_size : {1, 16, 100, 256}) expect_split({128, 96, 0, 0, 80, false, page_size});
}

}  // namespace
}  // namespace tessera
