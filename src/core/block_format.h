#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/formats/all.h"
#include "tessera/dtype.h"

namespace tessera {

/// How a dtype is stored: `elements` consecutive ones in `bytes` bytes; one in its own bytes but for the
/// block formats of weights.
struct BlockFormat {
  std::string_view name;
  int elements = 1;
  std::size_t bytes = 0;
  std::size_t alignment = 1;
};

/// Throws Error{kInvalidArgument} for a number that is no dtype.
const BlockFormat& block_format(DType dtype);

/// What matrices of weights may be stored as: f32, f16, bf16 and the block formats.
std::span<const DType> weight_dtypes();
bool is_weight_dtype(DType dtype);

/// "f32, f16, bf16 or q8_0", with `conjunction` before the last.
std::string weight_dtype_list(std::string_view conjunction = "or");

[[noreturn]] void throw_no_weight_dtype(DType dtype);
[[noreturn]] void throw_no_activation_dtype(DType dtype);

/// Whether T is a format of blocks rather than a number.
template <class T, class = void>
inline constexpr bool is_block_format = false;
template <class T>
inline constexpr bool is_block_format<T, std::void_t<decltype(T::kElements)>> = true;

/// Calls f.operator()<T>() with the C++ type of activations, which masks have too: float, Half or BFloat16.
/// Throws Error{kUnsupported} that names any other dtype.
template <class F>
decltype(auto) dispatch_activation(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f.template operator()<float>();
    case DType::kF16:
      return f.template operator()<Half>();
    case DType::kBF16:
      return f.template operator()<BFloat16>();
    default:
      throw_no_activation_dtype(dtype);
  }
}

/// Calls f.operator()<T>() with what weights of `dtype` consist of: float, Half, BFloat16 or a block format.
/// Throws Error{kUnsupported} that names any other dtype.
template <class F>
decltype(auto) dispatch_weight(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return dispatch_activation(dtype, f);
#define TESSERA_CASE(Format) \
  case DType::k##Format:     \
    return f.template operator()<formats::Format>();
      TESSERA_BLOCK_FORMATS(TESSERA_CASE)
#undef TESSERA_CASE
    default:
      throw_no_weight_dtype(dtype);
  }
}

}  // namespace tessera
