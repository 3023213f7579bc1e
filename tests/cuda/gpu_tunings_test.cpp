// What plans on a GPU, which is pretended, make of tuned shapes.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "backends/cuda/attention/attention_kernels.h"
#include "backends/cuda/attention/shipped_tunings.h"
#include "gpu/dense_problem.h"

namespace tessera {
namespace {

AttentionProblem decode() {
  AttentionProblem p = testing::dense_problem(DeviceKind::kCuda, DType::kBF16, 1, 4096, 32, 8, 128);
  p.batch = 4;
  return p;
}

TEST(GpuTunings, PlansFollowWhatWasRememberedAndExplainSaysSo) {
  const AttentionBackend& backend = find_attention_backend("cuda");
  const AttentionProblem p = decode();
  ASSERT_EQ(backend.plan(p, {}).kernel, "sm80/decode");
  const AttentionTuner& tuner = *backend.tuner();
  const std::vector<AttentionCandidate> candidates = tuner.candidates(p);
  EXPECT_EQ(candidates.front().kernel, "sm80/decode");
  EXPECT_NE(std::ranges::find(candidates, "sm80/prefill", &AttentionCandidate::kernel), candidates.end());
  TuningTable measured;
  measured.entries[shape_class(p)] = {{"sm80/prefill", {}}, 32, 14.25, "sm80/decode", 16.5, 9, "2026-11-23"};
  tuner.remember(p.device, measured);
  EXPECT_EQ(tuner.tuned(p.device).entries, measured.entries);
  EXPECT_EQ(backend.plan(p, {}).kernel, "sm80/prefill");
  EXPECT_EQ(tuner.candidates(p).front().kernel, "sm80/decode") << "the untuned choice";
  const std::vector<std::string> lines = backend.explain_plan(p, {});
  const auto has = [&](std::string_view line) { return std::ranges::find(lines, line) != lines.end(); };
  EXPECT_TRUE(
      has("tuned on this machine on 2026-11-23: sm80/prefill, 14.25 us instead of sm80/decode, 16.5 us"));
  EXPECT_TRUE(has("not sm80/decode: it could, but sm80/prefill was measured to be quicker"));
}

TEST(ShippedTunings, AreTablesOfKernelsThatThereAre) {
  for (const std::string_view text : cuda::shipped_tunings()) {
    const TuningTable table = parse_tuning(text, "a shipped table");
    EXPECT_NE(table.device, "");
    for (const auto& [shapes, entry] : table.entries) {
      const auto is_named = [&best = entry.best](const gpu::AttentionKernel* kernel) {
        return kernel->name == best.kernel;
      };
      EXPECT_TRUE(entry.best.kernel.empty() || std::ranges::any_of(cuda::attention_kernels(), is_named))
          << shapes << ": " << to_string(entry.best);
    }
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::filesystem::path cache =
      std::filesystem::temp_directory_path() / ("tessera_gpu_tunings_" + std::to_string(::getpid()));
  ::setenv("TESSERA_CUDA_LIBRARY", TESSERA_PRETENDED_GPU, 1);
  ::setenv("TESSERA_NVRTC_LIBRARY", TESSERA_PRETENDED_GPU, 1);
  ::setenv("TESSERA_CACHE_DIR", cache.c_str(), 1);
  ::unsetenv("TESSERA_TUNING");
  const int result = RUN_ALL_TESTS();
  std::filesystem::remove_all(cache);
  return result;
}
