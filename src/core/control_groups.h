#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera {

/// What the control groups (cgroups) of this process leave to it; containers and service managers limit
/// programs by them, and nothing else of the system tells.
struct ControlGroupLimits {
  /// Memory that can still be taken before the system ends a process of the group; none: no limit.
  std::optional<std::uint64_t> free_memory_bytes;
  /// Processors' time a second; none: no limit.
  std::optional<double> processors;
};

/// Of the group and of those around it, whose limits hold too; of both versions of cgroups. What can't be
/// read is no limit. root: where /proc and /sys are.
ControlGroupLimits control_group_limits(const std::filesystem::path& root = "/");

}  // namespace tessera
