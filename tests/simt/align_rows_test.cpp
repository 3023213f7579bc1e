// Copies of tensors to aligned rows (common/align_rows.cu), for all that rows may be aligned to: each element
// in its place, zeros behind a row's last, and nothing written behind the copies.

#include "backends/gpu/attention/align_rows.h"

#include <gtest/gtest.h>

#include <array>
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
  EXPECT_EQ(copy.head_stride, round_up(head_dim, kernels::kAlignedRow / 2));
  for (std::int64_t b = 0; b < sequences; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        const auto row_of = [&](const AttentionInput& x) {
          return static_cast<const std::uint16_t*>(x.data) + b * x.batch_stride + t * x.seq_stride +
                 h * x.head_stride;
        };
        for (int d = 0; d < copy.head_stride; ++d) {
          const bool is_written = d < round_up(head_dim, kernels::kAlignedSector / 2);
          const std::uint16_t expected = d < head_dim ? row_of(from)[d] : is_written ? 0 : kSentinel;
          ASSERT_EQ(row_of(copy)[d], expected) << b << ' ' << t << ' ' << h << ' ' << d;
        }
      }
    }
  }
}

/// The copies of a problem's tensors, as the kernel makes them.
struct Copies {
  std::vector<std::uint16_t> memory;
  AttentionProblem aligned;

  Copies(const AttentionProblem& p, int tensors) {
    const std::size_t bytes = gpu::aligned_rows_bytes(p, tensors);
    EXPECT_EQ(bytes % 16, 0u);
    memory.assign(bytes / 2 + 64, kSentinel);
    auto* const begin = reinterpret_cast<std::byte*>(memory.data());
    gpu::AlignRowsLaunch launch = gpu::align_rows_launch(p, tensors, begin);
    simt::launch({gpu::kAlignRowsEntry,
                  {static_cast<int>(launch.shape.grid[0]), static_cast<int>(launch.shape.grid[1]), 1},
                  static_cast<int>(launch.shape.block[0])},
                 &launch.params);
    for (std::size_t i = bytes / 2; i < memory.size(); ++i) EXPECT_EQ(memory[i], kSentinel);
    aligned = gpu::with_aligned_rows(p, tensors, begin);
  }
};

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

  const Copies copies(p, tensors);
  const AttentionProblem& aligned = copies.aligned;
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

// A mask for all heads, for each, one a sequence, and one that all queries have; of 1, 2 and 4 bytes, in rows
// that begin anywhere.
TEST(AlignRows, CopiesMasks) {
  constexpr std::int64_t kBatch = 2, kHeads = 3, kQueries = 5, kKeys = 37;
  std::vector<unsigned char> stored(1 << 16);
  for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<unsigned char>(i * 40503u >> 5);
  for (const DType dtype : {DType::kBool, DType::kBF16, DType::kF32}) {
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(dtype, 1));
    for (const auto& [batch_stride, head_stride, q_stride] :
         {std::array{0, 0, 39}, {0, 200, 37}, {700, 0, 38}, {1201, 300, 41}, {64, 0, 0}}) {
      const ScoreMask mask = {stored.data() + 3 * bytes, dtype, batch_stride, head_stride, q_stride, 1};
      AttentionProblem p;
      p.batch = kBatch;
      p.num_heads = kHeads;
      p.num_kv_heads = 1;
      p.seq_len_q = kQueries;
      p.seq_len_kv = kKeys;
      const bool is_boolean = dtype == DType::kBool;
      (is_boolean ? p.scores.boolean_mask : p.scores.additive_mask) = mask;
      const Copies copies(p, is_boolean ? gpu::kAlignedBooleanMask : gpu::kAlignedAdditiveMask);
      const ScoreMask& copy =
          is_boolean ? *copies.aligned.scores.boolean_mask : *copies.aligned.scores.additive_mask;
      EXPECT_EQ(copy.q_stride * bytes % 16, 0);
      EXPECT_EQ(copy.head_stride == 0, head_stride == 0);
      EXPECT_EQ(copy.batch_stride == 0, batch_stride == 0);
      for (std::int64_t b = 0; b < kBatch; ++b) {
        for (std::int64_t h = 0; h < kHeads; ++h) {
          for (std::int64_t i = 0; i < kQueries; ++i) {
            const auto row_of = [&](const ScoreMask& m) {
              return static_cast<const unsigned char*>(m.data) +
                     (b * m.batch_stride + h * m.head_stride + i * m.q_stride) * bytes;
            };
            EXPECT_EQ(std::memcmp(row_of(copy), row_of(mask), static_cast<std::size_t>(kKeys * bytes)), 0)
                << dtype_name(dtype) << ' ' << b << ' ' << h << ' ' << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
