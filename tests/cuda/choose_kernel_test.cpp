// Which kernel takes a problem, and how its work is cut: what all kernels have in common. Pure functions.

#include "backends/gpu/attention/choose_kernel.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/cuda/attention/reserved_shared.h"
#include "backends/cuda/cuda_platform.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/problem_params.h"
#include "cuda/built_ahead.h"
#include "cuda/chosen.h"
#include "sm80/attention_decode_traits.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

using gpu::DeviceProperties;
using gpu::KernelChoice;
using gpu::LaunchShape;
using gpu::unsupported_problem;

TEST(ChooseKernel, TheUsualModulesAreBuiltAheadOfTime) {
  if (embedded_modules().empty()) GTEST_SKIP() << "built without nvcc";
  for (const auto& [device, architecture] : {std::pair{h200(), "sm_90a"}, std::pair{a100(), "sm_80"}}) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      if (!is_built_ahead(dtype, architecture)) continue;
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
  EXPECT_EQ(kernel_of(problem(DType::kBF16, 64, 64, 4, 4, 512)), "sm90/prefill_wide");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 1, 4096, 32, 8, 576)), "sm80/prefill");
  EXPECT_EQ(kernel_of(problem(DType::kF32, 64, 64, 4, 4, 257)), "tiled");
  EXPECT_EQ(kernel_of(problem(DType::kF32, 64, 64, 4, 4, 256)), "sm90/prefill_f32");
  EXPECT_EQ(choose_kernel(problem(DType::kF32, 64, 64, 4, 4, 256), a100(), {}).kernel->name,
            "sm80/prefill_f32");
  EXPECT_EQ(kernel_of(problem(DType::kF32, 1, 64, 4, 4, 128)), "sm80/decode");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 17, 4096, 32, 8, 80)), "sm90/prefill");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 128, 128, 4, 4, 80)), "sm90/prefill");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 1, 64, 4, 4, 80)), "sm80/decode");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 1, 32768, 32, 8, 128)), "sm90/decode");
}

// Measured in docs/kernels/hopper_wide.md.
TEST(ChooseKernel, LargeHeadsHaveHoppersProductsWhereTheyAreMany) {
  const auto kernel_of = [](const AttentionProblem& p) { return choose_kernel(p, h200(), {}).kernel->name; };
  AttentionProblem p = problem(DType::kF16, 2048, 2048, 16, 2, 320);
  EXPECT_EQ(kernel_of(p), "sm90/prefill_wide");
  EXPECT_EQ(choose_kernel(p, a100(), {}).kernel->name, "sm80/prefill");
  p.scores.softcap = 30.0f;
  EXPECT_EQ(kernel_of(p), "sm90/prefill_wide");
  p.batch_invariant = true;
  EXPECT_EQ(kernel_of(p), "sm80/prefill");
  EXPECT_EQ(kernel_of(problem(DType::kF16, 2048, 2048, 16, 2, 576)), "sm80/prefill");
  EXPECT_EQ(kernel_of(problem(DType::kBF16, 512, 4096, 16, 8, 512)), "sm90/prefill_wide");
  const KernelChoice few = choose_kernel(problem(DType::kBF16, 64, 4096, 16, 8, 512), h200(), {});
  EXPECT_EQ(few.kernel->name, "sm90/prefill_wide");
  EXPECT_GT(few.config.num_splits, 1);
  EXPECT_EQ(kernel_of(problem(DType::kBF16, 1, 32768, 32, 4, 512)),
            "sm80/prefill");  // whose tiles are smaller
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
  EXPECT_TRUE(gpu::reasons_against_other_kernels(generic_alone, p, h200(), {}, choice).empty());
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
      choose_kernel(problem(DType::kBF16, 512, 4096, 4, 4, 128), a100(), forced);
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

}  // namespace
}  // namespace tessera::cuda
