#pragma once

#include <memory>

#include "attention/backend.h"
#include "ops/backend.h"

namespace tessera {

namespace gpu {
class Platform;
}

// What backends/registry.cpp makes its families of.
std::unique_ptr<AttentionBackend> make_cpu_attention();
std::unique_ptr<AttentionBackend> make_cuda_attention();
std::unique_ptr<AttentionBackend> make_cuda_unfused_attention();
std::unique_ptr<AttentionBackend> make_hip_attention();
std::unique_ptr<AttentionBackend> make_hip_unfused_attention();
std::unique_ptr<AttentionBackend> make_unfused_attention();
std::unique_ptr<AttentionBackend> make_reference_attention();

std::unique_ptr<OpsBackend> make_cpu_ops();
std::unique_ptr<OpsBackend> make_cuda_ops(const Device& device);
std::unique_ptr<OpsBackend> make_hip_ops(const Device& device);
std::unique_ptr<OpsBackend> make_reference_ops();

gpu::Platform& cuda_platform();
gpu::Platform& hip_platform();

}  // namespace tessera
