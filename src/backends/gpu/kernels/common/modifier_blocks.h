#pragma once

#include "common/modifier_arguments.h"

// Arguments of modifier_blocks.cu, the same bytes on host and device.

namespace tessera::kernels {

constexpr int kModifierBlockThreads = 256;

enum ModifierDType : int { kModifierI32 = 0, kModifierU8 = 1, kModifierBool = 2 };

struct ModifierBlockedTensor {
  ModifierTensor tensor;
  ModifierBounds* bounds;  // (rows, blocks_of_row)
  int rank;                // 1 or more
  int dtype;               // ModifierDType
  int rows;                // of all dimensions but the last
  int blocks_of_row;
};

struct ModifierBlocksParams {
  ModifierBlockedTensor tensors[kMaxModifierTensors];  // as many as the grid has
};

}  // namespace tessera::kernels
