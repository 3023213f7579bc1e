#pragma once

#include "sm90/attention_softmax.cuh"

// Masks of a warpgroup's scores: tiles that the copy engine has brought into shared memory, or elements where
// the tensor lies, for strides that a tensor map can't describe.

namespace tessera::kernels {

/// The two elements of a word, the one at the lower address first.
template <int kMaskDType>
TESSERA_DEVICE float2 floats_of_word(unsigned word) {
  if (kMaskDType == kMaskBF16) return {float_of_bits(word << 16), float_of_bits(word & 0xffff0000u)};
  return cvt_f32x2_f16x2(word);
}

/// Calls use(r, i, low, high) with the mask's elements for the thread's scores 4 i + 2 r and the one after
/// it, those of tile `smem`: rows of the warpgroup in panels of 128 bytes, swizzled as all that is copied.
template <int kMaskDType, class Use>
TESSERA_DEVICE void for_copied_mask(unsigned smem, Use use) {
  constexpr int kElementBytes = mask_element_bytes(kMaskDType);
  const int lane = thread_x() % 32;
  const int warp_row = thread_x() % 128 / 32 * 16;
  if (kElementBytes == 2) {
    // Matrices of 8 x 8 elements come out as products' results do. Lanes 0 to 15 give the rows of keys 8 i,
    // the others those of the eight keys after them.
    const int row = lane % 16;
    const unsigned base =
        smem + static_cast<unsigned>((warp_row + row) * kPanelRowBytes + ((lane / 16) ^ (row % 8)) * 16);
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 8; i += 2) {
      unsigned words[4];
      ldmatrix_x4(words, (base ^ static_cast<unsigned>(i % 8 * 16)) + i / 8 * kMaskPanelBytes);
      TESSERA_UNROLL
      for (int n = 0; n < 4; ++n) {
        const float2 terms = floats_of_word<kMaskDType>(words[n]);
        use(n % 2, i + n / 2, terms.x, terms.y);
      }
    }
    return;
  }
  const int byte = lane % 4 * 2 * kElementBytes;  // of the lane's first keys
  const unsigned base = smem + static_cast<unsigned>((warp_row + lane / 4) * kPanelRowBytes +
                                                     ((byte / 16) ^ (lane / 4)) * 16 + byte % 16);
  TESSERA_UNROLL
  for (int i = 0; i < kBlockN / 8; ++i) {
    const int offset = 8 * i * kElementBytes % kPanelRowBytes;
    const unsigned address =
        (base ^ static_cast<unsigned>(offset / 16 * 16)) +
        static_cast<unsigned>(offset % 16 + 8 * i * kElementBytes / kPanelRowBytes * kMaskPanelBytes);
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (kMaskDType == kMaskF32) {
        unsigned low, high;
        load_shared_8(low, high, address + r * 8 * kPanelRowBytes);
        use(r, i, float_of_bits(low), float_of_bits(high));
      } else {
        const unsigned both = load_shared_2(address + r * 8 * kPanelRowBytes);
        use(r, i, both & 0xffu, both & 0xff00u);
      }
    }
  }
}

/// The same from the tensor. Nothing outside of it is read.
template <int kMaskDType, class Use>
TESSERA_DEVICE void for_mask_in_memory(const AttentionParams& p, const MaskArgument& m, const TileSlot& slot,
                                       const TileView& t, int key_begin, Use use) {
  if (t.len_kv == 0) return;
  const int first_key = key_begin + thread_x() % 4 * 2;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    const TileRow row = row_of_thread(p, slot.tile, r);
    const int i = minimum(row.i, slot.tile.sequence.len_q - 1);
    const int64 row_offset = mask_offset(m, slot.tile.b, row.h, i, 0);
    TESSERA_UNROLL
    for (int n = 0; n < kBlockN / 8; ++n) {
      const int64 low = row_offset + minimum(first_key + 8 * n, t.len_kv - 1) * m.kv_stride;
      const int64 high = row_offset + minimum(first_key + 8 * n + 1, t.len_kv - 1) * m.kv_stride;
      if (kMaskDType == kMaskU8) {
        const auto* data = static_cast<const unsigned char*>(m.data);
        use(r, n, static_cast<unsigned>(data[low]), static_cast<unsigned>(data[high]));
      } else {
        use(r, n, load_mask<kMaskDType>(m, low), load_mask<kMaskDType>(m, high));
      }
    }
  }
}

/// Of the two masks' elements, those of the one that is copied from `smem`. kMask: one of ScoreTermFlags.
template <int kMask, class Use>
TESSERA_DEVICE void for_mask(const AttentionParams& p, const MaskArgument& m, const TileSlot& slot,
                             const TileView& t, int key_begin, unsigned smem, Use use) {
  constexpr int kDType = kMask == kTermBooleanMask ? static_cast<int>(kMaskU8) : kAdditiveMaskDType;
  if constexpr (kMask == kCopiedMask) {
    for_copied_mask<kDType>(smem, use);
  } else {
    for_mask_in_memory<kDType>(p, m, slot, t, key_begin, use);
  }
}

}  // namespace tessera::kernels
