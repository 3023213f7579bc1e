#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::cli {

struct CacheInfo {
  int level = 0;
  std::string type;  ///< "data", "instruction", "unified"
  std::size_t size_bytes = 0;
};

/// The processor as the operating system describes it; unknown numbers are 0, unknown names empty.
struct MachineInfo {
  std::string cpu_model;
  int physical_cores = 0;
  int logical_cores = 0;  ///< those that this process may use
  std::vector<CacheInfo> caches;
  std::uint64_t memory_bytes = 0;
  std::uint64_t available_memory_bytes = 0;
};
MachineInfo machine_info();

/// Size of the largest cache, 32 MiB if the system doesn't say.
std::size_t last_level_cache_bytes();

}  // namespace tessera::cli
