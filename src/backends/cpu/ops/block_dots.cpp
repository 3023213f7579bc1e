#include "backends/cpu/ops/block_dots.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "backends/cpu/bf16_pairs.h"
#include "backends/cpu/unroll.h"

namespace tessera::cpu {
namespace {

// With two tiles of w, six rows of x have 12 vectors of a group's sums and 12 of c, which stay in registers.
constexpr int kMostRows = 6;
constexpr int kTiles = 2;
constexpr int kPairs = kTileDepth / 2;          // of elements in a step
constexpr std::int64_t kRowBytes = 64;          // of a tile
constexpr std::int64_t kPairBytes = 4;          // of x
constexpr std::int64_t kRowFloats = kTileRows;  // of a tile of sums
constexpr std::int64_t kTileFloats = kTileRows * kTileRows;
constexpr auto kStepBytes = static_cast<std::int64_t>(kTileBytes);

/// Two tiles of w, from the first step on, and rows of x. Of w scales and offsets are [tile][group][row].
struct Operands {
  const std::byte* w;
  const float* scales;
  const float* offsets;
  const std::byte* x;
  const float* x_sums;
  float* c;
};

/// sums = the dot products of one group.
template <int kRows, int kGroups>
TESSERA_BF16_TARGET inline void multiply_group(const std::byte* w, const std::byte* x,
                                               __m512 (&sums)[kTiles][kRows]) {
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) sums[0][r] = sums[1][r] = _mm512_setzero_ps();
  for (int pair = 0; pair < kPairs / kGroups; ++pair, w += kRowBytes, x += kPairBytes) {
    const __m512i first = _mm512_load_si512(w);
    const __m512i second = _mm512_load_si512(w + kTileBytes);
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      int elements;
      std::memcpy(&elements, x + r * kRowBytes, sizeof elements);
      const __m512i both = _mm512_set1_epi32(elements);
      sums[0][r] = add_dot_products(sums[0][r], first, both);
      sums[1][r] = add_dot_products(sums[1][r], second, both);
    }
  }
}

/// c += scale * sums (+ offset * x's sum) for one group of all steps after the other.
template <int kRows, int kGroups, bool kHasOffsets>
TESSERA_BF16_TARGET void multiply_rows(const Operands& p, std::int64_t steps, std::int64_t tiles_of_step) {
  __m512 c[kTiles][kRows];
  TESSERA_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) c[t][r] = _mm512_load_ps(p.c + t * kTileFloats + r * kRowFloats);
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::byte* w = p.w + step * tiles_of_step * kStepBytes;
    const std::byte* x = p.x + step * kStepBytes;
    const std::int64_t at_step = step * tiles_of_step * kGroups * kTileRows;
    for (int g = 0; g < kGroups; ++g) {
      __m512 sums[kTiles][kRows];
      multiply_group<kRows, kGroups>(w + g * kRowBytes * kPairs / kGroups,
                                     x + g * kPairBytes * kPairs / kGroups, sums);
      TESSERA_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const std::int64_t at = at_step + (t * kGroups + g) * kTileRows;
        const __m512 scale = _mm512_load_ps(p.scales + at);
        TESSERA_UNROLL
        for (int r = 0; r < kRows; ++r) {
          c[t][r] = _mm512_fmadd_ps(scale, sums[t][r], c[t][r]);
          if constexpr (kHasOffsets) {
            const __m512 x_sum = _mm512_set1_ps(p.x_sums[(step * kGroups + g) * kTileRows + r]);
            c[t][r] = _mm512_fmadd_ps(_mm512_load_ps(p.offsets + at), x_sum, c[t][r]);
          }
        }
      }
    }
  }
  TESSERA_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) _mm512_store_ps(p.c + t * kTileFloats + r * kRowFloats, c[t][r]);
  }
}

void fetch(const std::byte* x, std::int64_t steps, int rows) {
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int r = 0; r < rows; ++r)
      _mm_prefetch(reinterpret_cast<const char*>(x + step * kStepBytes + r * kRowBytes), _MM_HINT_T1);
  }
}

template <int kGroups, bool kHasOffsets>
void multiply_tiles(const BlockProduct& p) {
  using MultiplyRows = void (*)(const Operands&, std::int64_t, std::int64_t);
  constexpr MultiplyRows kRows[kMostRows] = {
      multiply_rows<1, kGroups, kHasOffsets>, multiply_rows<2, kGroups, kHasOffsets>,
      multiply_rows<3, kGroups, kHasOffsets>, multiply_rows<4, kGroups, kHasOffsets>,
      multiply_rows<5, kGroups, kHasOffsets>, multiply_rows<6, kGroups, kHasOffsets>};
  fetch(p.x_next, p.steps, p.rows);
  for (std::int64_t tile = 0; tile < p.w.num_tiles; tile += kTiles) {
    const std::int64_t at = tile * kGroups * kTileRows;
    for (int row = 0; row < p.rows;) {
      const int parts_left = (p.rows - row + kMostRows - 1) / kMostRows;
      const int rows = (p.rows - row + parts_left - 1) / parts_left;
      kRows[rows - 1]({p.w.tiles + tile * kStepBytes, p.w.scales + at,
                       kHasOffsets ? p.w.offsets + at : nullptr, p.x + row * kRowBytes,
                       kHasOffsets ? p.x_sums + row : nullptr, p.c + tile * kTileFloats + row * kRowFloats},
                      p.steps, p.w.num_tiles);
      row += rows;
    }
  }
}

}  // namespace

bool has_block_dots() {
  static const bool has =
      __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
  return has;
}

void multiply_blocks_by_dots(const BlockProduct& p) {
  const bool has_offsets = p.w.offsets != nullptr;
  if (p.groups_of_step == 1) return has_offsets ? multiply_tiles<1, true>(p) : multiply_tiles<1, false>(p);
  return has_offsets ? multiply_tiles<2, true>(p) : multiply_tiles<2, false>(p);
}

}  // namespace tessera::cpu

#else

namespace tessera::cpu {

bool has_block_dots() { return false; }

}  // namespace tessera::cpu

#endif
