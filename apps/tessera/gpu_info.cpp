#include "gpu_info.h"

#include <fmt/format.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "backends/family.h"
#include "core/binary_cache.h"
#include "output.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

GpuInfo describe(gpu::Platform& platform, int index) {
  GpuInfo info;
  info.index = index;
  try {
    gpu::Gpu& gpu = platform.gpu(index);
    info.properties = gpu.properties();
    info.free_memory_bytes = gpu.free_memory_bytes();
  } catch (const Error& error) {
    info.problem = error.message();
  }
  return info;
}

nlohmann::ordered_json to_json(const gpu::LibraryReport& library) {
  return {{"file", library.file},
          {"version", library.version},
          {"available", library.unavailable_reason.empty()},
          {"unavailable_reason", library.unavailable_reason}};
}

std::string to_text(const gpu::LibraryReport& library) {
  if (!library.unavailable_reason.empty()) return "missing: " + library.unavailable_reason;
  return library.version.empty() ? library.file : fmt::format("{} ({})", library.version, library.file);
}

std::string architecture_text(const gpu::DeviceProperties& p) {
  if (p.compute_capability == 0) {
    return p.same_isa.empty()
               ? p.architecture
               : fmt::format("{} (the instructions of {}: runs its kernels)", p.architecture, p.same_isa);
  }
  return fmt::format("compute capability {}.{}", p.compute_capability / 10, p.compute_capability % 10);
}

std::string driver_version_text(const gpu::PlatformReport& report) {
  return report.driver_version.empty() ? "of unknown version" : report.driver_version;
}

std::string upper_case(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper;
}

const BackendFamily& family_of(DeviceKind kind) {
  for (const BackendFamily& family : backend_families()) {
    if (family.kind == kind) return family;
  }
  throw Error(ErrorCode::kInvalidArgument, "no backend runs on such a device");
}

std::string size_text(std::size_t size_bytes) { return bytes_text(static_cast<double>(size_bytes)); }

}  // namespace

std::vector<GpuReport> gpu_reports() {
  std::vector<GpuReport> reports;
  for (const BackendFamily& family : backend_families()) {
    if (family.platform == nullptr) continue;
    GpuReport report;
    report.family = family.name;
    report.platform = family.platform().report();
    report.cache_folder = BinaryCache::default_folder();
    for (int index = 0; index < report.platform.num_devices; ++index)
      report.gpus.push_back(describe(family.platform(), index));
    reports.push_back(std::move(report));
  }
  return reports;
}

nlohmann::ordered_json to_json(const GpuReport& report) {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (const GpuInfo& gpu : report.gpus) {
    const gpu::DeviceProperties& p = gpu.properties;
    nlohmann::ordered_json json = {{"name", fmt::format("{}:{}", report.family, gpu.index)},
                                   {"model", p.name}};
    if (p.compute_capability != 0) {
      json["compute_capability"] = fmt::format("{}.{}", p.compute_capability / 10, p.compute_capability % 10);
    }
    json["architecture"] = p.architecture;
    if (!p.same_isa.empty()) json["runs_kernels_for"] = p.same_isa;
    json["multiprocessors"] = p.num_multiprocessors;
    json["memory_bytes"] = p.total_memory_bytes;
    json["available_memory_bytes"] = gpu.free_memory_bytes;
    json["shared_bytes_per_block"] = p.shared_per_block_bytes;
    json["shared_bytes_per_multiprocessor"] = p.shared_per_multiprocessor_bytes;
    json["l2_bytes"] = p.l2_bytes;
    json["clock_mhz"] = p.clock_khz / 1000;
    json["problem"] = gpu.problem;
    gpus.push_back(std::move(json));
  }
  const gpu::PlatformReport& platform = report.platform;
  nlohmann::ordered_json json = {{"available", platform.unavailable_reason.empty()},
                                 {"unavailable_reason", platform.unavailable_reason},
                                 {"driver_version", platform.driver_version},
                                 {report.family + "_version", platform.api_version},
                                 {"gpus", gpus},
                                 {"kernels_built_for", platform.built_for},
                                 {"kernel_cache_folder", report.cache_folder}};
  for (const gpu::LibraryReport& library : platform.libraries) json[library.name] = to_json(library);
  return json;
}

std::string to_text(const GpuReport& report) {
  const gpu::PlatformReport& platform = report.platform;
  std::string text;
  for (const GpuInfo& gpu : report.gpus) {
    const std::string name = fmt::format("{}:{}", report.family, gpu.index);
    if (!gpu.problem.empty()) {
      text += fmt::format("{:<11}not usable: {}\n", name, gpu.problem);
      continue;
    }
    const gpu::DeviceProperties& p = gpu.properties;
    text += fmt::format(
        "{:<11}{}, {}, {} multiprocessors at up to {} MHz\n"
        "           {} of memory, {} free, {} of L2; {} of shared memory a multiprocessor, {} a block\n",
        name, p.name, architecture_text(p), p.num_multiprocessors, p.clock_khz / 1000,
        size_text(p.total_memory_bytes), size_text(gpu.free_memory_bytes), size_text(p.l2_bytes),
        size_text(p.shared_per_multiprocessor_bytes), size_text(p.shared_per_block_bytes));
  }
  if (platform.unavailable_reason.empty()) {
    text += fmt::format("driver     {}, for {} up to {}\n", driver_version_text(platform),
                        upper_case(report.family), platform.api_version);
    for (const gpu::LibraryReport& library : platform.libraries)
      text += fmt::format("{:<11}{}\n", library.name, to_text(library));
  } else {
    text += fmt::format("gpu        none: {}\n", platform.unavailable_reason);
  }
  text += fmt::format("kernels    {}; others are compiled when first used and kept in {}\n",
                      platform.built_for.empty()
                          ? "none was built ahead (no compiler for them at build time)"
                          : fmt::format("built ahead for {}", fmt::join(platform.built_for, ", ")),
                      report.cache_folder.empty() ? "memory alone (no cache folder)" : report.cache_folder);
  return text;
}

std::string gpu_environment_text(const Device& device) {
  const BackendFamily& family = family_of(device.kind);
  const gpu::PlatformReport report = family.platform().report();
  return fmt::format("{}, driver {}, {} {}", find_gpu(device).properties().name, driver_version_text(report),
                     upper_case(family.name), report.api_version);
}

nlohmann::ordered_json gpu_environment_json(const Device& device) {
  const BackendFamily& family = family_of(device.kind);
  const gpu::PlatformReport report = family.platform().report();
  return {{"model", find_gpu(device).properties().name},
          {"driver_version", report.driver_version},
          {fmt::format("{}_version", family.name), report.api_version}};
}

}  // namespace tessera::cli
