#pragma once

// What a module that is compiled with a score modifier (TESSERA_MODIFIER) takes besides: the last member of
// its AttentionParams. The same bytes on host and device; a multiple of 64, so that what follows the params
// in a kernel's arguments keeps its alignment.

namespace tessera::kernels {

constexpr int kMaxModifierTensors = 8;
constexpr int kMaxModifierScalars = 16;
constexpr int kMaxModifierTensorRank = 4;

struct ModifierTensor {
  const void* data;
  long long strides[kMaxModifierTensorRank];  // elements
  int sizes[kMaxModifierTensorRank];
};

/// The least and the largest of some elements of int32.
struct ModifierBounds {
  int lo, hi;
};

struct ModifierArguments {
  ModifierTensor tensors[kMaxModifierTensors];
  // Of each kModifierBlock elements along the last dimension, (rows, parts_of(last size, kModifierBlock)):
  // modifier_blocks.cu. Null: unknown.
  const ModifierBounds* blocks[kMaxModifierTensors];
  int integers[kMaxModifierScalars];  // the scalars as int32
  float reals[kMaxModifierScalars];   // and as fp32
};
static_assert(sizeof(ModifierArguments) % 64 == 0, "what follows keeps its alignment");

constexpr int kModifierBlock = 64;

}  // namespace tessera::kernels
