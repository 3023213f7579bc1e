#include "backends/cuda/attention/explain_kernels.h"

#include <fmt/core.h>

#include <algorithm>

namespace tessera::cuda {
namespace {

/// What the tuned kernels for 16-bit types have in common; empty: they could take it.
std::string beyond_16_bit_kernels(const AttentionProblem& p) {
  if (p.q.dtype != DType::kF16 && p.q.dtype != DType::kBF16)
    return fmt::format("it takes f16 and bf16, not {}", dtype_name(p.q.dtype));
  const int head_dim = std::max(p.head_dim_qk, p.head_dim_v);
  if (head_dim > 256) return fmt::format("it takes head_dims up to 256, not {}", head_dim);
  return {};
}

std::string reason_against_decode(const AttentionProblem& p, const DeviceProperties& device) {
  std::string reason = beyond_16_bit_kernels(p);
  if (!reason.empty()) return reason;
  constexpr std::int64_t kRows = 16;
  const int group = p.num_heads / p.num_kv_heads;
  if (p.seq_len_q * group > kRows) {
    return fmt::format("it takes up to {} rows a kv head, not {} queries of {} heads", kRows, p.seq_len_q,
                       group);
  }
  if (p.batch_invariant) return "its bits depend on how the keys are split, and batch_invariant is asked for";
  return fmt::format("its tiles do not fit into the {} bytes of shared memory that a block of {} has",
                     device.shared_per_block_bytes, device.name);
}

std::string reason_against_prefill(const AttentionProblem& p) {
  const std::string reason = beyond_16_bit_kernels(p);
  if (!reason.empty()) return reason;
  return "so few rows would leave most of its tile empty, and sm80/decode reads keys with every warp";
}

}  // namespace

std::vector<std::string> reasons_against_other_kernels(const AttentionProblem& problem,
                                                       const DeviceProperties& device,
                                                       const KernelChoice& choice) {
  std::vector<std::string> lines;
  const auto add = [&](std::string_view name, const std::string& reason) {
    if (choice.name != name) lines.push_back(fmt::format("not {}: {}", name, reason));
  };
  add("sm80/prefill", reason_against_prefill(problem));
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
