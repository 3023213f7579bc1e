#pragma once

#include <cstddef>
#include <string>

#include "backends/gpu/ops/library_products.h"
#include "common/attention_unfused.h"
#include "tessera/attention.h"

namespace tessera::gpu {

/// What runs the pipeline's steps, one after the other: a GPU, or in tests the host.
class UnfusedMachine {
 public:
  virtual ~UnfusedMachine() = default;
  virtual int warp_size() const = 0;
  /// Sets bytes to 0.
  virtual void clear(void* memory, std::size_t size_bytes) = 0;
  /// Runs a kernel of common/attention_unfused.cu on a grid of (blocks_x, blocks_y).
  virtual void launch(const std::string& entry, unsigned blocks_x, unsigned blocks_y, unsigned threads,
                      const kernels::UnfusedParams& params) = 0;
  virtual void multiply(const LibraryProduct& product) = 0;
};

/// Runs `problem` in parts of at most `max_rows` rows (0: chosen), as unfused_layout says. `workspace` has
/// that layout's total_bytes. The problem is valid and has queries.
void run_unfused(const AttentionProblem& problem, std::int64_t max_rows, std::byte* workspace,
                 UnfusedMachine& machine);

}  // namespace tessera::gpu
