#include "c_api/dtypes.h"

#include <fmt/core.h>

#include <array>

#include "core/formats/list.h"
#include "tessera/error.h"

namespace tessera::c_api {
namespace {

struct Pair {
  tessera_dtype c;
  DType dtype;
};

/// The C interface's numbers are its own: those of DType may change.
constexpr std::array kTypes = {Pair{TESSERA_F64, DType::kF64},        Pair{TESSERA_F32, DType::kF32},
                               Pair{TESSERA_F16, DType::kF16},        Pair{TESSERA_BF16, DType::kBF16},
                               Pair{TESSERA_F8_E4M3, DType::kF8E4M3}, Pair{TESSERA_F8_E5M2, DType::kF8E5M2},
                               Pair{TESSERA_I64, DType::kI64},        Pair{TESSERA_I32, DType::kI32},
                               Pair{TESSERA_U8, DType::kU8},          Pair{TESSERA_BOOL, DType::kBool},
#define TESSERA_PAIR(Name) Pair{TESSERA_##Name, DType::k##Name},
                               TESSERA_BLOCK_FORMATS(TESSERA_PAIR)
#undef TESSERA_PAIR
};

const Pair* find_type(tessera_dtype dtype) noexcept {
  for (const Pair& pair : kTypes) {
    if (pair.c == dtype) return &pair;
  }
  return nullptr;
}

}  // namespace

DType dtype_of(tessera_dtype dtype, const char* name, const char* member) {
  const Pair* pair = find_type(dtype);
  if (pair == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}{} is {}; expected one of the element types of tessera.h, such as TESSERA_F32",
                            name, member, dtype));
  }
  return pair->dtype;
}

std::optional<DType> optional_dtype(tessera_dtype dtype, const char* name) {
  if (dtype == TESSERA_DTYPE_NONE) return std::nullopt;
  return dtype_of(dtype, name);
}

tessera_dtype c_dtype(DType dtype) noexcept {
  for (const Pair& pair : kTypes) {
    if (pair.dtype == dtype) return pair.c;
  }
  return TESSERA_DTYPE_NONE;
}

Device device_of(const tessera_device& device) {
  switch (device.kind) {
    case TESSERA_CPU:
      return {DeviceKind::kCpu, device.index};
    case TESSERA_CUDA:
      return {DeviceKind::kCuda, device.index};
    case TESSERA_HIP:
      return {DeviceKind::kHip, device.index};
    default:
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("device.kind is {}; expected TESSERA_CPU, TESSERA_CUDA or TESSERA_HIP", device.kind));
  }
}

tessera_device c_device(const Device& device) noexcept {
  switch (device.kind) {
    case DeviceKind::kCpu:
      return {TESSERA_CPU, device.index};
    case DeviceKind::kCuda:
      return {TESSERA_CUDA, device.index};
    case DeviceKind::kHip:
      return {TESSERA_HIP, device.index};
  }
  return {};
}

}  // namespace tessera::c_api

extern "C" const char* tessera_dtype_name(tessera_dtype dtype) {
  const auto* pair = tessera::c_api::find_type(dtype);
  return pair == nullptr ? "none" : tessera::dtype_name(pair->dtype).data();
}
