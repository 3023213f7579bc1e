#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "attention/backend.h"
#include "backends/gpu/attention/attention_kernel.h"
#include "backends/gpu/platform.h"

namespace tessera::gpu {

/// Fused attention on a platform's GPUs by one of the vendor's `kernels`: the quickest that was measured,
/// else the first that takes the problem. shipped_tunings: tables that the library brings, as `tessera tune`
/// writes them. The platform and the lists outlive it.
std::unique_ptr<AttentionBackend> make_gpu_attention(std::string_view name, std::string_view description,
                                                     Platform& platform, AttentionKernels kernels,
                                                     std::span<const std::string_view> shipped_tunings = {});

}  // namespace tessera::gpu
