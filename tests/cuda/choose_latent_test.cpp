// Which problems Hopper's kernel of latent attention takes, and how it shares their keys out: pure functions.

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/gpu/attention/choose_kernel.h"
#include "cuda/chosen.h"
#include "gpu/dense_problem.h"

namespace tessera::cuda {
namespace {

/// `batch` sequences of one query and 4096 keys.
AttentionProblem latent(std::int64_t batch, int num_heads, DType dtype = DType::kBF16) {
  AttentionProblem p = testing::dense_problem(DeviceKind::kCuda, dtype, 1, 4096, num_heads, 1, 576);
  p.batch = batch;
  p.head_dim_v = 512;
  p.v = p.k;
  p.o = attention_output(AttentionLayout::kBatchSeqHeads, p.o.data, dtype, 1, num_heads, 512);
  return p;
}

gpu::KernelChoice choose(const AttentionProblem& p, const AttentionConfig& forced = {}) {
  return gpu::choose_kernel(attention_kernels(), p, h200(), forced);
}

std::string kernel_of(const AttentionProblem& p) { return std::string(choose(p).kernel->name); }

TEST(ChooseLatent, TakesValuesThatAreTheFirstPartOfTheKeys) {
  EXPECT_EQ(kernel_of(latent(4, 16)), "sm90/latent");
  EXPECT_EQ(kernel_of(latent(4, 128, DType::kF16)), "sm90/latent");
  EXPECT_EQ(kernel_of(latent(4, 16, DType::kF32)), "tiled");
  AttentionProblem p = latent(4, 16);
  p.v.data = reinterpret_cast<const void*>(64);  // elsewhere
  EXPECT_EQ(kernel_of(p), "sm80/prefill");
  p = latent(4, 16);
  p.v.seq_stride = 1152;
  EXPECT_EQ(kernel_of(p), "sm80/prefill");
  p = latent(4, 16);
  p.head_dim_v = 448;
  EXPECT_EQ(kernel_of(p), "sm80/prefill");
  p = latent(4, 16);
  p.batch_invariant = true;
  EXPECT_EQ(kernel_of(p), "sm80/prefill");
  p = latent(4, 16);
  p.k.seq_stride = p.v.seq_stride = 578;  // not aligned
  EXPECT_EQ(kernel_of(p), "sm80/prefill");
  gpu::DeviceProperties old = h200();
  old.compute_capability = 80;
  EXPECT_EQ(gpu::choose_kernel(attention_kernels(), latent(4, 16), old, {}).kernel->name, "sm80/prefill");
}

TEST(ChooseLatent, TakesPagesThatMakeUpTiles) {
  for (const auto& [page_size, kernel] : {std::pair{8, "sm90/latent"},
                                          {16, "sm90/latent"},
                                          {24, "sm80/prefill"},
                                          {64, "sm90/latent"},
                                          {96, "sm80/prefill"},
                                          {192, "sm90/latent"}}) {
    AttentionProblem p = latent(4, 16);
    p.paged_kv.emplace();
    p.paged_kv->page_size = page_size;
    p.paged_kv->num_pages = 4096;
    p.k.batch_stride = p.v.batch_stride = page_size * p.k.seq_stride;
    EXPECT_EQ(kernel_of(p), kernel) << page_size;
  }
}

TEST(ChooseLatent, FillsTheDeviceWithPartsTimesGroupsOfRows) {
  const std::int64_t multiprocessors = h200().num_multiprocessors;
  constexpr std::int64_t kTiles = 4096 / 64;
  for (const int heads : {1, 16, 64, 100, 128}) {
    for (const std::int64_t batch : {1, 3, 16, 64, 66, 128, 132, 1000}) {
      const gpu::KernelChoice c = choose(latent(batch, heads));
      ASSERT_EQ(c.kernel->name, "sm90/latent");
      EXPECT_EQ(c.num_row_tiles, heads > 64 ? 2 : 1);
      const auto grid = static_cast<std::int64_t>(c.kernel->shape(c, batch, 32).grid[0]);
      const std::int64_t most = std::min(multiprocessors, batch * kTiles * c.num_row_tiles);
      EXPECT_EQ(grid, c.config.num_parts * c.num_row_tiles);
      const bool is_whole = c.config.num_parts == batch;
      EXPECT_TRUE(is_whole || grid > most - c.num_row_tiles) << batch << " of " << heads;
      EXPECT_LE(is_whole ? 0 : grid, multiprocessors);
      // Only what is shared out has to be merged.
      EXPECT_EQ(c.combine_entry.empty(), is_whole) << batch << " of " << heads;
      EXPECT_LE(c.shared_bytes, h200().shared_per_block_bytes);
    }
  }
  // Lengths that the device alone knows may turn out to be anything.
  AttentionProblem padded = latent(128, 16);
  padded.seq_lens_kv = reinterpret_cast<const std::int32_t*>(64);
  EXPECT_FALSE(choose(padded).combine_entry.empty());
}

TEST(ChooseLatent, PairsGroupsOfRowsWhereAllHaveAPartner) {
  for (const auto& [queries, heads, blocks] :
       {std::tuple{1, 64, 1}, {1, 65, 2}, {1, 128, 2}, {3, 64, 1}, {2, 128, 2}, {4, 16, 1}}) {
    AttentionProblem p = latent(4, heads);
    p.seq_len_q = queries;
    const gpu::KernelChoice c = choose(p);
    EXPECT_EQ(c.cluster_blocks, blocks) << queries << " x " << heads;
    const gpu::LaunchShape shape = c.kernel->shape(c, 4, 32);
    EXPECT_EQ(shape.cluster_blocks, static_cast<unsigned>(blocks));
    EXPECT_EQ(shape.grid[0] % shape.cluster_blocks, 0u);
  }
}

TEST(ChooseLatent, ForcedOfItsOwnChoiceGivesItAgain) {
  for (const std::int64_t batch : {1, 5, 128}) {
    const AttentionProblem p = latent(batch, 128);
    const gpu::KernelChoice c = choose(p);
    EXPECT_EQ(choose(p, c.config), c) << batch;
  }
  EXPECT_EQ(choose(latent(1, 16), {.num_splits = 7}).config.num_parts, 7);
  EXPECT_EQ(choose(latent(5, 16), {.num_splits = 7}).config.num_parts, 35);
  EXPECT_EQ(choose(latent(5, 16), {.num_parts = 7}).config.num_parts, 7);
}

}  // namespace
}  // namespace tessera::cuda
