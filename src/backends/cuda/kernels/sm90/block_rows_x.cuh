#pragma once

#include "sm80/block_fragments.cuh"
#include "sm90/few_rows_results.cuh"
#include "sm90/gemm_few_rows_blocks.h"

// What gemm_few_rows_blocks.cu is made for, and rows of x as it multiplies them.

namespace tessera::kernels {

template <class Format, int kN>
struct BlockRowsTraits {
  using Unit = WeightPiece<Format>;
  using Fragment = BlockFragment<Format>;
  static constexpr BlockRowsFormat kFormat = kBlockRowsFormat<Format>;
  static constexpr int kWarpgroups = block_rows_warpgroups(kN);
  static constexpr int kWarps = kWarpgroups * 4;  // that multiply, a unit of w each
  static constexpr int kThreads = kWarpgroups * kWarpgroup;
  static constexpr bool kHasOffsets = Fragment::kOffsetGroups > 0;
  static constexpr int kPanels = block_rows_panels(kFormat);
  static constexpr int kPanelBytes = kN * 128;
  static constexpr int kStages = block_rows_stages(kFormat, kN);
  // Of a thread, at first and where they bring w or x or multiply.
  static constexpr int kRegisters = 65536 / block_rows_threads(kN) / 8 * 8;
  static constexpr bool kIsPrepared = block_rows_are_prepared(kN);
  static constexpr int kRegistersOfW = kIsPrepared ? 56 : 40;
  static constexpr int kRegistersOfX = kIsPrepared ? 0 : kN == 32 ? 96 : 56;
  static constexpr int kRegistersOfSums =
      (kRegisters * block_rows_threads(kN) - (kRegistersOfW + kRegistersOfX) * kWarpgroup) / kThreads / 8 * 8;
  static_assert(kStages >= 2 && kHasOffsets == Format::kHasOffset);
};

/// Four rows of x in a piece, eight lanes and four groups of eight columns a lane each, made ready.
template <class X, class Format, int kN>
class RowsOfX {
  using Traits = BlockRowsTraits<Format, kN>;
  using Fragment = typename Traits::Fragment;
  static constexpr int kPanels = kPieceColumns / 64;

 public:
  /// Of an x whose row first_row + lane / 8 begins at `x`, zeros from column `columns` on, a multiple of 8.
  TESSERA_DEVICE void load_row(const X* x, int first_row, int piece, int columns) {
    lane_ = thread_x() % 32;
    row_ = first_row + lane_ / 8;
    const int column = piece * kPieceColumns + lane_ % 8 * 8;
    TESSERA_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      packed_[panel] = {};
      if (column + panel * 64 < columns)
        packed_[panel] = *reinterpret_cast<const Vector<unsigned, 4>*>(x + column + panel * 64);
    }
  }
  TESSERA_DEVICE void load(const GemmParams& gemm, int first_row, int piece) {
    lane_ = thread_x() % 32;
    row_ = first_row + lane_ / 8;
    // Rows beyond the last are multiplied, whatever they are, and not stored.
    const int64 m = minimum<int64>(row_, gemm.m - 1);
    const X* from = static_cast<const X*>(gemm.x.data) + m * gemm.x.row_stride +
                    static_cast<int64>(piece) * kPieceColumns + lane_ % 8 * 8;
    TESSERA_UNROLL
    for (int panel = 0; panel < kPanels; ++panel)
      packed_[panel] = *reinterpret_cast<const Vector<unsigned, 4>*>(from + panel * 64);
  }

  /// Brings what was loaded into fp16's range and order; after it other rows may be loaded.
  TESSERA_DEVICE void convert() {
    unsigned largest = 0;  // of both halves
    TESSERA_UNROLL
    for (int i = 0; i < 4 * kPanels; ++i)
      largest = max_x2(largest, packed_[i / 4].element[i % 4] & 0x7fff7fffu);
    TESSERA_UNROLL
    for (int mask = 1; mask < 8; mask *= 2) largest = max_x2(largest, shuffle_xor(largest, mask));
    const unsigned bits = maximum(largest & 0xffffu, largest >> 16);
    const float magnitude = to_float(X{static_cast<unsigned short>(bits)});
    const RangeOfX range(bits_of_float(magnitude));
    factor_ = range.back;
    float sum[kPanels] = {};
    TESSERA_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      float v[8];
      TESSERA_UNROLL
      for (int i = 0; i < 8; ++i) {
        v[i] = packed_element(packed_[panel].element, i, X()) * range.scale;
        sum[panel] += v[i];
      }
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        constexpr bool kIsInterleaved = Fragment::kIsInterleaved;
        const int first = i / 2 * 4 + (kIsInterleaved ? i % 2 : i % 2 * 2);
        words_[panel][i] = cvt_x2<f16>(v[first], v[first + (kIsInterleaved ? 2 : 1)]);
      }
    }
    if constexpr (Traits::kHasOffsets) {
      TESSERA_UNROLL
      for (int mask = 1; mask < kLanesOfSum; mask *= 2) {
        TESSERA_UNROLL
        for (int panel = 0; panel < kPanels; ++panel) sum[panel] += shuffle_xor(sum[panel], mask);
      }
      TESSERA_UNROLL
      for (int panel = 0; panel < kPanels; ++panel) {
        const float value = sum[panel] / kXSumFactor;
        const unsigned high = cvt_x2<f16>(value, 0.0f);
        sums_[panel] = high | cvt_x2<f16>(0.0f, value - to_float(f16{static_cast<unsigned short>(high)}));
      }
    }
  }

  /// To a piece's panels and factors.
  TESSERA_DEVICE void store(unsigned char* panels, float* factors) const {
    if (lane_ % kLanesOfRow == 0) factors[row_] = factor_;
    unsigned char* x = panels + row_ * 128;
    const int l = lane_ % 4, half = lane_ % 8 / 4;  // 32 columns of the panel
    const auto chunk = [&](int i) { return x + ((half * 4 + i) ^ (row_ % 8)) * 16; };
    TESSERA_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      const unsigned(&words)[4] = words_[panel];
      const int offset = panel * Traits::kPanelBytes;
      if (Fragment::kLaneColumns == 8) {
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) *reinterpret_cast<unsigned*>(chunk(i) + offset + l * 4) = words[i];
      } else {
        TESSERA_UNROLL
        for (int i = 0; i < 2; ++i)
          *reinterpret_cast<Vector<unsigned, 2>*>(chunk(l / 2 * 2 + i) + offset +
                                                  l % 2 * 8) = {{words[i], words[2 + i]}};
      }
    }
    if constexpr (Traits::kHasOffsets) {
      if (lane_ % kLanesOfSum == 0) store_sums(x + kPanels * Traits::kPanelBytes);
    }
  }

 private:
  static constexpr int kLanesOfSum = Traits::kHasOffsets ? kPieceColumns / 8 / Fragment::kOffsetGroups : 1;

  /// 8 sums, then what is left of them; of 16 groups first what is left.
  TESSERA_DEVICE void store_sums(unsigned char* panel_row) const {
    constexpr bool kIsEight = Fragment::kOffsetGroups == 8;
    const auto place = [&](int i) {
      return reinterpret_cast<unsigned short*>(panel_row + (i / 8 ^ (row_ % 8)) * 16 + i % 8 * 2);
    };
    TESSERA_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      const int group = panel * (8 / kLanesOfSum) + lane_ % 8 / kLanesOfSum;
      *place(kIsEight ? group : 16 + group) = static_cast<unsigned short>(sums_[panel]);
      *place(kIsEight ? 8 + group : group) = static_cast<unsigned short>(sums_[panel] >> 16);
    }
  }

  int lane_, row_;
  Vector<unsigned, 4> packed_[kPanels];
  unsigned words_[kPanels][4];
  unsigned sums_[kPanels];  // of a group's columns, divided by kXSumFactor, as two fp16 numbers
  float factor_;
};

}  // namespace tessera::kernels
