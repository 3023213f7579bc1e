#include "core/control_groups.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string> words_of(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// The file's first word as a number; none for "max", -1, or no file.
std::optional<std::uint64_t> number_in(const fs::path& file) {
  const std::vector<std::string> words = words_of(file);
  return words.empty() ? std::nullopt : parse_number(words[0]);
}

/// The sum of some lines "name number" of a file.
std::uint64_t sum_in(const fs::path& file, std::initializer_list<std::string_view> names) {
  const std::vector<std::string> words = words_of(file);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    if (std::find(names.begin(), names.end(), words[i]) != names.end())
      sum += parse_number(words[i + 1]).value_or(0);
  }
  return sum;
}

template <class T>
void lower(std::optional<T>& limit, T to) {
  limit = std::min(limit.value_or(to), to);
}

/// files: cached pages of files, which are given up before memory runs out.
void add_memory(std::optional<std::uint64_t> most, std::optional<std::uint64_t> used, std::uint64_t files,
                ControlGroupLimits& limits) {
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;  // the first version has a large number for none
  if (!most || *most >= kNoLimit || !used) return;
  const std::uint64_t held = *used - std::min(files, *used);
  lower(limits.free_memory_bytes, *most - std::min(held, *most));
}

void add_processors(std::optional<std::uint64_t> quota, std::optional<std::uint64_t> period,
                    ControlGroupLimits& limits) {
  if (quota && *quota > 0 && period && *period > 0)
    lower(limits.processors, static_cast<double>(*quota) / static_cast<double>(*period));
}

void add_group_of_version_2(const fs::path& group, ControlGroupLimits& limits) {
  add_memory(number_in(group / "memory.max"), number_in(group / "memory.current"),
             sum_in(group / "memory.stat", {"active_file", "inactive_file"}), limits);
  const std::vector<std::string> time = words_of(group / "cpu.max");
  if (time.size() == 2) add_processors(parse_number(time[0]), parse_number(time[1]), limits);
}

void add_memory_of_version_1(const fs::path& group, ControlGroupLimits& limits) {
  add_memory(number_in(group / "memory.limit_in_bytes"), number_in(group / "memory.usage_in_bytes"),
             sum_in(group / "memory.stat", {"total_active_file", "total_inactive_file"}), limits);
}

void add_processors_of_version_1(const fs::path& group, ControlGroupLimits& limits) {
  add_processors(number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us"), limits);
}

/// Calls add(folder) for a group and those around it. In a container the path may be the host's, of which
/// the container sees its own group as the outermost: folders that are not there say nothing.
template <class Add>
void for_groups(const fs::path& mount, std::string_view path, Add add) {
  fs::path group = fs::path(path).relative_path();
  if (std::find(group.begin(), group.end(), fs::path("..")) != group.end()) group.clear();
  for (;; group = group.parent_path()) {
    add(mount / group);
    if (group.empty()) return;
  }
}

}  // namespace

ControlGroupLimits control_group_limits(const fs::path& root) {
  ControlGroupLimits limits;
  const fs::path mounts = root / "sys" / "fs" / "cgroup";
  std::ifstream groups(root / "proc" / "self" / "cgroup");
  for (std::string line; std::getline(groups, line);) {  // "number:controllers:path"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', std::min(first, line.size() - 1) + 1);
    if (line.empty() || first == line.npos || second == line.npos) continue;
    const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
    const std::string_view path = std::string_view(line).substr(second + 1);
    if (controllers == ",,") {
      for_groups(mounts, path, [&](const fs::path& group) { add_group_of_version_2(group, limits); });
    } else if (controllers.find(",memory,") != controllers.npos) {
      for_groups(mounts / "memory", path,
                 [&](const fs::path& group) { add_memory_of_version_1(group, limits); });
    } else if (controllers.find(",cpu,") != controllers.npos) {
      for_groups(mounts / "cpu", path,
                 [&](const fs::path& group) { add_processors_of_version_1(group, limits); });
    }
  }
  return limits;
}

}  // namespace tessera
