#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/types.cuh"

// What kernels of sm80 take of PTX, on the host: copies are done at once, and a warp's lanes exchange the
// operands of a matrix product.

namespace tessera::kernels {

/// From the beginning of the block's dynamic shared memory on.
inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - simt::dynamic_shared());
}

/// A GPU reads all 16 bytes or none, and so AddressSanitizer sees it.
inline void cp_async_16(unsigned shared, const void* global, bool valid) {
  std::memset(simt::dynamic_shared() + shared, 0, 16);
  if (valid) std::memcpy(simt::dynamic_shared() + shared, global, 16);
}
inline void cp_async_16_of_line(unsigned shared, const void* global, bool valid) {
  cp_async_16(shared, global, valid);
}
inline void cp_async_8(unsigned shared, const void* global, bool valid) {
  std::memset(simt::dynamic_shared() + shared, 0, 8);
  if (valid) std::memcpy(simt::dynamic_shared() + shared, global, 8);
}
inline void cp_async_4(unsigned shared, const void* global, bool valid) {
  std::memset(simt::dynamic_shared() + shared, 0, 4);
  if (valid) std::memcpy(simt::dynamic_shared() + shared, global, 4);
}
inline void store_shared_16(unsigned shared, unsigned short bits) {
  std::memcpy(simt::dynamic_shared() + shared, &bits, sizeof bits);
}
inline void store_shared_byte(unsigned shared, unsigned byte) {
  simt::dynamic_shared()[shared] = static_cast<unsigned char>(byte);
}
inline void cp_async_commit() {}
template <int kPending>
void cp_async_wait() {}

inline float half_of(unsigned word, int i) {
  return to_float(f16{static_cast<unsigned short>(word >> (16 * i))});
}

/// Four 8 x 8 matrices of 16 bits: lane l brings the address of row l % 8 of matrix l / 8, and gets two
/// numbers of row l / 4 of each.
inline void ldmatrix_x4(unsigned (&r)[4], unsigned shared) {
  const int lane = thread_x() % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const unsigned row = shuffle(shared, 8 * matrix + lane / 4);
    std::memcpy(&r[matrix], simt::dynamic_shared() + row + lane % 4 * 4, 4);
  }
}
/// The same of the matrices transposed.
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned shared) {
  const int lane = thread_x() % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    unsigned short halves[2];
    for (int i = 0; i < 2; ++i) {
      const unsigned row = shuffle(shared, 8 * matrix + lane % 4 * 2 + i);
      std::memcpy(&halves[i], simt::dynamic_shared() + row + lane / 4 * 2, 2);
    }
    r[matrix] = halves[0] | static_cast<unsigned>(halves[1]) << 16;
  }
}

/// a: rows g and g + 8 of lane 4 g + t, columns 2 t and on, and 8 further on; b: the same of column g.
template <class T>
void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static_assert(sizeof(T) == 2);
  TESSERA_SHARED(operands, float[16][16 * 16 + 16 * 8]);
  const int g = thread_x() % 32 / 4, t = thread_x() % 4;
  float* rows = operands[thread_x() / 32];
  float* columns = rows + 16 * 16;
  for (int i = 0; i < 8; ++i) {
    const int k = i / 4 * 8 + 2 * t + i % 2;
    rows[(g + i / 2 % 2 * 8) * 16 + k] = half_of(a[i / 4 * 2 + i / 2 % 2], i % 2);
    if (i / 2 % 2 == 0) columns[g * 16 + k] = half_of(i < 4 ? b0 : b1, i % 2);
  }
  sync_warp();
  for (int i = 0; i < 4; ++i) {
    double sum = c[i];
    for (int k = 0; k < 16; ++k)
      sum += static_cast<double>(rows[(g + i / 2 * 8) * 16 + k]) * columns[(2 * t + i % 2) * 16 + k];
    c[i] = static_cast<float>(sum);
  }
  sync_warp();
}
template <class T>
void mma_m16n8k16_first(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  for (float& sum : c) sum = 0;
  mma_m16n8k16<T>(c, a, b0, b1);
}

/// a: rows g and g + 8 of lane 4 g + t, columns 4 t and on, and 16 further on; b: the same of column g.
inline void mma_bytes(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], bool is_signed) {
  TESSERA_SHARED(operands, unsigned char[16][16 * 32 + 32 * 8]);
  const int g = thread_x() % 32 / 4, t = thread_x() % 4;
  unsigned char* rows = operands[thread_x() / 32];
  unsigned char* columns = rows + 16 * 32;
  for (int i = 0; i < 4; ++i) std::memcpy(rows + (g + i % 2 * 8) * 32 + i / 2 * 16 + 4 * t, &a[i], 4);
  for (int i = 0; i < 2; ++i) std::memcpy(columns + g * 32 + i * 16 + 4 * t, &b[i], 4);
  sync_warp();
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 32; ++k) {
      const int byte = columns[(2 * t + i % 2) * 32 + k];
      c[i] += rows[(g + i / 2 * 8) * 32 + k] * (is_signed && byte > 127 ? byte - 256 : byte);
    }
  }
  sync_warp();
}
template <bool kIsSigned>
void mma_m16n8k32_bytes(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  mma_bytes(c, a, {b0, b1}, kIsSigned);
}

inline int round_to_int(float v) {
  constexpr double kMost = std::numeric_limits<int>::max(), kLeast = std::numeric_limits<int>::min();
  return std::isnan(v) ? 0
                       : static_cast<int>(std::clamp(std::nearbyint(static_cast<double>(v)), kLeast, kMost));
}

template <class T>
unsigned cvt_x2(float low, float high) {
  return from_float<T>(low).bits | static_cast<unsigned>(from_float<T>(high).bits) << 16;
}
template <class T>
unsigned fma_x2(unsigned a, unsigned b, unsigned c) {
  const auto one = [&](int i) {
    return static_cast<float>(static_cast<double>(half_of(a, i)) * half_of(b, i) + half_of(c, i));
  };
  return cvt_x2<T>(one(0), one(1));
}
inline unsigned add_x2_f16(unsigned a, unsigned b) {
  return cvt_x2<f16>(half_of(a, 0) + half_of(b, 0), half_of(a, 1) + half_of(b, 1));
}

inline float ex2(float x) { return exp2f(x); }
inline float sum_of_lanes(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

inline unsigned and_or(unsigned a, unsigned mask, unsigned c) { return (a & mask) | c; }
inline unsigned and_xor(unsigned a, unsigned mask, unsigned bits) { return (a & mask) ^ bits; }

inline unsigned redux_max(unsigned value) {
  for (int mask = 1; mask < 32; mask *= 2) {
    const unsigned other = shuffle_xor(value, mask);
    value = value > other ? value : other;
  }
  return value;
}

inline unsigned byte_permute(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = a | std::uint64_t{b} << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  return result;
}

}  // namespace tessera::kernels
