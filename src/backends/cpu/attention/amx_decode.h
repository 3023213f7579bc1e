#pragma once

#include <cstddef>

#include "backends/cpu/attention/tile.h"

namespace tessera::cpu {

/// Most rows of a head that the kernel below takes.
inline constexpr std::int64_t kAmxDecodeRows = 16;

/// Bytes of scratch memory that one thread needs for it.
std::size_t amx_decode_scratch_bytes(const TileShape& shape, DType dtype);

/// A tile of few queries of a batch_invariant problem without a score modifier: each row gets the bits that
/// amx_prefill_tile gives it. To be called only where SimdTarget::kAmx is attainable, for a dtype that
/// amx_takes.
void amx_decode_tile(const CallContext& call, const TileTask& task);

}  // namespace tessera::cpu
