#pragma once

#include <array>
#include <cstdint>

namespace tessera {

/// Rows of `row_bytes` bytes, one for each index of three dimensions.
struct StridedRows {
  struct Dimension {
    std::int64_t extent;
    std::int64_t stride_bytes;  ///< not negative
  };
  const void* data;
  std::array<Dimension, 3> dimensions;
  std::int64_t row_bytes;
};

/// Whether some byte of `in` is one of `out`, no two rows of which overlap. Rows that alternate in memory
/// (heads of one buffer) are told apart; where that would take long, rows that have not been compared count
/// as apart.
bool overlap(const StridedRows& out, const StridedRows& in);

}  // namespace tessera
