#include "backends/hip/attention/prefill_tiles.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/rounding.h"

namespace tessera::hip {
namespace {

constexpr int kSlotBytes = 16;  // of LDS, as matrix.hip.h's SlotRows lays them out
constexpr int kOperandK = 16;

// Rows, keys, waves, least waves of a SIMD, queries in LDS, next tile in registers: the tiles that multiply
// most for each byte of LDS without a spilt register. docs/kernels/amd_attention.md counts them.

// CDNA: two workgroups divide a compute unit up to head_dims of 128; beyond, one takes all registers.
constexpr std::array kMfma16Small = {PrefillTiles{128, 64, 4, 2, false, true},
                                     PrefillTiles{128, 32, 4, 2, false, true}};
constexpr std::array kMfma16Medium = {PrefillTiles{128, 64, 4, 2, false, true},
                                      PrefillTiles{128, 32, 4, 2, false, true}};
constexpr std::array kMfma16Large = {PrefillTiles{128, 32, 4, 1, false, true}};
constexpr std::array kMfma32Small = {PrefillTiles{128, 64, 4, 2, false, true},
                                     PrefillTiles{128, 32, 4, 2, false, true}};
constexpr std::array kMfma32Medium = {PrefillTiles{128, 32, 4, 2, false, true}};
constexpr std::array kMfma32Large = {PrefillTiles{128, 32, 4, 1, false, false}};
// RDNA3 has operands in every lane twice, so that queries would take twice the registers.
constexpr std::array kWmma11Small = {PrefillTiles{128, 64, 8, 4, true, true},
                                     PrefillTiles{128, 32, 8, 4, true, true}};
constexpr std::array kWmma11Medium = {PrefillTiles{128, 32, 8, 4, true, true}};
constexpr std::array kWmma11Large = {PrefillTiles{64, 32, 4, 4, true, false},
                                     PrefillTiles{64, 16, 4, 4, true, false}};
constexpr std::array kWmma12Small = {PrefillTiles{128, 64, 8, 4, false, true},
                                     PrefillTiles{128, 32, 8, 4, false, true}};
constexpr std::array kWmma12Medium = {PrefillTiles{128, 32, 8, 4, false, true}};
constexpr std::array kWmma12Large = {PrefillTiles{64, 16, 4, 4, true, true}};

/// Slots from one row of `elements` to the next.
int slot_stride(int elements, int element_bytes) {
  const int slots = elements * element_bytes / kSlotBytes;
  const int power_of_two = slots & -slots;
  return power_of_two == slots || power_of_two >= 8 ? slots : slots | 1;
}

}  // namespace

int matrix_tile(MatrixUnit unit) { return unit == MatrixUnit::kMfma ? 32 : 16; }

std::span<const PrefillTiles> prefill_tiles(MatrixUnit unit, const PrefillShape& shape) {
  const int head_dim = std::max(shape.head_dim_qk, shape.head_dim_v);
  const auto of_size = [&](const auto& small, const auto& medium,
                           const auto& large) -> std::span<const PrefillTiles> {
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

std::size_t prefill_shared_bytes(const PrefillTiles& t, MatrixUnit unit, const PrefillShape& shape) {
  const int rows_of_qk = t.block_n + (t.shared_q ? t.block_m : 0);
  const int slots =
      rows_of_qk * slot_stride(shape.head_dim_qk, shape.element_bytes) +
      round_up(shape.head_dim_v, matrix_tile(unit)) * slot_stride(t.block_n, shape.element_bytes);
  return static_cast<std::size_t>(slots) * kSlotBytes;
}

int prefill_registers(const PrefillTiles& t, MatrixUnit unit, const PrefillShape& shape) {
  const int tile = matrix_tile(unit);
  const int lanes = unit == MatrixUnit::kMfma ? 64 : 32;
  const int copies = unit == MatrixUnit::kWmma11 ? 2 : 1;
  const int threads = t.num_waves * lanes;
  const int column_tiles = t.block_m / (t.num_waves * tile);
  const int sums_and_scores =
      column_tiles * (divide_up(shape.head_dim_v, tile) + t.block_n / tile) * (tile * tile / lanes);
  const int operand = tile * kOperandK * copies / lanes * shape.element_bytes / 4;
  const int queries = t.shared_q ? 0 : column_tiles * (shape.head_dim_qk / kOperandK) * operand;
  const auto fetched = [&](int head_dim, int keys_of_item) {
    const auto pieces = static_cast<unsigned>(head_dim * shape.element_bytes / kSlotBytes);
    const int keys_at_once = threads / static_cast<int>(std::bit_ceil(pieces)) * keys_of_item;
    return divide_up(t.block_n, keys_at_once) * keys_of_item * kSlotBytes / 4;
  };
  const int next_tile = t.prefetch ? fetched(shape.head_dim_qk, 1) + fetched(shape.head_dim_v, 4) : 0;
  return sums_and_scores + queries + next_tile;
}

int registers_of_wave(MatrixUnit unit, int min_waves) {
  return unit == MatrixUnit::kMfma ? 512 / min_waves : std::min(1536 / min_waves, 256);
}

}  // namespace tessera::hip
