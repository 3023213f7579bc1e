// The conformance suite of attention with the GPU's unfused pipeline on the host: its kernels, the
// products' too, by the executor. Cases are cut into parts of a few rows by turns.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "attention/backend.h"
#include "backends/gpu/ops/plain_products.h"
#include "backends/gpu/unfused/layout.h"
#include "backends/gpu/unfused/pipeline.h"
#include "core/aligned_memory.h"
#include "simt/conformance_test.h"
#include "simt/executor.h"
#include "simt/kernel_table.h"
#include "verify/verify.h"

namespace tessera::simt {
namespace {

class Host final : public gpu::UnfusedMachine {
 public:
  int warp_size() const override { return kernel_table().begin()->second.warp_size; }

  void clear(void* memory, std::size_t size_bytes) override { std::memset(memory, 0, size_bytes); }

  void launch(const std::string& entry, unsigned blocks_x, unsigned blocks_y, unsigned threads,
              const kernels::UnfusedParams& params) override {
    simt::launch(
        {entry, {static_cast<int>(blocks_x), static_cast<int>(blocks_y), 1}, static_cast<int>(threads)},
        &params);
  }

  void multiply(const gpu::LibraryProduct& p) override {
    const std::optional<gpu::BatchedGemmLaunch> launch = gpu::batched_gemm_launch(p);
    ASSERT_TRUE(launch);
    simt::launch({"gemm_batched",
                  {static_cast<int>(launch->shape.grid[0]), static_cast<int>(launch->shape.grid[1]),
                   static_cast<int>(launch->shape.grid[2])},
                  gpu::BatchedGemmLaunch::kThreads},
                 &launch->params);
  }
};

class SimtUnfused final : public AttentionBackend {
 public:
  SimtUnfused(std::string_view name, std::int64_t max_rows) : name_(name), max_rows_(max_rows) {}

  std::string_view name() const override { return name_; }
  std::string_view description() const override { return "the GPU's unfused pipeline on the host"; }
  std::string unavailable_reason() const override { return {}; }
  std::string unsupported_reason(const AttentionProblem& p) const override {
    return p.batch_invariant ? "not batch-invariant" : "";
  }

  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig&) const override {
    AttentionPlan plan;
    plan.backend = name_;
    plan.kernel = "pipeline";
    plan.workspace_bytes = gpu::unfused_layout(p, max_rows_).total_bytes;
    plan.call = std::make_shared<AttentionCall>(
        p, plan.workspace_bytes,
        [max_rows = max_rows_](const AttentionProblem& problem, std::span<std::byte> workspace, Stream) {
          const std::int64_t tokens_q = problem.ragged_q ? problem.ragged_q->total_tokens : problem.seq_len_q;
          if (problem.batch == 0 || problem.seq_len_q == 0 || tokens_q == 0) return;
          Host host;
          gpu::run_unfused(problem, max_rows, workspace.data(), host);
        });
    return plan;
  }

  std::shared_ptr<std::byte> allocate_workspace(const Device&, std::size_t size_bytes,
                                                Stream) const override {
    std::shared_ptr<std::byte> memory = allocate_aligned(size_bytes, "attention workspace");
    std::fill_n(memory.get(), size_bytes, std::byte{0xff});
    return memory;
  }

  std::string unsupported_reason(const MergeStatesProblem&) const override { return "no step of it"; }
  void merge_states(const MergeStatesProblem&, Stream) const override {}
  Ceilings ceilings(DType) const override { return {}; }

 private:
  std::string_view name_;
  std::int64_t max_rows_;
};

class Coverage final : public testing::Environment {
 public:
  void TearDown() override {
    const bool is_wide = kernel_table().begin()->second.warp_size == 64;
    expect_all_were_launched([is_wide](const std::string& entry) {
      if (entry == "gemm_batched") return true;
      return entry.starts_with("unfused_") && !entry.ends_with(is_wide ? "_bf16" : "_f32");
    });
  }
};

const testing::Environment* const coverage = testing::AddGlobalTestEnvironment(new Coverage);

TEST(SimtUnfusedRandom, ProblemsOfEveryKindPass) {
  const auto seed = static_cast<std::uint64_t>(kernel_table().begin()->second.warp_size);
  for (const char* backend : {"simt_unfused", "simt_unfused_cut"}) expect_random_problems_pass(backend, seed);
}

TEST(SimtUnfusedRandom, AVisibleNanCountsWhereItsWeightIsTooSmallForTheType) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    for (const char* spread : {"3", "30"}) {
      expect_case_passes("simt_unfused",
                         std::string("dtype=") + dtype +
                             " batch=1 len_q=5 len_kv=70 heads=1 kv_heads=1 diagonal=40,0,bottom_right "
                             "content=nan_values q_spread=" +
                             spread);
    }
  }
}

TEST(SimtUnfusedRandom, KeysOf8BitsGoWithQueriesOfAnyType) {
  for (const std::string dtype : {"f32", "f16", "bf16"}) {
    for (const char* q : {"", " narrow_q=1 q_scales=page_head"}) {
      expect_case_passes("simt_unfused", "dtype=" + dtype +
                                             " len_q=5 len_kv=70 heads=4 kv_heads=2 dim_qk=24 dim_v=16 "
                                             "kv_dtype=f8e4m3 kv_scales=head" +
                                             q);
    }
  }
}

bool is_wanted(const VerifyCase& c) {
  if (c.name.starts_with("batch_invariant") || c.name.starts_with("merge_states")) return false;
  // Kernels are compiled ahead here, without a modifier's text: modifier_text_test runs those.
  if (c.name.starts_with("modifier ")) return false;
  return c.quick || c.name.find("all terms, odd strides") != std::string::npos ||
         c.name.find("head_dim 40 and 17") != std::string::npos;
}

void register_tests() {
  const bool is_wide = kernel_table().begin()->second.warp_size == 64;
  int count = 0;
  for (const VerifyCase& c : attention_verify_cases()) {
    // One size of warps takes f32, the other bf16, whose weights are narrower than the scores.
    if (!is_wanted(c) || !c.name.ends_with(is_wide ? "/f32" : "/bf16")) continue;
    const std::string backend = ++count % 2 == 0 ? "simt_unfused" : "simt_unfused_cut";
    register_conformance_test(c, "SimtUnfused", backend);
  }
}

}  // namespace
}  // namespace tessera::simt

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::add_attention_backend(std::make_unique<tessera::simt::SimtUnfused>("simt_unfused", 0));
  tessera::add_attention_backend(std::make_unique<tessera::simt::SimtUnfused>("simt_unfused_cut", 20));
  tessera::simt::register_tests();
  return RUN_ALL_TESTS();
}
