// Which kernels take few queries over many keys, and how these share the keys out.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/gpu/attention/choose_kernel.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "core/rounding.h"
#include "cuda/chosen.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

using gpu::DeviceProperties;
using gpu::KernelChoice;
using gpu::LaunchShape;

/// Parts of sm90/decode, splits of others.
int cuts_of(const KernelChoice& choice) {
  return choice.config.num_parts > 0 ? choice.config.num_parts : choice.config.num_splits;
}

// What was fastest, or at most 6 % slower, of the splits and both widths that were measured on an H200 with
// bf16, 32/8 heads and head_dim 128, keys and values not in the cache.
TEST(ChooseKernel, SplitsAreThoseThatWereFastestWhenMeasured) {
  struct Measured {
    std::int64_t batch, seq_len_kv;
    std::vector<std::pair<int, int>> fastest;  // num_warps, num_splits
  };
  const std::vector<Measured> cases = {
      {1, 64, {{4, 1}}},
      {1, 96, {{4, 2}}},
      {1, 160, {{4, 2}, {8, 2}}},
      {1, 256, {{4, 2}, {4, 4}, {8, 2}}},
      {1, 512, {{4, 4}, {8, 4}}},
      {1, 1024, {{4, 8}, {8, 4}, {8, 6}, {8, 8}}},
      {1, 2048, {{8, 6}, {8, 8}}},
      {1, 4096, {{8, 8}}},
      {2, 160, {{4, 2}, {8, 2}}},
      {2, 512, {{8, 2}, {8, 3}}},
      {2, 1024, {{4, 8}, {8, 4}, {8, 8}}},
      {2, 2048, {{8, 6}}},
      {2, 4096, {{4, 8}, {8, 8}}},
      {2, 8192, {{8, 8}}},
      {2, 32768, {{4, 8}, {4, 16}, {8, 8}}},
      {4, 256, {{4, 2}, {8, 2}}},
      {4, 1024, {{8, 2}}},
      {4, 2048, {{4, 4}, {4, 5}, {4, 8}, {8, 4}}},
      {4, 4096, {{4, 8}, {8, 4}}},
      {4, 32768, {{4, 4}, {4, 8}, {4, 16}, {8, 4}, {8, 8}}},
      {8, 512, {{8, 1}}},
      {8, 1024, {{4, 2}, {8, 2}}},
      {8, 2048, {{4, 4}, {8, 1}, {8, 2}}},
      {8, 4096, {{4, 2}, {4, 4}, {8, 2}}},
      {8, 16384, {{4, 2}, {4, 4}, {4, 8}, {8, 2}, {8, 4}}},
      {16, 64, {{4, 1}, {8, 1}}},
      {16, 1024, {{4, 1}, {8, 1}}},
      {16, 8192, {{4, 1}, {4, 2}, {8, 1}, {8, 2}}},
      {32, 2048, {{4, 1}, {8, 1}}},
      {64, 512, {{4, 1}}},
      {64, 8192, {{4, 1}, {8, 1}}},
  };
  for (const auto& [batch, seq_len_kv, fastest] : cases) {
    AttentionProblem p = problem(DType::kBF16, 1, seq_len_kv, 32, 8, 128);
    p.batch = batch;
    const AttentionConfig config = choose_sm80_decode(p).config;
    const std::pair<int, int> chosen(config.num_warps, config.num_splits);
    EXPECT_NE(std::find(fastest.begin(), fastest.end(), chosen), fastest.end())
        << "batch " << batch << ", " << seq_len_kv << " keys: " << config.num_warps << " warps, "
        << config.num_splits << " splits";
  }
}

// What was fastest when measured so, or at most 4 % slower, of both decode kernels, with bf16 and 32/8 heads.
TEST(ChooseKernel, DecodesCutsAreThoseThatWereFastestWhenMeasured) {
  struct Measured {
    int head_dim;
    std::int64_t batch, seq_len_kv;
    const char* kernel;
    int cuts, cluster_blocks;
    bool combines;
  };
  const std::vector<Measured> cases = {
      {128, 1, 512, "sm80/decode", 4, 4, false},     {128, 1, 1024, "sm80/decode", 6, 6, false},
      {128, 1, 4096, "sm80/decode", 8, 8, false},    {128, 4, 1024, "sm80/decode", 2, 2, false},
      {128, 1, 32768, "sm90/decode", 264, 1, true},  {128, 2, 8192, "sm80/decode", 8, 1, true},
      {128, 4, 4096, "sm80/decode", 4, 1, true},     {128, 8, 1024, "sm80/decode", 2, 2, false},
      {128, 8, 4096, "sm90/decode", 128, 2, false},  {128, 8, 8192, "sm90/decode", 128, 2, false},
      {128, 16, 2048, "sm90/decode", 128, 1, false}, {128, 16, 8192, "sm90/decode", 128, 1, false},
      {128, 32, 4096, "sm90/decode", 256, 1, false}, {128, 64, 8192, "sm90/decode", 512, 1, false},
      {64, 1, 1024, "sm80/decode", 4, 4, false},     {64, 2, 16384, "sm80/decode", 8, 1, true},
      {64, 4, 2048, "sm80/decode", 2, 2, false},     {64, 16, 4096, "sm80/decode", 1, 1, false},
  };
  for (const Measured& m : cases) {
    AttentionProblem p = problem(DType::kBF16, 1, m.seq_len_kv, 32, 8, m.head_dim);
    p.batch = m.batch;
    const KernelChoice choice = choose_kernel(p, h200(), {});
    const std::string what = fmt::format("head_dim {}, {} x {}", m.head_dim, m.batch, m.seq_len_kv);
    EXPECT_EQ(choice.kernel->name, m.kernel) << what;
    EXPECT_EQ(cuts_of(choice), m.cuts) << what;
    EXPECT_EQ(choice.cluster_blocks, m.cluster_blocks) << what;
    EXPECT_EQ(!choice.combine_entry.empty(), m.combines) << what;
    EXPECT_EQ(cuts_of(choice) % choice.cluster_blocks, 0);
  }
}

// Terms make a tile longer, so that two parts of each head were faster than heads that are whole; measured as
// above, with masks of which all heads share rows.
TEST(ChooseKernel, HoppersDecodeCutsHeadsInTwoWhoseTermsTakeLong) {
  const auto choice_of = [](int head_dim, int num_heads, std::int64_t seq_len_q, auto change,
                            std::int64_t batch = 16) {
    AttentionProblem p = problem(DType::kBF16, seq_len_q, 4096, num_heads, 8, head_dim);
    p.batch = batch;
    change(p.scores);
    return choose_kernel(p, h200(), {});
  };
  const auto none = [](ScoreTerms&) {};
  const auto softcap = [](ScoreTerms& s) { s.softcap = 50.0f; };
  const auto additive = [](ScoreTerms& s) { s.additive_mask = ScoreMask{nullptr, DType::kF32, 0, 0, 4096}; };
  const auto boolean = [](ScoreTerms& s) { s.boolean_mask = ScoreMask{nullptr, DType::kBool, 0, 0, 4096}; };
  const auto expect_parts = [](const KernelChoice& choice, int parts, const char* what) {
    EXPECT_EQ(choice.kernel->name, "sm90/decode") << what;
    EXPECT_EQ(choice.config.num_parts, parts) << what;
  };
  expect_parts(choice_of(128, 32, 8, none), 128, "none");
  expect_parts(choice_of(128, 32, 8, softcap), 256, "softcap");
  expect_parts(choice_of(128, 32, 8, additive), 256, "additive mask");
  expect_parts(choice_of(128, 32, 8, boolean), 256, "boolean mask");
  expect_parts(choice_of(128, 32, 2, additive), 128, "so few rows that a warp has half of a tile's scores");
  expect_parts(choice_of(256, 16, 8, additive), 128, "tiles of so many bytes that memory bounds them");
  expect_parts(choice_of(256, 16, 8, boolean), 128, "the same");
  EXPECT_EQ(choice_of(128, 32, 4, additive, 1).kernel->name, "sm90/decode") << "of few sequences, too";
}

TEST(ChooseKernel, ClustersShareFewKeysOutAndNeedNoOtherKernel) {
  AttentionProblem p = problem(DType::kBF16, 1, 1024, 32, 8, 128);
  const std::int32_t lengths[2] = {};
  p.batch = 2;
  p.seq_lens_kv = lengths;
  const KernelChoice choice = choose_kernel(p, h200(), {});
  EXPECT_EQ(choice.kernel->name, "sm80/decode");
  ASSERT_GT(choice.cluster_blocks, 1);
  EXPECT_EQ(choice.config.num_splits, choice.cluster_blocks);
  EXPECT_TRUE(choice.combine_entry.empty());
  EXPECT_EQ(choice.workspace_bytes(), 0u);
  const LaunchShape shape = choice.kernel->shape(choice, 2, 32);
  EXPECT_EQ(shape.cluster_blocks, static_cast<unsigned>(choice.cluster_blocks));
  EXPECT_EQ(shape.grid, (std::array{shape.cluster_blocks, 8u, 2u}));
  EXPECT_LE(16 * shape.cluster_blocks, 132u);
  kernels::AttentionParams params = gpu::attention_params(p, choice, nullptr);
  EXPECT_EQ(params.num_splits, choice.config.num_splits);
  gpu::KernelArguments arguments = gpu::kernel_arguments(params, p, choice, nullptr);
  std::memcpy(&params, arguments.data(), sizeof params);
  EXPECT_EQ(params.num_splits, 1) << "all blocks take all keys";
  EXPECT_EQ(params.o_partial, nullptr);
}

TEST(ChooseKernel, ClustersAreForDevicesAndNumbersThatTakeThem) {
  const auto cluster_of = [](const AttentionProblem& p, const DeviceProperties& device,
                             const AttentionConfig& forced) {
    const auto kernels = attention_kernels().subspan(1);  // without Hopper's decode kernel
    return gpu::choose_kernel(kernels, p, device, forced).cluster_blocks;
  };
  const AttentionProblem p = problem(DType::kBF16, 1, 2048, 32, 8, 128);
  EXPECT_EQ(cluster_of(p, h200(), {}), 8);
  EXPECT_EQ(cluster_of(p, h200(), {.num_splits = 4}), 4);
  EXPECT_EQ(cluster_of(p, h200(), {.num_splits = 5}), 1) << "not a size that leaves few multiprocessors idle";
  EXPECT_EQ(cluster_of(p, h200(), {.num_splits = 16}), 1);
  EXPECT_EQ(cluster_of(p, a100(), {}), 1);
  EXPECT_EQ(cluster_of(problem(DType::kF32, 1, 2048, 32, 8, 128), h200(), {}), 1);
  EXPECT_EQ(cluster_of(problem(DType::kBF16, 1, 8192, 32, 8, 128), h200(), {}), 1) << "too many keys";
  EXPECT_EQ(cluster_of(problem(DType::kBF16, 1, 2048, 128, 128, 128), h200(), {}), 1) << "heads enough";
  AttentionProblem early = problem(DType::kBF16, 1, 512, 32, 8, 128);
  EXPECT_EQ(cluster_of(early, h200(), {}), 4);
  early.settled_kv = true;
  EXPECT_GT(cluster_of(early, h200(), {}), 4) << "blocks that start while the kernel before ends";
}

// Nothing of the launch may depend on lengths that only the device knows, but on their bound.
TEST(ChooseKernel, HoppersDecodeOfRaggedSequencesDependsOnBoundsOnly) {
  AttentionProblem p = problem(DType::kBF16, 1, 20000, 32, 8, 128);
  const std::int32_t lengths[64] = {};
  p.seq_lens_kv = lengths;
  for (const auto& [batch, parts] :
       {std::pair{1, 264}, {2, 256}, {6, 240}, {12, 264}, {16, 256}, {20, 264}, {64, 512}, {100, 800}}) {
    p.batch = batch;
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/decode");
    EXPECT_EQ(choice.config.num_parts, parts);
    EXPECT_EQ(choice.config.num_splits, divide_up(parts, batch * 8));
    EXPECT_EQ(choice.cluster_blocks, 1);
    EXPECT_FALSE(choice.combine_entry.empty());
    EXPECT_EQ(modules_of(choice).size(), 1u) << "the combination is of the same module";
    // Two ints a head; of each part and head all rows' o and lse.
    EXPECT_EQ(choice.partial_bytes,
              static_cast<std::size_t>(batch * 8 * 8 + (parts + batch * 8) * 4 * 129 * 4));
    const LaunchShape shape = choice.kernel->shape(choice, batch, 32);
    EXPECT_EQ(shape.grid[0], static_cast<unsigned>(parts));
  }
}

// As many of each kv head as of any other kernel's.
TEST(ChooseKernel, HoppersDecodeCutsHeadsAsForced) {
  const std::int32_t lengths[16] = {};
  for (const bool is_ragged : {false, true}) {
    AttentionProblem p = problem(DType::kBF16, 1, 8192, 32, 8, 128);
    p.batch = 16;
    if (is_ragged) p.seq_lens_kv = lengths;
    for (const int splits : {1, 2, 3, 128}) {
      SCOPED_TRACE(fmt::format("{}, {} splits", is_ragged ? "ragged" : "uniform", splits));
      const KernelChoice choice = choose_kernel(p, h200(), {.num_splits = splits});
      ASSERT_EQ(choice.kernel->name, "sm90/decode");
      const int given = std::min(splits, 4096 / 128);
      EXPECT_EQ(choice.config.num_splits, given);
      EXPECT_EQ(choice.config.num_parts, 128 * given);
      EXPECT_EQ(choice.kernel->shape(choice, 16, 32).grid[0], static_cast<unsigned>(128 * given));
      EXPECT_EQ(choice.combine_entry.empty(), splits == 1) << "whole heads need no other kernel";
    }
    const KernelChoice one = choose_kernel(p, h200(), {.num_parts = 1});
    EXPECT_EQ(one.kernel->shape(one, 16, 32).grid[0], 1u);
    EXPECT_FALSE(one.combine_entry.empty()) << "one block goes over all heads, which aren't its own";
  }
}

TEST(ChooseKernel, ForcedSplitsLeaveKernelsOfWholeKeys) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    AttentionProblem p = problem(dtype, 512, 8192, 32, 8, 128);
    p.scores.additive_mask = ScoreMask{.dtype = DType::kF32, .q_stride = 8192, .kv_stride = 1};
    const auto has_whole_keys = [&](const AttentionConfig& forced) {
      return choose_kernel(p, h200(), forced).kernel->has_whole_keys(p);
    };
    EXPECT_TRUE(has_whole_keys({}));
    EXPECT_TRUE(has_whole_keys({.num_splits = 1}));
    const KernelChoice split = choose_kernel(p, h200(), {.num_splits = 3});
    EXPECT_EQ(split.config.num_splits, 3);
    EXPECT_FALSE(split.kernel->is_plain);
    const auto reasons =
        gpu::reasons_against_other_kernels(attention_kernels(), p, h200(), {.num_splits = 3}, split);
    EXPECT_TRUE(std::ranges::any_of(reasons, [](const std::string& line) {
      return line.find("it splits no keys, and config.num_splits is 3") != std::string::npos;
    }));
  }
}

TEST(ChooseKernel, HoppersDecodeLeavesHeadsOfShortRaggedSequencesWhole) {
  AttentionProblem p = problem(DType::kBF16, 1, 256, 32, 8, 128);
  const std::int32_t lengths[64] = {};
  p.seq_lens_kv = lengths;
  for (const auto& [batch, bound, is_whole] :
       {std::tuple{16, 512, true}, {64, 256, true}, {16, 1024, true}, {16, 2048, false}}) {
    SCOPED_TRACE(fmt::format("{} sequences of up to {} keys", batch, bound));
    p.batch = batch;
    p.seq_len_kv = bound;
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/decode");
    EXPECT_EQ(choice.combine_entry.empty(), is_whole);
    if (is_whole) {
      EXPECT_EQ(choice.config.num_parts, batch * 8);
    }
  }
}

// What was faster of both decode kernels when measured on an H200 with bf16, head_dim 256 and two heads a kv
// head, keys and values not in the cache: in pages of 16, and of lengths that the device knows.
TEST(ChooseKernel, DecodeOfLargeHeadsWhoseLengthsTheDeviceKnowsTakesWhatWasFasterWhenMeasured) {
  struct Measured {
    int batch;
    std::int64_t seq_len_kv;
    bool is_paged;
    const char* kernel;
    int cuts;
  };
  const std::vector<Measured> cases = {
      {1, 1024, true, "sm90/decode", 128},   {1, 16384, true, "sm90/decode", 128},
      {8, 256, true, "sm90/decode", 64},     {8, 1024, true, "sm90/decode", 128},
      {16, 4096, true, "sm90/decode", 128},  {64, 1024, true, "sm90/decode", 512},
      {8, 256, false, "sm80/decode", 1},     {4, 1024, false, "sm80/decode", 4},
      {16, 4096, false, "sm90/decode", 128},
  };
  const std::vector<std::int32_t> lengths(64, 1);
  for (const Measured& c : cases) {
    AttentionProblem p = problem(DType::kBF16, 1, c.seq_len_kv, 16, 8, 256);
    p.batch = c.batch;
    if (c.is_paged) {
      p.paged_kv = PagedKv{.num_pages = 100000, .page_size = 16};
    } else {
      p.seq_lens_kv = lengths.data();
    }
    const KernelChoice choice = choose_kernel(p, h200(), {});
    SCOPED_TRACE(fmt::format("{} x {} keys, {}", c.batch, c.seq_len_kv, c.is_paged ? "pages" : "dense"));
    EXPECT_EQ(choice.kernel->name, c.kernel);
    EXPECT_EQ(cuts_of(choice), c.cuts);
  }
}

TEST(ChooseKernel, HoppersDecodeSaysWhatItDoesNotTake) {
  AttentionProblem paged = problem(DType::kBF16, 2, 16384, 32, 8, 128);
  paged.paged_kv = PagedKv{.num_pages = 100, .page_size = 16};
  EXPECT_EQ(choose_kernel(paged, h200(), {}).kernel->name, "sm90/decode");
  const auto reason = [&](auto change, DeviceProperties device = h200()) {
    AttentionProblem p = paged;
    change(p);
    const KernelChoice choice = choose_kernel(p, device, {});
    EXPECT_NE(choice.kernel->name, "sm90/decode");
    for (const std::string& line : reasons_against_other_kernels(p, device, choice)) {
      if (line.starts_with("not sm90/decode: ")) return line.substr(17);
    }
    return std::string();
  };
  EXPECT_NE(reason([](AttentionProblem&) {}, a100()).find("Hopper"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.paged_kv->page_size = 48; }).find("not 48"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.paged_kv->page_size = 4; }).find("not 4"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.seq_len_kv = 1000; }).find("clusters"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.seq_len_q = 17; }).find("64 rows"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.head_dim_v = 264; }).find("128 and 264"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.head_dim_v = 96; }).find("filled up"), std::string::npos);
  const std::int32_t lengths[] = {500, 500};
  EXPECT_NE(reason([&](AttentionProblem& p) {
              p.paged_kv.reset();
              p.seq_lens_kv = lengths;
              p.seq_len_kv = 500;
              p.head_dim_v = 192;
            }).find("as fast"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.k.seq_stride = 0; }).find("strides"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.v.batch_stride += 4; }).find("aligned"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.batch_invariant = true; }).find("batch_invariant"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.batch = 5000; }).find("4096 sequences"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.seq_len_q = 1;
              p.batch = 4096;
              p.seq_len_kv = 1 << 28;
            }).find("32 bits"),
            std::string::npos);
  AttentionConfig forced;
  forced.num_splits = 5000;
  EXPECT_THROW(choose_kernel(paged, h200(), forced), Error);
  forced = {};
  forced.num_warps = 4;
  EXPECT_THROW(choose_kernel(paged, h200(), forced), Error);
}

// More rows than sm80/decode takes, of any head_dim up to 256; large heads have a multiprocessor for each
// block.
TEST(ChooseKernel, HoppersDecodeTakesOtherHeadDimsOfManyRows) {
  for (const auto& [head_dim, slots] : {std::pair{80, 7}, {96, 7}, {160, 8}, {192, 8}, {256, 6}}) {
    SCOPED_TRACE(head_dim);
    AttentionProblem p = problem(DType::kBF16, 16, 8192, 32, 8, head_dim);
    p.batch = 16;
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/decode");
    EXPECT_EQ(choice.config.num_stages, slots);
    EXPECT_EQ(choice.cluster_blocks, 1);
  }
}

// Keys of 8 bits: tiles of as many bytes, so twice the keys, and a module for 8 and one for 16 rows.
TEST(ChooseKernel, HoppersDecodeTakesKeysOfEightBits) {
  const auto narrow = [](DType dtype, std::int64_t seq_len_q, int head_dim) {
    AttentionProblem p = problem(dtype, seq_len_q, 8192, 32, 8, head_dim);
    p.batch = 16;
    p.k.dtype = p.v.dtype = DType::kF8E4M3;
    return p;
  };
  const auto has = [](const KernelChoice& choice, const char* define) {
    return std::ranges::count(choice.module.defines, define) == 1;
  };
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int head_dim : {64, 128}) {
      const KernelChoice choice = choose_kernel(narrow(dtype, 1, head_dim), h200(), {});
      EXPECT_EQ(choice.kernel->name, "sm90/decode");
      EXPECT_EQ(choice.module.source, "sm90/attention_decode_e4m3.cu");
      EXPECT_EQ(choice.config.block_m, 16);
      EXPECT_EQ(choice.config.block_n, 128);
      EXPECT_EQ(choice.config.num_stages, head_dim == 64 ? 13 : 6);
      EXPECT_EQ(choice.config.num_parts, head_dim == 64 ? 256 : 128)
          << "whole heads, as 4096 keys of 16 bits, unless a block alone would not keep up";
      EXPECT_TRUE(has(choice, "TESSERA_KV_DTYPE=f8e4m3"));
      EXPECT_TRUE(has(choice, "TESSERA_ROW_TILES=1"));
      EXPECT_LE(choice.shared_bytes + 1024, h200().shared_per_multiprocessor_bytes / 2)
          << "two blocks a multiprocessor";
    }
  }
  const KernelChoice large = choose_kernel(narrow(DType::kBF16, 1, 256), h200(), {});
  EXPECT_EQ(large.kernel->name, "sm90/decode");
  EXPECT_EQ(large.config.num_stages, 6);
  EXPECT_LE(large.shared_bytes, h200().shared_per_block_bytes);
  EXPECT_EQ(choose_kernel(narrow(DType::kBF16, 1, 160), h200(), {}).kernel->name, "sm90/decode");
  EXPECT_EQ(choose_kernel(narrow(DType::kBF16, 1, 96), h200(), {}).kernel->name, "sm80/decode")
      << "a third of what would be copied is no part of the rows";
  EXPECT_TRUE(has(choose_kernel(narrow(DType::kBF16, 2, 128), h200(), {}), "TESSERA_ROW_TILES=1"));
  const KernelChoice wide = choose_kernel(narrow(DType::kBF16, 3, 128), h200(), {});
  EXPECT_TRUE(has(wide, "TESSERA_ROW_TILES=2"));
  EXPECT_EQ(wide.config.num_parts, 256) << "a block alone would not keep up with its multiprocessor's share";

  // The other kernel, which widens by more instructions, is no faster however few they are.
  for (const auto& [seq_len_kv, num_parts, cluster_blocks] :
       {std::tuple{1024, 64, 8}, {4096, 64, 8}, {8192, 264, 1}, {32768, 264, 1}}) {
    AttentionProblem p = narrow(DType::kBF16, 1, 128);
    p.batch = 1;
    p.seq_len_kv = seq_len_kv;
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/decode");
    EXPECT_EQ(choice.config.num_parts, num_parts) << seq_len_kv;
    EXPECT_EQ(choice.cluster_blocks, cluster_blocks) << seq_len_kv;
  }

  AttentionProblem paged = narrow(DType::kBF16, 1, 128);
  paged.paged_kv = PagedKv{.num_pages = 1000, .page_size = 64};
  EXPECT_EQ(choose_kernel(paged, h200(), {}).kernel->name, "sm90/decode");
  const auto reason = [&](auto change) {
    AttentionProblem p = paged;
    change(p);
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_NE(choice.kernel->name, "sm90/decode");
    for (const std::string& line : reasons_against_other_kernels(p, h200(), choice)) {
      if (line.starts_with("not sm90/decode: ")) return line.substr(17);
    }
    return std::string();
  };
  EXPECT_NE(reason([](AttentionProblem& p) { p.seq_len_q = 5; }).find("16 rows"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.paged_kv->page_size = 192; }).find("not 192"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.q.dtype = p.o.dtype = DType::kF32; }).find("f32"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.kv_scales = KvScales{.batch_stride = 8, .head_stride = 1};
            }).find("one a page"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::cuda
