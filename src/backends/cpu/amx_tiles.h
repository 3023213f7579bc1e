#pragma once

#if defined(TESSERA_EMULATE_AMX)
#include "backends/cpu/amx_tiles_emulated.h"
#elif defined(__x86_64__)

#include <cstdint>

// AMX: eight tiles of 16 rows of 64 bytes, and their products. One function for each instruction, named after
// it, written as assembly so that the compiler's own target stays what the program is built for. To be called
// only where SimdTarget::kAmx is attainable.
namespace tessera::amx {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

/// Shapes of the tiles, as ldtilecfg reads them: 16 rows of 64 bytes for all eight, or what is put here.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// A thread's tiles while this object lives: kept no longer, since each switch of threads saves tiles in use.
class TilesInUse {
 public:
  TilesInUse() : TilesInUse(TileConfig()) {}
  explicit TilesInUse(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  ~TilesInUse() { asm volatile("tilerelease"); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

template <int kTile>
inline void tilezero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

/// Row r of the tile = the bytes at base + r * stride_bytes.
template <int kTile>
inline void tileloadd(const void* base, std::int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(base), "r"(stride_bytes), "i"(kTile) : "memory");
}

template <int kTile>
inline void tilestored(void* base, std::int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(base), "r"(stride_bytes), "i"(kTile) : "memory");
}

/// c[m][n] += sum over t < 16 of a[m][t].low b[t][n].low + a[m][t].high b[t][n].high: words of a and b are
/// pairs of bf16, those of c fp32. Subnormal numbers count as 0.
template <int kC, int kA, int kB>
inline void tdpbf16ps() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace tessera::amx

#endif
