#pragma once

#include "common/rows.cuh"

// Which product a slot of a mixture of experts asks for.

namespace tessera::kernels {

TESSERA_DEVICE int element_bytes(int type) { return type == kElementF32 ? 4 : 2; }

/// `x` from row `row` on. Numbers alone.
TESSERA_DEVICE RowsArgument from_row(RowsArgument x, int64 row, int64 row_stride) {
  x.data = static_cast<unsigned char*>(x.data) + row * row_stride * element_bytes(x.type);
  return x;
}

/// p.gemm with the weight and bias of `expert`.
TESSERA_DEVICE GemmParams product_of_expert(const ExpertGemmParams& p, int expert) {
  GemmParams g = p.gemm;
  g.weight.data = static_cast<unsigned char*>(g.weight.data) + expert * p.expert_bytes;
  if (g.bias.data != nullptr) g.bias = from_row(g.bias, expert, g.n);
  return g;
}

/// The product of one slot.
TESSERA_DEVICE GemmParams product_of_slot(const ExpertGemmParams& p, int64 slot) {
  GemmParams g = product_of_expert(p, p.routing.experts[slot]);
  g.x = from_row(g.x, slot / p.slots_of_row, g.x.row_stride);
  g.out = from_row(g.out, slot, g.out.row_stride);
  g.m = 1;
  return g;
}

}  // namespace tessera::kernels
