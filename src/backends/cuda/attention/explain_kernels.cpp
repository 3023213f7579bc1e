#include "backends/cuda/attention/explain_kernels.h"

#include <fmt/core.h>

namespace tessera::cuda {
namespace {

/// Against a kernel for tiles of rows of one kind of dtypes.
std::string reason_against_prefill(const AttentionProblem& p, bool takes_dtype, std::string_view dtypes) {
  if (!takes_dtype) return fmt::format("it takes {}, not {}", dtypes, dtype_name(p.q.dtype));
  const std::string reason = reason_against_mma(p);
  return reason.empty()
             ? "so few rows would leave most of its tile empty; sm80/decode shares out keys instead"
             : reason;
}

}  // namespace

std::vector<std::string> reasons_against_other_kernels(const AttentionProblem& problem,
                                                       const DeviceProperties& device,
                                                       const KernelChoice& choice) {
  std::vector<std::string> lines;
  const auto add = [&](std::string_view name, const std::string& reason) {
    if (choice.name != name) lines.push_back(fmt::format("not {}: {}", name, reason));
  };
  const bool is_f32 = problem.q.dtype == DType::kF32;
  add("sm80/prefill", reason_against_prefill(problem, !is_f32, "f16 and bf16"));
  add("sm80/prefill_f32", reason_against_prefill(problem, is_f32, "f32"));
  add("sm80/decode", reason_against_decode(problem, device));
  add("generic", "it takes any problem and is the slowest");
  return lines;
}

std::vector<ModuleSpec> modules_of(const KernelChoice& choice) {
  std::vector<ModuleSpec> modules = {choice.module};
  if (choice.config.num_splits > 1) modules.push_back({"common/attention_combine.cu", {}});
  return modules;
}

}  // namespace tessera::cuda
