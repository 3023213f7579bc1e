#pragma once

#include <optional>
#include <span>

#include "backends/cuda/ops/block_launch.h"
#include "backends/cuda/ops/rows_of_w.h"
#include "tessera/dtype.h"

namespace tessera::cuda {

/// gemm_block_stream.cu's launch for up to eight rows of 16-bit x and `w`, one or two, of which
/// RowsOfW::is_taken; nothing if it is not for these.
std::optional<BlockGemmLaunch> block_stream_launch(std::span<const RowsOfW> w, DType x_dtype,
                                                   const gpu::DeviceProperties& device);

}  // namespace tessera::cuda
