#pragma once

#include <cstddef>

#include "backends/cpu/attention/tile.h"

namespace tessera::cpu {

/// True if the tile products compute problems of this dtype: bf16, and f16 as sums of two bf16.
bool amx_takes(DType dtype);

/// Query rows of a block of the kernel below; a tile has a whole number of them.
inline constexpr int kAmxRowBlock = 64;

/// Bytes of scratch memory that one thread needs for it.
std::size_t amx_scratch_bytes(const TileShape& shape, DType dtype);

/// KernelTable::merge_segment for rows whose maxima are in powers of two.
void amx_merge_segment(const CallContext& call, std::int64_t rows, const float* segment, float* merged);

/// A tile of many queries with AMX's tile products. To be called only where SimdTarget::kAmx is attainable,
/// for a dtype that amx_takes.
void amx_prefill_tile(const CallContext& call, const TileTask& task);

}  // namespace tessera::cpu
