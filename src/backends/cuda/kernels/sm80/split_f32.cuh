#pragma once

#include "common/types.cuh"
#include "sm80/ptx.cuh"
#include "sm80/shared_rows.h"

// fp32 products on the fp16 tensor cores. A row of numbers is stored as x = 2^(e - 9) (high + 2^-11 low),
// high and low in fp16: 11 bits of x in each, and low's sign is one more. A product is then 2^-11 (high low +
// low high) + high high; what is left out, low low, is less than 2^-24 of it. The sums have to leave the
// tensor cores often, because these cut bits off when they add. Ootomo & Yokota, "Recovering single precision
// accuracy from Tensor Cores" (2022).
//
// fp16 spans few powers of two, so a row is brought into its middle: e is 0 if the row's largest number is in
// [2^-5, 2^6), as is usual, else that number's exponent. Numbers that are small beside their row's largest
// keep fewer bits: where x 2^(9 - e) is below 2^-14, what is lost is up to 2^-36, no longer 2^-24 of x
// itself. Where that counts, rows are done again by the plain loop:
//   scores: if products are so large (kMostScale) that this is more than the few units that the exponential
//   is off by; results: if some value of the column's group of 8 is such a number and the result is not large
//   beside what may have been lost (is_faithful).
//
// A row lies in shared memory as groups of 8 numbers, 32 bytes each: 8 highs, 8 lows. It comes there as fp32
// and is split where it lies.

namespace tessera::kernels {

constexpr int kRowShift = 9;      // rows with e = 0 are stored times 2^kRowShift
constexpr int kWeightShift = 14;  // the softmax's weights, at most 1, are stored times 2^kWeightShift
constexpr float kLowScale = 1 << 11;
constexpr float kUnlow = 1.0f / kLowScale;
// Scores in units of log2 are stored products times factors of q's and k's row. With D <= 256 products of up
// to 2^15 each what is lost of them is up to 2 D 2^15 2^-36; times this, 2^-22.
constexpr float kMostScale = 1.0f / (1 << 10);

/// Bytes between rows.
template <int kColumns>
constexpr int kSplitRowBytes = shared_row_bytes(kColumns, 4);

/// A row's e from its largest magnitude.
TESSERA_DEVICE int row_exponent(float largest) {
  const int exponent = static_cast<int>(bits_of_float(largest) >> 23) - 127;
  return exponent >= -5 && exponent <= 5 ? 0 : minimum(maximum(exponent, -100), 125);
}

/// Two numbers' highs and lows, `first` at the lower address.
TESSERA_DEVICE void split_pair(float first, float second, unsigned& high, unsigned& low) {
  high = cvt_x2<f16>(first, second);
  const float first_high = to_float(f16{static_cast<unsigned short>(high & 0xffffu)});
  const float second_high = to_float(f16{static_cast<unsigned short>(high >> 16)});
  low = cvt_x2<f16>((first - first_high) * kLowScale, (second - second_high) * kLowScale);
}

/// The smaller magnitude of each half of a and x.
TESSERA_DEVICE unsigned least_magnitudes(unsigned a, unsigned x) {
  unsigned r;
  asm("{ .reg .b32 m; abs.f16x2 m, %2; min.f16x2 %0, %1, m; }" : "=r"(r) : "r"(a), "r"(x));
  return r;
}

/// Splits kRows rows of kColumns fp32 numbers in place, by one warp, which sees what it wrote after a
/// sync_warp. take(row, e, small) is called by one lane a row; with kLooksForSmall by all lanes, e being that
/// of their row: bit g of `small` is set if this lane has split a number of columns 8 g to 8 g + 7 that lost
/// more than it should.
template <int kRows, int kColumns, bool kLooksForSmall = false, class Take>
TESSERA_DEVICE void split_rows(unsigned char* rows, Take take) {
  static_assert(32 % kRows == 0 && kColumns % 8 == 0, "whole groups and lanes");
  constexpr int kParts = 32 / kRows;  // lanes that share a row
  constexpr int kGroups = kColumns / 8;
  constexpr int kPerLane = (kGroups + kParts - 1) / kParts;
  const int lane = thread_x() % 32;
  const int part = lane / kRows;
  unsigned char* row = rows + lane % kRows * kSplitRowBytes<kColumns>;
  float x[kPerLane][8];
  float largest = 0.0f;
  TESSERA_UNROLL
  for (int n = 0; n < kPerLane; ++n) {
    const int group = part + n * kParts;
    if (kGroups % kParts != 0 && group >= kGroups) break;
    const float4* from = reinterpret_cast<const float4*>(row + group * 32);
    const float4 a = from[0];
    const float4 b = from[1];
    x[n][0] = a.x, x[n][1] = a.y, x[n][2] = a.z, x[n][3] = a.w;
    x[n][4] = b.x, x[n][5] = b.y, x[n][6] = b.z, x[n][7] = b.w;
    TESSERA_UNROLL
    for (int e = 0; e < 8; ++e) largest = fmaxf(largest, fabsf(x[n][e]));  // NaN does not count
  }
  TESSERA_UNROLL
  for (int mask = kRows; mask < 32; mask *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
  }
  const int exponent = row_exponent(largest);
  const float scale = power_of_two(kRowShift - exponent);
  unsigned least = 0x7c007c00u;  // infinity in both halves
  TESSERA_UNROLL
  for (int n = 0; n < kPerLane; ++n) {
    const int group = part + n * kParts;
    if (kGroups % kParts != 0 && group >= kGroups) break;
    uint4 high;
    uint4 low;
    split_pair(x[n][0] * scale, x[n][1] * scale, high.x, low.x);
    split_pair(x[n][2] * scale, x[n][3] * scale, high.y, low.y);
    split_pair(x[n][4] * scale, x[n][5] * scale, high.z, low.z);
    split_pair(x[n][6] * scale, x[n][7] * scale, high.w, low.w);
    uint4* to = reinterpret_cast<uint4*>(row + group * 32);
    to[0] = high;
    to[1] = low;
    if (kLooksForSmall) {
      least = least_magnitudes(least_magnitudes(least, high.x), high.y);
      least = least_magnitudes(least_magnitudes(least, high.z), high.w);
    }
  }
  if (!kLooksForSmall) {
    if (part == 0) take(lane % kRows, exponent, 0u);
    return;
  }
  unsigned small = 0;
  constexpr unsigned kLeastNormal = 0x0400u;                               // 2^-14 in fp16
  if ((least & 0xffffu) < kLeastNormal || (least >> 16) < kLeastNormal) {  // seldom anything but zeros
    TESSERA_UNROLL_BY(1)
    for (int group = part; group < kGroups; group += kParts) {
      const unsigned short* high = reinterpret_cast<const unsigned short*>(row + group * 32);
      TESSERA_UNROLL_BY(1)
      for (int e = 0; e < 8; ++e) {
        const unsigned magnitude = high[e] & 0x7fffu;
        if (magnitude < kLeastNormal && (magnitude | (high[8 + e] & 0x7fffu)) != 0) small |= 1u << group;
      }
    }
  }
  take(lane % kRows, exponent, small);
}

/// Whether a sum of weights times values, as the split numbers are, keeps fp32's precision although values of
/// its column have lost up to 2^-36 each. weights: the sum of the weights or a bound of it. All together lose
/// up to that times 2^(kWeightShift - 36) = 2^-22, which is 2 units in the last place of twice the weights.
TESSERA_DEVICE bool is_faithful(float sum, float weights) { return fabsf(sum) >= 2.0f * weights; }

/// sum(m, half) + 2^-11 cross(m, half) += a b for the row tiles and two 8-column tiles, all split. Products
/// that follow each other add to different accumulators.
template <int kTiles>
TESSERA_DEVICE void multiply_split(const unsigned (&a_high)[kTiles][4], const unsigned (&a_low)[kTiles][4],
                                   const unsigned (&b_high)[4], const unsigned (&b_low)[4],
                                   float (&sum)[kTiles][2][4], float (&cross)[kTiles][2][4]) {
  TESSERA_UNROLL
  for (int step = 0; step < 3; ++step) {
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      TESSERA_UNROLL
      for (int m = 0; m < kTiles; ++m) {
        const unsigned(&b)[4] = step == 0 ? b_low : b_high;
        mma_m16n8k16<f16>(step == 2 ? sum[m][half] : cross[m][half], step == 1 ? a_low[m] : a_high[m],
                          b[2 * half], b[2 * half + 1]);
      }
    }
  }
}

/// Multiplies scores by their keys' 2^e.
template <int kRowTiles, int kScoreTiles>
TESSERA_DEVICE void scale_scores(const float* k_power, float (&scores)[kRowTiles][kScoreTiles][4]) {
  const int first_key = thread_x() % 4 * 2;
  TESSERA_UNROLL
  for (int n = 0; n < kScoreTiles; ++n) {
    TESSERA_UNROLL
    for (int e = 0; e < 4; ++e) {
      const float power = k_power[first_key + n * 8 + e % 2];
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) scores[m][n][e] *= power;
    }
  }
}

/// log2(x) rounded up, for x > 0; -127 for 0.
TESSERA_DEVICE float ceil_log2(float x) {
  return static_cast<float>(static_cast<int>(bits_of_float(x) - 1) >> 23) - 126.0f;
}

/// Multiplies a row's weights by their values' 2^(e - shift), raising shift where they would exceed 1.
/// Returns what o has to be multiplied by. moved: how far the row's max has risen, infinite for its first
/// keys.
template <int kRowTiles, int kScoreTiles>
TESSERA_DEVICE float scale_weights(const float* v_power, int m, int r, float moved, float& shift,
                                   float (&weights)[kRowTiles][kScoreTiles][4]) {
  const int first_key = thread_x() % 4 * 2;
  float largest = 0.0f;
  TESSERA_UNROLL
  for (int n = 0; n < kScoreTiles; ++n) {
    TESSERA_UNROLL
    for (int e = 0; e < 2; ++e) {
      weights[m][n][2 * r + e] *= v_power[first_key + n * 8 + e];
      largest = fmaxf(largest, weights[m][n][2 * r + e]);
    }
  }
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  const float kept = shift - moved;
  shift = fmaxf(fmaxf(kept, ceil_log2(largest)), -126.0f);
  const float factor = ex2(-shift);
  TESSERA_UNROLL
  for (int n = 0; n < kScoreTiles; ++n) {
    weights[m][n][2 * r] *= factor;
    weights[m][n][2 * r + 1] *= factor;
  }
  return kept == shift ? 1.0f : ex2(kept - shift);
}

}  // namespace tessera::kernels
