#pragma once

#include "matrix/matrix_traits.h"

// attention_prefill.hip's tiles, and what they take of LDS and registers.

namespace tessera::kernels {

struct MatrixPrefillTiles {
  int block_m;    // rows of a workgroup
  int block_n;    // keys of a tile
  int num_waves;  // of a workgroup
  int min_waves;  // of a SIMD, among which its registers are divided
  bool shared_q;  // queries stay in LDS, not in registers
  bool prefetch;  // registers hold the next tile meanwhile
};

/// What the tiles are for: padded head_dims and the size of an element of q.
struct MatrixPrefillShape {
  int head_dim_qk;
  int head_dim_v;
  int element_bytes;
};

/// Slots of LDS: a tile of keys, one of values (whose rows behind head_dim_v are of no dim), and maybe the
/// queries.
struct MatrixPrefillLayout {
  int k;
  int v;
  int q;

  TESSERA_TRAIT int shared_bytes() const { return (k + v + q) * kSlotBytes; }
};

TESSERA_TRAIT MatrixPrefillLayout matrix_prefill_layout(const MatrixPrefillTiles& t,
                                                        const MatrixUnitTraits& unit,
                                                        const MatrixPrefillShape& shape) {
  const int stride_qk = slot_stride(shape.head_dim_qk * shape.element_bytes / kSlotBytes);
  const int stride_v = slot_stride(t.block_n * shape.element_bytes / kSlotBytes);
  return {t.block_n * stride_qk, whole_parts(shape.head_dim_v, unit.largest_tile) * stride_v,
          t.shared_q ? t.block_m * stride_qk : 0};
}

/// What a lane holds of the next tile: all threads take pieces of 16 bytes of its rows, as many in a row as a
/// power of two of them has, and `keys_of_item` rows at once.
TESSERA_TRAIT int prefetched_registers(int threads, int block_n, int head_dim, int element_bytes,
                                       int keys_of_item) {
  const int pieces_at_once = power_of_two_from(head_dim * element_bytes / kSlotBytes);
  const int keys_at_once = threads / pieces_at_once * keys_of_item;
  return parts_of(block_n, keys_at_once) * keys_of_item * kSlotBytes / 4;
}

/// Registers of a lane that hold sums, scores, queries and the next tile: what the loop can't do without.
TESSERA_TRAIT int matrix_prefill_registers(const MatrixPrefillTiles& t, const MatrixUnitTraits& unit,
                                           const MatrixPrefillShape& shape) {
  const int tile = unit.largest_tile;
  const int threads = t.num_waves * unit.wave_size;
  const int column_tiles = t.block_m / (t.num_waves * tile);
  const int sums_and_scores =
      column_tiles * (parts_of(shape.head_dim_v, tile) + t.block_n / tile) * (tile * tile / unit.wave_size);
  const int operand = tile * kOperandK * unit.operand_copies / unit.wave_size * shape.element_bytes / 4;
  const int queries = t.shared_q ? 0 : column_tiles * (shape.head_dim_qk / kOperandK) * operand;
  const int next_tile =
      t.prefetch ? prefetched_registers(threads, t.block_n, shape.head_dim_qk, shape.element_bytes, 1) +
                       prefetched_registers(threads, t.block_n, shape.head_dim_v, shape.element_bytes, 4)
                 : 0;
  return sums_and_scores + queries + next_tile;
}

}  // namespace tessera::kernels
