#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/attention/attention_kernels.h"
#include "backends/gpu/attention/choose_kernel.h"
#include "gpu/dense_problem.h"

// What tests of the choice of kernels share: devices, problems, and the choice among all of CUDA's kernels.

namespace tessera::cuda {

inline const gpu::DeviceProperties& device(std::string_view name) {
  return *std::ranges::find(largest_devices(), name, &gpu::DeviceProperties::name);
}
inline const gpu::DeviceProperties& h200() { return device("H200"); }
inline const gpu::DeviceProperties& a100() { return device("A100"); }
inline gpu::DeviceProperties rtx_4090() {
  return {"RTX 4090", 89, 128, std::size_t{24} << 30, 72 << 20, 102400, 101376, 2520000, 0, 32};
}

inline AttentionProblem problem(DType dtype, std::int64_t seq_len_q, std::int64_t seq_len_kv, int num_heads,
                                int num_kv_heads, int head_dim) {
  return testing::dense_problem(DeviceKind::kCuda, dtype, seq_len_q, seq_len_kv, num_heads, num_kv_heads,
                                head_dim);
}

inline gpu::KernelChoice choose_kernel(const AttentionProblem& p, const gpu::DeviceProperties& device,
                                       const AttentionConfig& forced) {
  return gpu::choose_kernel(attention_kernels(), p, device, forced);
}

inline std::vector<std::string> reasons_against_other_kernels(const AttentionProblem& p,
                                                              const gpu::DeviceProperties& device,
                                                              const gpu::KernelChoice& choice) {
  return gpu::reasons_against_other_kernels(attention_kernels(), p, device, {}, choice);
}

/// Without Hopper's decode kernel, which the list starts with.
inline gpu::KernelChoice choose_sm80_decode(const AttentionProblem& p) {
  const gpu::KernelChoice choice = gpu::choose_kernel(attention_kernels().subspan(1), p, h200(), {});
  EXPECT_EQ(choice.kernel->name, "sm80/decode");
  return choice;
}

}  // namespace tessera::cuda
