#pragma once

#include <cstddef>
#include <span>

#include "backends/hip/runtime/targets.h"
#include "tessera/attention.h"

namespace tessera::hip {

/// How matrix/attention_prefill.hip cuts its work.
struct PrefillTiles {
  int block_m;    ///< rows of a workgroup
  int block_n;    ///< keys of a tile
  int num_waves;  ///< of a workgroup
  int min_waves;  ///< of a SIMD, among which its registers are divided
  bool shared_q;  ///< queries stay in LDS, not in registers
  bool prefetch;  ///< registers hold the next tile meanwhile
};

/// What the tiles are for: padded head_dims and the size of an element.
struct PrefillShape {
  int head_dim_qk;
  int head_dim_v;
  int element_bytes;
};

/// Rows and columns of the largest matrix tile.
int matrix_tile(MatrixUnit unit);

/// Tiles for a shape, the preferred first.
std::span<const PrefillTiles> prefill_tiles(MatrixUnit unit, const PrefillShape& shape);

/// What the kernel's SharedStorage takes.
std::size_t prefill_shared_bytes(const PrefillTiles& tiles, MatrixUnit unit, const PrefillShape& shape);

/// Registers of a lane that hold sums, scores, queries and the next tile: what the loop can't do without.
int prefill_registers(const PrefillTiles& tiles, MatrixUnit unit, const PrefillShape& shape);

/// Registers that a lane of one of `min_waves` waves of a SIMD can have.
int registers_of_wave(MatrixUnit unit, int min_waves);

}  // namespace tessera::hip
