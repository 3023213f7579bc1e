#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "attention/backend.h"
#include "backends/gpu/platform.h"

namespace tessera::gpu {

/// Classic attention on a platform's GPUs: matrix products by its library, and between them separate kernels
/// over fp32 scores in memory. The baseline of the fused kernels and, sharing nothing with their loops, a
/// second judge of them. The platform outlives it.
std::unique_ptr<AttentionBackend> make_unfused_attention(std::string_view name, std::string_view description,
                                                         Platform& platform);

}  // namespace tessera::gpu
