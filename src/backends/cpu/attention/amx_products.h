#pragma once

#if defined(__x86_64__)

#include <cstdint>

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/attention/amx_prefill.h"

// Both products of attention on AMX's tiles: four accumulators, two tiles of each operand. Operands and
// accumulators lie tile by tile, each a KiB in a row, in the order in which they are read; two neighbours are
// read together.

namespace tessera::cpu {

inline constexpr std::int64_t kAmxRowTiles = kAmxRowBlock / amx::kTileRows;
inline constexpr std::int64_t kTileWords = 16 * amx::kTileRows;  // of 32 bits: fp32, or pairs of bf16

/// s[key][row] = k q^T for 32 keys and 16 or 32 rows.
template <int kTiles, int kPartCount>
inline void score_tiles(const std::uint32_t* k, const std::uint32_t* q, std::int64_t steps, float* s) {
  using namespace amx;
  tilezero<0>();
  tilezero<1>();
  if constexpr (kTiles == 2) {
    tilezero<2>();
    tilezero<3>();
  }
  for (int parts = 0; parts < kPartCount * kPartCount; ++parts) {
    const std::uint32_t* left = k + parts / kPartCount * steps * 2 * kTileWords;
    const std::uint32_t* right = q + parts % kPartCount * steps * 2 * kTileWords;
    for (std::int64_t t = 0; t < steps; ++t) {
      tileloadd<4>(left, kTileRowBytes);
      tileloadd<6>(right, kTileRowBytes);
      tileloadd<5>(left + kTileWords, kTileRowBytes);
      if constexpr (kTiles == 2) tileloadd<7>(right + kTileWords, kTileRowBytes);
      tdpbf16ps<0, 4, 6>();
      tdpbf16ps<1, 5, 6>();
      if constexpr (kTiles == 2) {
        tdpbf16ps<2, 4, 7>();
        tdpbf16ps<3, 5, 7>();
      }
      left += 2 * kTileWords;
      right += 2 * kTileWords;
    }
  }
  tilestored<0>(s, kTileRowBytes);
  tilestored<1>(s + kAmxRowTiles * kTileWords, kTileRowBytes);
  if constexpr (kTiles == 2) {
    tilestored<2>(s + kTileWords, kTileRowBytes);
    tilestored<3>(s + kAmxRowTiles * kTileWords + kTileWords, kTileRowBytes);
  }
}

/// o[dimension][row] += v^T p over `steps` times 32 keys, for 16 or 32 dimensions and rows.
template <int kDimTiles, int kTiles, int kPartCount>
inline void weigh_tiles(const std::uint32_t* v, const std::uint32_t* p, std::int64_t steps, float* o) {
  using namespace amx;
  constexpr std::int64_t kNextDim = kAmxRowTiles * kTileWords;
  tileloadd<0>(o, kTileRowBytes);
  if constexpr (kDimTiles == 2) tileloadd<1>(o + kNextDim, kTileRowBytes);
  if constexpr (kTiles == 2) tileloadd<2>(o + kTileWords, kTileRowBytes);
  if constexpr (kDimTiles == 2 && kTiles == 2) tileloadd<3>(o + kNextDim + kTileWords, kTileRowBytes);
  for (std::int64_t t = 0; t < steps; ++t) {
    // High by high, low by high, high by low.
    for (int parts = 0; parts < 2 * kPartCount - 1; ++parts) {
      const std::uint32_t* left = v + (parts == 1 ? 2 * kTileWords : 0);
      const std::uint32_t* right = p + (parts == 2 ? 2 * kTileWords : 0);
      tileloadd<4>(left, kTileRowBytes);
      tileloadd<6>(right, kTileRowBytes);
      if constexpr (kDimTiles == 2) tileloadd<5>(left + kTileWords, kTileRowBytes);
      if constexpr (kTiles == 2) tileloadd<7>(right + kTileWords, kTileRowBytes);
      tdpbf16ps<0, 4, 6>();
      if constexpr (kDimTiles == 2) tdpbf16ps<1, 5, 6>();
      if constexpr (kTiles == 2) tdpbf16ps<2, 4, 7>();
      if constexpr (kDimTiles == 2 && kTiles == 2) tdpbf16ps<3, 5, 7>();
    }
    v += kPartCount * 2 * kTileWords;
    p += kPartCount * 2 * kTileWords;
  }
  tilestored<0>(o, kTileRowBytes);
  if constexpr (kDimTiles == 2) tilestored<1>(o + kNextDim, kTileRowBytes);
  if constexpr (kTiles == 2) tilestored<2>(o + kTileWords, kTileRowBytes);
  if constexpr (kDimTiles == 2 && kTiles == 2) tilestored<3>(o + kNextDim + kTileWords, kTileRowBytes);
}

}  // namespace tessera::cpu

#endif
