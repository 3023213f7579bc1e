#pragma once

#include <memory>
#include <string_view>

#include "attention/backend.h"
#include "backends/gpu/attention/attention_kernel.h"
#include "backends/gpu/platform.h"

namespace tessera::gpu {

/// Fused attention on a platform's GPUs by the first of the vendor's `kernels` that takes the problem. The
/// platform and the list outlive it.
std::unique_ptr<AttentionBackend> make_gpu_attention(std::string_view name, std::string_view description,
                                                     Platform& platform, AttentionKernels kernels);

}  // namespace tessera::gpu
