// Weights of blocks (TESSERA_BLOCKS) as bf16, rounded to nearest, for products by a library.
//
// Grid: kWidenThreads units of 32 columns a block, a unit a thread (block_units.cuh). Their bytes come
// through shared memory, and the numbers go through it, so that neighbouring threads read and write
// neighbouring vectors.

#include "common/block_units.cuh"

namespace tessera::kernels {

/// Q8_0's numbers stand as they are wanted: threads read pairs of bytes.
TESSERA_DEVICE void widen_q8(const unsigned char* blocks, void* out, int64 units) {
  using Format = formats::Q8_0;
  constexpr int kOctets = Format::kElements / kGroupSize;
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_UNROLL
  for (int i = 0; i < kOctets; ++i) {
    const int64 octet = (static_cast<int64>(block_x()) * kOctets + i) * kWidenThreads + thread_x();
    if (octet >= units * kOctets) break;
    float v[kGroupSize];
    load_q8_group(reinterpret_cast<const unsigned short*>(blocks + octet / kOctets * Format::kBytes),
                  octet % kOctets, v);
    PackedGroup<bf16> packed;
    packed.set(v);
    packed.store(out, octet);
  }
}

template <class Format>
TESSERA_DEVICE void widen_blocks(const unsigned char* blocks, void* out, int64 units) {
  if constexpr (is_same<Format, formats::Q8_0>) return widen_q8(blocks, out, units);
  using Unit = BlockUnit<Format>;
  constexpr int kUnits = Format::kElements / kUnitColumns;  // of a block
  constexpr int kBytes = kWidenThreads / kUnits * Format::kBytes;
  // Bytes that don't stand at a multiple of 4 are read by the words on both sides.
  constexpr int kVectors = parts_of(kBytes + kMovedBytes - 1, kMovedBytes) + 1;
  constexpr int kOctets = kUnitColumns / kGroupSize;
  TESSERA_SHARED(staged, MovedWords[kVectors]);
  TESSERA_SHARED(numbers, PackedGroup<bf16>[kWidenThreads * kOctets]);
  // Where octet i of the block's numbers is: those of neighbouring units fall into different banks.
  const auto place = [](int i) { return i ^ (i / 8 % 8); };
  const int64 first = static_cast<int64>(block_x()) * kWidenThreads;
  const auto count = static_cast<int>(minimum<int64>(kWidenThreads, units - first));
  const unsigned char* begin = blocks + first / kUnits * Format::kBytes;
  const int bytes = count / kUnits * Format::kBytes;
  const int shift = static_cast<int>(reinterpret_cast<unsigned long long>(begin) % kMovedBytes);

  allow_next_kernel();
  wait_for_prior_kernels();
  for (int i = thread_x(); i * kMovedBytes < shift + bytes; i += kWidenThreads) {
    const int from = i * kMovedBytes - shift;
    if (from >= 0 && from + kMovedBytes <= bytes) {
      staged[i] = *reinterpret_cast<const MovedWords*>(begin + from);
      continue;
    }
    for (int b = 0; b < kMovedBytes; ++b) {
      if (from + b >= 0 && from + b < bytes)
        reinterpret_cast<unsigned char*>(staged + i)[b] = begin[from + b];
    }
  }
  sync_threads();
  const auto unit_number = static_cast<int>(thread_x());
  if (unit_number < count) {
    const int block = unit_number / kUnits, j = unit_number % kUnits;
    Unit unit;
    unit.load({reinterpret_cast<const unsigned char*>(staged), shift + block * Format::kBytes}, j);
    TESSERA_UNROLL
    for (int o = 0; o < kOctets; ++o) {
      const auto q = unit.octet(o);
      const int group = o * Unit::kGroups / kOctets;
      const float offset = Unit::kHasOffset ? unit.offset(group) : 0.0f;
      float v[kGroupSize];
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) v[i] = q.multiply(i, unit.step(group), offset);
      const int column = block * Format::kElements + Unit::column(j) + Unit::octet_column(o);
      PackedGroup<bf16> packed;
      packed.set(v);
      numbers[place(column / kGroupSize)] = packed;
    }
  }
  sync_threads();
  for (int i = unit_number; i < count * kOctets; i += kWidenThreads)
    numbers[place(i)].store(out, first * kOctets + i);
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

TESSERA_KERNEL(widen_blocks_bf16, kWidenThreads)(const void* blocks, void* out, int64 units) {
  widen_blocks<tessera::formats::TESSERA_BLOCKS>(static_cast<const unsigned char*>(blocks), out, units);
}
