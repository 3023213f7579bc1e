#include "backends/gpu/attention/choose_kernel.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/hip/attention/attention_kernels.h"
#include "backends/hip/runtime/embedded.h"
#include "gpu/dense_problem.h"
#include "tessera/error.h"

namespace tessera::hip {
namespace {

using gpu::DeviceProperties;
using gpu::KernelChoice;

const DeviceProperties& rx_7900() {
  return *std::ranges::find(largest_devices(), "gfx1100", &DeviceProperties::architecture);
}

AttentionProblem problem(DType dtype, std::int64_t seq_len_q, std::int64_t seq_len_kv, int num_heads,
                         int num_kv_heads, int head_dim) {
  return testing::dense_problem(DeviceKind::kHip, dtype, seq_len_q, seq_len_kv, num_heads, num_kv_heads,
                                head_dim);
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced = {}) {
  return gpu::choose_kernel(attention_kernels(), p, device, forced);
}

std::string_view kernel_of(const AttentionProblem& p, const DeviceProperties& device) {
  return choose(p, device).kernel->name;
}

bool is_built_ahead(const KernelChoice& choice, const DeviceProperties& device) {
  const std::string defines = fmt::format("{}", fmt::join(choice.module.defines, " "));
  return std::ranges::any_of(embedded_modules(), [&](const gpu::EmbeddedModule& m) {
    return m.source == choice.module.source && m.defines == defines && m.architecture == device.architecture;
  });
}

/// Whether the library brings any code for it of this source for queries of this type: builds may be asked
/// for fewer targets and types.
bool is_built_for(const DeviceProperties& device, std::string_view source, DType dtype) {
  const std::string define = fmt::format("TESSERA_DTYPE={} ", dtype_name(dtype));
  return std::ranges::any_of(embedded_modules(), [&](const gpu::EmbeddedModule& m) {
    return m.architecture == device.architecture && m.source == source &&
           m.defines.find(define) != m.defines.npos;
  });
}

TEST(ChooseHipKernel, TakesFewRowsAKvHeadForDecode) {
  for (const DeviceProperties& device : largest_devices()) {
    for (const int head_dim : {16, 80, 128}) {
      EXPECT_EQ(kernel_of(problem(DType::kBF16, 1, 700, 32, 32, head_dim), device), "matrix/decode");
      EXPECT_EQ(kernel_of(problem(DType::kF16, 8, 700, 8, 2, head_dim), device), "matrix/decode");
      EXPECT_EQ(kernel_of(problem(DType::kBF16, 9, 700, 8, 2, head_dim), device), "matrix/prefill");
      EXPECT_EQ(kernel_of(problem(DType::kF16, 9, 700, 8, 2, head_dim), device), "matrix/prefill");
    }
    EXPECT_EQ(kernel_of(problem(DType::kF16, 4, 700, 8, 2, 256), device), "matrix/decode");
    EXPECT_EQ(kernel_of(problem(DType::kBF16, 5, 700, 8, 2, 256), device), "matrix/prefill");
  }
}

TEST(ChooseHipKernel, TakesLargeHeadsOfAnyRowsForDecodeOnCdna) {
  for (const DeviceProperties& device : largest_devices()) {
    const std::string_view decode = device.warp_size == 64 ? "matrix/decode" : "tiled";
    for (const std::int64_t seq_len_q : {1, 100}) {
      EXPECT_EQ(kernel_of(problem(DType::kF16, seq_len_q, 700, 8, 2, 257), device), decode);
      AttentionProblem latent = problem(DType::kBF16, seq_len_q, 700, 128, 1, 576);
      EXPECT_EQ(kernel_of(latent, device), "tiled") << "too many values";
      latent.head_dim_v = 512;
      const KernelChoice choice = choose(latent, device);
      EXPECT_EQ(choice.kernel->name, decode);
      if (decode == "tiled") continue;
      EXPECT_EQ(choice.num_row_tiles, seq_len_q * 128 / 16);
      EXPECT_EQ(choose(latent, device, choice.config), choice);
      EXPECT_LE(choice.shared_bytes, device.shared_per_block_bytes);
      latent.batch_invariant = true;
      EXPECT_EQ(kernel_of(latent, device), "generic");
    }
    EXPECT_EQ(kernel_of(problem(DType::kF32, 1, 700, 8, 2, 257), device), "tiled");
  }
}

TEST(ChooseHipKernel, TakesF32WhereMatrixUnitsDo) {
  for (const DeviceProperties& device : largest_devices()) {
    const bool has_f32 = device.warp_size == 64;
    EXPECT_EQ(kernel_of(problem(DType::kF32, 1, 700, 4, 4, 128), device),
              has_f32 ? "matrix/decode" : "tiled");
    EXPECT_EQ(kernel_of(problem(DType::kF32, 64, 700, 4, 4, 128), device),
              has_f32 ? "matrix/prefill" : "tiled");
  }
}

TEST(ChooseHipKernel, TilesOfF32AreBuiltAheadWhereNoMatrixUnitHasIt) {
  if (embedded_modules().empty()) GTEST_SKIP() << "built without a compiler for HIP";
  for (const DeviceProperties& device : largest_devices()) {
    for (const int head_dim : {64, 128}) {
      for (const std::int64_t seq_len_q : {1, 4096}) {
        for (const bool paged : {false, true}) {
          AttentionProblem p = problem(DType::kF32, seq_len_q, 4096, 32, 8, head_dim);
          if (paged) testing::use_pages(p);
          const KernelChoice choice = choose(p, device);
          EXPECT_EQ(choice.kernel == &gpu::kTiledAttention, device.warp_size == 32);
          if (!is_built_for(device, choice.module.source, DType::kF32)) continue;
          EXPECT_TRUE(is_built_ahead(choice, device)) << device.name << " " << head_dim << " " << seq_len_q;
        }
      }
    }
  }
}

TEST(ChooseHipKernel, TiledBlocksHaveAsManyRowsAsThereAre) {
  const auto block_m = [](std::int64_t seq_len_q, int num_kv_heads) {
    const KernelChoice choice = choose(problem(DType::kF32, seq_len_q, 700, 8, num_kv_heads, 320), rx_7900());
    EXPECT_EQ(choice.kernel, &gpu::kTiledAttention);
    EXPECT_EQ(choice.pack_heads, 8 / num_kv_heads);
    return choice.config.block_m;
  };
  EXPECT_EQ(block_m(1, 8), 4);
  EXPECT_EQ(block_m(1, 1), 8);
  EXPECT_EQ(block_m(9, 8), 16);
  EXPECT_EQ(block_m(5, 2), 32);
  EXPECT_EQ(block_m(12, 2), 64);
  EXPECT_EQ(block_m(700, 4), 64);
}

TEST(ChooseHipKernel, TiledChoicesFitAndFillTheDevice) {
  for (const DeviceProperties& device : largest_devices()) {
    for (const int head_dim : {1, 64, 130, 320, 576}) {
      for (const std::int64_t seq_len_q : {1, 8, 16, 700}) {
        AttentionProblem p = problem(DType::kF32, seq_len_q, 100000, 8, 4, head_dim);
        p.head_dim_v = 577 - head_dim;
        const KernelChoice choice = gpu::choose_with(gpu::kTiledAttention, p, device, {});
        EXPECT_LE(choice.shared_bytes, device.shared_per_block_bytes);
        EXPECT_EQ(choice.config.num_warps * device.warp_size, 256);
        const std::int64_t blocks = choice.num_row_tiles * choice.num_head_blocks * choice.config.num_splits;
        EXPECT_GE(blocks, std::min(device.num_multiprocessors, 128));
        EXPECT_EQ(gpu::choose_with(gpu::kTiledAttention, p, device, choice.config), choice);
      }
    }
  }
  const AttentionProblem p = problem(DType::kF32, 100, 700, 8, 2, 320);
  for (const AttentionConfig& forced :
       {AttentionConfig{.block_m = 24}, AttentionConfig{.block_m = 128}, AttentionConfig{.block_n = 32},
        AttentionConfig{.num_warps = 4}, AttentionConfig{.num_stages = 2}})
    EXPECT_THROW(choose(p, rx_7900(), forced), Error);
}

TEST(ChooseHipKernel, TakesNarrowKeysWithOneScaleAHead) {
  for (const DeviceProperties& device : largest_devices()) {
    for (const std::int64_t seq_len_q : {1, 100}) {
      const std::string_view tuned = seq_len_q == 1 ? "matrix/decode" : "matrix/prefill";
      for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
        AttentionProblem p = problem(dtype, seq_len_q, 700, 8, 2, 128);
        p.k.dtype = p.v.dtype = DType::kF8E4M3;
        const KernelChoice choice = choose(p, device);
        const bool has_unit = dtype != DType::kF32 || device.warp_size == 64;
        EXPECT_EQ(choice.kernel->name, has_unit ? tuned : "tiled");
        if (has_unit) {
          EXPECT_EQ(choice.module.defines.back(), "TESSERA_KV_DTYPE=f8e4m3");
        }
      }
      AttentionProblem p = problem(DType::kBF16, seq_len_q, 700, 8, 2, 128);
      p.k.dtype = p.v.dtype = DType::kF8E4M3;
      p.kv_scales.emplace();
      p.paged_kv.emplace();
      EXPECT_EQ(kernel_of(p, device), tuned) << "one scale a head";
      p.kv_scales->batch_stride = 2;
      EXPECT_EQ(kernel_of(p, device), "tiled") << "one a page";
      p.paged_kv.reset();
      EXPECT_EQ(kernel_of(p, device), tuned) << "one a sequence";
    }
  }
}

TEST(ChooseHipKernel, LeavesUnknownArchitecturesToTheTiledKernel) {
  DeviceProperties unknown = rx_7900();
  unknown.name = "Radeon Pro W6800";
  unknown.architecture = "gfx1030";
  const AttentionProblem p = problem(DType::kF16, 1, 700, 4, 4, 128);
  const KernelChoice choice = choose(p, unknown);
  EXPECT_EQ(choice.kernel, &gpu::kTiledAttention);
  auto reasons = gpu::reasons_against_other_kernels(attention_kernels(), p, unknown, {}, choice);
  EXPECT_EQ(reasons.back(), "not generic: it could, but tiled is preferred, which multiplies tiles");
  reasons.pop_back();
  EXPECT_TRUE(std::ranges::all_of(reasons, [](const std::string& reason) {
    return reason.find("gfx1030") != std::string::npos;
  })) << fmt::format("{}", reasons);
}

TEST(ChooseHipKernel, ABatchInvariantRowHasOneKernelHoweverManyQueriesThereAre) {
  for (const DeviceProperties& device : largest_devices()) {
    for (const std::int64_t seq_len_q : {1, 8, 100, 4000}) {
      AttentionProblem p = problem(DType::kBF16, seq_len_q, 4000, 8, 2, 128);
      p.batch_invariant = true;
      const KernelChoice choice = choose(p, device);
      EXPECT_EQ(choice.kernel->name, "matrix/prefill");
      EXPECT_EQ(choice.keys_per_segment, 512);
    }
  }
}

// Keys are cut into segments, which one workgroup has or many have: the module and its key tile are the same.
TEST(ChooseHipKernel, BatchInvariantKeysAreCutIntoSegmentsWhateverTheirSplits) {
  for (const DeviceProperties& device : largest_devices()) {
    for (const int head_dim : {40, 64, 128, 256}) {
      AttentionProblem p = problem(DType::kBF16, 1, 32768, 8, 2, head_dim);
      p.batch_invariant = true;
      const KernelChoice decode = choose(p, device);
      EXPECT_GT(decode.config.num_splits, 1) << device.name;
      EXPECT_EQ(decode.keys_per_split % decode.keys_per_segment, 0);
      EXPECT_EQ(decode.combine_entry, "attention_join_bf16");
      EXPECT_EQ(decode.combine_module.defines.size(), 1u) << "compiled where the kernel is";
      EXPECT_EQ(decode.partial_bytes, std::size_t{64} * 8 * (head_dim + 1) * sizeof(float));
      AttentionConfig forced;
      forced.num_splits = 3;
      const KernelChoice in_three = choose(p, device, forced);
      EXPECT_EQ(in_three.config.num_splits, 3);
      EXPECT_EQ(in_three.keys_per_split, 22 * 512);
      EXPECT_EQ(in_three.partial_bytes, decode.partial_bytes);
      EXPECT_EQ(in_three.module, decode.module);
      // Where there are workgroups enough each has all segments of its rows.
      AttentionProblem prompt = problem(DType::kBF16, 200000, 32768, 8, 2, head_dim);
      prompt.batch_invariant = true;
      const KernelChoice whole = choose(prompt, device);
      EXPECT_EQ(whole.config.num_splits, 1);
      EXPECT_TRUE(whole.combine_entry.empty());
      EXPECT_EQ(whole.module, decode.module);
    }
  }
}

TEST(ChooseHipKernel, TilesFitInLdsForEveryHeadDim) {
  for (const DeviceProperties& device : largest_devices()) {
    for (int head_dim = 1; head_dim <= 256; ++head_dim) {
      for (const std::int64_t seq_len_q : {1, 8, 100}) {
        for (const DType dtype : {DType::kBF16, DType::kF32}) {
          const KernelChoice choice = choose(problem(dtype, seq_len_q, 1000, 8, 2, head_dim), device);
          EXPECT_LE(choice.shared_bytes, device.shared_per_block_bytes) << device.name << " " << head_dim;
          EXPECT_EQ(choice.kernel == &gpu::kTiledAttention, dtype == DType::kF32 && device.warp_size == 32);
        }
      }
    }
  }
}

// What a plan says, forced, is the plan again: the same module, launch and splits.
TEST(ChooseHipKernel, ChoosingAgainWithAChoicesOwnValuesChangesNothing) {
  for (const DeviceProperties& device : largest_devices()) {
    for (int head_dim = 16; head_dim <= 512; head_dim += head_dim < 256 ? 16 : 128) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        for (const std::int64_t seq_len_q : {1, 5, 100, 10000}) {
          for (const std::int64_t seq_len_kv : {0, 1, 700, 100000}) {
            for (const bool with_terms : {false, true}) {
              AttentionProblem p = problem(dtype, seq_len_q, seq_len_kv, 8, 2, head_dim);
              p.scores.diagonal = DiagonalMask::causal();
              if (with_terms) p.scores.softcap = 30.0f;
              const KernelChoice choice = choose(p, device);
              EXPECT_EQ(choose(p, device, choice.config), choice)
                  << device.name << " " << to_string(p) << ": " << fmt::format("{}", choice.module.defines);
            }
          }
        }
      }
    }
  }
}

TEST(ChooseHipKernel, RejectsForcedValuesOfADecodeThatItDoesNotHave) {
  const AttentionProblem p = problem(DType::kBF16, 1, 700, 4, 4, 128);
  const AttentionProblem wide = problem(DType::kBF16, 1, 700, 4, 4, 256);
  const auto rejects = [](const AttentionProblem& p, const AttentionConfig& forced) {
    try {
      choose(p, rx_7900(), forced);
    } catch (const Error& e) {
      return e.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  };
  EXPECT_TRUE(rejects(p, {.block_m = 48}));
  EXPECT_TRUE(rejects(p, {.block_m = 8}));
  EXPECT_FALSE(rejects(p, {.block_m = 32}));
  EXPECT_TRUE(rejects(wide, {.block_m = 32}));
  EXPECT_TRUE(rejects(p, {.block_n = 48, .num_warps = 4}));
  EXPECT_FALSE(rejects(p, {.block_n = 32, .num_warps = 2}));
  EXPECT_TRUE(rejects(wide, {.num_warps = 3}));  // two waves have half of V's columns each
  EXPECT_FALSE(rejects(wide, {.num_warps = 6}));
  EXPECT_TRUE(rejects(p, {.num_warps = 9}));
  EXPECT_TRUE(rejects(p, {.num_stages = 2}));
}

TEST(ChooseHipKernel, SplitsTheKeysOfFewHeadsAndNotThoseOfMany) {
  for (const DeviceProperties& device : largest_devices()) {
    AttentionProblem p = problem(DType::kBF16, 1, 32768, 32, 8, 128);
    const KernelChoice one = choose(p, device);
    EXPECT_GT(one.config.num_splits * 8, device.num_multiprocessors / 2) << device.name;
    EXPECT_EQ(one.keys_per_split % one.config.block_n, 0);
    p.batch = 4 * device.num_multiprocessors;
    EXPECT_EQ(choose(p, device).config.num_splits, 1) << device.name;
    p.batch = 1;
    p.seq_len_kv = 128;
    EXPECT_EQ(choose(p, device).config.num_splits, 1) << device.name;
  }
}

TEST(ChooseHipKernel, TheUsualDecodesAreBuiltAheadOfTime) {
  if (embedded_modules().empty()) GTEST_SKIP() << "built without a compiler for HIP";
  for (const DeviceProperties& device : largest_devices()) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      if (dtype == DType::kF32 && device.warp_size == 32) continue;
      for (const int head_dim : {64, 128, 256}) {
        if (dtype == DType::kF32 && head_dim == 256) continue;  // seldom: compiled when first used
        for (const std::int64_t seq_len_q : {1, 4, 8}) {
          for (const bool paged : {false, true}) {
            AttentionProblem p = problem(dtype, seq_len_q, 4096, 32, 8, head_dim);
            if (paged) p.paged_kv.emplace();
            const KernelChoice choice = choose(p, device);
            if (choice.kernel->name != "matrix/decode") continue;
            if (!is_built_for(device, choice.module.source, dtype)) continue;
            EXPECT_TRUE(is_built_ahead(choice, device))
                << device.name << " " << fmt::format("{}", fmt::join(choice.module.defines, " "));
          }
        }
      }
    }
  }
}

TEST(ChooseHipKernel, HasDifferentCandidatesThatFitToMeasure) {
  for (const DeviceProperties& device : largest_devices()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t seq_len_q : {1, 8, 100, 3000}) {
        for (const int head_dim : {64, 80, 128, 256}) {
          const AttentionProblem p = problem(dtype, seq_len_q, 5000, 8, 2, head_dim);
          std::vector<KernelChoice> choices;
          for (const AttentionCandidate& candidate :
               gpu::attention_candidates(attention_kernels(), p, device)) {
            const KernelChoice c = gpu::choose_candidate(attention_kernels(), p, device, candidate);
            EXPECT_EQ(std::ranges::find(choices, c), choices.end()) << to_string(candidate);
            EXPECT_LE(c.shared_bytes, device.shared_per_block_bytes) << to_string(candidate);
            choices.push_back(c);
          }
          EXPECT_EQ(choices.front(), choose(p, device));
          if (seq_len_q == 1 && choices.front().kernel->name == "matrix/decode") {
            EXPECT_GE(choices.size(), 5u) << "numbers of splits and of waves";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::hip
