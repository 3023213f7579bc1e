#include "backends/cpu/ops/block_tiles.h"

#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "backends/cpu/amx_tiles.h"
#include "backends/cpu/ops/bf16_vectors.h"
#include "backends/cpu/ops/gemm_kernel.h"
#include "core/block_format.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kRowBytes = 64;     // of a tile
constexpr std::int64_t kTileFloats = 256;  // of a tile of sums
constexpr std::int64_t kUnpacked = 256;  // elements of a row taken apart at once: whole blocks of all formats
constexpr std::int64_t kGroupsUnpacked = kUnpacked / 16;

/// 16 rows of blocks taken apart.
struct UnpackedRows {
  alignas(64) std::int8_t integers[kTileRows][kUnpacked];
  alignas(64) float scales[kTileRows][kGroupsUnpacked];
  alignas(64) float offsets[kTileRows][kGroupsUnpacked];
};

/// Whether a format's integers are all from -32 to 31.
bool are_six_bits(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kMXFP4:
    case DType::kTQ1_0:
    case DType::kTQ2_0:
      return true;
    default:
      return false;
  }
}

/// The lower or the upper bytes of integers as bf16, by their lowest six bits.
constexpr std::array<std::uint8_t, 64> bf16_bytes(int shift) {
  std::array<std::uint8_t, 64> bytes{};
  for (int i = 0; i < 64; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(i < 32 ? i : i - 64));
    bytes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(bits >> (16 + shift));
  }
  return bytes;
}
alignas(64) constexpr std::array<std::uint8_t, 64> kLowerBytes = bf16_bytes(0);
alignas(64) constexpr std::array<std::uint8_t, 64> kUpperBytes = bf16_bytes(8);

/// The integers of lanes' lower and upper 8 bytes as bf16.
struct Bf16Halves {
  __m512i lower, upper;
};

TESSERA_AMX_TARGET inline Bf16Halves bf16_of_six_bits(__m512i integers) {
  const __m512i lower = _mm512_permutexvar_epi8(integers, _mm512_load_si512(kLowerBytes.data()));
  const __m512i upper = _mm512_permutexvar_epi8(integers, _mm512_load_si512(kUpperBytes.data()));
  return {_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)};
}

/// Pairs of integers, each in the upper byte of a word.
TESSERA_AMX_TARGET inline __m512i bf16_of_upper_bytes(__m512i words) {
  const __m512 first = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 16), 24));
  const __m512 second = _mm512_cvtepi32_ps(_mm512_srai_epi32(words, 24));
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(first), 16),
                                 _mm512_castps_si512(second));
}

TESSERA_AMX_TARGET inline Bf16Halves bf16_of_eight_bits(__m512i integers) {
  const __m512i zero = _mm512_setzero_si512();
  return {bf16_of_upper_bytes(_mm512_unpacklo_epi8(zero, integers)),
          bf16_of_upper_bytes(_mm512_unpackhi_epi8(zero, integers))};
}

/// 16 bytes of rows r, r + 4, r + 8 and r + 12, kUnpacked bytes apart.
TESSERA_AMX_TARGET inline __m512i load_every_fourth(const std::int8_t* row) {
  const auto at = [&](int r) { return reinterpret_cast<const __m128i*>(row + r * kUnpacked); };
  __m512i v = _mm512_castsi128_si512(_mm_load_si128(at(0)));
  v = _mm512_inserti32x4(v, _mm_load_si128(at(4)), 1);
  v = _mm512_inserti32x4(v, _mm_load_si128(at(8)), 2);
  return _mm512_inserti32x4(v, _mm_load_si128(at(12)), 3);
}

/// 16 elements of 16 rows as 8 rows of a tile, which are pairs of elements: transposed four rows a lane, as
/// bytes.
template <Bf16Halves (*kToBf16)(__m512i)>
TESSERA_AMX_TARGET inline void store_pairs_of_rows(const std::int8_t* integers, std::byte* tile) {
  __m512i rows[4];
  for (int r = 0; r < 4; ++r) rows[r] = load_every_fourth(integers + r * kUnpacked);
  const __m512i pairs[4] = {_mm512_unpacklo_epi16(rows[0], rows[1]), _mm512_unpacklo_epi16(rows[2], rows[3]),
                            _mm512_unpackhi_epi16(rows[0], rows[1]), _mm512_unpackhi_epi16(rows[2], rows[3])};
  const __m512i fours[4] = {
      _mm512_unpacklo_epi32(pairs[0], pairs[1]), _mm512_unpackhi_epi32(pairs[0], pairs[1]),
      _mm512_unpacklo_epi32(pairs[2], pairs[3]), _mm512_unpackhi_epi32(pairs[2], pairs[3])};
  for (int i = 0; i < 4; ++i) {
    const Bf16Halves halves = kToBf16(fours[i]);
    _mm512_store_si512(tile + 2 * i * kRowBytes, halves.lower);
    _mm512_store_si512(tile + (2 * i + 1) * kRowBytes, halves.upper);
  }
}

TESSERA_AMX_TARGET inline void repeat_half(std::byte* tile) {
  for (int i = 0; i < 8; ++i)
    _mm512_store_si512(tile + (i + 8) * kRowBytes, _mm512_load_si512(tile + i * kRowBytes));
}

/// Tiles of `steps` steps, step_bytes apart.
template <Bf16Halves (*kToBf16)(__m512i)>
TESSERA_AMX_TARGET void store_integers(const UnpackedRows& rows, std::int64_t steps, int tiles_of_step,
                                       std::byte* tiles, std::int64_t step_bytes) {
  constexpr std::int64_t kHalf = static_cast<std::int64_t>(kTileBytes) / 2;
  for (std::int64_t s = 0; s < steps; ++s, tiles += step_bytes) {
    const std::int8_t* integers = &rows.integers[0][s * kTileDepth];
    store_pairs_of_rows<kToBf16>(integers, tiles);
    store_pairs_of_rows<kToBf16>(integers + kTileDepth / 2, tiles + tiles_of_step * kHalf);
    if (tiles_of_step == 1) continue;
    repeat_half(tiles);
    repeat_half(tiles + 2 * kHalf);
  }
}

/// Scales or offsets of `groups` groups of 16 rows, group by group.
TESSERA_AMX_TARGET void store_steps(const float (&steps)[kTileRows][kGroupsUnpacked], std::int64_t groups,
                                    int groups_of_step, float* out, std::int64_t step_stride) {
  __m512i rows[kTileRows];
  const auto mask = static_cast<__mmask16>((1u << groups) - 1);
  for (int r = 0; r < kTileRows; ++r) rows[r] = _mm512_maskz_load_epi32(mask, steps[r]);
  transpose(rows);
  for (std::int64_t g = 0; g < groups; ++g) {
    float* group = out + g / groups_of_step * step_stride + g % groups_of_step * kTileRows;
    _mm512_store_si512(group, rows[g]);
  }
}

/// Fetches elements [k, k + kUnpacked) of a row: between one piece of k and the next much else is read, and a
/// row's few bytes are no stream that the processor would follow.
void fetch_blocks(const Weight& w, const BlockFormat& format, std::int64_t row, std::int64_t k) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t count = std::min(kUnpacked, w.columns - k);
  if (count <= 0) return;
  const auto bytes = static_cast<std::int64_t>(format.bytes);
  const auto* begin = static_cast<const char*>(w.data) + (row * w.columns + k) / format.elements * bytes;
  for (std::int64_t at = 0; at < count / format.elements * bytes; at += kLine)
    _mm_prefetch(begin + at, _MM_HINT_T1);
}

// Loaded in tilezero's place: the first product of a tile that it cleared takes 52 cycles, not 16, and no
// other goes on meanwhile (Sapphire Rapids).
alignas(64) constexpr float kZeros[kTileFloats] = {};

constexpr int kSlots = 4;  // tiles of sums, numbered 0 to 3; tile 4 has w, 5 to 7 have the parts of x

/// What sums of kSlots successive products are multiplied by, and where they go.
struct Behind {
  const float* scales;
  const float* offsets;
  const float* x_sums;
  float* c;
};

/// c += scale * sums (+ offset * x's sum) for the groups of one tile of c.
template <bool kHasOffsets, int kGroups>
TESSERA_AMX_TARGET inline void add_scaled(const float* sums, const float* scales, const float* offsets,
                                          const float* x_sums, float* c) {
  __m512 scale[kGroups], offset[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    scale[g] = _mm512_load_ps(scales + g * kTileRows);
    if constexpr (kHasOffsets) offset[g] = _mm512_load_ps(offsets + g * kTileRows);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    __m512 sum = _mm512_load_ps(c + r * 16);
    for (int g = 0; g < kGroups; ++g) {
      sum = _mm512_fmadd_ps(scale[g], _mm512_load_ps(sums + g * kTileFloats + r * 16), sum);
      if constexpr (kHasOffsets)
        sum = _mm512_fmadd_ps(offset[g], _mm512_set1_ps(x_sums[g * kTileRows + r]), sum);
    }
    _mm512_store_ps(c + r * 16, sum);
  }
}

/// Of groups of 32 all parts of x stay in tiles, of groups of 16 the first two of both.
template <int kXParts, int kGroups>
TESSERA_AMX_TARGET inline void load_x(const std::byte* x) {
  amx::tileloadd<5>(x, kRowBytes);
  if constexpr (kGroups == 2) {
    amx::tileloadd<6>(x + (kXParts + 1) / 2 * kTileBytes, kRowBytes);
  } else {
    if constexpr (kXParts > 1) amx::tileloadd<6>(x + kTileBytes, kRowBytes);
    if constexpr (kXParts > 2) amx::tileloadd<7>(x + 2 * kTileBytes, kRowBytes);
  }
}

template <int kXParts, int kGroups, int kSum>
TESSERA_AMX_TARGET inline void multiply_group(const std::byte* w, const std::byte* x) {
  amx::tileloadd<kSum>(kZeros, kRowBytes);
  amx::tileloadd<4>(w, kRowBytes);
  if constexpr (kGroups == 2) {
    constexpr int kGroup = kSum % 2;
    amx::tdpbf16ps<kSum, 5 + kGroup, 4>();
    if constexpr (kXParts > 2) {
      amx::tileloadd<7>(x + (2 * kGroup + 1) * static_cast<std::int64_t>(kTileBytes), kRowBytes);
      amx::tdpbf16ps<kSum, 7, 4>();
    }
  } else {
    amx::tdpbf16ps<kSum, 5, 4>();
    if constexpr (kXParts > 1) amx::tdpbf16ps<kSum, 6, 4>();
    if constexpr (kXParts > 2) amx::tdpbf16ps<kSum, 7, 4>();
  }
}

/// Product kSlot of four, after what is left to do of those before: a tile's sums go to memory when three
/// products have begun after its own, and vectors add them up a turn later, so that neither waits.
template <int kXParts, bool kHasOffsets, int kGroups, bool kIsProduct, bool kIsBehind, int kSlot>
TESSERA_AMX_TARGET inline void turn(const std::byte* w, const std::byte* x, float (*sums)[kTileFloats],
                                    const Behind& behind) {
  constexpr int kStored = (kSlot + 1) % kSlots;
  if constexpr (kStored == 0 ? kIsProduct : kIsBehind) amx::tilestored<kStored>(sums[kStored], kRowBytes);
  if constexpr (kIsBehind && kSlot % kGroups == kGroups - 1) {
    constexpr int kFirst = kSlot - (kGroups - 1);
    add_scaled<kHasOffsets, kGroups>(sums[kFirst], behind.scales + kFirst * kTileRows,
                                     behind.offsets + (kHasOffsets ? kFirst * kTileRows : 0), behind.x_sums,
                                     behind.c + kFirst / kGroups * kTileFloats);
  }
  if constexpr (kIsProduct) multiply_group<kXParts, kGroups, kSlot>(w + kSlot * kTileBytes, x);
}

template <int kXParts, bool kHasOffsets, int kGroups, bool kIsProduct, bool kIsBehind>
TESSERA_AMX_TARGET inline void four_turns(const std::byte* w, const std::byte* x, float (*sums)[kTileFloats],
                                          const Behind& behind) {
  turn<kXParts, kHasOffsets, kGroups, kIsProduct, kIsBehind, 0>(w, x, sums, behind);
  turn<kXParts, kHasOffsets, kGroups, kIsProduct, kIsBehind, 1>(w, x, sums, behind);
  turn<kXParts, kHasOffsets, kGroups, kIsProduct, kIsBehind, 2>(w, x, sums, behind);
  turn<kXParts, kHasOffsets, kGroups, kIsProduct, kIsBehind, 3>(w, x, sums, behind);
}

/// x's tiles of a step stay where they are for all tiles of w.
template <int kXParts, bool kHasOffsets, int kGroups>
TESSERA_AMX_TARGET void multiply_steps(const BlockProduct& p) {
  constexpr std::int64_t kXBytes =
      x_tiles_of_step(BlockTiles::x_order(kGroups), kXParts) * static_cast<std::int64_t>(kTileBytes);
  alignas(64) float sums[kSlots][kTileFloats];
  const std::int64_t fours = p.w.num_tiles * kGroups / kSlots;  // of a step
  const std::int64_t bytes_to_fetch = (kXBytes + fours * kRowBytes - 1) / (fours * kRowBytes) * kRowBytes;
  const std::byte* w = p.w.tiles;
  const std::byte* x = p.x;
  const std::byte* x_next = p.x_next;
  Behind behind = {p.w.scales, p.w.offsets, p.x_sums, p.c};
  std::int64_t fours_behind = 0;  // of the step
  for (std::int64_t step = 0; step < p.steps; ++step, x += kXBytes) {
    load_x<kXParts, kGroups>(x);
    for (std::int64_t i = 0; i < fours; ++i, w += kSlots * kTileBytes, x_next += bytes_to_fetch) {
      for (std::int64_t at = 0; at < bytes_to_fetch; at += kRowBytes)
        _mm_prefetch(reinterpret_cast<const char*>(x_next + at), _MM_HINT_T1);
      if (step == 0 && i == 0) {
        four_turns<kXParts, kHasOffsets, kGroups, true, false>(w, x, sums, behind);
        continue;
      }
      four_turns<kXParts, kHasOffsets, kGroups, true, true>(w, x, sums, behind);
      behind.scales += kSlots * kTileRows;
      if constexpr (kHasOffsets) behind.offsets += kSlots * kTileRows;
      behind.c += kSlots / kGroups * kTileFloats;
      if (++fours_behind < fours) continue;
      fours_behind = 0;
      behind.c = p.c;
      if constexpr (kHasOffsets) behind.x_sums += kGroups * kTileRows;
    }
  }
  four_turns<kXParts, kHasOffsets, kGroups, false, true>(w, x, sums, behind);
}

template <int kXParts>
void multiply_parts(const BlockProduct& p) {
  const bool has_offsets = p.w.offsets != nullptr;
  if (p.groups_of_step == 1)
    return has_offsets ? multiply_steps<kXParts, true, 1>(p) : multiply_steps<kXParts, false, 1>(p);
  return has_offsets ? multiply_steps<kXParts, true, 2>(p) : multiply_steps<kXParts, false, 2>(p);
}

}  // namespace

BlockTiles::BlockTiles(DType dtype, BlockUnit unit) {
  const BlockGroups groups = groups_of_blocks(dtype);
  groups_of_step = static_cast<int>(kTileDepth / groups.elements);
  tiles_of_step = unit == BlockUnit::kAmx ? groups_of_step : 1;
  has_offsets = groups.have_offset;
}

TESSERA_AMX_TARGET void pack_blocks(const Weight& w, const BlockTiles& layout, std::int64_t first,
                                    std::int64_t begin, std::int64_t depth, std::int64_t tile,
                                    const PackedBlocks& out) {
  const std::int64_t rows = std::clamp<std::int64_t>(w.rows - first, 0, kTileRows);
  const std::int64_t step_bytes =
      out.num_tiles * layout.tiles_of_step * static_cast<std::int64_t>(kTileBytes);
  const auto store =
      are_six_bits(w.dtype) ? store_integers<bf16_of_six_bits> : store_integers<bf16_of_eight_bits>;
  const BlockFormat& format = block_format(w.dtype);
  UnpackedRows unpacked;
  for (std::int64_t k = 0; k < depth; k += kUnpacked) {
    const std::int64_t count = std::min(kUnpacked, depth - k);
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      if (r < rows) {
        gemm_kernels().unpack(w, first + r, begin + k, count,
                              {unpacked.integers[r], unpacked.scales[r], unpacked.offsets[r]});
        fetch_blocks(w, format, first + r, begin + depth + k);
      } else {
        std::memset(unpacked.integers[r], 0, sizeof unpacked.integers[r]);
        std::memset(unpacked.scales[r], 0, sizeof unpacked.scales[r]);
        std::memset(unpacked.offsets[r], 0, sizeof unpacked.offsets[r]);
      }
    }
    const std::int64_t steps = count / kTileDepth;
    const std::int64_t step = k / kTileDepth;
    std::byte* tiles =
        out.tiles + step * step_bytes + tile * layout.tiles_of_step * static_cast<std::int64_t>(kTileBytes);
    store(unpacked, steps, layout.tiles_of_step, tiles, step_bytes);
    const std::int64_t groups = steps * layout.groups_of_step;
    const std::int64_t stride = out.num_tiles * layout.groups_of_step * kTileRows;
    const std::int64_t at = step * stride + tile * layout.groups_of_step * kTileRows;
    store_steps(unpacked.scales, groups, layout.groups_of_step, out.scales + at, stride);
    if (out.offsets == nullptr) continue;
    store_steps(unpacked.offsets, groups, layout.groups_of_step, out.offsets + at, stride);
  }
}

void multiply_blocks(const BlockProduct& p) {
  if (p.x_parts == 1) return multiply_parts<1>(p);
  return p.x_parts == 2 ? multiply_parts<2>(p) : multiply_parts<3>(p);
}

}  // namespace tessera::cpu

#endif
