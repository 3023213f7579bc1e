#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dtype.h"

namespace tessera {

/// One entry of a weight file's directory, checked against the file's size.
struct StoredTensor {
  std::string_view dtype_name;      ///< as the format spells it; points to static memory
  std::optional<DType> dtype;       ///< none if weights can't have it
  std::vector<std::int64_t> shape;  ///< outermost dimension first
  std::size_t offset = 0;           ///< of its first byte in the file
  std::size_t size_bytes = 0;
};

using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

/// Product of the dimensions; none if one is negative or the product exceeds 2^63 - 1.
std::optional<std::int64_t> checked_num_elements(const std::vector<std::int64_t>& shape) noexcept;

/// A dtype's name as files spell it, "BF16", and those of all that weights may have: "F32, F16, BF16 and
/// Q8_0".
std::string stored_dtype_name(DType dtype);
std::string stored_dtype_list(std::string_view conjunction);

/// "(2, 3)".
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace tessera
