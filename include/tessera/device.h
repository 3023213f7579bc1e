#pragma once

#include <string>

namespace tessera {

enum class DeviceKind { kCpu, kCuda, kHip };

/// A processor with its own memory. All CPUs of the machine are one device.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu", "cuda:0", "hip:1".
std::string device_name(const Device& device);

/// A queue that work is put into and that runs it in order. The caller owns what `handle` names: a CUstream
/// or hipStream_t (null: the device's default stream). On the CPU work has finished when the call returns and
/// `handle` is ignored.
struct Stream {
  void* handle = nullptr;
};

}  // namespace tessera
