#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/element.h"
#include "core/formats/all.h"

// Matrices of codes and scales in mapped files, whose sizes have been checked, and their numbers.
namespace tessera::quantized {

/// Number `index` of a file's, which may stand anywhere.
template <class T>
T load(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

/// Numbers of a file that others are multiplied by.
struct Scales {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  bool are_exponents = false;  ///< F8_E8M0: 2^(byte - 127)

  double at(std::size_t i) const {
    if (are_exponents) {
      const int exponent = std::to_integer<int>(data[i]) - 127;
      return exponent == 128 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, exponent);
    }
    return dispatch_activation(
        dtype, [&]<class T>() { return static_cast<double>(static_cast<float>(load<T>(data, i))); });
  }
};

/// Codes of 4 or 8 bits in words of 32 bits: lines of codes, of which a word has several of one line, or one
/// of several lines.
struct PackedCodes {
  const std::byte* words = nullptr;
  std::size_t line_words = 0;  ///< words from one line of words to the next
  unsigned bits = 4;
  bool across_lines = false;  ///< a word has codes of several lines
  bool in_awq_order = false;

  int at(std::size_t line, std::size_t i) const {
    const unsigned shift = bits == 4 ? 3 : 2;  // 8 or 4 codes in a word
    const std::size_t packed = across_lines ? line : i;
    const std::size_t word =
        across_lines ? (line >> shift) * line_words + i : line * line_words + (i >> shift);
    std::size_t place = packed & ((std::size_t{1} << shift) - 1);
    if (in_awq_order)
      place = place / 2 + (place % 2) * 4;  // codes 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits
    return static_cast<int>(load<std::uint32_t>(words, word) >> (place * bits) & ((1u << bits) - 1));
  }
};

constexpr int kQ4_0Zero = 8;

/// A matrix whose columns share scales and zero points by groups.
struct GroupedMatrix {
  std::size_t rows = 0, columns = 0, groups = 0, group_size = 0;
  bool transposed = false;  ///< lines of codes, zero points and scales are columns or groups, not rows
  PackedCodes codes;
  std::optional<PackedCodes> zeros;
  int zero = 0;  ///< what is added to zero points; without them the one of all
  Scales scales;
  const std::byte* group_of = nullptr;  ///< (columns) I32; null: neighbours

  std::size_t group(std::size_t column) const {
    return group_of == nullptr ? column / group_size
                               : static_cast<std::size_t>(load<std::int32_t>(group_of, column));
  }
  int code(std::size_t row, std::size_t column) const {
    return transposed ? codes.at(column, row) : codes.at(row, column);
  }
  int zero_point(std::size_t row, std::size_t g) const {
    return !zeros ? zero : zero + (transposed ? zeros->at(g, row) : zeros->at(row, g));
  }
  double scale(std::size_t row, std::size_t g) const {
    return scales.at(transposed ? g * rows + row : row * groups + g);
  }

  void read(std::size_t row, std::span<double> out) const {
    std::size_t last = groups;
    double step = 0;
    int from = 0;
    for (std::size_t column = 0; column < columns; ++column) {
      const std::size_t g = group(column);
      if (g != last) {
        last = g;
        step = scale(row, g);
        from = zero_point(row, g);
      }
      out[column] = (code(row, column) - from) * step;
    }
  }

  /// Whether blocks of Q4_0 hold the numbers, even without rounding, as they do where GPTQ is symmetric.
  bool fits_q4_0() const {
    constexpr auto kElements = static_cast<std::size_t>(formats::Q4_0::kElements);
    if (codes.bits != 4 || columns % kElements != 0 || group_size % kElements != 0) return false;
    for (std::size_t column = 0; group_of != nullptr && column < columns; ++column)
      if (group(column) != column / group_size) return false;
    const bool halves = scales.dtype == DType::kF16 && !scales.are_exponents;
    for (std::size_t g = 0; g < groups; ++g) {
      for (std::size_t row = 0; row < rows; ++row) {
        if (zero_point(row, g) != kQ4_0Zero) return false;
        if (halves) continue;
        const double step = scale(row, g);
        if (static_cast<double>(Half(static_cast<float>(step))) != step) return false;
      }
    }
    return true;
  }

  void read_q4_0(std::size_t row, std::byte* out) const {
    constexpr auto kElements = static_cast<std::size_t>(formats::Q4_0::kElements), kHalf = kElements / 2;
    for (std::size_t begin = 0; begin < columns; begin += kElements) {
      const Half step(static_cast<float>(scale(row, begin / group_size)));
      std::memcpy(out, &step, sizeof step);
      out += sizeof step;
      for (std::size_t j = 0; j < kHalf; ++j)
        *out++ = static_cast<std::byte>(code(row, begin + j) | code(row, begin + j + kHalf) << 4);
    }
  }
};

/// A matrix of codes of a byte each, rectangles of which share a scale.
struct ScaledMatrix {
  std::size_t columns = 0, block_rows = 0, block_columns = 0, row_scales = 0;
  const std::byte* codes = nullptr;
  bool are_integers = false;
  double divisor = 1;  ///< of scales
  Scales scales;

  void read(std::size_t row, std::span<double> out) const {
    static const std::array<float, 256> values = [] {
      std::array<float, 256> table;
      for (std::size_t i = 0; i < table.size(); ++i) {
        Float8E4M3 number;
        number.bits = static_cast<std::uint8_t>(i);
        table[i] = static_cast<float>(number);
      }
      return table;
    }();
    const std::byte* const line = codes + row * columns;
    for (std::size_t begin = 0; begin < columns; begin += block_columns) {
      const double step = scales.at(row / block_rows * row_scales + begin / block_columns) / divisor;
      for (std::size_t i = begin; i < std::min(columns, begin + block_columns); ++i) {
        const auto code = std::to_integer<std::uint8_t>(line[i]);
        out[i] = (are_integers ? static_cast<float>(static_cast<std::int8_t>(code)) : values[code]) * step;
      }
    }
  }
};

/// A matrix of indices of 4 bits into 16 numbers, the first of two in the upper half of a byte. Of
/// bitsandbytes: blocks of neighbours, over the ends of rows, share a scale, which may be quantised itself.
/// In fp32, as its library computes.
struct CodebookMatrix {
  std::size_t columns = 0, block = 0, scale_block = 0;
  const std::byte* codes = nullptr;
  std::array<float, 16> values = {};
  const std::byte* scales = nullptr;  ///< F32, or indices into scale_values
  const std::byte* scale_values =
      nullptr;  ///< (256) F32, which scale_scales multiplies; null: scales are numbers
  const std::byte* scale_scales = nullptr;  ///< F32, of scale_block scales each
  float offset = 0;                         ///< of scales of indices

  float scale(std::size_t i) const {
    if (scale_values == nullptr) return load<float>(scales, i);
    // On its own, or a compiler could make one instruction of both that rounds once.
    const volatile float product = load<float>(scale_values, std::to_integer<std::size_t>(scales[i])) *
                                   load<float>(scale_scales, i / scale_block);
    return product + offset;
  }

  void read(std::size_t row, std::span<double> out) const {
    const std::size_t first = row * columns;
    std::size_t last = std::numeric_limits<std::size_t>::max();
    float step = 0;
    for (std::size_t column = 0; column < columns; ++column) {
      const std::size_t i = first + column;
      if (i / block != last) {
        last = i / block;
        step = scale(last);
      }
      const auto byte = std::to_integer<unsigned>(codes[i / 2]);
      out[column] = static_cast<double>(values[i % 2 == 0 ? byte >> 4 : byte & 15u] * step);
    }
  }
};

/// What CheckpointTensor::read_part is of a matrix: its rows, each number rounded once to `dtype`.
template <class Matrix>
std::function<void(std::int64_t, std::byte*)> row_reader(const Matrix& matrix, DType dtype) {
  return [matrix, dtype](std::int64_t row, std::byte* out) {
    std::vector<double> numbers(matrix.columns);
    matrix.read(static_cast<std::size_t>(row), numbers);
    dispatch_activation(dtype, [&]<class T>() {
      for (const double number : numbers) {
        const T value = round_to<T>(number);
        std::memcpy(out, &value, sizeof value);
        out += sizeof value;
      }
    });
  };
}

}  // namespace tessera::quantized
