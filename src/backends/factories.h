#pragma once

#include <memory>

#include "attention/backend.h"
#include "ops/backend.h"

namespace tessera {

// One function a backend; backends/registry.cpp calls them in the order of preference.
std::unique_ptr<AttentionBackend> make_cpu_attention();
std::unique_ptr<AttentionBackend> make_cuda_attention();
std::unique_ptr<AttentionBackend> make_cuda_unfused_attention();
std::unique_ptr<AttentionBackend> make_unfused_attention();
std::unique_ptr<AttentionBackend> make_reference_attention();

std::unique_ptr<OpsBackend> make_cpu_ops();
std::unique_ptr<OpsBackend> make_cuda_ops();
std::unique_ptr<OpsBackend> make_reference_ops();

}  // namespace tessera
