#pragma once

#include <optional>
#include <string>

#include "backends/gpu/runtime/gpu.h"
#include "ops/arguments.h"
#include "tessera/device.h"

namespace tessera::kernels {
struct StreamParams;
}

namespace tessera::cuda {

/// Of a GPU whose tensor cores and asynchronous copies the products of this folder use.
inline constexpr int kLeastComputeCapability = 80;

/// What kernels that read a weight as a stream take, but for how they cut it up: rows `rows_apart` of each
/// other, or a gate's and its up's with an activation, are taken together.
kernels::StreamParams stream_params(const GemmArguments& arguments, std::optional<GatedActivation> activation,
                                    int rows_apart);

/// The same of products by groups of kTileRows rows whose 16-bit results are gated, or rotated and appended,
/// but for a norm before them; nothing if there is no kernel.
std::optional<kernels::StreamParams> projection_params(const NormedGemmArguments& arguments);

/// What leaves the kernels for one 16-bit type in a source that has both.
std::string part_of_16_bit_define(DType dtype);

/// Products of one or two rows with 16-bit weights, by sm80/gemv_stream.cu.
class StreamProducts {
 public:
  explicit StreamProducts(gpu::Gpu& device) : gpu_(device) {}

  /// gemm, or gated_gemm; false, and nothing done, if the kernel is not for these valid arguments.
  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation, Stream stream) const;

  /// Whether it takes a gated product.
  bool takes_gated(const GemmArguments& arguments, GatedActivation activation) const;

  /// As OpsBackend has them.
  bool takes_normed_gemm(const NormedGemmArguments& arguments) const;
  void normed_gemm(const NormedGemmArguments& arguments, Stream stream) const;

 private:
  struct Launch {
    unsigned blocks = 0;  // 0: the kernel does not fit
    std::size_t shared_bytes = 0;
  };

  Launch choose_launch(const kernels::StreamParams& params) const;
  void launch(const kernels::StreamParams& params, const Launch& chosen, DType weight_dtype,
              Stream stream) const;

  gpu::Gpu& gpu_;
};

}  // namespace tessera::cuda
