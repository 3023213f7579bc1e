// What measurements may decide of attention's choices, without a GPU.

#include "backends/gpu/attention/tuned_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/gpu/attention/choose_kernel.h"
#include "cuda/chosen.h"
#include "gpu/dense_problem.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

using gpu::DeviceProperties;
using gpu::KernelChoice;
using gpu::TunedKernel;

/// One token of a sequence, which sm90/decode takes by itself.
AttentionProblem decode(std::int64_t seq_len_kv = 4096, std::int64_t batch = 4) {
  AttentionProblem p = testing::dense_problem(DeviceKind::kCuda, DType::kBF16, 1, seq_len_kv, 32, 8, 128);
  p.batch = batch;
  testing::use_pages(p);
  return p;
}

TuningTable table_of(const AttentionProblem& p, const AttentionCandidate& best) {
  TuningTable table;
  table.device = "H200";
  table.entries[shape_class(p)] = {best,        p.batch * p.num_kv_heads, 14.25, "sm90/decode", 16.5, 9,
                                   "2026-11-23"};
  return table;
}

KernelChoice choose(const AttentionProblem& p, const TuningTable& own, const AttentionConfig& forced = {}) {
  return gpu::choose_kernel(attention_kernels(), p, h200(), forced, {&own, nullptr});
}

std::string why(const AttentionProblem& p, const AttentionTunings& tunings,
                const AttentionConfig& forced = {}) {
  return gpu::tuned_kernel(attention_kernels(), p, h200(), forced, tunings).why;
}

TEST(TunedKernel, DecidesForItsClassOfShapesAlone) {
  const TuningTable own = table_of(decode(), {"sm80/decode", {.num_splits = 5}});
  ASSERT_EQ(choose(decode(), {}).kernel->name, "sm90/decode");
  const KernelChoice choice = choose(decode(), own);
  EXPECT_EQ(choice.kernel->name, "sm80/decode");
  EXPECT_EQ(choice.config.num_splits, 5);
  EXPECT_EQ(choose(decode(3000), own).kernel->name, "sm80/decode") << "of the same class";
  EXPECT_EQ(choose(decode(16384), own).kernel->name, "sm90/decode") << "of another";
  EXPECT_EQ(
      why(decode(), {&own, nullptr}),
      "tuned on this machine on 2026-11-23: sm80/decode, 5 splits, 14.25 us instead of sm90/decode, 16.5 us");
  EXPECT_EQ(why(decode(16384), {&own, nullptr}), "");
  EXPECT_EQ(why(decode(), {}), "");
}

TEST(TunedKernel, IsWhatForcingTheSameGives) {
  const TuningTable own = table_of(decode(), {"sm90/decode", {.num_parts = 100}});
  EXPECT_EQ(choose(decode(), own), choose(decode(), {}, {.num_parts = 100}));
}

TEST(TunedKernel, SplitsAreForAsManyKvHeadsAsWereMeasured) {
  const TuningTable own = table_of(decode(4096, 4), {"sm80/decode", {.num_splits = 5}});
  const AttentionProblem more = decode(4096, 5);
  ASSERT_EQ(shape_class(more), shape_class(decode(4096, 4)));
  const KernelChoice choice = choose(more, own);
  EXPECT_EQ(choice.kernel->name, "sm80/decode");
  EXPECT_EQ(choice, gpu::choose_candidate(attention_kernels(), more, h200(), {"sm80/decode", {}}));
}

TEST(TunedKernel, SplitsOfAClassNeverExceedAMembersTiles) {
  AttentionProblem shortest = decode(4096, 1);
  const TuningTable own = table_of(shortest, {"sm80/decode", {.num_warps = 8, .num_splits = 128}});
  shortest.seq_len_kv = 2897;
  const KernelChoice choice = choose(shortest, own);
  EXPECT_LE(choice.config.num_splits, 23) << "tiles of 128 keys";
  EXPECT_GE(choice.config.num_splits * choice.keys_per_split, shortest.seq_len_kv);
}

TEST(TunedKernel, NeverDecidesOverForcedValuesOrInvariantBits) {
  const TuningTable own = table_of(decode(), {"sm80/decode", {}});
  EXPECT_EQ(choose(decode(), own, {.num_splits = 7}).kernel->name, "sm90/decode");
  EXPECT_NE(why(decode(), {&own, nullptr}, {.num_splits = 7}).find("not used: values are forced"),
            std::string::npos);
  AttentionProblem invariant = decode();
  invariant.batch_invariant = true;
  EXPECT_EQ(choose(invariant, own), choose(invariant, {}));
  EXPECT_NE(why(invariant, {&own, nullptr}).find("batch_invariant"), std::string::npos);
}

TEST(TunedKernel, WhatNoKernelHasIsLeftAndSaidSo) {
  AttentionProblem odd = decode();
  odd.scores.softcap = 20.0f;
  const AttentionCandidate broken[] = {
      {"sm100/decode", {}},                    // of a later version
      {"sm80/prefill_f32", {}},                // takes other types
      {"sm80/decode", {.block_m = 17}},        // has no such tile
      {"sm90/decode", {.num_stages = 8}},      // likewise
      {"sm80/decode", {.num_splits = 1000}},   // more than a combination takes
      {"sm80/prefill", {.block_n = 1 << 20}},  // would not fit
  };
  for (const AttentionCandidate& candidate : broken) {
    const TuningTable own = table_of(odd, candidate);
    EXPECT_EQ(choose(odd, own), choose(odd, {})) << to_string(candidate);
    EXPECT_NE(why(odd, {&own, nullptr}).find("; not used: "), std::string::npos) << why(odd, {&own, nullptr});
  }
}

TEST(TunedKernel, TheUsersOwnResultsGoBeforeShippedOnes) {
  const TuningTable shipped = table_of(decode(), {"sm80/decode", {}});
  const TuningTable own = table_of(decode(), {});
  const auto choose_by = [](const AttentionTunings& tunings) {
    return gpu::choose_kernel(attention_kernels(), decode(), h200(), {}, tunings).kernel->name;
  };
  EXPECT_EQ(choose_by({nullptr, &shipped}), "sm80/decode");
  EXPECT_EQ(choose_by({&own, &shipped}), "sm90/decode");
  EXPECT_EQ(
      why(decode(), {&own, &shipped}),
      "tuned on this machine on 2026-11-23: sm90/decode, 16.5 us, as chosen without, is the quickest of 9");
  EXPECT_TRUE(
      why(decode(), {nullptr, &shipped}).starts_with("shipped result for H200 of 2026-11-23: sm80/decode"));
}

TEST(TunedKernel, MayPreferAKernelThatYields) {
  // So few keys of one length that sm90/decode leaves them to sm80/decode.
  const AttentionProblem p = testing::dense_problem(DeviceKind::kCuda, DType::kBF16, 1, 100, 32, 8, 128);
  const KernelChoice untuned = choose(p, {});
  ASSERT_EQ(untuned.kernel->name, "sm80/decode");
  const TuningTable own = table_of(p, {"sm90/decode", {}});
  const KernelChoice tuned = choose(p, own);
  EXPECT_EQ(tuned.kernel->name, "sm90/decode");
  const auto reason = [&](const KernelChoice& choice, bool is_tuned) {
    return gpu::reasons_against_other_kernels(attention_kernels(), p, h200(), {}, choice, is_tuned).front();
  };
  EXPECT_EQ(
      reason(untuned, false),
      "not sm90/decode: sm80/decode starts and ends sooner, which is most of the time for so few keys of one "
      "length");
  EXPECT_EQ(reason(tuned, true), "not sm80/decode: it could, but sm90/decode was measured to be quicker");
}

TEST(AttentionCandidates, AreDifferentChoicesThatTakeTheProblemTheUntunedFirst) {
  std::vector<AttentionProblem> problems = {decode(), decode(512, 1)};
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t seq_len_q : {1, 4, 64, 300, 4096}) {
      for (const int head_dim : {64, 80, 128, 256, 400}) {
        problems.push_back(
            testing::dense_problem(DeviceKind::kCuda, dtype, seq_len_q, 4096, 32, 8, head_dim));
        problems.push_back(problems.back());
        problems.back().scores.softcap = 30.0f;
        problems.back().scores.diagonal = DiagonalMask::causal();
      }
    }
  }
  for (const DeviceProperties& device : largest_devices()) {
    for (const AttentionProblem& p : problems) {
      const auto candidates = gpu::attention_candidates(attention_kernels(), p, device);
      ASSERT_FALSE(candidates.empty());
      std::vector<KernelChoice> choices;
      for (const AttentionCandidate& candidate : candidates) {
        const KernelChoice choice = gpu::choose_candidate(attention_kernels(), p, device, candidate);
        EXPECT_EQ(std::ranges::find(choices, choice), choices.end())
            << to_string(p) << ": " << to_string(candidate);
        EXPECT_LE(choice.shared_bytes, device.shared_per_block_bytes);
        choices.push_back(choice);
      }
      EXPECT_EQ(choices.front(), gpu::choose_kernel(attention_kernels(), p, device, {}));
    }
  }
}

TEST(AttentionCandidates, OfADecodeAreItsKernelsWidthsAndSplits) {
  const auto candidates = gpu::attention_candidates(attention_kernels(), decode(), h200());
  const auto count = [&](std::string_view kernel) {
    return std::ranges::count(candidates, kernel, &AttentionCandidate::kernel);
  };
  EXPECT_GE(count("sm90/decode"), 4);
  EXPECT_GE(count("sm80/decode"), 8);
  EXPECT_GE(count("sm80/prefill"), 1);
  EXPECT_EQ(count("tiled") + count("generic"), 0) << "the kernels for any GPU are no match for these";
}

TEST(AttentionCandidates, OfAProblemWithInvariantBitsAreOneAKernel) {
  AttentionProblem p = decode();
  p.batch_invariant = true;
  const auto candidates = gpu::attention_candidates(attention_kernels(), p, h200());
  EXPECT_EQ(candidates.size(), 3u);  // prompts' and decode's
}

}  // namespace
}  // namespace tessera::cuda
