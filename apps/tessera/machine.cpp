#include "machine.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/aligned_memory.h"
#include "core/proc_value.h"
#include "core/processors.h"
#include "core/text.h"

namespace tessera::cli {

namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "32768K", "8 kB": a number and a binary unit.
std::uint64_t parse_size(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc()) return 0;
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (rest.find_first_of("kK") != std::string_view::npos) return value << 10;
  if (rest.find('M') != std::string_view::npos) return value << 20;
  return value;
}

int count_physical_cores() {
  const std::filesystem::path root = "/sys/devices/system/cpu";
  std::set<std::string> cores;  // the set of hardware threads that share a core names it
  for (int cpu = 0; cpu < 4096; ++cpu) {
    const std::filesystem::path folder = root / fmt::format("cpu{}", cpu) / "topology";
    std::error_code error;
    if (!std::filesystem::exists(folder, error)) {
      if (cpu > 0 && !std::filesystem::exists(root / fmt::format("cpu{}", cpu), error)) break;
      continue;
    }
    cores.insert(first_line(folder / "thread_siblings_list"));
  }
  return static_cast<int>(cores.size());
}

std::vector<CacheInfo> find_caches() {
  std::vector<CacheInfo> caches;
  for (int index = 0; index < 16; ++index) {
    const std::filesystem::path folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}", index);
    std::error_code error;
    if (!std::filesystem::exists(folder, error)) break;
    CacheInfo cache;
    cache.level = static_cast<int>(parse_size(first_line(folder / "level")));
    cache.type = lower_case(first_line(folder / "type"));
    cache.size_bytes = parse_size(first_line(folder / "size"));
    caches.push_back(cache);
  }
  return caches;
}

}  // namespace

MachineInfo machine_info() {
  MachineInfo info;
  info.cpu_model = proc_value("/proc/cpuinfo", "model name");
  info.physical_cores = count_physical_cores();
  info.logical_cores = usable_processors();
  info.caches = find_caches();
  info.memory_bytes = parse_size(proc_value("/proc/meminfo", "MemTotal"));
  info.available_memory_bytes = tessera::available_memory_bytes();
  return info;
}

std::size_t last_level_cache_bytes() {
  std::size_t largest = 0;
  for (const CacheInfo& cache : find_caches()) largest = std::max(largest, cache.size_bytes);
  return largest == 0 ? std::size_t{32} << 20 : largest;
}

}  // namespace tessera::cli
