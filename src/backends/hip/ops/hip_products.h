#pragma once

#include <optional>
#include <string>

#include "backends/gpu/ops/gpu_ops.h"
#include "backends/gpu/ops/stream_workspaces.h"
#include "backends/gpu/runtime/kernel.h"
#include "backends/hip/runtime/hip_gpu.h"
#include "backends/hip/runtime/rocblas.h"
#include "backends/hip/runtime/targets.h"

namespace tessera::kernels {
struct GemmParams;
struct GemmTiles;
}  // namespace tessera::kernels

namespace tessera::hip {

/// Products of many rows: by rocBLAS where it is found and takes them, else on the matrix units by
/// kernels/matrix/gemm.hip, which takes 16-bit weights of x's type and Q8_0, rows of x and w at multiples of
/// 16 bytes. Weights of other blocks are multiplied as they are by kernels/matrix/gemm_blocks.hip, and so is
/// Q8_0 with x of f16 whose small numbers the matrix units would lose: that kernel splits them. With more
/// rows of x than two of its tiles have, blocks but Q8_0 are widened for the former where x and out are bf16.
/// Few rows are left to common/gemv.cu, which waits for nothing but w.
class HipProducts final : public gpu::TunedProducts {
 public:
  explicit HipProducts(HipGpu& device);

  bool gemm(const GemmArguments& arguments, std::optional<GatedActivation> activation,
            Stream stream) override;
  bool takes_normed_gemm(const NormedGemmArguments&) const override { return false; }
  void normed_gemm(const NormedGemmArguments& arguments, Stream stream) override;

 private:
  /// With a weight of numbers.
  bool multiply_numbers(const GemmArguments& arguments, Stream stream);
  bool multiply_tiles(const GemmArguments& arguments, Stream stream);
  /// Whether the matrix units would take small numbers of x for 0.
  bool is_flushed(const GemmArguments& arguments) const;
  /// With a weight of blocks, as they are.
  bool multiply_blocks(const GemmArguments& arguments, Stream stream);
  /// With the weight's blocks as bf16, some rows of it at a time.
  bool multiply_widened(const GemmArguments& arguments, Stream stream);
  /// A block for each tile of out; false if those are more threads than HIP counts in a grid.
  bool launch(const gpu::ModuleSpec& module, const std::string& entry, const kernels::GemmParams& params,
              const kernels::GemmTiles& tiles, Stream stream);

  gpu::Gpu& gpu_;
  MatrixUnit matrix_unit_;
  std::optional<RocBlas> rocblas_;
  gpu::StreamWorkspaces widened_{gpu_, "weights as bf16"};
};

}  // namespace tessera::hip
