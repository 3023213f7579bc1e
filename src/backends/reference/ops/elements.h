#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/element.h"
#include "ops/arguments.h"

namespace tessera::reference {

inline double load(const Matrix& m, std::int64_t row, std::int64_t column) {
  return load_element(m.data, m.dtype, row * m.row_stride + column);
}

/// Rounds once to the matrix's dtype.
inline void store(const Matrix& m, std::int64_t row, std::int64_t column, double value) {
  store_element(m.data, m.dtype, row * m.row_stride + column, value);
}

inline double load(const Weight& w, std::int64_t row, std::int64_t column) {
  const std::int64_t index = row * w.columns + column;
  if (w.dtype != DType::kQ8_0) return load_element(w.data, w.dtype, index);
  const std::byte* block =
      static_cast<const std::byte*>(w.data) + index / kQ8BlockSize * static_cast<std::int64_t>(kQ8BlockBytes);
  Half scale;
  std::int8_t quant = 0;
  std::memcpy(&scale, block, sizeof scale);
  std::memcpy(&quant, block + sizeof scale + index % kQ8BlockSize, sizeof quant);
  return static_cast<double>(scale) * quant;
}

/// Draws every sequence's token with a full sort of the vocabulary.
void sample(const SampleArguments& arguments);

}  // namespace tessera::reference
