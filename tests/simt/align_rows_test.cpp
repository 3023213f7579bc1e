// Copies of tensors to aligned rows (common/align_rows.cu), for all that rows may be aligned to: each element
// in its place, zeros behind a row's last, and nothing written behind the copies.

#include "backends/gpu/attention/align_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/rounding.h"
#include "simt/kernel_table.h"
#include "simt/stored_tensor.h"

namespace tessera {
namespace {

using gpu::kAlignedK;
using gpu::kAlignedQ;
using gpu::kAlignedV;

constexpr std::uint16_t kSentinel = 0xabcd;

struct Stored : simt::StoredTensor<std::uint16_t> {
  Stored(const TensorExtents& t, int gap, std::int64_t elements_in_front, unsigned seed)
      : StoredTensor(DType::kBF16, t, gap, elements_in_front) {
    for (std::size_t i = 0; i < memory.size(); ++i)
      memory[i] = static_cast<std::uint16_t>((i + seed) * 40503u >> 3);
  }
};

void expect_copy(const AttentionInput& from, const AttentionInput& copy, std::int64_t sequences,
                 std::int64_t tokens, int heads, int head_dim) {
  EXPECT_EQ(copy.head_stride, round_up(head_dim, kernels::kAlignedRow));
  for (std::int64_t b = 0; b < sequences; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        const auto row_of = [&](const AttentionInput& x) {
          return static_cast<const std::uint16_t*>(x.data) + b * x.batch_stride + t * x.seq_stride +
                 h * x.head_stride;
        };
        for (int d = 0; d < copy.head_stride; ++d) {
          const bool is_written = d < round_up(head_dim, kernels::kAlignedSector);
          const std::uint16_t expected = d < head_dim ? row_of(from)[d] : is_written ? 0 : kSentinel;
          ASSERT_EQ(row_of(copy)[d], expected) << b << ' ' << t << ' ' << h << ' ' << d;
        }
      }
    }
  }
}

void expect_copies(int tensors, int head_dim_qk, int head_dim_v, int gap, int shift, bool is_ragged) {
  SCOPED_TRACE(gpu::names_of_tensors(tensors) + " of " + std::to_string(head_dim_qk) + " and " +
               std::to_string(head_dim_v) + ", gaps of " + std::to_string(gap));
  AttentionProblem p;
  p.batch = 3;
  p.seq_len_q = 21;
  p.seq_len_kv = 50;
  p.num_heads = 6;
  p.num_kv_heads = 2;
  p.head_dim_qk = head_dim_qk;
  p.head_dim_v = head_dim_v;
  const std::int64_t sequences = is_ragged ? 1 : p.batch;
  const std::int64_t q_tokens = is_ragged ? 47 : p.seq_len_q;
  const std::int64_t kv_tokens = is_ragged ? 71 : p.seq_len_kv;
  if (is_ragged) {
    p.ragged_q = RaggedTokens{.total_tokens = q_tokens};
    p.ragged_kv = RaggedTokens{.total_tokens = kv_tokens};
  }
  const Stored q({sequences, q_tokens, p.num_heads, head_dim_qk}, gap, shift, 1);
  const Stored k({sequences, kv_tokens, p.num_kv_heads, head_dim_qk}, gap, shift, 2);
  const Stored v({sequences, kv_tokens, p.num_kv_heads, head_dim_v}, gap, shift, 3);
  p.q = q.tensor;
  p.k = k.tensor;
  p.v = v.tensor;

  const std::size_t bytes = gpu::aligned_rows_bytes(p, tensors);
  EXPECT_EQ(bytes % 16, 0u);
  std::vector<std::uint16_t> copies(bytes / 2 + 64, kSentinel);
  auto* const begin = reinterpret_cast<std::byte*>(copies.data());
  gpu::AlignRowsLaunch launch = gpu::align_rows_launch(p, tensors, begin);
  simt::launch({gpu::kAlignRowsEntry,
                {static_cast<int>(launch.shape.grid[0]), static_cast<int>(launch.shape.grid[1]), 1},
                static_cast<int>(launch.shape.block[0])},
               &launch.params);
  for (std::size_t i = bytes / 2; i < copies.size(); ++i) ASSERT_EQ(copies[i], kSentinel);
  const AttentionProblem aligned = gpu::with_aligned_rows(p, tensors, begin);
  const auto expect = [&](int flag, const AttentionInput& from, const AttentionInput& copy,
                          std::int64_t tokens, int heads, int head_dim) {
    if ((tensors & flag) != 0) return expect_copy(from, copy, sequences, tokens, heads, head_dim);
    EXPECT_EQ(copy.data, from.data);
    EXPECT_EQ(copy.seq_stride, from.seq_stride);
  };
  expect(kAlignedQ, p.q, aligned.q, q_tokens, p.num_heads, head_dim_qk);
  expect(kAlignedK, p.k, aligned.k, kv_tokens, p.num_kv_heads, head_dim_qk);
  expect(kAlignedV, p.v, aligned.v, kv_tokens, p.num_kv_heads, head_dim_v);
}

TEST(AlignRows, CopiesEachElementToItsPlace) {
  constexpr int kAll = kAlignedQ | kAlignedK | kAlignedV;
  for (const bool is_ragged : {false, true}) {
    for (const auto& [head_dim_qk, head_dim_v] :
         {std::pair{1, 8}, {2, 17}, {4, 6}, {12, 100}, {64, 65}, {250, 24}}) {
      for (const auto& [gap, shift] : {std::pair{0, 0}, {1, 1}, {2, 2}, {4, 4}, {8, 8}})
        expect_copies(kAll, head_dim_qk, head_dim_v, gap, shift, is_ragged);
    }
    for (const int tensors : {1, 2, 3, 4, 5, 6}) expect_copies(tensors, 100, 36, 4, 0, is_ragged);
  }
}

}  // namespace
}  // namespace tessera
