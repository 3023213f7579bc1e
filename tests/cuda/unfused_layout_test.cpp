// How the unfused GPU pipeline cuts a call into parts: needs no GPU.
#include <gtest/gtest.h>

#include "backends/gpu/ops/library_products.h"
#include "backends/gpu/unfused/layout.h"

namespace tessera::gpu {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

AttentionProblem problem(std::int64_t batch, std::int64_t seq_len_q, std::int64_t seq_len_kv, int num_heads,
                         int num_kv_heads, int head_dim, DType dtype) {
  AttentionProblem p;
  p.device = {DeviceKind::kCuda, 0};
  p.batch = batch;
  p.seq_len_q = seq_len_q;
  p.seq_len_kv = seq_len_kv;
  p.num_heads = num_heads;
  p.num_kv_heads = num_kv_heads;
  p.head_dim_qk = p.head_dim_v = head_dim;
  p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = dtype;
  return p;
}

TEST(UnfusedLayout, KeepsTheWorkspaceBelowOneGigabyte) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const AttentionProblem& p :
         {problem(1, 16384, 16384, 16, 16, 128, dtype), problem(4, 4096, 4096, 16, 16, 128, dtype),
          problem(64, 1, 32768, 32, 8, 128, dtype), problem(1, 131072, 131072, 32, 8, 128, dtype),
          problem(100000, 3, 7, 2, 1, 64, dtype), problem(1, 16384, 16384, 64, 1, 512, dtype)}) {
      const UnfusedLayout l = unfused_layout(p);
      EXPECT_LE(l.total_bytes, kGiB) << to_string(p);
      EXPECT_LE(l.pairs_at_once, 65535) << to_string(p);
    }
  }
}

TEST(UnfusedLayout, CutsPairsIntoRowsOnlyWhenOnePairIsTooMuch) {
  const UnfusedLayout whole = unfused_layout(problem(2, 1024, 1024, 8, 2, 128, DType::kF16));
  EXPECT_EQ(whole.num_pairs, 4);
  EXPECT_EQ(whole.rows, 4096);
  EXPECT_EQ(whole.rows_at_once, 4096);
  EXPECT_EQ(whole.pairs_at_once, 4);
  const UnfusedLayout cut = unfused_layout(problem(2, 16384, 16384, 8, 2, 128, DType::kF16));
  EXPECT_EQ(cut.pairs_at_once, 1);
  EXPECT_LT(cut.rows_at_once, cut.rows);
  EXPECT_GE(cut.rows_at_once, 128);
}

TEST(UnfusedLayout, PutsMatricesBesideEachOther) {
  const AttentionProblem p = problem(5, 33, 77, 6, 3, 41, DType::kF32);
  const UnfusedLayout l = unfused_layout(p);
  EXPECT_EQ(l.qk_stride, 48);
  EXPECT_EQ(l.key_stride, 80);
  const auto pairs = static_cast<std::size_t>(l.pairs_at_once),
             rows = static_cast<std::size_t>(l.rows_at_once);
  EXPECT_GE(l.holes, l.product + LibraryProducts::kWorkspaceBytes);
  EXPECT_GE(l.q, l.holes + pairs * 4);
  EXPECT_GE(l.k, l.q + pairs * rows * 48 * 4);
  EXPECT_GE(l.v, l.k + pairs * 80 * 48 * 4);
  EXPECT_GE(l.o, l.v + pairs * 80 * 48 * 4);
  EXPECT_GE(l.scores, l.o + pairs * rows * 48 * 4);
  EXPECT_GE(l.total_bytes, l.scores + pairs * rows * 80 * 4);
  for (const std::size_t offset : {l.holes, l.q, l.k, l.v, l.o, l.scores}) EXPECT_EQ(offset % 256, 0u);
}

TEST(UnfusedLayout, MakesPartsOfAboutEqualSize) {
  const UnfusedLayout l = unfused_layout(problem(4, 4096, 4096, 16, 16, 128, DType::kBF16));
  EXPECT_LT(l.pairs_at_once, l.num_pairs);
  std::int64_t pair = 0;
  while (pair < l.num_pairs) {
    const std::int64_t pairs = l.pairs_from(pair);
    EXPECT_LE(pairs, l.pairs_at_once);
    EXPECT_GE(pairs, l.pairs_at_once - 1);
    pair += pairs;
  }
  EXPECT_EQ(pair, l.num_pairs);
}

TEST(UnfusedLayout, TakesNoMoreRowsThanAskedFor) {
  const AttentionProblem p = problem(3, 100, 77, 6, 3, 64, DType::kF16);
  const UnfusedLayout l = unfused_layout(p, 48);
  EXPECT_EQ(l.rows, 200);
  EXPECT_EQ(l.rows_at_once, 48);
  EXPECT_EQ(l.pairs_at_once, 1);
  // All rows, or more, is no limit.
  EXPECT_EQ(unfused_layout(p, 200).pairs_at_once, unfused_layout(p).pairs_at_once);
  EXPECT_EQ(unfused_layout(p, 5000).total_bytes, unfused_layout(p).total_bytes);
}

TEST(UnfusedLayout, HasRoomForOneVectorOfKeysEvenWithoutAny) {
  const UnfusedLayout l = unfused_layout(problem(1, 5, 0, 2, 2, 64, DType::kBF16));
  EXPECT_EQ(l.key_stride, 8);
}

TEST(UnfusedLayout, TakesOnePairOfMoreKeysThanTheBudget) {
  const UnfusedLayout l = unfused_layout(problem(1, 300, 4 << 20, 1, 1, 128, DType::kF32));
  EXPECT_EQ(l.pairs_at_once, 1);
  EXPECT_EQ(l.rows_at_once, 128);
}

}  // namespace
}  // namespace tessera::gpu
