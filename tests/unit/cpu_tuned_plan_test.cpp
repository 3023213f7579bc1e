// What measurements may decide of the CPU's plans.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backends/cpu/attention/config.h"
#include "backends/cpu/attention/tuned_plan.h"
#include "gpu/dense_problem.h"

namespace tessera::cpu {
namespace {

AttentionProblem prompt() {
  return testing::dense_problem(DeviceKind::kCpu, DType::kF32, 600, 600, 8, 2, 64);
}

TuningTable table_of(const AttentionProblem& p, const AttentionCandidate& best) {
  TuningTable table;
  table.entries[shape_class(p)] = {best, p.batch * p.num_kv_heads, 900, "prefill", 1000, 9, "2026-11-23"};
  return table;
}

TEST(CpuTunedPlan, FollowsAMeasurementOfItsClass) {
  const AttentionProblem p = prompt();
  const AttentionPlan untuned = make_plan(p, {});
  const TuningTable own = table_of(p, {untuned.kernel, {.block_m = 48, .block_n = 128}});
  const TunedPlan tuned = plan_tuned(p, {}, {&own, nullptr});
  EXPECT_EQ(tuned.plan.config.block_m, 48);
  EXPECT_EQ(tuned.plan.config.block_n, 128);
  EXPECT_TRUE(tuned.why.starts_with("tuned on this machine on 2026-11-23: " + untuned.kernel)) << tuned.why;
  AttentionProblem other = p;
  other.seq_len_kv = 5000;
  EXPECT_EQ(plan_tuned(other, {}, {&own, nullptr}).plan.config, make_plan(other, {}).config);
  EXPECT_EQ(plan_tuned(p, {}, {}).plan.config, untuned.config);
  EXPECT_EQ(plan_tuned(p, {.block_n = 64}, {&own, nullptr}).plan.config,
            make_plan(p, {.block_n = 64}).config);
}

TEST(CpuTunedPlan, WhatNoKernelHasIsLeftAndSaidSo) {
  AttentionProblem p = prompt();
  const AttentionPlan untuned = make_plan(p, {});
  for (const AttentionCandidate& candidate :
       {AttentionCandidate{"prefill/another", {}}, AttentionCandidate{untuned.kernel, {.block_n = 7}},
        AttentionCandidate{untuned.kernel, {.num_splits = 1 << 20}}}) {
    const TuningTable own = table_of(p, candidate);
    const TunedPlan tuned = plan_tuned(p, {}, {&own, nullptr});
    EXPECT_EQ(tuned.plan.config, untuned.config);
    EXPECT_NE(tuned.why.find("; not used: "), std::string::npos) << tuned.why;
  }
  p.batch_invariant = true;
  const TuningTable own = table_of(p, {untuned.kernel, {.block_n = 128}});
  EXPECT_EQ(plan_tuned(p, {}, {&own, nullptr}).plan.config, make_plan(p, {}).config);
}

TEST(CpuCandidates, AreDifferentPlansTheUntunedFirst) {
  std::vector<AttentionProblem> problems = {prompt()};
  for (const std::int64_t seq_len_kv : {0, 1, 300, 20000})
    problems.push_back(testing::dense_problem(DeviceKind::kCpu, DType::kBF16, 1, seq_len_kv, 8, 2, 128));
  for (const AttentionProblem& p : problems) {
    std::vector<AttentionConfig> configs;
    for (const AttentionCandidate& candidate : attention_candidates(p)) {
      const AttentionPlan plan = plan_candidate(p, candidate);
      EXPECT_EQ(std::ranges::find(configs, plan.config), configs.end()) << to_string(p);
      configs.push_back(plan.config);
    }
    EXPECT_EQ(configs.front(), make_plan(p, {}).config);
  }
  EXPECT_GT(attention_candidates(problems.front()).size(), 5u);
  AttentionProblem invariant = prompt();
  invariant.batch_invariant = true;
  EXPECT_EQ(attention_candidates(invariant).size(), 1u);
}

}  // namespace
}  // namespace tessera::cpu
