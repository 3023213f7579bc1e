#include <fmt/format.h>
#include <lzma.h>
#include <oneapi/dnnl/dnnl.h>

#include <CLI/Version.hpp>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "backends/cpu/simd_target.h"
#include "build_info.h"
#include "commands.h"
#include "gpu_info.h"
#include "machine.h"
#include "ops/backend.h"
#include "output.h"
#include "tessera/attention.h"
#include "tessera/threads.h"
#include "tessera/version.h"

namespace tessera::cli {

namespace {

struct LibraryVersion {
  const char* name;
  std::string version;
};

std::vector<LibraryVersion> library_versions() {
  const dnnl_version_t* dnnl = dnnl_version();
  char pcre2_text[64] = "";  // "10.42 2022-12-11"
  pcre2_config(PCRE2_CONFIG_VERSION, pcre2_text);
  const std::string pcre2 = pcre2_text;
  return {{"oneDNN", fmt::format("{}.{}.{}", dnnl->major, dnnl->minor, dnnl->patch)},
          {"Highway", HIGHWAY_VERSION},
          {"PCRE2", pcre2.substr(0, pcre2.find(' '))},
          {"liblzma", lzma_version_string()},
          {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
          {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                        NLOHMANN_JSON_VERSION_PATCH)},
          {"CLI11", CLI11_VERSION}};
}

std::vector<std::string> attainable_target_names() {
  std::vector<std::string> names;
  for (const SimdTarget target : attainable_simd_targets()) names.emplace_back(simd_target_name(target));
  return names;
}

nlohmann::ordered_json to_json(const MachineInfo& machine, const std::vector<GpuReport>& gpus) {
  nlohmann::ordered_json caches = nlohmann::ordered_json::array();
  for (const CacheInfo& cache : machine.caches) {
    caches.push_back({{"level", cache.level}, {"type", cache.type}, {"size_bytes", cache.size_bytes}});
  }
  nlohmann::ordered_json backends = nlohmann::ordered_json::array();
  for (const BackendInfo& backend : attention_backends()) {
    backends.push_back({{"name", backend.name},
                        {"description", backend.description},
                        {"available", backend.unavailable_reason.empty()},
                        {"unavailable_reason", backend.unavailable_reason}});
  }
  nlohmann::ordered_json libraries;
  for (const LibraryVersion& library : library_versions()) libraries[library.name] = library.version;
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  devices.push_back({{"name", "cpu"},
                     {"model", machine.cpu_model},
                     {"physical_cores", machine.physical_cores},
                     {"logical_cores", machine.logical_cores},
                     {"caches", caches},
                     {"memory_bytes", machine.memory_bytes},
                     {"available_memory_bytes", machine.available_memory_bytes},
                     {"simd_targets", attainable_target_names()},
                     {"simd_target", simd_target_name(simd_target())}});
  nlohmann::ordered_json json = {{"version", version()},
                                 {"commit", build_commit()},
                                 {"compiler", compiler_text()},
                                 {"devices", devices}};
  for (const GpuReport& report : gpus) json[report.family] = to_json(report);
  json["threads"] = num_threads();
  json["attention_backends"] = backends;
  json["ops_backends"] = ops_backend_names();
  json["libraries"] = libraries;
  return json;
}

std::string caches_text(const MachineInfo& machine) {
  std::string text;
  for (const CacheInfo& cache : machine.caches) {
    text += fmt::format("{}L{} {} {}", text.empty() ? "" : ", ", cache.level, cache.type,
                        bytes_text(static_cast<double>(cache.size_bytes)));
  }
  return text.empty() ? "unknown" : text;
}

std::string to_text(const MachineInfo& machine, const std::vector<GpuReport>& gpus) {
  std::string text = fmt::format("tessera {}, built with {}\n\n", version_text(), compiler_text());
  text += fmt::format("cpu        {}\n", machine.cpu_model.empty() ? "unknown" : machine.cpu_model);
  const std::string physical =  // where /sys is not there, they are not known
      machine.physical_cores > 0 ? fmt::format("{} physical, ", machine.physical_cores) : "";
  text += fmt::format("cores      {}{} logical usable, {} used\n", physical, machine.logical_cores,
                      counted(num_threads(), "thread", "threads"));
  text += fmt::format("caches     {}\n", caches_text(machine));
  text += fmt::format("memory     {}, {} available\n", bytes_text(static_cast<double>(machine.memory_bytes)),
                      bytes_text(static_cast<double>(machine.available_memory_bytes)));
  text += fmt::format("simd       {} (of {})\n", simd_target_name(simd_target()),
                      fmt::join(attainable_target_names(), ", "));
  for (const GpuReport& report : gpus) text += to_text(report);
  text += '\n';
  Table backends({{"backend", Table::Align::kLeft}, {"attention", Table::Align::kLeft}});
  for (const BackendInfo& backend : attention_backends()) {
    std::string state = backend.description;
    if (!backend.unavailable_reason.empty()) {  // which may stand above already, and is long
      const bool is_known = std::ranges::any_of(gpus, [&](const GpuReport& report) {
        return report.platform.unavailable_reason == backend.unavailable_reason;
      });
      state = "not usable: " + (is_known ? "no GPU, as said above" : backend.unavailable_reason);
    }
    backends.add_row({backend.name, state});
  }
  text += backends.to_string();
  text += fmt::format("\nother kernels: {}\n\n", fmt::join(ops_backend_names(), ", "));
  text += "libraries: ";
  const char* separator = "";
  for (const LibraryVersion& library : library_versions()) {
    text += fmt::format("{}{} {}", separator, library.name, library.version);
    separator = ", ";
  }
  return text + '\n';
}

int info(bool json) {
  const MachineInfo machine = machine_info();
  const std::vector<GpuReport> gpus = gpu_reports();
  if (json) {
    write_json(to_json(machine, gpus));
  } else {
    write_stdout(to_text(machine, gpus));
  }
  return kExitDone;
}

}  // namespace

void add_info_command(Command& parent) {
  auto json = std::make_shared<bool>(false);
  Command command =
      parent.add_command("info", "Show the machine, the backends and the versions of the libraries");
  command.add_flag("--json", *json, "Print one JSON document");
  command.set_examples({"tessera info", "tessera info --json", "TESSERA_SIMD=avx2 tessera info"});
  command.set_action([json] { return info(*json); });
}

}  // namespace tessera::cli
