#include "gpu_info.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "backends/cuda/runtime/cublaslt.h"
#include "backends/cuda/runtime/cuda_gpu.h"
#include "backends/cuda/runtime/driver.h"
#include "backends/cuda/runtime/embedded.h"
#include "backends/cuda/runtime/nvrtc.h"
#include "core/binary_cache.h"
#include "output.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

/// The kernel module's version, which is the driver's.
std::string read_driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  std::getline(file, version);
  return version;
}

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

GpuInfo describe(int index) {
  GpuInfo info;
  info.index = index;
  try {
    const gpu::Gpu& device = cuda::gpu_device(index);
    const gpu::DeviceProperties& p = device.properties();
    info.name = p.name;
    info.compute_capability = p.compute_capability;
    info.architecture = p.architecture;
    info.num_multiprocessors = p.num_multiprocessors;
    info.total_memory_bytes = p.total_memory_bytes;
    info.free_memory_bytes = device.free_memory_bytes();
    info.shared_per_block_bytes = p.shared_per_block_bytes;
    info.shared_per_multiprocessor_bytes = p.shared_per_multiprocessor_bytes;
    info.l2_bytes = p.l2_bytes;
    info.clock_mhz = p.clock_khz / 1000;
  } catch (const Error& error) {
    info.problem = error.message();
  }
  return info;
}

nlohmann::ordered_json to_json(const FoundLibrary& library) {
  return {{"file", library.file},
          {"version", library.version},
          {"available", library.unavailable_reason.empty()},
          {"unavailable_reason", library.unavailable_reason}};
}

std::string to_text(const FoundLibrary& library) {
  if (!library.unavailable_reason.empty()) return "missing: " + library.unavailable_reason;
  return library.version.empty() ? library.file : fmt::format("{} ({})", library.version, library.file);
}

std::string size_text(std::size_t size_bytes) { return bytes_text(static_cast<double>(size_bytes)); }

}  // namespace

GpuReport gpu_report() {
  GpuReport report;
  report.cache_folder = BinaryCache::default_folder();
  std::set<std::string> architectures;
  for (const gpu::EmbeddedModule& module : cuda::embedded_modules()) {
    architectures.emplace(module.architecture);
  }
  report.built_for.assign(architectures.begin(), architectures.end());
  const cuda::DriverState& driver = cuda::driver_state();
  report.unavailable_reason = driver.unavailable_reason;
  report.driver_version = read_driver_version();
  if (driver.version > 0) report.cuda_version = cuda_version_text(driver.version);
  if (!report.unavailable_reason.empty()) return report;
  for (int index = 0; index < driver.num_devices; ++index) report.gpus.push_back(describe(index));
  const cuda::NvrtcState& nvrtc = cuda::nvrtc_state();
  report.nvrtc = {nvrtc.library, nvrtc.version > 0 ? cuda_version_text(nvrtc.version) : std::string(),
                  nvrtc.unavailable_reason};
  const cuda::CublasLtState& cublaslt = cuda::cublaslt_state();
  report.cublaslt = {cublaslt.library, {}, cublaslt.unavailable_reason};
  return report;
}

nlohmann::ordered_json to_json(const GpuReport& report) {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (const GpuInfo& gpu : report.gpus) {
    gpus.push_back({{"name", fmt::format("cuda:{}", gpu.index)},
                    {"model", gpu.name},
                    {"compute_capability",
                     fmt::format("{}.{}", gpu.compute_capability / 10, gpu.compute_capability % 10)},
                    {"architecture", gpu.architecture},
                    {"multiprocessors", gpu.num_multiprocessors},
                    {"memory_bytes", gpu.total_memory_bytes},
                    {"available_memory_bytes", gpu.free_memory_bytes},
                    {"shared_bytes_per_block", gpu.shared_per_block_bytes},
                    {"shared_bytes_per_multiprocessor", gpu.shared_per_multiprocessor_bytes},
                    {"l2_bytes", gpu.l2_bytes},
                    {"clock_mhz", gpu.clock_mhz},
                    {"problem", gpu.problem}});
  }
  nlohmann::ordered_json json = {{"available", report.unavailable_reason.empty()},
                                 {"unavailable_reason", report.unavailable_reason},
                                 {"driver_version", report.driver_version},
                                 {"cuda_version", report.cuda_version},
                                 {"gpus", gpus},
                                 {"kernels_built_for", report.built_for},
                                 {"kernel_cache_folder", report.cache_folder}};
  if (report.unavailable_reason.empty()) {
    json["nvrtc"] = to_json(report.nvrtc);
    json["cublaslt"] = to_json(report.cublaslt);
  }
  return json;
}

std::string to_text(const GpuReport& report) {
  std::string text;
  for (const GpuInfo& gpu : report.gpus) {
    if (!gpu.problem.empty()) {
      text += fmt::format("cuda:{}     not usable: {}\n", gpu.index, gpu.problem);
      continue;
    }
    text += fmt::format(
        "cuda:{:<6}{}, compute capability {}.{}, {} multiprocessors at up to {} MHz\n"
        "           {} of memory, {} free, {} of L2; {} of shared memory a multiprocessor, {} a block\n",
        gpu.index, gpu.name, gpu.compute_capability / 10, gpu.compute_capability % 10,
        gpu.num_multiprocessors, gpu.clock_mhz, size_text(gpu.total_memory_bytes),
        size_text(gpu.free_memory_bytes), size_text(gpu.l2_bytes),
        size_text(gpu.shared_per_multiprocessor_bytes), size_text(gpu.shared_per_block_bytes));
  }
  if (report.unavailable_reason.empty()) {
    text += fmt::format("driver     {}, for CUDA up to {}\n",
                        report.driver_version.empty() ? "of unknown version" : report.driver_version,
                        report.cuda_version);
    text += fmt::format("nvrtc      {}\n", to_text(report.nvrtc));
    text += fmt::format("cublaslt   {}\n", to_text(report.cublaslt));
  } else {
    text += fmt::format("gpu        none: {}\n", report.unavailable_reason);
  }
  text += fmt::format("kernels    {}; others are compiled when first used and kept in {}\n",
                      report.built_for.empty()
                          ? "none was built ahead (no nvcc at build time)"
                          : fmt::format("built ahead for {}", fmt::join(report.built_for, ", ")),
                      report.cache_folder.empty() ? "memory alone (no cache folder)" : report.cache_folder);
  return text;
}

std::string gpu_environment_text() {
  return fmt::format("{}, driver {}, CUDA {}", cuda::gpu_device(0).properties().name, read_driver_version(),
                     cuda_version_text(cuda::driver_state().version));
}

nlohmann::ordered_json gpu_environment_json() {
  return {{"model", cuda::gpu_device(0).properties().name},
          {"driver_version", read_driver_version()},
          {"cuda_version", cuda_version_text(cuda::driver_state().version)}};
}

}  // namespace tessera::cli
