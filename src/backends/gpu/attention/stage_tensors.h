#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "backends/gpu/runtime/gpu.h"
#include "tessera/attention.h"

namespace tessera::gpu {

/// A problem in CPU memory made into one in GPU memory: every array is copied as the range of bytes that its
/// strides span.
struct StagedProblem {
  struct Copy {
    const void* host;
    std::size_t offset;  ///< in the staging memory
    std::size_t size_bytes;
    bool is_output;  ///< copied back afterwards
  };
  AttentionProblem problem;  ///< pointers into the staging memory
  std::vector<Copy> copies;
  std::size_t size_bytes = 0;
};

/// `memory` may be null to learn the size.
StagedProblem stage_problem(const AttentionProblem& problem, const Device& device, std::byte* memory);

/// Copies a problem in CPU memory into the end of `workspace`, which has stage_problem's size_bytes for it,
/// calls `run` with the copy, and brings the outputs back. Waits for them.
void run_staged(const AttentionProblem& problem, Gpu& device, std::span<std::byte> workspace, Stream stream,
                const std::function<void(const AttentionProblem& staged)>& run);

}  // namespace tessera::gpu
