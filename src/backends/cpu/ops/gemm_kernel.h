#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/arguments.h"

namespace tessera::cpu {

/// Elements of k that the kernel takes at a time; block formats have a multiple of them.
inline constexpr std::int64_t kGemmStep = 32;

/// out[:, n] = x w[n]^T for some columns n.
struct GemmPanel {
  const float* x = nullptr;   ///< (m, k) with zeros from k to x_stride
  std::int64_t x_stride = 0;  ///< a multiple of kGemmStep
  std::int64_t m = 0;
  std::int64_t k = 0;
  const Weight* weight = nullptr;  ///< (n, k)
  const Weight* bias = nullptr;    ///< (1, n) or null
  bool accumulate = false;
  Matrix out;  ///< (m, n)
};

/// A row of blocks taken apart: number = step * integer + offset.
struct UnpackedBlocks {
  std::int8_t* integers = nullptr;  ///< one an element
  float* steps = nullptr;           ///< one for each groups_of_blocks() elements
  float* offsets = nullptr;         ///< likewise; untouched where the format has none
};

/// How many elements of a block format share a step, kGemmStep at most, and whether they have an offset.
struct BlockGroups {
  std::int64_t elements = 0;
  bool have_offset = false;
};
BlockGroups groups_of_blocks(DType dtype);

/// Kernels for columns [begin, end) of out. Each reads a weight from memory once if the rows of x stay in
/// cache, and adds in an order that doesn't depend on the range.
struct GemmKernels {
  /// Any m. The bits of an output element depend on its own row of x and of w only: lane j of one vector sums
  /// elements j, j + lanes, ... of k, then the lanes are summed.
  void (*tiles)(const GemmPanel&, std::int64_t begin, std::int64_t end);
  /// m from 1 to kMostStreamRows.
  void (*streams)(const GemmPanel&, std::int64_t begin, std::int64_t end);
  /// Elements [first, first + count) of a row of a weight, whole blocks.
  void (*unpack)(const Weight& weight, std::int64_t row, std::int64_t first, std::int64_t count,
                 const UnpackedBlocks& out);
};

inline constexpr std::int64_t kMostStreamRows = 4;

const GemmKernels& gemm_kernels();

}  // namespace tessera::cpu
