#pragma once

#include "sm90/attention_traits.cuh"
#include "sm90/wgmma.cuh"

// Where a product's operands lie in tiles' panels.

namespace tessera::kernels {

// With softcap, whose softmax is long, products that follow one another sooner made the whole 5 % slower:
// descriptors are made anew for each there.
constexpr bool kMovesDescriptors = (TESSERA_TERMS & kTermSoftcap) == 0;

/// The operand `bytes` behind `rows`; of columns likewise.
TESSERA_DEVICE unsigned long long rows_at(unsigned rows, int bytes) {
  return kMovesDescriptors ? further(descriptor_of_rows(rows), bytes) : descriptor_of_rows(rows + bytes);
}
TESSERA_DEVICE unsigned long long columns_at(unsigned columns, int bytes) {
  return kMovesDescriptors ? further(descriptor_of_columns(columns, kKvPanelBytes), bytes)
                           : descriptor_of_columns(columns + bytes, kKvPanelBytes);
}

}  // namespace tessera::kernels
