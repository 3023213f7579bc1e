#pragma once

#include "backends/gpu/ops/library_products.h"
#include "backends/gpu/runtime/gpu.h"

namespace tessera::gpu {

/// Products by a plain kernel (common/gemm_batched.cu), for where the vendor's library is absent. Needs no
/// workspace. Takes no bias.
class PlainProducts final : public LibraryProducts {
 public:
  explicit PlainProducts(Gpu& gpu) : gpu_(gpu) {}

  bool multiply(const LibraryProduct& product, Stream stream) override;

 private:
  Gpu& gpu_;
};

}  // namespace tessera::gpu
