#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera::cli {

struct GpuInfo {
  int index = 0;
  std::string name;
  int compute_capability = 0;  ///< 10 * major + minor
  std::string architecture;    ///< that kernels are compiled for: "sm_90a"
  int num_multiprocessors = 0;
  std::size_t total_memory_bytes = 0;
  std::size_t free_memory_bytes = 0;
  std::size_t shared_per_block_bytes = 0;
  std::size_t shared_per_multiprocessor_bytes = 0;
  std::size_t l2_bytes = 0;
  int clock_mhz = 0;    ///< highest
  std::string problem;  ///< not empty: the driver lists it but can't open it, and why
};

/// A library that is looked for when it is needed.
struct FoundLibrary {
  std::string file;                ///< as it was found
  std::string version;             ///< empty if unknown
  std::string unavailable_reason;  ///< empty: found
};

/// NVIDIA GPUs and what their kernels need.
struct GpuReport {
  std::string unavailable_reason;  ///< not empty: no GPU can be used, and what is missing
  std::string driver_version;      ///< "580.95.05"; empty if unknown
  std::string cuda_version;        ///< newest that the driver runs: "13.0"
  std::vector<GpuInfo> gpus;
  FoundLibrary nvrtc;
  FoundLibrary cublaslt;
  std::string cache_folder;            ///< of compiled kernels; empty if there is none
  std::vector<std::string> built_for;  ///< architectures that kernels were compiled for with the binary
};

/// Asks the driver; opens each GPU. Without a driver it looks for nothing else.
GpuReport gpu_report();

nlohmann::ordered_json to_json(const GpuReport& report);
std::string to_text(const GpuReport& report);

/// "NVIDIA H200, driver 580.95.05, CUDA 13.0" of GPU 0.
std::string gpu_environment_text();
nlohmann::ordered_json gpu_environment_json();

}  // namespace tessera::cli
