#pragma once

#include "backends/cuda/runtime/cuda_gpu.h"
#include "backends/gpu/ops/stream_workspaces.h"
#include "ops/arguments.h"

namespace tessera::cuda {

/// Products of many slots of a mixture of experts on the tensor cores (sm80/expert_gemm.cu,
/// sm90/expert_blocks.cu, sm90/expert_many_rows.cu).
class ExpertProducts {
 public:
  explicit ExpertProducts(CudaGpu& gpu);

  /// Not types, alignments and numbers of slots that plain kernels are left. What is fused counts as apart.
  bool takes(const ExpertGemmArguments& arguments) const;

  /// False for what it doesn't take. Weights of blocks are widened to bf16, some experts at a time, where x
  /// and the result are bf16.
  bool gemm(const ExpertGemmArguments& arguments, Stream stream);

 private:
  /// Slots that share a tile of blocks in sm90/expert_blocks.cu: 16 or 32; 0: it doesn't take them.
  int slots_of_blocks(const ExpertGemmArguments& arguments) const;
  void launch_blocks(const ExpertGemmArguments& arguments, int slots, Stream stream);
  bool takes_many_rows(const ExpertGemmArguments& arguments) const;
  /// many_rows: by Hopper's own products.
  void launch(const ExpertGemmArguments& arguments, bool many_rows, Stream stream);
  void launch_many_rows(const ExpertGemmArguments& arguments, Stream stream);

  CudaGpu& gpu_;
  gpu::StreamWorkspaces workspaces_;
};

}  // namespace tessera::cuda
