#pragma once

#include "sm80/block_bits_x.cuh"
#include "sm80/block_units.cuh"

// A unit's products with x, and the sums of its lanes: gemm_block_bits.cu and sm90/gemm_block_stream.cu,
// which differ in how blocks come to shared memory.

namespace tessera::kernels::bits {

/// 2^23, from what is never negative: of a constant known to the compiler byte_permute takes its selector to
/// a register.
TESSERA_DEVICE unsigned opaque_two_to_the_23(const StreamParams& stream) {
  return 0x4b000000u | static_cast<unsigned>(stream.group_shift >> 31);
}

/// What `parts` of a sum add up to, the lowest first; each is of eight bits more than the one before.
template <int kParts>
TESSERA_DEVICE float whole_number(const int (&parts)[kParts]) {
  float sum = static_cast<float>(parts[kParts - 1]);
  TESSERA_UNROLL
  for (int part = kParts - 2; part >= 0; --part) sum = fmaf(sum, 256.0f, static_cast<float>(parts[part]));
  return sum;
}

/// As multiply_bits, of bytes that two groups share: what the first's, masked, and the bytes as they are make
/// with the second's x differ by 16 times its own sum. Nothing is rounded before the parts are put together.
template <class Fragment, class Piece>
TESSERA_DEVICE void multiply_bytes(float (&sum)[4], const Fragment& w, const Piece& x) {
  constexpr int kParts = Piece::kParts;
  int of_first[kParts][4] = {}, of_both[kParts][4] = {};
  TESSERA_UNROLL
  for (int j = 0; j < kPieceGroups / 2; ++j) {
    unsigned both[4], first[4];
    w.bytes(j, both);
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) first[i] = both[i] & 0x0f0f0f0fu;
    TESSERA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const Vector<unsigned, 2> words = x.words(j, part);
      const auto& b = words.element;
      if (part == kParts - 1) {
        mma_m16n8k32_bytes<true>(of_first[part], first, b[0], b[1]);
        mma_m16n8k32_bytes<true>(of_both[part], both, b[0], b[1]);
      } else {
        mma_m16n8k32_bytes<false>(of_first[part], first, b[0], b[1]);
        mma_m16n8k32_bytes<false>(of_both[part], both, b[0], b[1]);
      }
    }
  }
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) {
    int parts[kParts];
    TESSERA_UNROLL
    for (int part = 0; part < kParts; ++part)
      parts[part] = i % 2 == 0 ? of_first[part][i] : of_both[part][i] - of_first[part][i];
    constexpr float kUnitOfX = 1.0f / static_cast<float>(1 << Piece::kByteBits);
    sum[i] = whole_number(parts) * w.scale(i % 2, 0, i / 2) *
             (w.scale_of_bytes(i / 2) * (i % 2 == 0 ? kUnitOfX : kUnitOfX / 16));
  }
}

/// sum = a unit's products with x, but for x's factors and offsets, of the lane's groups: [row g, g + 8][its
/// columns].
template <int kXRows, class Fragment, class Piece>
TESSERA_DEVICE void multiply_bits(float (&sum)[4], Fragment& w, const Piece& x, int lane) {
  // The tensor cores cut off what an addition leaves over: only short sums are made there. Those of some
  // groups are under way together, as each instruction takes its time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
  constexpr int kTogether = 2;  // groups, as many as registers allow
#else
  constexpr int kTogether = 4;
#endif
  constexpr int kChains = kXRows == 1 ? 2 : Piece::kSteps;  // of one row both steps', for the same reason
  float c[kXRows][kChains][4];
  float total[4] = {};
  TESSERA_UNROLL
  for (int first = 0; first < kPieceGroups; first += kTogether) {
    BlockOperands a[kTogether];
    Vector<unsigned, 4> b[kTogether];
    TESSERA_UNROLL
    for (int n = 0; n < kTogether; ++n) {
      w.operands(first + n, a[n]);
      b[n] = x.operands(first + n);
    }
    TESSERA_UNROLL
    for (int step = 0; step < 2; ++step) {
      const int of_scale = step * (Piece::kSteps - 1);
      const int chain = step * (kChains - 1);
      TESSERA_UNROLL
      for (int n = 0; n < kTogether; ++n) {
        const int group = first + n;
        float(&to)[4] = c[group % kXRows][chain];
        const unsigned* pair = b[n].element + 2 * step;
        const bool begins = group < kXRows && (step == 0 || kChains == 2);
        const bool has_bias = begins && Fragment::kBias != 0 && (step == 0 || Piece::kSteps == 2);
        if (has_bias) {
          const auto bias = x.bias(group, of_scale, lane % 4);
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i) to[i] = bias.element[i % 2];
        }
        if (begins && !has_bias) {
          mma_m16n8k16_first<f16>(to, a[n][step], pair[0], pair[1]);
        } else {
          mma_m16n8k16<f16>(to, a[n][step], pair[0], pair[1]);
        }
      }
      if (first + kTogether <= kPieceGroups - kXRows || (step == 0 && kChains == 1)) continue;
      TESSERA_UNROLL
      for (int i = 0; i < kTogether * 4; ++i) {
        const int group = first + i / 4;
        if (group < kPieceGroups - kXRows) continue;  // its sums go on
        const float scale = w.scale(kXRows == 1 ? i % 2 : group % kXRows, of_scale, i % 4 / 2);
        total[i % 4] = fmaf(c[group % kXRows][chain][i % 4], scale, total[i % 4]);
      }
    }
  }
  TESSERA_UNROLL
  for (int i = 0; i < 4; ++i) sum[i] = total[i] * w.final_scale(i / 2);
}

/// The same with offsets.
template <int kXRows, class Fragment, class Piece>
TESSERA_DEVICE void multiply_unit(float (&sum)[4], Fragment& w, const Piece& x, int lane) {
  if constexpr (Piece::kIsBytes) {
    multiply_bytes(sum, w, x);
  } else {
    multiply_bits<kXRows>(sum, w, x, lane);
  }
  if constexpr (Piece::kOffsetPairs > 0) {
    unsigned a[4];
    float of_offsets[4];
    w.offsets(a);
    const auto& pairs = x.offset_pairs;
    if constexpr (Piece::kOffsetPairs == 1) {
      mma_m16n8k16_first<f16>(of_offsets, a, pairs[0][0], pairs[1][0]);
    } else {
      mma_m16n8k16_first<f16>(of_offsets, a, pairs[1][0], pairs[1][1]);
      mma_m16n8k16<f16>(of_offsets, a, pairs[0][0], pairs[0][1]);
    }
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i)
      sum[i] = fmaf(of_offsets[i], w.final_offset_scale(i / 2) * kXSumFactor, sum[i]);
  }
}

/// Of a unit's 16 x kXRows sums, that a lane has in the end: those of one row of x two lanes have.
template <int kXRows>
constexpr int kSumsOfLane = larger_of(kXRows, 2) / 2;

/// Adds up the sums of lanes with other groups.
template <int kXRows>
TESSERA_DEVICE void add_up_lanes(const float (&sum)[4], float (&of_lane)[kSumsOfLane<kXRows>], int t) {
  if constexpr (kXRows == 8) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) of_lane[i] = sum[i];
  } else if constexpr (kXRows == 1) {
    const float v[2] = {sum[0] + sum[1], sum[2] + sum[3]};
    const float of_row = (t % 2 != 0 ? v[1] : v[0]) + shuffle_xor(t % 2 != 0 ? v[0] : v[1], 1);
    of_lane[0] = of_row + shuffle_xor(of_row, 2);
  } else {
    // Each of two lanes keeps a row of w, then each of two a row of x.
    constexpr int kOther = kXRows == 2 ? 1 : 2;
    const bool keeps_second = t / kOther % 2 != 0;
    float v[2];
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i)
      v[i] = (keeps_second ? sum[2 + i] : sum[i]) + shuffle_xor(keeps_second ? sum[i] : sum[2 + i], kOther);
    if constexpr (kXRows == 2) {
      of_lane[0] = (t / 2 != 0 ? v[1] : v[0]) + shuffle_xor(t / 2 != 0 ? v[0] : v[1], 2);
    } else {
      of_lane[0] = v[0];
      of_lane[1] = v[1];
    }
  }
}

/// The warps' sums of some groups in shared memory, each lane's in a place of its own: [warp][group][lane].
template <int kXRows>
struct LaneSums {
  using OfLane = Vector<float, kSumsOfLane<kXRows>>;
  float* data;
  int groups;

  TESSERA_DEVICE OfLane* at(int warp, int group, int lane) const {
    return reinterpret_cast<OfLane*>(data) + (warp * groups + group) * 32 + lane;
  }
  /// Of row tile_row of a group's 16 and row m of x, where add_up_lanes has left it.
  TESSERA_DEVICE float get(int warp, int group, int tile_row, int m) const {
    const int r = tile_row / 8;
    const int t = kXRows <= 2 ? r + 2 * m : kXRows == 4 ? 2 * r + m / 2 : m / 2;
    const int i = kXRows <= 2 ? 0 : kXRows == 4 ? m % 2 : 2 * r + m % 2;
    return at(warp, group, tile_row % 8 * 4 + t)->element[i];
  }
};

/// Adds a unit's products with x to the lane's sums.
template <int kXRows, class Piece>
TESSERA_DEVICE void add_unit(typename LaneSums<kXRows>::OfLane* to, const Piece& x,
                             const typename Piece::Fragment::Rows& rows, int lane) {
  typename Piece::Fragment w;
  w.load(rows, lane % 4);
  auto total = *to;
  float sum[4], of_lane[kSumsOfLane<kXRows>];
  multiply_unit<kXRows>(sum, w, x, lane);
  add_up_lanes<kXRows>(sum, of_lane, lane % 4);
  TESSERA_UNROLL
  for (int i = 0; i < kSumsOfLane<kXRows>; ++i)
    total.element[i] = fmaf(of_lane[i], x.factors[i % 2], total.element[i]);
  *to = total;
}

}  // namespace tessera::kernels::bits
