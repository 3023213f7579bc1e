#include "model/checkpoint/stored_tensor.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "core/block_format.h"

namespace tessera {

std::optional<std::int64_t> checked_num_elements(const std::vector<std::int64_t>& shape) noexcept {
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t d) { return d < 0; })) return std::nullopt;
  // A zero anywhere makes the product zero, however large the other dimensions.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t product = 1;
  for (const std::int64_t dim : shape) {
    if (__builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return product;
}

std::string stored_dtype_name(DType dtype) {
  std::string name(dtype_name(dtype));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

std::string stored_dtype_list(std::string_view conjunction) {
  std::string list;
  for (const DType dtype : weight_dtypes()) {
    if (!list.empty()) list += dtype == weight_dtypes().back() ? fmt::format(" {} ", conjunction) : ", ";
    list += stored_dtype_name(dtype);
  }
  return list;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kMaxShown = 8;
  std::string text = "(";
  for (std::size_t i = 0; i < std::min(shape.size(), kMaxShown); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return text + (shape.size() > kMaxShown ? ", ...)" : ")");
}

}  // namespace tessera
