#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/backend.h"
#include "backends/gpu/platform.h"
#include "ops/backend.h"

namespace tessera {

/// The backends that one kind of device has, or one way to compute on the CPU.
struct BackendFamily {
  std::string_view name;  ///< and of its backend of ops: "cuda"
  DeviceKind kind;
  /// In the order of preference.
  std::vector<std::unique_ptr<AttentionBackend>> (*make_attention)();
  /// The backend of ops on a device of this kind. Throws Error{kDevice} if it is not there. Null: the family
  /// has none.
  std::unique_ptr<OpsBackend> (*make_ops)(const Device& device);
  /// Its GPUs, described and opened. Null: it has none.
  gpu::Platform& (*platform)();

  /// Empty if this machine can run it; otherwise what is missing, in words for the user.
  std::string unavailable_reason() const {
    return platform == nullptr ? std::string() : platform().unavailable_reason();
  }
};

/// All of them, the preferred first. Defined in backends/registry.cpp, the one place that lists them.
std::span<const BackendFamily> backend_families();

/// The kind of the first family of GPUs that this machine has; of the first of all if it has none.
DeviceKind preferred_gpu_kind();

/// Where tensors go that may be anywhere: the first GPU that this machine has, else the CPU.
Device preferred_device();

/// The GPU that `device` names. Throws Error{kInvalidArgument} for the CPU and for a device that is not
/// there, Error{kDevice} if it can't be opened.
gpu::Gpu& find_gpu(const Device& device);

}  // namespace tessera
