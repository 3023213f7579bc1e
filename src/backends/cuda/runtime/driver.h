#pragma once

#include <string>
#include <string_view>

#include "backends/cuda/runtime/driver_api.h"

namespace tessera::cuda {

/// What loading libcuda came to, found out once a process.
struct DriverState {
  DriverApi api;                   ///< usable only if unavailable_reason is empty
  std::string unavailable_reason;  ///< no library, too old a library, no device: in words for the user
  std::string library;             ///< name it was loaded by
  int version = 0;                 ///< CUDA version the driver supports: 1000 * major + 10 * minor
  int num_devices = 0;
};

/// Never throws for a machine without driver or device; says so in the result.
const DriverState& driver_state();

/// The loaded API. Throws Error{kDevice} with unavailable_reason.
const DriverApi& driver();

/// Throws Error{kDevice} (kOutOfMemory if the driver says so) naming `call`, the driver's own words and, if
/// not empty, what it was for.
void check(Result result, std::string_view call, std::string_view detail = {});

}  // namespace tessera::cuda
