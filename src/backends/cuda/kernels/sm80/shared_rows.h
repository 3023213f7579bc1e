#pragma once

#include "common/traits.h"

// Rows of tiles in shared memory, as ldmatrix reads them.

namespace tessera::kernels {

/// After each row: the eight rows that ldmatrix reads at once then fall into different banks.
constexpr int kRowPaddingBytes = 16;

TESSERA_TRAIT int shared_row_bytes(int columns, int element_bytes) {
  return columns * element_bytes + kRowPaddingBytes;
}
/// In elements.
TESSERA_TRAIT int shared_row_stride(int columns, int element_bytes) {
  return shared_row_bytes(columns, element_bytes) / element_bytes;
}

}  // namespace tessera::kernels
