#pragma once

#include <string>

#include "modifier/ir.h"

namespace tessera::modifier {

struct KernelTextOptions {
  /// Whether all indices and lengths are so small (kMostExactIndex) that distances between them are computed
  /// in fp32 where fp32 is what becomes of them.
  bool has_small_indices = false;
};

/// Sums of eight of them are whole numbers of fp32.
inline constexpr int kMostExactIndex = 1 << 20;

/// The functions that backends/gpu/kernels/common/score_modifier.cuh describes, as text that the compilers of
/// CUDA, HIP and the host take. It depends on the program and the options alone: nothing of what a user wrote
/// gets into it.
std::string kernel_text(const Program& program, const KernelTextOptions& options);

}  // namespace tessera::modifier
