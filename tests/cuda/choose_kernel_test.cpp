#include "backends/gpu/attention/choose_kernel.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/cuda/attention/reserved_shared.h"
#include "backends/cuda/cuda_platform.h"
#include "backends/gpu/attention/align_rows.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/problem_params.h"
#include "core/rounding.h"
#include "cuda/built_ahead.h"
#include "gpu/dense_problem.h"
#include "sm80/attention_decode_traits.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

using gpu::DeviceProperties;
using gpu::KernelChoice;
using gpu::LaunchShape;
using gpu::ModuleSpec;
using gpu::unsupported_problem;

KernelChoice choose_kernel(const AttentionProblem& p, const DeviceProperties& device,
                           const AttentionConfig& forced) {
  return gpu::choose_kernel(attention_kernels(), p, device, forced);
}

std::vector<std::string> reasons_against_other_kernels(const AttentionProblem& p,
                                                       const DeviceProperties& device,
                                                       const KernelChoice& choice) {
  return gpu::reasons_against_other_kernels(attention_kernels(), p, device, choice);
}

const DeviceProperties& device(std::string_view name) {
  return *std::ranges::find(largest_devices(), name, &DeviceProperties::name);
}
DeviceProperties h200() { return device("H200"); }
DeviceProperties a100() { return device("A100"); }
DeviceProperties rtx_4090() {
  return {"RTX 4090", 89, 128, std::size_t{24} << 30, 72 << 20, 102400, 101376, 2520000, 0, 32};
}

/// Without Hopper's decode kernel, which the list starts with.
KernelChoice choose_sm80_decode(const AttentionProblem& p) {
  const KernelChoice choice = gpu::choose_kernel(attention_kernels().subspan(1), p, h200(), {});
  EXPECT_EQ(choice.kernel->name, "sm80/decode");
  return choice;
}

AttentionProblem problem(DType dtype, std::int64_t seq_len_q, std::int64_t seq_len_kv, int num_heads,
                         int num_kv_heads, int head_dim) {
  return testing::dense_problem(DeviceKind::kCuda, dtype, seq_len_q, seq_len_kv, num_heads, num_kv_heads,
                                head_dim);
}

TEST(ChooseKernel, TheUsualModulesAreBuiltAheadOfTime) {
  if (embedded_modules().empty()) GTEST_SKIP() << "built without nvcc";
  for (const auto& [device, architecture] : {std::pair{h200(), "sm_90a"}, std::pair{a100(), "sm_80"}}) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (const int head_dim : {64, 128, 256}) {
        if (dtype == DType::kF32 && head_dim == 256) continue;  // seldom: compiled when first used
        for (const std::int64_t seq_len_q : {1, 2048}) {
          for (const bool paged : {false, true}) {
            AttentionProblem p = problem(dtype, seq_len_q, 4096, 32, 8, head_dim);
            if (paged) p.paged_kv.emplace();
            const KernelChoice choice = choose_kernel(p, device, {});
            EXPECT_TRUE(is_built_ahead(choice.module, architecture))
                << choice.module.source << " " << fmt::format("{}", fmt::join(choice.module.defines, " "));
          }
        }
      }
    }
  }
}

TEST(ChooseKernel, TilesFitInEveryDevicesSharedMemory) {
  for (const DeviceProperties& device : {h200(), a100(), rtx_4090()}) {
    for (int head_dim = 1; head_dim <= 256; ++head_dim) {
      for (const std::int64_t seq_len_q : {1, 100, 10000}) {
        for (const DType dtype : {DType::kBF16, DType::kF32}) {
          const KernelChoice choice =
              choose_kernel(problem(dtype, seq_len_q, 1000, 8, 2, head_dim), device, {});
          EXPECT_LE(choice.shared_bytes, device.shared_per_block_bytes) << device.name << " " << head_dim;
          EXPECT_NE(choice.kernel, &gpu::kGenericAttention);
        }
      }
    }
  }
}

// What a plan says, forced, is the plan again: the same module, launch and splits.
TEST(ChooseKernel, ChoosingAgainWithAChoicesOwnValuesChangesNothing) {
  for (const DeviceProperties& device : {h200(), a100(), rtx_4090()}) {
    for (int head_dim = 16; head_dim <= 512; head_dim += head_dim < 256 ? 16 : 128) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        for (const std::int64_t seq_len_q : {0, 1, 4, 100, 10000}) {
          for (const std::int64_t seq_len_kv : {0, 1, 700, 100000}) {
            for (const bool with_terms : {false, true}) {
              AttentionProblem p = problem(dtype, seq_len_q, seq_len_kv, 8, 2, head_dim);
              p.scores.diagonal = DiagonalMask::causal();
              if (with_terms) p.scores.softcap = 30.0f;
              const KernelChoice choice = choose_kernel(p, device, {});
              EXPECT_EQ(choose_kernel(p, device, choice.config), choice)
                  << device.name << " " << to_string(p) << ": " << fmt::format("{}", choice.module.defines);
            }
          }
        }
      }
    }
  }
}

TEST(ChooseKernel, EveryHeadDimAndDTypeHasAKernel) {
  const auto kernel_of = [](const AttentionProblem& p) { return choose_kernel(p, h200(), {}).kernel->name; };
  EXPECT_EQ(kernel_of(problem(DType::kBF16, 64, 64, 4, 4, 512)), "sm80/prefill");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 1, 4096, 32, 8, 576)), "sm80/prefill");
  EXPECT_EQ(kernel_of(problem(DType::kF32, 64, 64, 4, 4, 257)), "tiled");
  EXPECT_EQ(kernel_of(problem(DType::kF32, 64, 64, 4, 4, 256)), "sm90/prefill_f32");
  EXPECT_EQ(choose_kernel(problem(DType::kF32, 64, 64, 4, 4, 256), a100(), {}).kernel->name,
            "sm80/prefill_f32");
  EXPECT_EQ(kernel_of(problem(DType::kF32, 1, 64, 4, 4, 128)), "sm80/decode");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 17, 4096, 32, 8, 80)), "sm80/prefill");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 128, 128, 4, 4, 80)), "sm90/prefill");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 1, 64, 4, 4, 80)), "sm80/decode");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 1, 32768, 32, 8, 128)), "sm90/decode");
}

TEST(ChooseKernel, TilesOfAnyHeadDimsAndFewRowsAreWhole) {
  const auto kernels = attention_kernels();
  const auto prefill =
      std::ranges::find(kernels, std::string_view("sm80/prefill"), &gpu::AttentionKernel::name);
  ASSERT_NE(prefill, kernels.end());
  for (int head_dim = 1; head_dim <= 576; head_dim += 5) {
    for (const int head_dim_v : {head_dim, 40, 134, 250, 512}) {
      for (const std::int64_t seq_len_q : {1, 4, 16, 17, 300}) {
        AttentionProblem p = problem(DType::kBF16, seq_len_q, 1000, 16, 4, head_dim);
        p.head_dim_v = head_dim_v;
        for (const DeviceProperties& device : {h200(), a100()}) {
          if (!gpu::reason_against_kernel(**prefill, p, device).empty()) continue;
          KernelChoice choice;
          EXPECT_NO_THROW(choice = gpu::choose_with(**prefill, p, device, {}))
              << head_dim << " " << head_dim_v << " " << seq_len_q;
          EXPECT_LE(choice.shared_bytes, device.shared_per_block_bytes) << head_dim << " " << head_dim_v;
        }
      }
    }
  }
}

TEST(ChooseKernel, TakesTheFirstThatTakesTheProblemOfTheListItIsGiven) {
  const AttentionProblem p = problem(DType::kBF16, 2048, 2048, 32, 8, 128);
  const std::array generic_alone = {&gpu::kGenericAttention};
  const KernelChoice choice = gpu::choose_kernel(generic_alone, p, h200(), {});
  EXPECT_EQ(choice.kernel, &gpu::kGenericAttention);
  EXPECT_TRUE(gpu::reasons_against_other_kernels(generic_alone, p, h200(), choice).empty());
  EXPECT_EQ(gpu::choose_kernel(attention_kernels().subspan(5), p, h200(), {}).kernel->name, "sm80/prefill");
  EXPECT_THROW(gpu::choose_kernel({}, p, h200(), {}), Error);
}

TEST(ChooseKernel, SplitsCoverAllKeysAndFillTheDevice) {
  for (const std::int64_t seq_len_kv : {1, 63, 64, 65, 1000, 32768, 1000000}) {
    const KernelChoice choice = choose_sm80_decode(problem(DType::kBF16, 1, seq_len_kv, 32, 8, 128));
    EXPECT_GE(choice.config.num_splits * choice.keys_per_split, seq_len_kv);
    EXPECT_LT((choice.config.num_splits - 1) * choice.keys_per_split, seq_len_kv);
    EXPECT_EQ(choice.keys_per_split % (choice.cluster_blocks > 1 ? 16 : choice.config.block_n), 0);
    EXPECT_LE(choice.config.num_splits, 128);
  }
  EXPECT_GE(choose_sm80_decode(problem(DType::kBF16, 1, 32768, 32, 8, 128)).config.num_splits, 16);
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
    int num_splits, cluster_blocks;
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
    EXPECT_EQ(choice.config.num_splits, m.num_splits) << what;
    EXPECT_EQ(choice.cluster_blocks, m.cluster_blocks) << what;
    EXPECT_EQ(!choice.combine_entry.empty(), m.combines) << what;
    EXPECT_EQ(choice.config.num_splits % choice.cluster_blocks, 0);
  }
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
    EXPECT_EQ(choice.config.num_splits, parts);
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
      EXPECT_EQ(choice.config.num_splits, batch * 8);
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
    int num_splits;
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
    EXPECT_EQ(choice.config.num_splits, c.num_splits);
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
      EXPECT_EQ(choice.config.num_splits, head_dim == 64 ? 256 : 128)
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
  EXPECT_EQ(wide.config.num_splits, 256) << "a block alone would not keep up with its multiprocessor's share";

  // The other kernel, which widens by more instructions, is no faster however few they are.
  for (const auto& [seq_len_kv, num_splits, cluster_blocks] :
       {std::tuple{1024, 64, 8}, {4096, 64, 8}, {8192, 264, 1}, {32768, 264, 1}}) {
    AttentionProblem p = narrow(DType::kBF16, 1, 128);
    p.batch = 1;
    p.seq_len_kv = seq_len_kv;
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/decode");
    EXPECT_EQ(choice.config.num_splits, num_splits) << seq_len_kv;
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

// The heads whose blocks start in turn share the cache, and are whole parts or multiples of a sequence's.
TEST(ChooseKernel, CausalHeadsTakeTurnsWhileTheirKeysFitInTheCache) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t seq_len : {512, 1000, 4096, 16384, 200000}) {
      for (const std::int64_t batch : {1, 3, 32}) {
        AttentionProblem p = problem(dtype, seq_len, seq_len, 12, 12, 128);
        p.batch = batch;
        EXPECT_EQ(choose_kernel(p, h200(), {}).heads_at_once, 1) << "all rows see as many keys";
        p.scores.diagonal = DiagonalMask::causal();
        const KernelChoice choice = choose_kernel(p, h200(), {});
        const int heads = choice.heads_at_once;
        EXPECT_TRUE(12 % heads == 0 || heads % 12 == 0) << heads;
        EXPECT_LE(heads, 12 * batch);
        const double bytes =
            2.0 * 128 * static_cast<double>(dtype_bytes(dtype, 1)) * static_cast<double>(seq_len);
        if (heads > 1) {
          EXPECT_LE(heads * bytes, static_cast<double>(h200().l2_bytes)) << seq_len;
        }
      }
    }
  }
  AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, 128);
  p.scores.modifier = ScoreModifier{.score = "score + 1", .visible = "", .tensors = {}, .scalars = {}};
  EXPECT_EQ(choose_kernel(p, h200(), {}).heads_at_once, 1);
  p.scores.modifier->visible = "kv_idx <= q_idx";
  EXPECT_EQ(choose_kernel(p, h200(), {}).heads_at_once, 16) << "a mask in text may be causal";
  p.scores.modifier.reset();
  p.scores.diagonal = DiagonalMask::causal();
  EXPECT_EQ(choose_kernel(p, h200(), {}).heads_at_once, 16);
  EXPECT_LT(choose_kernel(p, a100(), {}).heads_at_once, 16) << "a smaller cache";
  p.num_kv_heads = 4;
  EXPECT_EQ(choose_kernel(p, a100(), {}).heads_at_once, 16) << "four heads read the same keys";
}

TEST(AttentionShape, GridsStayWithinTheirLimitsAndCoverAllHeads) {
  for (const int num_heads : {1, 7, 96, 65535}) {
    for (const std::int64_t seq_len : {1, 40, 2048}) {
      AttentionProblem p = problem(DType::kBF16, seq_len, seq_len, num_heads, num_heads, 64);
      p.batch = 100000;
      p.scores.diagonal = DiagonalMask::causal();
      const KernelChoice choice = choose_kernel(p, h200(), {});
      const std::int64_t at_once = std::min(choice.kernel->sequences_at_once(choice), p.batch);
      ASSERT_GE(at_once, 1);
      const LaunchShape shape = choice.kernel->shape(choice, at_once, 32);
      EXPECT_LE(shape.grid[1], 65535u);
      EXPECT_LE(shape.grid[2], 65535u);
      const std::int64_t blocks = std::int64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
      const std::int64_t tiles =
          choice.num_row_tiles * choice.num_head_blocks * at_once * choice.config.num_splits;
      // Blocks that stay take one tile after the other.
      const bool stays = choice.kernel->name == "sm90/prefill";
      EXPECT_GE(blocks, stays ? std::min<std::int64_t>(tiles, choice.num_multiprocessors) : tiles);
      // A group of heads never spans two launches.
      EXPECT_EQ(at_once == p.batch || at_once * choice.num_head_blocks % choice.heads_at_once == 0, true);
    }
  }
}

TEST(ChooseKernel, BatchInvariantKeysAreCutIntoSegmentsWhateverTheirSplits) {
  AttentionProblem p = problem(DType::kBF16, 1, 32768, 32, 8, 128);
  p.batch_invariant = true;
  const KernelChoice decode = choose_kernel(p, h200(), {});
  EXPECT_EQ(decode.kernel->name, "sm80/decode_segments");
  EXPECT_EQ(decode.keys_per_segment, 512);
  EXPECT_EQ(decode.keys_per_split % decode.keys_per_segment, 0);
  EXPECT_GE(decode.config.num_splits, 16);
  EXPECT_EQ(decode.combine_entry, "attention_join_bf16");
  EXPECT_EQ(decode.partial_bytes, std::size_t{64} * 32 * 129 * sizeof(float));
  AttentionConfig forced;
  forced.num_splits = 3;
  const KernelChoice in_three = choose_kernel(p, h200(), forced);
  EXPECT_EQ(in_three.config.num_splits, 3);
  EXPECT_EQ(in_three.keys_per_split, 22 * 512);
  EXPECT_EQ(in_three.partial_bytes, decode.partial_bytes);
  // Short keys are one segment, with nothing to join.
  AttentionProblem one = problem(DType::kBF16, 1, 512, 32, 8, 128);
  one.batch_invariant = true;
  EXPECT_EQ(choose_kernel(one, h200(), {}).kernel->name, "sm80/decode_segments");
  EXPECT_TRUE(choose_kernel(one, h200(), {}).combine_entry.empty());
  // What it leaves: more rows, fp32, large heads, keys of 8 bits.
  const auto kernel_of = [&](DType dtype, int queries, int head_dim, DType kv_dtype) {
    AttentionProblem other = problem(dtype, queries, 32768, 32, 8, head_dim);
    other.batch_invariant = true;
    other.k.dtype = other.v.dtype = kv_dtype;
    return std::string(choose_kernel(other, h200(), {}).kernel->name);
  };
  EXPECT_EQ(kernel_of(DType::kBF16, 4, 80, DType::kBF16), "sm80/decode_segments");
  EXPECT_EQ(kernel_of(DType::kBF16, 5, 128, DType::kBF16), "sm80/prefill");
  EXPECT_EQ(kernel_of(DType::kF16, 1, 256, DType::kF16), "sm80/prefill");
  EXPECT_EQ(kernel_of(DType::kBF16, 1, 128, DType::kF8E4M3), "sm80/prefill");
  EXPECT_EQ(kernel_of(DType::kF32, 1, 128, DType::kF32), "sm80/prefill_f32");
  // Where there are blocks enough each has all segments of its rows.
  AttentionProblem prompt = problem(DType::kBF16, 16384, 16384, 32, 8, 128);
  prompt.batch_invariant = true;
  const KernelChoice whole = choose_kernel(prompt, a100(), {});
  EXPECT_EQ(whole.keys_per_segment, decode.keys_per_segment);
  EXPECT_EQ(whole.config.num_splits, 1);
  EXPECT_TRUE(whole.combine_entry.empty());
  EXPECT_EQ(whole.partial_bytes, 0u);
  // Short prompts have smaller tiles of rows, but the same keys in each.
  AttentionProblem f32 = problem(DType::kF32, 1, 32768, 32, 8, 128);
  f32.batch_invariant = true;
  AttentionProblem long_f32 = problem(DType::kF32, 32768, 32768, 32, 8, 128);
  long_f32.batch_invariant = true;
  const KernelChoice short_prompt = choose_kernel(f32, h200(), {}),
                     long_prompt = choose_kernel(long_f32, h200(), {});
  EXPECT_EQ(short_prompt.module.source, long_prompt.module.source);
  EXPECT_EQ(short_prompt.config.block_n, long_prompt.config.block_n);
  EXPECT_EQ(short_prompt.keys_per_segment, long_prompt.keys_per_segment);
  EXPECT_LT(short_prompt.config.block_m, long_prompt.config.block_m);
}

TEST(ChooseKernel, SplitsOfSegmentsAreThoseThatMeasuredSoonest) {
  struct Case {
    std::int64_t batch, seq_len_kv;
    int head_dim, splits;
  };
  for (const Case& c : {Case{1, 1024, 128, 2}, Case{1, 8192, 128, 16}, Case{1, 32768, 128, 32},
                        Case{4, 8192, 128, 8}, Case{16, 8192, 128, 1}, Case{1, 8192, 64, 16},
                        Case{16, 8192, 64, 2}, Case{16, 8192, 96, 2}, Case{24, 8192, 128, 4}}) {
    AttentionProblem p = problem(DType::kBF16, 1, c.seq_len_kv, 32, 8, c.head_dim);
    p.batch = c.batch;
    p.batch_invariant = true;
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.config.num_splits, c.splits) << c.batch << " x " << c.seq_len_kv << ", " << c.head_dim;
    // No more blocks than multiprocessors: each has one for itself.
    const bool is_alone = c.batch * 8 * c.splits <= h200().num_multiprocessors;
    const std::size_t bytes = choice.shared_bytes + kernels::kSegmentStaticBytes + kReservedShared;
    EXPECT_EQ(2 * bytes > h200().shared_per_multiprocessor_bytes, is_alone);
  }
}

TEST(ChooseKernel, ForcedValuesThatNoKernelHasAreNamed) {
  const auto message_of = [](const AttentionConfig& forced) {
    try {
      choose_kernel(problem(DType::kBF16, 512, 4096, 4, 4, 128), h200(), forced);
    } catch (const Error& e) {
      return e.message();
    }
    return std::string();
  };
  EXPECT_NE(message_of({.num_warps = 3}).find("num_warps is 3"), std::string::npos);
  EXPECT_NE(message_of({.block_m = 100}).find("block_m is 100"), std::string::npos);
  EXPECT_NE(message_of({.block_n = 100}).find("block_n is 100"), std::string::npos);
  EXPECT_NE(message_of({.num_stages = 3}).find("num_stages is 3"), std::string::npos);
  EXPECT_NE(message_of({.block_m = 256, .block_n = 256, .num_stages = 2}).find("shared memory"),
            std::string::npos);
}

TEST(ChooseKernel, HoppersKernelTakesBatchInvariantPromptsInTheSegmentsOfOthers) {
  for (const int head_dim : {40, 64, 96, 128}) {
    AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, head_dim);
    p.batch_invariant = true;
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/prefill");
    EXPECT_EQ(choice.config.block_n, 64);  // keys that share a base, as in sm80/prefill
    EXPECT_EQ(choice.keys_per_segment, choose_kernel(p, a100(), {}).keys_per_segment);
    EXPECT_NE(std::ranges::find(choice.module.defines, "TESSERA_INVARIANT=1"), choice.module.defines.end());
  }
}

TEST(ChooseKernel, HoppersKernelTakesLongPrompts) {
  const AttentionProblem plain = problem(DType::kBF16, 4096, 4096, 16, 16, 128);
  EXPECT_EQ(choose_kernel(plain, h200(), {}).kernel->name, "sm90/prefill");
  EXPECT_EQ(choose_kernel(plain, a100(), {}).kernel->name, "sm80/prefill");
  const auto reason = [&](auto change, DeviceProperties device = h200()) {
    AttentionProblem p = plain;
    change(p);
    const KernelChoice choice = choose_kernel(p, device, {});
    EXPECT_NE(choice.kernel->name, "sm90/prefill");
    for (const std::string& line : reasons_against_other_kernels(p, device, choice)) {
      if (line.starts_with("not sm90/prefill: ")) return line.substr(18);
    }
    return std::string();
  };
  DeviceProperties old_driver = h200();
  old_driver.has_tensor_maps = false;
  EXPECT_NE(reason([](AttentionProblem&) {}, old_driver).find("CUDA 12.0"), std::string::npos);
  // What has other bits than the kernels that take few queries of the same keys.
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.batch_invariant = true;
              p.head_dim_v = 136;
            }).find("with batch_invariant it takes head_dims up to 128"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.batch_invariant = true;
              p.scores.softcap = 30.0f;
            }).find("without score terms"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.batch_invariant = true;
              p.k.dtype = p.v.dtype = DType::kF8E4M3;
            }).find("keys of q's dtype"),
            std::string::npos);
  for (const int page_size : {8, 48, 80}) {  // boxes of which make up no tile, or are of few rows
    EXPECT_NE(reason([&](AttentionProblem& p) {
                p.batch_invariant = true;
                testing::use_pages(p);
                p.paged_kv->page_size = page_size;
              }).find("pages of 16, 32 or a multiple of 64 keys"),
              std::string::npos);
  }
  EXPECT_EQ(reason([](AttentionProblem& p) {
              p.batch = 64;
              p.seq_len_q = 24;
              p.num_kv_heads = 2;
            }),
            "it doesn't pack so few queries with the heads of their group");
  EXPECT_NE(reason([](AttentionProblem& p) { p.seq_len_kv = 0; }).find("empty"), std::string::npos);
  // What a tensor map can't describe, of tensors that aren't copied. Broadcast ones would be for each reader.
  EXPECT_NE(reason([](AttentionProblem& p) { p.k.head_stride = 0; }).find("strides"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.batch = 2;
              p.v.batch_stride = 0;
            }).find("strides"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              testing::use_pages(p);
              p.v.seq_stride = 2050;
            }).find("aligned"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.num_heads = p.num_kv_heads = 1;
              p.seq_len_q = 256;
            }).find("idle"),
            std::string::npos);
  // One of a kind may have any stride.
  AttentionProblem one = plain;
  one.q.batch_stride = -3;
  one.num_kv_heads = 1;
  one.k.head_stride = one.v.head_stride = 0;
  one.q.batch_stride = 0;
  EXPECT_EQ(choose_kernel(one, h200(), {}).kernel->name, "sm90/prefill");
}

TEST(ChooseKernel, HoppersKernelHasRowsCopiedThatTheCopyEngineDoesNotTake) {
  using gpu::kAlignedK, gpu::kAlignedQ, gpu::kAlignedV;
  constexpr int kAll = kAlignedQ | kAlignedK | kAlignedV;
  const auto choice = [](int head_dim, auto change) {
    AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, head_dim);
    change(p);
    const KernelChoice c = choose_kernel(p, h200(), {});
    EXPECT_EQ(c.kernel->name, "sm90/prefill");
    EXPECT_EQ(choose_kernel(p, h200(), c.config), c);
    const std::vector<ModuleSpec> modules = gpu::modules_of(c);
    EXPECT_EQ(std::ranges::count(modules, "common/align_rows.cu", &ModuleSpec::source),
              c.aligned_tensors != 0 ? 1 : 0);
    return c;
  };
  const auto piece = [](const KernelChoice& c) {
    for (const int bytes : {2, 4, 8}) {
      if (std::ranges::count(c.module.defines, fmt::format("TESSERA_O_PIECE={}", bytes)) == 1) return bytes;
    }
    return 16;
  };
  const auto as_it_is = [](AttentionProblem&) {};
  const KernelChoice plain = choice(128, as_it_is);
  EXPECT_EQ(plain.aligned_tensors, 0);
  EXPECT_EQ(plain.workspace_bytes(), plain.partial_bytes);
  EXPECT_EQ(piece(plain), 16);

  for (const auto& [head_dim, row, bytes] : {std::tuple{100, 128, 8}, {65, 96, 2}, {250, 256, 4}}) {
    const KernelChoice c = choice(head_dim, as_it_is);
    EXPECT_EQ(c.aligned_tensors, kAll);
    EXPECT_EQ(piece(c), bytes);
    EXPECT_EQ(c.aligned_rows_bytes, static_cast<std::size_t>(3 * 4096 * 16 * row * 2));
    EXPECT_GE(c.aligned_rows_begin, c.partial_bytes);
    EXPECT_EQ(c.aligned_rows_begin % 256, 0u);
    EXPECT_EQ(c.workspace_bytes(), c.aligned_rows_begin + c.aligned_rows_bytes);
  }
  // Only what needs it: o is written by elements.
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.v.seq_stride = 2050; }).aligned_tensors, kAlignedV);
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.k.head_stride = -128; }).aligned_tensors, kAlignedK);
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.q.seq_stride = -2048; }).aligned_tensors, kAlignedQ);
  const KernelChoice of_o = choice(128, [](AttentionProblem& p) { p.o.head_stride = 129; });
  EXPECT_EQ(of_o.aligned_tensors, 0);
  EXPECT_EQ(piece(of_o), 2);
  const KernelChoice of_wide_rows = choice(100, [](AttentionProblem& p) {
    for (AttentionInput* x : {&p.q, &p.k, &p.v}) {
      x->head_stride = 104;
      x->seq_stride = 104 * 16;
    }
  });
  EXPECT_EQ(of_wide_rows.aligned_tensors, 0);
  EXPECT_EQ(piece(of_wide_rows), 8);
  // Addresses that a plan finds unaligned may be so in other ways later.
  const KernelChoice shifted =
      choice(128, [](AttentionProblem& p) { p.k.data = reinterpret_cast<const void*>(std::uintptr_t{2}); });
  EXPECT_EQ(shifted.aligned_tensors, kAll);
  EXPECT_EQ(piece(shifted), 2);
  // Ragged tokens once, of all sequences.
  EXPECT_EQ(choice(100,
                   [](AttentionProblem& p) {
                     p.batch = 3;
                     p.ragged_q = p.ragged_kv = RaggedTokens{.total_tokens = 9000};
                   })
                .aligned_rows_bytes,
            std::size_t{3} * 9000 * 16 * 128 * 2);
  EXPECT_EQ(choice(100, [](AttentionProblem& p) { p.batch_invariant = true; }).aligned_tensors, kAll);
}

TEST(ChooseKernel, F32IsSplitForHoppersProducts) {
  using Change = std::function<void(AttentionProblem&)>;
  const auto choice = [](int head_dim, const Change& change) {
    AttentionProblem p = problem(DType::kF32, 4096, 4096, 16, 4, head_dim);
    change(p);
    const KernelChoice c = choose_kernel(p, h200(), {});
    EXPECT_EQ(choose_kernel(p, h200(), c.config), c);
    const bool is_split = c.kernel->name == "sm90/prefill_f32";
    const std::vector<ModuleSpec> modules = gpu::modules_of(c);
    EXPECT_EQ(std::ranges::count(modules, "common/split_rows.cu", &ModuleSpec::source), is_split ? 1 : 0);
    EXPECT_EQ(c.split_rows_bytes > 0, is_split);
    if (is_split) {
      EXPECT_GE(c.split_rows_begin, c.partial_bytes);
      EXPECT_EQ(c.split_rows_begin % 256, 0u);
      EXPECT_EQ(c.workspace_bytes(), c.split_rows_begin + c.split_rows_bytes);
      EXPECT_EQ(c.module.source, "sm90/attention_f32.cu");
    } else {
      EXPECT_EQ(c.kernel->name, "sm80/prefill_f32");
    }
    return c;
  };
  const auto as_it_is = [](AttentionProblem&) {};
  for (const auto& [head_dim, row] : {std::pair{64, 128}, {65, 256}, {128, 256}, {192, 384}, {256, 512}}) {
    const KernelChoice c = choice(head_dim, as_it_is);
    EXPECT_EQ(c.kernel->name, "sm90/prefill_f32");
    // Highs and lows of 16 heads of q and of 4 of k and v, and what is said of their tiles.
    const std::size_t tiles_of_keys = divide_up(4096, c.config.block_n);
    const std::size_t tiles = 16 * 64 + 2 * round_up(4 * tiles_of_keys, std::size_t{16});
    EXPECT_EQ(c.split_rows_bytes, static_cast<std::size_t>(4096 * 24 * row * 2) + tiles * 16) << head_dim;
  }
  // Any strides: q, k and v are copied anyway.
  EXPECT_GT(choice(100, [](AttentionProblem& p) { p.k.seq_stride = -401; }).split_rows_bytes, 0u);
  const KernelChoice modified =
      choice(128, [](AttentionProblem& p) { p.scores.modifier.emplace().score = "score * 2"; });
  EXPECT_EQ(modified.kernel->name, "sm90/prefill_f32");
  EXPECT_EQ(modified.config.block_n % 32, 0);
  // Pages are split sequence by sequence, unless these are many times all of them.
  const auto of_pages = [&](std::int64_t batch, std::int64_t num_pages) {
    return choice(128, [&](AttentionProblem& p) {
      p.batch = batch;
      p.paged_kv.emplace();
      p.paged_kv->page_size = 16;
      p.paged_kv->num_pages = num_pages;
    });
  };
  EXPECT_EQ(of_pages(4, 4 * 256).split_rows_bytes, 4 * choice(128, as_it_is).split_rows_bytes);
  EXPECT_EQ(of_pages(4, 256).split_rows_bytes, 0u);
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.batch_invariant = true; }).split_rows_bytes, 0u);
  // A short window's products are few beside what is split.
  EXPECT_EQ(choice(128, [](AttentionProblem& p) { p.scores.diagonal = {32, 0}; }).split_rows_bytes, 0u);
  AttentionConfig forced;
  forced.block_n = 32;
  const gpu::AttentionKernel& kernel = *choice(128, as_it_is).kernel;
  EXPECT_THROW(kernel.choose(problem(DType::kF32, 4096, 4096, 16, 4, 128), h200(), forced), Error);
}

// As measured on an H200.
TEST(ChooseKernel, F32IsSplitWhereThatWasFasterWhenMeasured) {
  struct Measured {
    std::int64_t batch, seq_len_q, seq_len_kv;
    bool is_split;
  };
  for (const Measured& m : {Measured{1, 64, 256, true},
                            {1, 64, 2048, false},
                            {4, 40, 2048, false},
                            {4, 64, 8192, false},
                            {1, 128, 2048, false},
                            {4, 128, 2048, true},
                            {1, 128, 8192, false},
                            {4, 128, 8192, true},
                            {1, 256, 2048, true},
                            {4, 256, 8192, true},
                            {1, 512, 512, true},
                            {32, 512, 512, true}}) {
    AttentionProblem p = problem(DType::kF32, m.seq_len_q, m.seq_len_kv, 16, 16, 128);
    p.batch = m.batch;
    EXPECT_EQ(choose_kernel(p, h200(), {}).split_rows_bytes > 0, m.is_split)
        << m.batch << " x " << m.seq_len_q << " x " << m.seq_len_kv;
  }
}

// As measured: few queries of many keys don't make up for the copies.
TEST(ChooseKernel, RowsAreCopiedWhereThatWasFasterWhenMeasured) {
  struct Measured {
    int head_dim;
    std::int64_t batch, seq_len_q, seq_len_kv;
    bool is_causal;
    bool are_copied;
  };
  for (const Measured& m :
       {Measured{100, 4, 4096, 4096, false, true}, Measured{100, 16, 1024, 1024, true, true},
        Measured{100, 8, 512, 512, false, true}, Measured{65, 8, 512, 512, true, true},
        Measured{100, 1, 1024, 1024, false, true}, Measured{100, 1, 512, 512, true, true},
        Measured{100, 1, 256, 256, false, true}, Measured{100, 4, 128, 128, false, true},
        Measured{250, 16, 1024, 1024, true, true}, Measured{100, 1, 256, 8192, false, false}}) {
    AttentionProblem p = problem(DType::kBF16, m.seq_len_q, m.seq_len_kv, 16, 16, m.head_dim);
    p.batch = m.batch;
    p.q.batch_stride = p.o.batch_stride = m.seq_len_q * p.q.seq_stride;
    p.k.batch_stride = p.v.batch_stride = m.seq_len_kv * p.k.seq_stride;
    if (m.is_causal) p.scores.diagonal = DiagonalMask::causal();
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.aligned_tensors != 0, m.are_copied) << choice.kernel->name << ' ' << to_string(p);
    if (m.are_copied) continue;
    EXPECT_EQ(
        std::ranges::count(reasons_against_other_kernels(p, h200(), choice),
                           "not sm90/prefill: it would have q, k, v copied to aligned rows first, which "
                           "takes longer than it saves"),
        1);
  }
}

// The faster of both prefill kernels when measured, but for those within 3 %: 4096 and more keys, causal.
TEST(ChooseKernel, ShortPromptsTakeTheKernelThatWasFasterWhenMeasured) {
  struct Measured {
    int head_dim;
    std::int64_t batch, seq_len_q, seq_len_kv;
    int num_heads, num_kv_heads;
    const char* kernel;
  };
  const std::vector<Measured> cases = {
      {128, 8, 24, 4096, 32, 8, "sm80/prefill"},  {128, 8, 32, 4096, 32, 8, "sm80/prefill"},
      {128, 8, 64, 4096, 32, 8, "sm90/prefill"},  {128, 8, 96, 4096, 32, 8, "sm90/prefill"},
      {128, 8, 64, 4096, 64, 8, "sm80/prefill"},  {128, 8, 96, 4096, 64, 8, "sm90/prefill"},
      {128, 1, 64, 4096, 32, 8, "sm80/prefill"},  {128, 1, 64, 4096, 64, 8, "sm90/prefill"},
      {128, 1, 100, 4096, 64, 8, "sm90/prefill"}, {128, 1, 128, 8192, 64, 8, "sm90/prefill"},
      {128, 2, 64, 16384, 32, 8, "sm80/prefill"}, {128, 16, 96, 4096, 8, 8, "sm90/prefill"},
      {64, 8, 64, 4096, 32, 8, "sm90/prefill"},   {64, 8, 64, 4096, 64, 8, "sm80/prefill"},
      {64, 8, 96, 4096, 64, 8, "sm90/prefill"},   {64, 1, 100, 4096, 64, 8, "sm90/prefill"},
      {64, 2, 64, 16384, 32, 8, "sm80/prefill"},  {64, 16, 96, 4096, 8, 8, "sm90/prefill"},
  };
  for (const Measured& m : cases) {
    AttentionProblem p =
        problem(DType::kBF16, m.seq_len_q, m.seq_len_kv, m.num_heads, m.num_kv_heads, m.head_dim);
    p.batch = m.batch;
    p.scores.diagonal = DiagonalMask::causal();
    EXPECT_EQ(choose_kernel(p, h200(), {}).kernel->name, m.kernel)
        << fmt::format("head_dim {}, {} x {} queries of {} keys, {}/{} heads", m.head_dim, m.batch,
                       m.seq_len_q, m.seq_len_kv, m.num_heads, m.num_kv_heads);
  }

  AttentionProblem capped = problem(DType::kBF16, 24, 11080, 28, 4, 64);
  capped.batch = 8;
  EXPECT_EQ(choose_kernel(capped, h200(), {}).kernel->name, "sm80/prefill");
  capped.scores.softcap = 50.0f;  // which takes sm80's tiles longer
  EXPECT_EQ(choose_kernel(capped, h200(), {}).kernel->name, "sm90/prefill");
}

TEST(ChooseKernel, HoppersKernelIsCompiledWithTheTermsOfACall) {
  const AttentionProblem plain = problem(DType::kBF16, 4096, 4096, 16, 16, 128);
  const auto choice = [&](auto change) {
    AttentionProblem p = plain;
    change(p);
    return choose_kernel(p, h200(), {});
  };
  const auto has = [](const KernelChoice& c, const std::string& define) {
    return std::ranges::find(c.module.defines, define) != c.module.defines.end();
  };
  const KernelChoice none = choice([](AttentionProblem&) {});
  EXPECT_TRUE(has(none, "TESSERA_TERMS=0") && has(none, "TESSERA_COPIED_MASK=0"))
      << none.module.defines.size();
  const KernelChoice softcap = choice([](AttentionProblem& p) { p.scores.softcap = 30.0f; });
  EXPECT_EQ(softcap.kernel->name, "sm90/prefill");
  EXPECT_TRUE(has(softcap, "TESSERA_TERMS=1"));
  EXPECT_EQ(softcap.shared_bytes, none.shared_bytes);
  EXPECT_EQ(choice([](AttentionProblem& p) { p.scores.softmax_scale = -1.0f; }).kernel->name, "sm90/prefill");
}

ScoreModifier soft_window(const float* bias, const std::int32_t* ids, double cap) {
  return {"cap*tanh(score/cap) + bias[h]",
          "ids[q_idx] == ids[kv_idx]",
          {{"bias", bias, DType::kF32, {32}, {1}}, {"ids", ids, DType::kI32, {1000}, {1}}},
          {{"cap", cap}}};
}

TEST(ChooseKernel, ModifiersAreCompiledIntoModulesThatTheirNumbersDontTellApart) {
  const std::array<float, 32> bias = {};
  const std::array<std::int32_t, 1000> ids = {};
  for (const std::int64_t seq_len_q : {4096, 1}) {
    AttentionProblem p = problem(DType::kBF16, seq_len_q, 4096, 32, 8, 128);
    const KernelChoice plain = choose_kernel(p, h200(), {});
    EXPECT_TRUE(plain.module.modifier.empty());
    p.scores.modifier = soft_window(bias.data(), ids.data(), 20);
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel, plain.kernel);
    EXPECT_NE(choice.module.modifier.find("modifier_score"), std::string::npos);
    EXPECT_FALSE(is_built_ahead(choice.module, "sm_90a"));
    // Other numbers and names, and another score.
    p.scores.modifier = soft_window(bias.data() + 1, ids.data(), 30);
    p.scores.modifier->scalars[0].first = "limit";
    p.scores.modifier->score = "limit * tanh(score / limit) + bias[h]";
    EXPECT_EQ(choose_kernel(p, h200(), {}).module, choice.module);
    p.scores.modifier->score = "score + bias[h]";
    EXPECT_NE(choose_kernel(p, h200(), {}).module, choice.module);
  }
}

TEST(ChooseKernel, BoundsOfAModifiersTensorsHaveTheEndOfTheWorkspace) {
  const std::array<float, 32> bias = {};
  const std::array<std::int32_t, 1000> ids = {};
  AttentionProblem p = problem(DType::kBF16, 4096, 4096, 32, 8, 128);
  const std::size_t without = choose_kernel(p, h200(), {}).partial_bytes;
  p.scores.modifier = soft_window(bias.data(), ids.data(), 20);
  const KernelChoice choice = choose_kernel(p, h200(), {});
  EXPECT_EQ(choice.modifier_block_bytes, 16 * sizeof(kernels::ModifierBounds)) << "1000 / 64, rounded up";
  EXPECT_GE(choice.partial_bytes, without + choice.modifier_block_bytes);
  EXPECT_EQ((choice.partial_bytes - choice.modifier_block_bytes) % 64, 0);
  p.scores.modifier->visible.clear();
  EXPECT_EQ(choose_kernel(p, h200(), {}).modifier_block_bytes, 0u) << "the score alone wants none";
}

TEST(ChooseKernel, AMaskAloneLeavesProductsToTheKernelsOfTiles) {
  const std::array<float, 32> bias = {};
  const std::array<std::int32_t, 1000> ids = {};
  const auto terms = [&](DType dtype, int queries, bool has_score, bool invariant) {
    AttentionProblem p = problem(dtype, queries, 4096, 32, 8, 128);
    p.batch_invariant = invariant;
    p.scores.modifier = soft_window(bias.data(), ids.data(), 20);
    if (!has_score) p.scores.modifier->score.clear();
    const KernelChoice choice = choose_kernel(p, a100(), {});
    EXPECT_GT(choice.modifier_block_bytes, 0u) << choice.kernel->name << " leaves tiles out";
    const auto& defines = choice.module.defines;
    return *std::ranges::find_if(defines,
                                 [](const std::string& d) { return d.starts_with("TESSERA_TERMS="); });
  };
  for (const bool invariant : {false, true}) {
    EXPECT_EQ(terms(DType::kBF16, 4096, false, invariant), "TESSERA_TERMS=0");
    EXPECT_EQ(terms(DType::kF32, 4096, false, invariant), "TESSERA_TERMS=0");
    EXPECT_EQ(terms(DType::kBF16, 4096, true, invariant), "TESSERA_TERMS=32");
  }
  // sm80/decode_segments, which has the same bits, and sm80/decode.
  EXPECT_EQ(terms(DType::kBF16, 1, false, true), "TESSERA_TERMS=0");
  EXPECT_EQ(terms(DType::kBF16, 1, false, false), "TESSERA_TERMS=32");
}

TEST(ChooseKernel, AModifiersArgumentsFollowTheParamsWhateverComesBehindThem) {
  struct Arguments {
    kernels::AttentionParams params;
    std::array<int, 3> behind;
  };
  Arguments a = {};
  a.params.batch = 5;
  a.behind = {7, 8, 9};
  gpu::KernelArguments arguments(a);
  kernels::ModifierArguments modifier = {};
  modifier.integers[3] = 11;
  arguments.add_modifier(modifier);
  const auto* bytes = static_cast<const std::byte*>(arguments.data());
  EXPECT_EQ(std::memcmp(bytes, &a.params, sizeof a.params), 0);
  EXPECT_EQ(std::memcmp(bytes + sizeof a.params, &modifier, sizeof modifier), 0);
  EXPECT_EQ(std::memcmp(bytes + sizeof a.params + sizeof modifier, a.behind.data(), sizeof a.behind), 0);
}

TEST(ChooseKernel, HoppersKernelCopiesMasksThatATensorMapDescribes) {
  const auto choice = [](const ScoreMask& mask, int head_dim = 128) {
    AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, head_dim);
    (mask.dtype == DType::kBool ? p.scores.boolean_mask : p.scores.additive_mask) = mask;
    const KernelChoice c = choose_kernel(p, h200(), {});
    EXPECT_EQ(c.kernel->name, "sm90/prefill");
    EXPECT_LE(c.shared_bytes, h200().shared_per_block_bytes);
    return c;
  };
  constexpr std::int64_t kPlane = 4096 * 4096;
  EXPECT_EQ(choice({nullptr, DType::kBF16, 0, 0, 4096}).copied_mask, kernels::kTermAdditiveMask);
  EXPECT_EQ(choice({nullptr, DType::kBool, 16 * kPlane, kPlane, 4096}).copied_mask,
            kernels::kTermBooleanMask);
  EXPECT_EQ(choice({nullptr, DType::kBF16, 0, 0, 4096}).aligned_tensors, 0);
  // One row for all queries, rows that aren't aligned, an address that isn't: aligned rows are made of them,
  // which all heads read; of a mask a head that takes longer than its elements do.
  const auto is_aligned_first = [&](const ScoreMask& mask) {
    const KernelChoice c = choice(mask);
    EXPECT_EQ(c.copied_mask != 0, c.aligned_tensors != 0);
    EXPECT_GE(c.aligned_rows_bytes, c.aligned_tensors != 0 ? 2u * kPlane : 0u);
    return c.aligned_tensors == gpu::kAlignedAdditiveMask;
  };
  EXPECT_TRUE(is_aligned_first({nullptr, DType::kBF16, 4096, 0, 0}));
  EXPECT_TRUE(is_aligned_first({nullptr, DType::kF32, 0, 0, 4097}));
  EXPECT_TRUE(is_aligned_first({reinterpret_cast<const void*>(8), DType::kBF16, 0, 0, 4096}));
  EXPECT_FALSE(is_aligned_first({nullptr, DType::kF32, 0, kPlane, 4097}));
  EXPECT_EQ(choice({nullptr, DType::kBool, 0, 0, 4104}).aligned_tensors, gpu::kAlignedBooleanMask);
  EXPECT_EQ(choice({nullptr, DType::kBF16, 0, 0, 2 * 4096, 2}).copied_mask, 0);  // keys apart
  // A tile of the widest fits at all head_dims.
  for (const int head_dim : {64, 128, 192, 256})
    EXPECT_EQ(choice({nullptr, DType::kF32, 0, 0, 4096}, head_dim).copied_mask, kernels::kTermAdditiveMask);
}

TEST(ChooseKernel, HoppersKernelGathersPagesThatDoNotMakeUpTiles) {
  const auto of_pages = [](int page_size, int head_dim = 128) {
    AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, head_dim);
    p.paged_kv.emplace();
    p.paged_kv->page_size = page_size;
    p.paged_kv->num_pages = 4096;
    p.k.batch_stride = p.v.batch_stride = page_size * p.k.seq_stride;
    return p;
  };
  const auto gathers = [](const AttentionProblem& p) {
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/prefill");
    EXPECT_EQ(choice.zeroed_bytes, sizeof(int));  // lengths are the device's
    EXPECT_LE(choice.shared_bytes, h200().shared_per_block_bytes);
    const bool gathers = std::ranges::count(choice.module.defines, "TESSERA_GATHERS=1") == 1;
    EXPECT_EQ(choice.note.empty(), !gathers);
    return gathers;
  };
  for (const int page_size : {32, 64, 128, 256, 1024})
    EXPECT_FALSE(gathers(of_pages(page_size))) << page_size;
  // Boxes of 16 keys are slower than warps, unless rows are short or warps have something else to do.
  for (const int head_dim : {96, 128, 192, 256}) EXPECT_TRUE(gathers(of_pages(16, head_dim))) << head_dim;
  EXPECT_FALSE(gathers(of_pages(16, 64)));
  EXPECT_EQ(choose_kernel(of_pages(16), h200(), {}).note,
            "warps copy keys and values row by row: boxes of 16 keys a page would be slower");
  EXPECT_EQ(choose_kernel(of_pages(5), h200(), {}).note,
            "warps copy keys and values row by row: boxes of pages of 5 keys make up no tile of 128");
  AttentionProblem invariant = of_pages(16);
  invariant.batch_invariant = true;
  EXPECT_FALSE(gathers(invariant));
  AttentionProblem masked = of_pages(16);
  masked.scores.additive_mask = ScoreMask{.data = nullptr,
                                          .dtype = DType::kBF16,
                                          .batch_stride = 0,
                                          .head_stride = 0,
                                          .q_stride = 4096,
                                          .kv_stride = 1};
  EXPECT_FALSE(gathers(masked));
  EXPECT_FALSE(gathers(of_pages(48, 192)));
  for (const int head_dim : {64, 80, 128, 192, 256}) {
    for (const int page_size : {1, 5, 8, 12, 100, 200}) EXPECT_TRUE(gathers(of_pages(page_size, head_dim)));
  }
  // There are two warpgroups, whatever is asked for; three leave no registers.
  EXPECT_EQ(choose_kernel(of_pages(1, 64), h200(), {}).config.block_m, 128);

  const auto reason = [](const AttentionProblem& p) {
    const KernelChoice choice = choose_kernel(p, h200(), {});
    for (const std::string& line : reasons_against_other_kernels(p, h200(), choice)) {
      if (line.starts_with("not sm90/prefill: ")) return line.substr(18);
    }
    return std::string("no reason");
  };
  AttentionProblem modified = of_pages(8);
  modified.scores.modifier = ScoreModifier{.score = "score + 1", .visible = "", .tensors = {}, .scalars = {}};
  EXPECT_FALSE(gathers(modified));
  AttentionProblem narrow = of_pages(24);
  narrow.k.dtype = narrow.v.dtype = DType::kF8E4M3;
  EXPECT_EQ(reason(narrow),
            "of keys of 8 bits it takes pages of a multiple of 8 keys that divides or is a multiple of 128, "
            "not of 24");
}

TEST(ChooseKernel, HoppersKernelTakesPromptsOverKeysOf8Bits) {
  const auto narrow = [](DType dtype, std::int64_t seq_len_q, int head_dim) {
    AttentionProblem p = problem(dtype, seq_len_q, 4096, 16, 4, head_dim);
    p.k.dtype = p.v.dtype = DType::kF8E4M3;
    return p;
  };
  const auto kernel_of = [](const AttentionProblem& p) { return choose_kernel(p, h200(), {}).kernel->name; };
  for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (const std::int64_t seq_len_q : {2048, 4096}) {
      const KernelChoice choice = choose_kernel(narrow(DType::kF16, seq_len_q, head_dim), h200(), {});
      EXPECT_EQ(choice.kernel->name, "sm90/prefill") << head_dim;
      EXPECT_LE(choice.shared_bytes, h200().shared_per_block_bytes) << head_dim;
    }
  }
  AttentionProblem values = narrow(DType::kBF16, 512, 192);
  values.head_dim_v = 128;
  EXPECT_LE(choose_kernel(values, h200(), {}).shared_bytes, h200().shared_per_block_bytes);
  EXPECT_EQ(kernel_of(narrow(DType::kF32, 512, 128)), "tiled");
  EXPECT_EQ(kernel_of(narrow(DType::kBF16, 512, 72)), "sm80/prefill");  // rows of 72 bytes are not aligned
  EXPECT_EQ(kernel_of(narrow(DType::kBF16, 512, 512)), "sm80/prefill");
  EXPECT_EQ(choose_kernel(narrow(DType::kBF16, 512, 128), a100(), {}).kernel->name, "sm80/prefill");
  AttentionProblem invariant = narrow(DType::kF16, 1, 128);
  invariant.batch_invariant = true;
  EXPECT_EQ(kernel_of(invariant), "sm80/prefill");

  AttentionProblem paged = narrow(DType::kBF16, 512, 128);
  paged.paged_kv.emplace();
  paged.paged_kv->page_size = 16;
  paged.paged_kv->num_pages = 4096;
  paged.k.batch_stride = paged.v.batch_stride = 16 * paged.k.seq_stride;
  paged.kv_scales = KvScales{};
  paged.kv_scales->head_stride = 1;
  EXPECT_EQ(kernel_of(paged), "sm90/prefill");
  paged.kv_scales->batch_stride = 4;
  EXPECT_EQ(kernel_of(paged), "tiled");

  // Nor are there registers for a modifier's bounds of tiles in Hopper's kernel.
  AttentionProblem modified = narrow(DType::kBF16, 4096, 128);
  modified.scores.modifier = ScoreModifier{.score = "score + 1", .visible = "", .tensors = {}, .scalars = {}};
  EXPECT_EQ(kernel_of(modified), "sm80/prefill");

  // What is copied of a mask would have no room; its elements are read where they lie.
  AttentionProblem masked = narrow(DType::kBF16, 4096, 128);
  masked.scores.additive_mask = ScoreMask{nullptr, DType::kBF16, 0, 0, 4096};
  const KernelChoice choice = choose_kernel(masked, h200(), {});
  EXPECT_EQ(choice.kernel->name, "sm90/prefill");
  EXPECT_EQ(choice.copied_mask, 0);
}

// Few queries whose keys every kernel takes apart before it multiplies them.
TEST(ChooseKernel, KeysThatAreTakenApartGoToTheKernelThatWasFasterWhenMeasured) {
  struct Measured {
    DType kv_dtype;
    int head_dim;
    std::int64_t batch, seq_len_q, seq_len_kv;
    int num_heads, num_kv_heads, page_size;
    const char* kernel;
  };
  const std::vector<Measured> cases = {
      {DType::kF8E4M3, 64, 32, 4, 2846, 64, 1, 0, "sm80/prefill"},
      {DType::kF8E4M3, 64, 8, 8, 305, 28, 4, 0, "sm80/decode"},
      {DType::kF8E4M3, 96, 1, 4, 15447, 8, 1, 128, "sm80/decode"},
      {DType::kF8E4M3, 128, 8, 8, 2573, 32, 8, 16, "sm80/decode"},
      {DType::kF8E4M3, 128, 4, 48, 5803, 32, 32, 128, "sm90/prefill"},
      {DType::kF8E4M3, 128, 32, 100, 1741, 32, 32, 128, "sm90/prefill"},
      {DType::kF8E4M3, 192, 16, 3, 4065, 64, 8, 16, "sm80/decode"},
      {DType::kF8E4M3, 256, 16, 8, 3861, 64, 8, 16, "sm80/prefill"},
      {DType::kF8E4M3, 256, 1, 20, 14569, 16, 8, 0, "sm80/prefill"},
      {DType::kF32, 96, 4, 20, 10091, 12, 12, 16, "sm80/decode"},
      {DType::kF32, 64, 8, 16, 9389, 16, 8, 0, "sm80/decode"},
      {DType::kF32, 128, 1, 40, 3742, 32, 32, 0, "sm80/prefill_f32"},
      {DType::kF32, 64, 32, 8, 2189, 64, 8, 64, "sm80/prefill_f32"},
  };
  for (const Measured& m : cases) {
    const DType dtype = m.kv_dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
    AttentionProblem p = problem(dtype, m.seq_len_q, m.seq_len_kv, m.num_heads, m.num_kv_heads, m.head_dim);
    p.batch = m.batch;
    p.k.dtype = p.v.dtype = m.kv_dtype;
    if (m.page_size > 0) gpu::use_pages(p, m.page_size);
    EXPECT_EQ(choose_kernel(p, h200(), {}).kernel->name, m.kernel)
        << fmt::format("{}, head_dim {}, {} x {} queries of {} keys, {}/{} heads", dtype_name(m.kv_dtype),
                       m.head_dim, m.batch, m.seq_len_q, m.seq_len_kv, m.num_heads, m.num_kv_heads);
  }
}

AttentionProblem problem_of_8_bits(std::int64_t seq_len_q, std::int64_t seq_len_kv, int head_dim) {
  AttentionProblem p = problem(DType::kBF16, seq_len_q, seq_len_kv, 32, 8, head_dim);
  p.q.dtype = p.k.dtype = p.v.dtype = DType::kF8E4M3;
  return p;
}

TEST(ChooseKernel, HoppersKernelOfE4M3TakesPromptsOf8Bits) {
  struct Tiles {
    int head_dim, module_head_dim, block_m, block_n, num_warps, num_stages;
  };
  for (const Tiles& t :
       {Tiles{16, 64, 192, 128, 16, 2}, Tiles{64, 64, 192, 128, 16, 2}, Tiles{80, 128, 128, 192, 12, 2},
        Tiles{128, 128, 128, 192, 12, 2}, Tiles{176, 192, 128, 128, 12, 2}, Tiles{192, 192, 128, 128, 12, 2},
        Tiles{208, 256, 128, 96, 12, 2}, Tiles{256, 256, 128, 96, 12, 2}}) {
    const AttentionProblem p = problem_of_8_bits(4096, 4096, t.head_dim);
    const KernelChoice choice = choose_kernel(p, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/prefill_e4m3") << t.head_dim;
    EXPECT_EQ(choice.entry, "attention_e4m3");
    EXPECT_EQ(choice.config.block_m, t.block_m);
    EXPECT_EQ(choice.config.block_n, t.block_n);
    EXPECT_EQ(choice.config.num_warps, t.num_warps);
    EXPECT_EQ(choice.config.num_stages, t.num_stages);
    EXPECT_EQ(choice.wide_queries_bytes, 0u) << "q is taken as it is";
    EXPECT_LE(choice.shared_bytes, h200().shared_per_block_bytes);
    for (const char* name : {"HEAD_DIM_QK", "HEAD_DIM_V"}) {
      EXPECT_EQ(
          std::ranges::count(choice.module.defines, fmt::format("TESSERA_{}={}", name, t.module_head_dim)),
          1);
    }
    EXPECT_EQ(choose_kernel(p, h200(), choice.config), choice);
    // A list of spoilt tiles for each warp, behind the ticket's 16 bytes.
    EXPECT_EQ(choice.partial_bytes,
              16 + static_cast<std::size_t>((4096 + t.block_m - 1) / t.block_m * 32 * (t.block_m / 16)) * 4);
    EXPECT_EQ(choice.kernel->shape(choice, 1, 32).grid[0], 132u);
  }
  if (!embedded_modules().empty()) {
    for (const int head_dim : {64, 128, 256})
      EXPECT_TRUE(
          is_built_ahead(choose_kernel(problem_of_8_bits(512, 512, head_dim), h200(), {}).module, "sm_90a"));
  }
  EXPECT_TRUE(choose_kernel(problem_of_8_bits(128, 1, 128), h200(), {}).kernel->narrow_weights);
  AttentionProblem paged = problem_of_8_bits(512, 4096, 128);
  paged.o.dtype = DType::kF16;
  paged.scores.sinks.emplace();
  for (const int page_size : {8, 16, 24, 64, 128, 192, 256}) {
    paged.paged_kv = PagedKv{.num_pages = 1000, .page_size = page_size};
    paged.k.batch_stride = paged.v.batch_stride = page_size * paged.k.seq_stride;
    const KernelChoice choice = choose_kernel(paged, h200(), {});
    EXPECT_EQ(choice.kernel->name, "sm90/prefill_e4m3") << page_size;
    EXPECT_EQ(choice.config.block_n, page_size % 128 == 0 ? 128 : 192) << page_size;
  }
}

TEST(ChooseKernel, HoppersKernelOfE4M3SaysWhatItDoesNotTake) {
  const auto reason = [](auto change, DeviceProperties device = h200()) {
    AttentionProblem p = problem_of_8_bits(4096, 4096, 128);
    change(p);
    const KernelChoice choice = choose_kernel(p, device, {});
    EXPECT_NE(choice.kernel->name, "sm90/prefill_e4m3");
    EXPECT_FALSE(choice.kernel->narrow_weights);
    for (const std::string& line : reasons_against_other_kernels(p, device, choice)) {
      if (line.starts_with("not sm90/prefill_e4m3: ")) return line.substr(23);
    }
    return std::string();
  };
  EXPECT_NE(reason([](AttentionProblem&) {}, a100()).find("Hopper"), std::string::npos);
  EXPECT_EQ(reason([](AttentionProblem& p) { p.q.dtype = DType::kBF16; }),
            "it takes queries of f8e4m3, not bf16");
  EXPECT_EQ(reason([](AttentionProblem& p) { p.o.dtype = DType::kF32; }), "it writes f16 and bf16, not f32");
  EXPECT_NE(reason([](AttentionProblem& p) { p.head_dim_qk = 272; }).find("up to 256"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.batch_invariant = true; }).find("batch_invariant"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.scores.softcap = 30.0f; }).find("no terms"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.scores.softmax_scale = -1.0f; }).find("above 0"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.paged_kv = PagedKv{.num_pages = 100, .page_size = 40};
            }).find("divides or is a multiple of 128, not of 40"),
            std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) {
              p.paged_kv = PagedKv{.num_pages = 100, .page_size = 64};
              p.kv_scales = KvScales{};
              p.kv_scales->batch_stride = 8;
            }).find("not of pages"),
            std::string::npos);
  EXPECT_EQ(reason([](AttentionProblem& p) { p.seq_len_q = 127; }), "it takes at least 128 queries, not 127");
  EXPECT_NE(reason([](AttentionProblem& p) { p.seq_len_kv = 32769; }).find("at most 32768 keys, not 32769"),
            std::string::npos);
  // Rows of 8 bits are aligned where their number of elements is a multiple of 16.
  EXPECT_NE(reason([](AttentionProblem& p) { p.q.seq_stride += 8; }).find("aligned"), std::string::npos);
  EXPECT_NE(reason([](AttentionProblem& p) { p.k.head_stride = 0; }).find("strides"), std::string::npos);
  AttentionConfig forced;
  forced.block_n = 128;
  EXPECT_THROW(gpu::choose_with(*choose_kernel(problem_of_8_bits(512, 512, 128), h200(), {}).kernel,
                                problem_of_8_bits(512, 512, 128), h200(), forced),
               Error);
}

TEST(ChooseKernel, HoppersKernelDrawsTicketsWhereTilesDiffer) {
  AttentionProblem p = problem(DType::kBF16, 4096, 4096, 16, 16, 128);
  EXPECT_EQ(choose_kernel(p, h200(), {}).zeroed_bytes, 0u);
  p.scores.diagonal = DiagonalMask::causal();
  const KernelChoice causal = choose_kernel(p, h200(), {});
  EXPECT_EQ(causal.zeroed_bytes, sizeof(int));
  // A counter, and an int for each warp of each tile.
  EXPECT_EQ(causal.partial_bytes, 16u + sizeof(int) * 8 * 16 * (4096 / 128));
  AttentionConfig forced;
  forced.block_n = 64;
  EXPECT_THROW(choose_kernel(p, h200(), forced), Error);
}

TEST(ChooseKernel, SaysWhatItCannotRun) {
  AttentionProblem p = problem(DType::kF64, 4, 4, 1, 1, 8);
  EXPECT_NE(unsupported_problem(p).find("f64"), std::string::npos);
  p = problem(DType::kF16, 4, 4, 1, 1, 8);
  EXPECT_EQ(unsupported_problem(p), "");
  EXPECT_EQ(platform().unsuitable_reason(h200()), "");
  DeviceProperties old = h200();
  old.compute_capability = 75;
  EXPECT_NE(platform().unsuitable_reason(old).find("7.5"), std::string::npos);
  p = problem(DType::kF16, std::int64_t{1} << 31, 4, 1, 1, 8);
  EXPECT_NE(unsupported_problem(p).find("at most"), std::string::npos);
}

TEST(ExplainKernels, SaysWhyNotTheOthers) {
  const auto reasons = [](const AttentionProblem& p) {
    const KernelChoice choice = choose_kernel(p, h200(), {});
    return fmt::format("{}", fmt::join(reasons_against_other_kernels(p, h200(), choice), "\n"));
  };
  const std::string prefill = reasons(problem(DType::kBF16, 2048, 2048, 32, 8, 128));
  EXPECT_EQ(prefill.find("not sm90/prefill:"), std::string::npos);
  EXPECT_NE(
      prefill.find("not sm80/prefill: it could, but sm90/prefill is preferred, which multiplies tiles with "
                   "Hopper's own instructions"),
      std::string::npos)
      << prefill;
  EXPECT_NE(prefill.find("not sm80/decode: it takes up to 16 rows a kv head, not 2048 queries of 4 heads"),
            std::string::npos)
      << prefill;
  const std::string decode = reasons(problem(DType::kBF16, 1, 32768, 32, 8, 128));
  EXPECT_NE(decode.find("not sm80/prefill_f32: it takes f32, not bf16"), std::string::npos) << decode;
  EXPECT_EQ(decode.find("not sm90/decode"), std::string::npos);
  EXPECT_NE(
      decode.find("not sm80/decode: it could, but sm90/decode is preferred, which shares out the keys by "
                  "each sequence's own length"),
      std::string::npos)
      << decode;
  EXPECT_NE(decode.find("not generic"), std::string::npos);
  AttentionProblem invariant = problem(DType::kF16, 1, 2048, 32, 8, 128);
  invariant.batch_invariant = true;
  EXPECT_NE(reasons(invariant).find("not sm80/decode: its bits depend"), std::string::npos);
  const std::string large = reasons(problem(DType::kF16, 1, 2048, 32, 8, 512));
  EXPECT_NE(large.find("not sm80/decode: it takes head_dims up to 256, not 512"), std::string::npos) << large;
  EXPECT_NE(large.find("not generic: it could, but sm80/prefill is preferred"), std::string::npos) << large;
  const std::string f32 = reasons(problem(DType::kF32, 700, 900, 1, 1, 64));
  EXPECT_NE(f32.find("not sm80/prefill: it takes f16 and bf16, not f32"), std::string::npos) << f32;
  EXPECT_EQ(f32.find("not sm80/prefill_f32"), std::string::npos) << f32;
}

TEST(ExplainKernels, NamesTheCombineKernelWhereKeysAreSplit) {
  EXPECT_EQ(modules_of(choose_kernel(problem(DType::kBF16, 1, 100000, 32, 8, 128), a100(), {})).size(), 2u);
  EXPECT_EQ(modules_of(choose_kernel(problem(DType::kBF16, 4096, 4096, 64, 64, 128), h200(), {})).size(), 1u);
}

TEST(ChooseKernel, QueriesOf8BitsAreWidenedForKernelsThatTakeNone) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const std::int64_t seq_len_q : {1, 512}) {
      AttentionProblem wide = problem(dtype, seq_len_q, 4096, 32, 8, 128);
      wide.k.dtype = wide.v.dtype = DType::kF8E4M3;
      AttentionProblem p = wide;
      p.q.dtype = DType::kF8E4M3;
      p.q.data = reinterpret_cast<const void*>(std::uintptr_t{3});  // no matter: what is widened is aligned
      const KernelChoice choice = choose_kernel(p, h200(), {});
      const KernelChoice of_wide = choose_kernel(wide, h200(), {});
      if (choice.kernel->takes_narrow_q) continue;
      EXPECT_EQ(choice.kernel->name, of_wide.kernel->name);
      EXPECT_EQ(choice.module, of_wide.module);
      EXPECT_EQ(choice.entry, of_wide.entry);
      EXPECT_EQ(choice.config, of_wide.config);
      EXPECT_EQ(of_wide.wide_queries_bytes, 0u);
      EXPECT_EQ(choice.wide_queries_bytes,
                dtype_bytes(dtype, 1) * static_cast<std::size_t>(p.batch * seq_len_q * p.num_heads * 128));
      EXPECT_GE(choice.wide_queries_begin, choice.partial_bytes);
      EXPECT_EQ(choice.wide_queries_begin % 256, 0u);
      const std::vector<ModuleSpec> modules = gpu::modules_of(choice);
      EXPECT_TRUE(std::ranges::any_of(
          modules, [](const ModuleSpec& m) { return m.source == "common/widen_queries.cu"; }));
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
