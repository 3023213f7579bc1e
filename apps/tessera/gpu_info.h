#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "backends/gpu/platform.h"
#include "tessera/device.h"

namespace tessera::cli {

struct GpuInfo {
  int index = 0;
  gpu::DeviceProperties properties;
  std::size_t free_memory_bytes = 0;
  std::string problem;  ///< not empty: the driver lists it but can't open it, and why
};

/// The GPUs of one family and what their kernels need.
struct GpuReport {
  std::string family;  ///< "cuda"
  gpu::PlatformReport platform;
  std::vector<GpuInfo> gpus;
  std::string cache_folder;  ///< of compiled kernels; empty if there is none
};

/// Asks the drivers; opens each GPU. Without a driver it looks for nothing else.
std::vector<GpuReport> gpu_reports();

nlohmann::ordered_json to_json(const GpuReport& report);
std::string to_text(const GpuReport& report);

/// "NVIDIA H200, driver 580.95.05, CUDA 13.0".
std::string gpu_environment_text(const Device& device);
nlohmann::ordered_json gpu_environment_json(const Device& device);

}  // namespace tessera::cli
