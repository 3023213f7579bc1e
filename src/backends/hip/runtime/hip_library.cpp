#include "backends/hip/runtime/hip_library.h"

#include <fmt/core.h>

#include <array>

#include "backends/hip/runtime/rocm.h"
#include "tessera/error.h"

namespace tessera::hip {
namespace {

/// Empty, or the first function that the library lacks.
std::string resolve(const SharedLibrary& library, HipApi& api) {
#define TESSERA_RESOLVE(name, result, parameters) \
  if (!library.resolve(#name, api.name)) return #name;
  TESSERA_HIP_FUNCTIONS(TESSERA_RESOLVE)
#undef TESSERA_RESOLVE
#define TESSERA_RESOLVE(name, result, parameters) library.resolve(#name, api.name);
  TESSERA_HIP_PROPERTIES_FUNCTIONS(TESSERA_RESOLVE)
#undef TESSERA_RESOLVE
  const bool has_properties =
      api.hipGetDevicePropertiesR0600 != nullptr || api.hipGetDeviceProperties != nullptr;
  return has_properties ? "" : "hipGetDeviceProperties";
}

std::string describe(const HipApi& api, Result result) {
  const char* name = api.hipGetErrorName(result);
  const char* text = api.hipGetErrorString(result);
  return fmt::format("{} ({}: {})", name != nullptr ? name : "unknown error", result,
                     text != nullptr ? text : "no description");
}

HipState load_hip() {
  HipState state;
  constexpr std::array kSonames = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                   "libamdhip64.so"};
  const SharedLibrary library = find_rocm_library("TESSERA_HIP_LIBRARY", kSonames);
  if (!library.is_open()) {
    state.unavailable_reason =
        "no HIP runtime for AMD GPUs was found (libamdhip64.so.7, .6 or .5). Install ROCm's package "
        "hip-runtime-amd, put its folder into LD_LIBRARY_PATH, or name the file in TESSERA_HIP_LIBRARY";
    return state;
  }
  state.library = library.name();
  if (const std::string missing = resolve(library, state.api); !missing.empty()) {
    state.unavailable_reason =
        fmt::format("the HIP runtime ({}) lacks {}. Update it to ROCm 5.2 or later", library.name(), missing);
    return state;
  }
  Result result = state.api.hipInit(0);
  if (result == kSuccess) result = state.api.hipRuntimeGetVersion(&state.version);
  if (result == kSuccess) result = state.api.hipGetDeviceCount(&state.num_devices);
  // ROCm 5 says that no device is an invalid one.
  if (result == kErrorNoDevice || result == kErrorInvalidDevice ||
      (result == kSuccess && state.num_devices == 0)) {
    state.num_devices = 0;
    state.unavailable_reason = fmt::format(
        "the HIP runtime ({}) finds no AMD GPU (is one hidden by HIP_VISIBLE_DEVICES or "
        "ROCR_VISIBLE_DEVICES, the amdgpu driver missing, or /dev/kfd not open to this user?)",
        library.name());
  } else if (result != kSuccess) {
    state.num_devices = 0;
    state.unavailable_reason =
        fmt::format("the HIP runtime ({}) does not start: {}", library.name(), describe(state.api, result));
  }
  return state;
}

}  // namespace

const HipState& hip_state() {
  static const HipState state = load_hip();
  return state;
}

const HipApi& hip() {
  const HipState& state = hip_state();
  if (!state.unavailable_reason.empty()) throw Error(ErrorCode::kDevice, state.unavailable_reason);
  return state.api;
}

std::string version_text(int version) {
  return version > 0 ? fmt::format("{}.{}", version / 10000000, version / 100000 % 100) : std::string();
}

void check(Result result, std::string_view call, std::string_view detail) {
  if (result == kSuccess) return;
  throw Error(result == kErrorOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kDevice,
              fmt::format("{} failed: {}{}{}", call, describe(hip_state().api, result),
                          detail.empty() ? "" : ", for ", detail));
}

}  // namespace tessera::hip
