#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backends/gpu/ops/library_products.h"
#include "backends/gpu/runtime/gpu.h"
#include "ops/arguments.h"
#include "tessera/device.h"

namespace tessera::cuda {

/// Products with Q8_0 weights on tensor cores. Rows of x and w must stand at multiples of 16 bytes.
class Q8Products {
 public:
  /// `library` may be null, and outlives this.
  Q8Products(gpu::Gpu& device, gpu::LibraryProducts* library);

  /// SimtLauncher::tuned_gemm for Q8_0 weights.
  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation, Stream stream);
  /// Whether it takes a gated product.
  bool takes_gated(const GemmArguments& arguments, GatedActivation activation) const;

 private:
  /// Some rows of x by gemm_q8.cu, which reads w once for all of them.
  void multiply_few(const GemmArguments& arguments, int gated, Stream stream);
  /// Any number by gemm_q8_tiled.cu.
  void multiply_tiles(const GemmArguments& arguments, Stream stream);
  /// By cuBLASLt with the weight as bf16, some rows of it at a time. False if the library does not take it.
  bool multiply_widened(const GemmArguments& arguments, Stream stream);

  void launch(const std::string& source, const std::string& entry, std::int64_t blocks, unsigned threads,
              std::size_t shared_bytes, void* params, Stream stream);

  gpu::Gpu& gpu_;
  gpu::LibraryProducts* library_;
};

}  // namespace tessera::cuda
