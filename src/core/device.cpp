#include "tessera/device.h"

#include <fmt/core.h>

namespace tessera {

std::string device_name(const Device& device) {
  switch (device.kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return fmt::format("cuda:{}", device.index);
    case DeviceKind::kHip:
      return fmt::format("hip:{}", device.index);
  }
  return "unknown";
}

}  // namespace tessera
