#include "tessera/dtype.h"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "tessera/error.h"

namespace tessera {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::size_t bytes;  // of one element; of one block for kQ8_0
  double unit_roundoff;
};

// In the order of the enumeration.
constexpr std::array kInfo = {
    DTypeInfo{DType::kF64, "f64", 8, 0x1p-53},
    DTypeInfo{DType::kF32, "f32", 4, 0x1p-24},
    DTypeInfo{DType::kF16, "f16", 2, 0x1p-11},
    DTypeInfo{DType::kBF16, "bf16", 2, 0x1p-8},
    DTypeInfo{DType::kF8E4M3, "f8e4m3", 1, 0x1p-4},
    DTypeInfo{DType::kF8E5M2, "f8e5m2", 1, 0x1p-3},
    DTypeInfo{DType::kQ8_0, "q8_0", kQ8BlockBytes, 0},
    DTypeInfo{DType::kI64, "i64", 8, 0},
    DTypeInfo{DType::kI32, "i32", 4, 0},
    DTypeInfo{DType::kU8, "u8", 1, 0},
    DTypeInfo{DType::kBool, "bool", 1, 0},
};

constexpr std::array<std::pair<std::string_view, DType>, 12> kAliases = {{
    {"float64", DType::kF64},
    {"double", DType::kF64},
    {"float32", DType::kF32},
    {"fp32", DType::kF32},
    {"float", DType::kF32},
    {"float16", DType::kF16},
    {"fp16", DType::kF16},
    {"half", DType::kF16},
    {"bfloat16", DType::kBF16},
    {"int64", DType::kI64},
    {"int32", DType::kI32},
    {"uint8", DType::kU8},
}};

const DTypeInfo& info(DType dtype) { return kInfo[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view dtype_name(DType dtype) noexcept { return info(dtype).name; }

DType parse_dtype(std::string_view name) {
  for (const DTypeInfo& i : kInfo) {
    if (i.name == name) return i.dtype;
  }
  for (const auto& [alias, dtype] : kAliases) {
    if (alias == name) return dtype;
  }
  std::string known;
  for (const DTypeInfo& i : kInfo) known += fmt::format("{}{}", known.empty() ? "" : ", ", i.name);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown dtype '{}'; expected one of {}", name, known));
}

std::size_t dtype_bytes(DType dtype, std::size_t elements) {
  if (dtype != DType::kQ8_0) return info(dtype).bytes * elements;
  if (elements % kQ8BlockSize != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} elements do not fill whole q8_0 blocks; expected a multiple of {}", elements,
                            kQ8BlockSize));
  }
  return elements / kQ8BlockSize * kQ8BlockBytes;
}

double unit_roundoff(DType dtype) noexcept { return info(dtype).unit_roundoff; }

}  // namespace tessera
