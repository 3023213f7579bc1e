#pragma once

#include "common/traits.h"

// What kernels on AMD's matrix units (matrix.hip.h) and the hosts that launch them both have to know of them.

namespace tessera::kernels {

constexpr int kOperandK = 16;   // k of an operand, in as many instructions as that takes
constexpr int kSlotBytes = 16;  // of LDS, that a lane reads at once

struct MatrixUnitTraits {
  int wave_size;
  int largest_tile;  // rows and columns of a product
  /// Of each element of an operand: RDNA3's groups of lanes have the same.
  int operand_copies;
  /// Of a SIMD for each lane of a wave, which its waves divide: on CDNA accumulation registers included, on
  /// RDNA with the largest register file (gfx1100, gfx1101, gfx1151, gfx1201; gfx1102 has 1024).
  int registers_of_simd;
  int most_registers;  // of a wave
};

constexpr MatrixUnitTraits kMfmaTraits = {64, 32, 1, 512, 512};     // CDNA
constexpr MatrixUnitTraits kWmma11Traits = {32, 16, 2, 1536, 256};  // RDNA3
constexpr MatrixUnitTraits kWmma12Traits = {32, 16, 1, 1536, 256};  // RDNA4

/// That a lane of one of `min_waves` waves of a SIMD can have.
TESSERA_TRAIT int registers_of_wave(const MatrixUnitTraits& unit, int min_waves) {
  const int shared_out = unit.registers_of_simd / min_waves;
  return shared_out < unit.most_registers ? shared_out : unit.most_registers;
}

TESSERA_TRAIT int power_of_two_from(int x) {
  int power = 1;
  while (power < x) power *= 2;
  return power;
}

/// Whether rows of so many slots exchange slots by the row's number so that they fall into different banks.
TESSERA_TRAIT bool exchanges_slots(int slots) {
  const int power_of_two = slots & -slots;
  return power_of_two == slots || power_of_two >= 8;
}
/// Slots between rows: an odd number where none are exchanged.
TESSERA_TRAIT int slot_stride(int slots) { return exchanges_slots(slots) ? slots : slots | 1; }

}  // namespace tessera::kernels
