#include "backends/hip/attention/prefill_tiles.h"

#include <algorithm>
#include <array>

namespace tessera::hip {
namespace {

using kernels::MatrixPrefillTiles;

// Rows, keys, waves, least waves of a SIMD, queries in LDS, next tile in registers: the tiles that multiply
// most for each byte of LDS without a spilt register. docs/kernels/amd_attention.md counts them.

// CDNA: two workgroups divide a compute unit up to head_dims of 128; beyond, one takes all registers.
constexpr std::array kMfma16Small = {MatrixPrefillTiles{128, 64, 4, 2, false, true},
                                     MatrixPrefillTiles{128, 32, 4, 2, false, true}};
constexpr std::array kMfma16Medium = {MatrixPrefillTiles{128, 64, 4, 2, false, true},
                                      MatrixPrefillTiles{128, 32, 4, 2, false, true}};
constexpr std::array kMfma16Large = {MatrixPrefillTiles{128, 32, 4, 1, false, true}};
constexpr std::array kMfma32Small = {MatrixPrefillTiles{128, 64, 4, 2, false, true},
                                     MatrixPrefillTiles{128, 32, 4, 2, false, true}};
constexpr std::array kMfma32Medium = {MatrixPrefillTiles{128, 32, 4, 2, false, true}};
constexpr std::array kMfma32Large = {MatrixPrefillTiles{128, 32, 4, 1, false, false}};
// RDNA3 has operands in every lane twice, so that queries would take twice the registers.
constexpr std::array kWmma11Small = {MatrixPrefillTiles{128, 64, 8, 4, true, true},
                                     MatrixPrefillTiles{128, 32, 8, 4, true, true}};
constexpr std::array kWmma11Medium = {MatrixPrefillTiles{128, 32, 8, 4, true, true}};
constexpr std::array kWmma11Large = {MatrixPrefillTiles{64, 32, 4, 4, true, false},
                                     MatrixPrefillTiles{64, 16, 4, 4, true, false}};
constexpr std::array kWmma12Small = {MatrixPrefillTiles{128, 64, 8, 4, false, true},
                                     MatrixPrefillTiles{128, 32, 8, 4, false, true}};
constexpr std::array kWmma12Medium = {MatrixPrefillTiles{128, 32, 8, 4, false, true}};
constexpr std::array kWmma12Large = {MatrixPrefillTiles{64, 16, 4, 4, true, true}};

}  // namespace

std::span<const MatrixPrefillTiles> prefill_tiles(MatrixUnit unit, const kernels::MatrixPrefillShape& shape) {
  const int head_dim = std::max(shape.head_dim_qk, shape.head_dim_v);
  const auto of_size = [&](const auto& small, const auto& medium,
                           const auto& large) -> std::span<const MatrixPrefillTiles> {
    if (head_dim <= 64) return small;
    if (head_dim <= 128) return medium;
    return large;
  };
  switch (unit) {
    case MatrixUnit::kMfma:
      return shape.element_bytes == 4 ? of_size(kMfma32Small, kMfma32Medium, kMfma32Large)
                                      : of_size(kMfma16Small, kMfma16Medium, kMfma16Large);
    case MatrixUnit::kWmma11:
      return of_size(kWmma11Small, kWmma11Medium, kWmma11Large);
    case MatrixUnit::kWmma12:
      return of_size(kWmma12Small, kWmma12Medium, kWmma12Large);
    case MatrixUnit::kNone:
      break;
  }
  return {};
}

}  // namespace tessera::hip
