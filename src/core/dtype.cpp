#include "tessera/dtype.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/block_format.h"
#include "tessera/error.h"

namespace tessera {
namespace {

struct DTypeInfo {
  DType dtype;
  BlockFormat format;
  double unit_roundoff;
};

constexpr DTypeInfo plain(DType dtype, std::string_view name, std::size_t bytes, double unit_roundoff) {
  return {dtype, {name, 1, bytes, bytes}, unit_roundoff};
}

template <class Format>
constexpr DTypeInfo of_blocks(DType dtype) {
  return {dtype, {Format::kName, Format::kElements, Format::kBytes, Format::kAlignment}, 0};
}

#define TESSERA_ROW(Format) of_blocks<formats::Format>(DType::k##Format),
constexpr std::array kInfo = {
    plain(DType::kF64, "f64", 8, 0x1p-53),
    plain(DType::kF32, "f32", 4, 0x1p-24),
    plain(DType::kF16, "f16", 2, 0x1p-11),
    plain(DType::kBF16, "bf16", 2, 0x1p-8),
    plain(DType::kF8E4M3, "f8e4m3", 1, 0x1p-4),
    plain(DType::kF8E5M2, "f8e5m2", 1, 0x1p-3),
    TESSERA_BLOCK_FORMATS(TESSERA_ROW) plain(DType::kI64, "i64", 8, 0),
    plain(DType::kI32, "i32", 4, 0),
    plain(DType::kU8, "u8", 1, 0),
    plain(DType::kBool, "bool", 1, 0),
};
#undef TESSERA_ROW

#define TESSERA_DTYPE(Format) , DType::k##Format
constexpr std::array kWeightDTypes = {DType::kF32, DType::kF16,
                                      DType::kBF16 TESSERA_BLOCK_FORMATS(TESSERA_DTYPE)};
#undef TESSERA_DTYPE

constexpr std::array<std::pair<std::string_view, DType>, 13> kAliases = {{
    {"float64", DType::kF64},
    {"double", DType::kF64},
    {"float32", DType::kF32},
    {"fp32", DType::kF32},
    {"float", DType::kF32},
    {"float16", DType::kF16},
    {"fp16", DType::kF16},
    {"half", DType::kF16},
    {"bfloat16", DType::kBF16},
    {"fp8", DType::kF8E4M3},
    {"int64", DType::kI64},
    {"int32", DType::kI32},
    {"uint8", DType::kU8},
}};

/// Null for a number that is no dtype.
const DTypeInfo* find_info(DType dtype) noexcept {
  const auto found =
      std::find_if(kInfo.begin(), kInfo.end(), [&](const DTypeInfo& i) { return i.dtype == dtype; });
  return found == kInfo.end() ? nullptr : &*found;
}

}  // namespace

std::string_view dtype_name(DType dtype) noexcept {
  const DTypeInfo* info = find_info(dtype);
  return info == nullptr ? "an unknown dtype" : info->format.name;
}

DType parse_dtype(std::string_view name) {
  for (const DTypeInfo& i : kInfo) {
    if (i.format.name == name) return i.dtype;
  }
  for (const auto& [alias, dtype] : kAliases) {
    if (alias == name) return dtype;
  }
  std::string known;
  for (const DTypeInfo& i : kInfo) known += fmt::format("{}{}", known.empty() ? "" : ", ", i.format.name);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown dtype '{}'; expected one of {}", name, known));
}

const BlockFormat& block_format(DType dtype) {
  const DTypeInfo* info = find_info(dtype);
  if (info != nullptr) return info->format;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} is the number of no dtype; expected one of DType's", static_cast<int>(dtype)));
}

std::size_t dtype_bytes(DType dtype, std::size_t elements) {
  const BlockFormat& format = block_format(dtype);
  const auto block_elements = static_cast<std::size_t>(format.elements);
  if (elements % block_elements != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} elements do not fill whole {} blocks; expected a multiple of {}", elements,
                            format.name, format.elements));
  }
  return elements / block_elements * format.bytes;
}

double unit_roundoff(DType dtype) noexcept {
  const DTypeInfo* info = find_info(dtype);
  return info == nullptr ? 0 : info->unit_roundoff;
}

std::span<const DType> weight_dtypes() { return kWeightDTypes; }

bool is_weight_dtype(DType dtype) {
  return std::find(kWeightDTypes.begin(), kWeightDTypes.end(), dtype) != kWeightDTypes.end();
}

std::string weight_dtype_list(std::string_view conjunction) {
  std::string list;
  for (const DType dtype : kWeightDTypes) {
    if (!list.empty()) list += dtype == kWeightDTypes.back() ? fmt::format(" {} ", conjunction) : ", ";
    list += dtype_name(dtype);
  }
  return list;
}

void throw_no_weight_dtype(DType dtype) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("weights can't be {}; expected {}", dtype_name(dtype), weight_dtype_list()));
}

void throw_no_activation_dtype(DType dtype) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("activations can't be {}; expected f32, f16 or bf16", dtype_name(dtype)));
}

}  // namespace tessera
