#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

// amx_tiles.h's functions for machines without AMX, by AVX-512: what each does is as Intel's manual (volume
// 2, TDPBF16PS) has it. A sanitizer sees the memory that they touch, which it does not where they are
// instructions. Tiles that no TilesInUse has set up end the program, as they would there.
namespace tessera::amx {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

struct TileConfig {
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct alignas(64) Tile {
  std::uint32_t words[kTileRows][kTileRowBytes / 4] = {};  ///< zeros outside its shape
  int rows = kTileRows;
  std::size_t row_bytes = kTileRowBytes;
};

inline thread_local Tile tiles_of_thread[8];
inline thread_local bool tiles_are_set_up = false;

template <int kTile>
Tile& tile() {
  static_assert(kTile >= 0 && kTile < 8);
  if (!tiles_are_set_up) std::abort();
  return tiles_of_thread[kTile];
}

class TilesInUse {
 public:
  TilesInUse() : TilesInUse(TileConfig()) {}
  explicit TilesInUse(const TileConfig& config) {
    if (tiles_are_set_up) std::abort();  // the instruction would clear those that another object has
    for (int i = 0; i < 8; ++i) {
      tiles_of_thread[i] = {};
      tiles_of_thread[i].rows = config.rows[i];
      tiles_of_thread[i].row_bytes = config.row_bytes[i];
    }
    tiles_are_set_up = true;
  }
  ~TilesInUse() { tiles_are_set_up = false; }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

template <int kTile>
void tilezero() {
  std::memset(tile<kTile>().words, 0, sizeof(Tile::words));
}

template <int kTile>
void tileloadd(const void* base, std::int64_t stride_bytes) {
  Tile& t = tile<kTile>();
  for (int r = 0; r < t.rows; ++r)
    std::memcpy(t.words[r], static_cast<const char*>(base) + r * stride_bytes, t.row_bytes);
}

template <int kTile>
void tilestored(void* base, std::int64_t stride_bytes) {
  const Tile& t = tile<kTile>();
  for (int r = 0; r < t.rows; ++r)
    std::memcpy(static_cast<char*>(base) + r * stride_bytes, t.words[r], t.row_bytes);
}

/// The low elements of all pairs are summed up apart from the high ones, by fused multiply-adds that round to
/// nearest and take subnormal numbers for 0; both sums are added, then c.
__attribute__((target("avx512f"))) inline void multiply_tiles(Tile& c, const Tile& a, const Tile& b) {
  constexpr unsigned kFlushToZero = 0x8000, kSubnormalsAreZero = 0x0040, kMaskedNearest = 0x1f80;
  const unsigned control = _mm_getcsr();
  _mm_setcsr(kMaskedNearest | kFlushToZero | kSubnormalsAreZero);
  constexpr __mmask16 kAll = 0xffff;  // without a mask GCC 12 warns of its own header
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int m = 0; m < kTileRows; ++m) {
    __m512 sum_low = _mm512_setzero_ps(), sum_high = _mm512_setzero_ps();
    for (int k = 0; k < kTileRows; ++k) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(a.words[m][k]));
      const __m512i y = _mm512_load_si512(b.words[k]);
      sum_low = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, x, 16)),
                                _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, y, 16)), sum_low);
      sum_high = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                                 _mm512_castsi512_ps(_mm512_and_si512(y, high)), sum_high);
    }
    const __m512 before = _mm512_load_ps(c.words[m]);
    _mm512_store_ps(c.words[m], _mm512_add_ps(before, _mm512_add_ps(sum_low, sum_high)));
  }
  _mm_setcsr(control);
}

template <int kC, int kA, int kB>
void tdpbf16ps() {
  multiply_tiles(tile<kC>(), tile<kA>(), tile<kB>());
}

}  // namespace tessera::amx
