#pragma once

#include <string>
#include <string_view>

#include "backends/hip/runtime/hip_api.h"

namespace tessera::hip {

/// What loading libamdhip64 came to, found out once a process.
struct HipState {
  HipApi api;                      ///< usable only if unavailable_reason is empty
  std::string unavailable_reason;  ///< no library, too old a library, no device: in words for the user
  std::string library;             ///< name it was loaded by
  int version = 0;                 ///< 10000000 * major + 100000 * minor + patch
  int num_devices = 0;
};

/// Never throws for a machine without library or device; says so in the result.
const HipState& hip_state();

/// The loaded API. Throws Error{kDevice} with unavailable_reason.
const HipApi& hip();

/// "6.3", of 10000000 * major + 100000 * minor + patch; empty if unknown.
std::string version_text(int version);

/// Throws Error{kDevice} (kOutOfMemory if HIP says so) naming `call`, HIP's own words and, if not empty,
/// what it was for.
void check(Result result, std::string_view call, std::string_view detail = {});

}  // namespace tessera::hip
