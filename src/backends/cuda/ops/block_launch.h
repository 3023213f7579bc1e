#pragma once

#include <string>
#include <variant>
#include <vector>

#include "backends/cuda/runtime/tensor_map.h"
#include "backends/gpu/runtime/gpu.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "sm80/gemm_blocks.h"
#include "sm90/gemm_block_stream.h"

namespace tessera::cuda {

/// A launch of gemm_blocks.cu, gemm_block_bits.cu or gemm_block_stream.cu.
struct BlockGemmLaunch {
  gpu::ModuleSpec module;
  std::string entry;
  gpu::LaunchShape shape;
  std::variant<kernels::BlockGemmParams, kernels::TwoBlockGemmParams, kernels::BlockStreamParams,
               kernels::TwoBlockStreamParams>
      params;
  std::vector<TensorMapShape> maps;  ///< of w, or of upper and lower rows, that params still lack
};

}  // namespace tessera::cuda
