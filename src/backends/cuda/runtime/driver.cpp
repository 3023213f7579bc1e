#include "backends/cuda/runtime/driver.h"

#include <fmt/core.h>

#include <array>

#include "core/shared_library.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

/// Empty, or the first function that the library lacks.
std::string resolve(const SharedLibrary& library, DriverApi& api) {
#define TESSERA_RESOLVE(name, symbol_name, parameters) \
  if (!library.resolve(#symbol_name, api.name)) return #symbol_name;
  TESSERA_CUDA_DRIVER_FUNCTIONS(TESSERA_RESOLVE)
#undef TESSERA_RESOLVE
#define TESSERA_RESOLVE(name, symbol_name, parameters) \
  api.name = reinterpret_cast<decltype(api.name)>(library.symbol(#symbol_name));
  TESSERA_CUDA_NEWER_DRIVER_FUNCTIONS(TESSERA_RESOLVE)
#undef TESSERA_RESOLVE
  return {};
}

std::string describe(const DriverApi& api, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.cuGetErrorName(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  if (api.cuGetErrorString(result, &text) != kSuccess || text == nullptr) text = "no description";
  return fmt::format("{} ({}: {})", name, result, text);
}

DriverState load_driver() {
  DriverState state;
  constexpr std::array kSonames = {"libcuda.so.1", "libcuda.so"};
  const SharedLibrary library = find_library({"TESSERA_CUDA_LIBRARY", kSonames});
  if (!library.is_open()) {
    state.unavailable_reason =
        fmt::format("no NVIDIA driver was found ({}). Install the NVIDIA driver", library.error());
    return state;
  }
  state.library = library.name();
  if (const std::string missing = resolve(library, state.api); !missing.empty()) {
    state.unavailable_reason =
        fmt::format("the NVIDIA driver ({}) lacks {}. Update it to one that supports CUDA 11.8 or later",
                    library.name(), missing);
    return state;
  }
  Result result = state.api.cuInit(0);
  if (result == kSuccess) result = state.api.cuDriverGetVersion(&state.version);
  if (result == kSuccess) result = state.api.cuDeviceGetCount(&state.num_devices);
  if (result == kErrorNoDevice || (result == kSuccess && state.num_devices == 0)) {
    state.unavailable_reason =
        "the NVIDIA driver is installed but finds no GPU (is one hidden by CUDA_VISIBLE_DEVICES?)";
  } else if (result != kSuccess) {
    state.unavailable_reason =
        fmt::format("the NVIDIA driver does not start: {}", describe(state.api, result));
  }
  return state;
}

}  // namespace

const DriverState& driver_state() {
  static const DriverState state = load_driver();
  return state;
}

const DriverApi& driver() {
  const DriverState& state = driver_state();
  if (!state.unavailable_reason.empty()) throw Error(ErrorCode::kDevice, state.unavailable_reason);
  return state.api;
}

void check(Result result, std::string_view call, std::string_view detail) {
  if (result == kSuccess) return;
  throw Error(result == kErrorOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kDevice,
              fmt::format("{} failed: {}{}{}", call, describe(driver_state().api, result),
                          detail.empty() ? "" : ", for ", detail));
}

}  // namespace tessera::cuda
