#pragma once

#include "backends/gpu/runtime/device_properties.h"
#include "tessera/attention.h"

namespace tessera::cuda {

/// What sm80/decode takes for a problem of f16 or bf16 that it takes, in us by its model, whose rates are an
/// H200's: for kernels that have to choose between it and themselves.
double sm80_decode_us(const AttentionProblem& problem, const gpu::DeviceProperties& device);

/// Whether it would take it by clusters, which merge what their blocks find: few heads of few keys.
bool sm80_decode_has_clusters(const AttentionProblem& problem, const gpu::DeviceProperties& device);

}  // namespace tessera::cuda
