#include "c_api/dtypes.h"

#include <fmt/core.h>

#include <array>

#include "tessera/error.h"

namespace tessera::c_api {
namespace {

struct Pair {
  tessera_dtype c;
  DType dtype;
};

/// The C interface's numbers are its own: those of DType may change.
constexpr std::array kTypes = {
    Pair{TESSERA_F64, DType::kF64},         Pair{TESSERA_F32, DType::kF32},
    Pair{TESSERA_F16, DType::kF16},         Pair{TESSERA_BF16, DType::kBF16},
    Pair{TESSERA_F8_E4M3, DType::kF8E4M3},  Pair{TESSERA_F8_E5M2, DType::kF8E5M2},
    Pair{TESSERA_I64, DType::kI64},         Pair{TESSERA_I32, DType::kI32},
    Pair{TESSERA_U8, DType::kU8},           Pair{TESSERA_BOOL, DType::kBool},
    Pair{TESSERA_Q4_0, DType::kQ4_0},       Pair{TESSERA_Q4_1, DType::kQ4_1},
    Pair{TESSERA_Q5_0, DType::kQ5_0},       Pair{TESSERA_Q5_1, DType::kQ5_1},
    Pair{TESSERA_Q8_0, DType::kQ8_0},       Pair{TESSERA_Q2_K, DType::kQ2_K},
    Pair{TESSERA_Q3_K, DType::kQ3_K},       Pair{TESSERA_Q4_K, DType::kQ4_K},
    Pair{TESSERA_Q5_K, DType::kQ5_K},       Pair{TESSERA_Q6_K, DType::kQ6_K},
    Pair{TESSERA_IQ4_NL, DType::kIQ4_NL},   Pair{TESSERA_IQ4_XS, DType::kIQ4_XS},
    Pair{TESSERA_MXFP4, DType::kMXFP4},     Pair{TESSERA_TQ1_0, DType::kTQ1_0},
    Pair{TESSERA_TQ2_0, DType::kTQ2_0},     Pair{TESSERA_IQ1_S, DType::kIQ1_S},
    Pair{TESSERA_IQ1_M, DType::kIQ1_M},     Pair{TESSERA_IQ2_XXS, DType::kIQ2_XXS},
    Pair{TESSERA_IQ2_XS, DType::kIQ2_XS},   Pair{TESSERA_IQ2_S, DType::kIQ2_S},
    Pair{TESSERA_IQ3_XXS, DType::kIQ3_XXS}, Pair{TESSERA_IQ3_S, DType::kIQ3_S},
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
