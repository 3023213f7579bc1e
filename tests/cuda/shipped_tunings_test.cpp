// What the tables that the library brings decide, without a GPU: shapes are made again from their classes'
// names.

#include "backends/cuda/attention/shipped_tunings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/gpu/attention/choose_kernel.h"
#include "backends/gpu/attention/tuned_kernel.h"
#include "cuda/built_ahead.h"
#include "gpu/dense_problem.h"

namespace tessera::cuda {
namespace {

/// A problem of a class such as "bf16 d128 group4 causal paged16 q1 kv4096 kvheads64".
AttentionProblem problem_of(const std::string& shapes) {
  static const std::regex kShapes(
      R"((bf16|f16) d(\d+) group(\d+) (causal )?(dense|paged16) q(\d+) kv(\d+) kvheads(\d+))");
  std::smatch m;
  if (!std::regex_match(shapes, m, kShapes)) return {};
  const int head_dim = std::stoi(m[2]), group = std::stoi(m[3]), kv_heads = std::stoi(m[8]);
  const std::int64_t seq_len_q = std::stoi(m[6]), seq_len_kv = std::stoi(m[7]);
  const int heads_of_sequence = std::min(kv_heads, 8);
  AttentionProblem p =
      testing::dense_problem(DeviceKind::kCuda, m[1] == "bf16" ? DType::kBF16 : DType::kF16, seq_len_q,
                             seq_len_kv, heads_of_sequence * group, heads_of_sequence, head_dim);
  p.batch = kv_heads / heads_of_sequence;
  if (m[4].matched) p.scores.diagonal = DiagonalMask::causal();
  if (m[5] == "paged16") testing::use_pages(p);
  return p;
}

// A machine without a compiler must not lose by a table what it could run without.
TEST(ShippedTunings, ChooseWhatIsBuiltAhead) {
  if (embedded_modules().empty()) GTEST_SKIP() << "built without nvcc";
  const gpu::DeviceProperties& h200 =
      *std::ranges::find(largest_devices(), "H200", &gpu::DeviceProperties::name);
  for (const std::string_view text : shipped_tunings()) {
    const TuningTable table = parse_tuning(text, "a shipped table");
    for (const auto& [shapes, entry] : table.entries) {
      const AttentionProblem p = problem_of(shapes);
      ASSERT_EQ(shape_class(p), shapes);
      const gpu::TunedKernel tuned = gpu::tuned_kernel(attention_kernels(), p, h200, {}, {nullptr, &table});
      ASSERT_TRUE(tuned.choice) << shapes << ": " << tuned.why;
      EXPECT_EQ(tuned.choice->kernel->name, entry.best.kernel) << shapes;
      EXPECT_TRUE(is_built_ahead(tuned.choice->module, "sm_90a")) << shapes;
      const gpu::KernelChoice untuned = gpu::choose_kernel(attention_kernels(), p, h200, {}, {});
      EXPECT_FALSE(*tuned.choice == untuned) << shapes << " says nothing";
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
