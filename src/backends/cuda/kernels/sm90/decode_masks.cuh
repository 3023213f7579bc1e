#pragma once

#include "sm90/decode_traits.cuh"

// Masks' elements beside the tiles of keys, in shared memory: three warps bring each of them once, whichever
// heads share it, while the products before are computed. Products would wait for memory a tile, and the
// heads of a group would ask for the same elements each.

namespace tessera::kernels {

/// A mask's element as it is stored, and that of the next key beside it.
template <int kBytes>
struct StoredElement {
  using Type = unsigned char;
  using Pair = unsigned short;
};
template <>
struct StoredElement<2> {
  using Type = unsigned short;
  using Pair = unsigned;
};
template <>
struct StoredElement<4> {
  using Type = unsigned;
  using Pair = unsigned long long;
};

/// Storage: SharedStorage, a template's argument since it has no such barriers without masks.
template <class Storage>
TESSERA_DEVICE void init_mask_barriers(Storage& smem) {
  if constexpr (kHasMasks) {
    for (int i = 0; i < kDecodeMaskTiles; ++i) {
      mbarrier_init(shared_address(&smem.filled_masks[i]), kDecodeMaskWarps);
      mbarrier_init(shared_address(&smem.emptied_masks[i]), kDecodeWarps);
    }
  }
}

/// Where a packed row's elements stand in a tile: queries have one row for all heads of a group, or each its
/// own.
TESSERA_DEVICE int mask_row(const MaskArgument& mask, const RowIndex& index, int pack, int first_head) {
  return mask.head_stride == 0 ? index.i : index.i * pack + index.h - first_head;
}

/// Copies the elements of a tile from key first_key on into rows row_bytes apart: the share of this warp,
/// number `warp` of kDecodeMaskWarps. Keys past the last have the last one's.
template <int kBytes>
TESSERA_DEVICE void copy_mask_tile(const MaskArgument& mask, const Piece& piece, int pack, int first_key,
                                   int warp, int row_bytes, unsigned char* to) {
  using Element = typename StoredElement<kBytes>::Type;
  using Pair = typename StoredElement<kBytes>::Pair;
  constexpr int kPairsOfRow = kBlockN / 64;
  constexpr int kRowsAtOnce = 8 / kPairsOfRow;
  const int lane = thread_x() % 32;
  const int heads = mask.head_stride == 0 ? 1 : pack;
  const int rows = piece.sequence.len_q * heads;
  const int last_key = piece.sequence.len_kv - 1;
  const Element* data =
      static_cast<const Element*>(mask.data) + mask_offset(mask, piece.b, piece.kv_head * pack, 0, 0);
  const auto odd_bits = reinterpret_cast<unsigned long long>(data) / kBytes |
                        static_cast<unsigned long long>(mask.head_stride | mask.q_stride);
  const bool are_pairs = mask.kv_stride == 1 && first_key + kBlockN - 1 <= last_key && odd_bits % 2 == 0;
  const auto row_of = [&](int row) {
    const int there = minimum(row, rows - 1);
    return data + there / heads * mask.q_stride + there % heads * mask.head_stride;
  };
  for (int first = warp; first < rows; first += kDecodeMaskWarps * kRowsAtOnce) {
    Pair pairs[kRowsAtOnce * kPairsOfRow];
    if (are_pairs) {
      TESSERA_UNROLL
      for (int n = 0; n < kRowsAtOnce * kPairsOfRow; ++n) {
        const Element* row = row_of(first + n / kPairsOfRow * kDecodeMaskWarps);
        pairs[n] = *reinterpret_cast<const Pair*>(row + first_key + n % kPairsOfRow * 64 + lane * 2);
      }
    } else {
      TESSERA_UNROLL
      for (int n = 0; n < kRowsAtOnce * kPairsOfRow; ++n) {
        const Element* row = row_of(first + n / kPairsOfRow * kDecodeMaskWarps);
        const int key = first_key + n % kPairsOfRow * 64 + lane * 2;
        pairs[n] = static_cast<Pair>(row[minimum(key, last_key) * mask.kv_stride] |
                                     static_cast<Pair>(row[minimum(key + 1, last_key) * mask.kv_stride])
                                         << kBytes * 8);
      }
    }
    TESSERA_UNROLL
    for (int n = 0; n < kRowsAtOnce * kPairsOfRow; ++n) {
      const int row = first + n / kPairsOfRow * kDecodeMaskWarps;
      if (row < rows) reinterpret_cast<Pair*>(to + row * row_bytes)[n % kPairsOfRow * 32 + lane] = pairs[n];
    }
  }
}

/// What the warps do that bring elements, the first of which is number 0.
template <class Storage>
TESSERA_DEVICE void copy_masks(const DecodeArguments& arguments, Storage& smem, int warp) {
  const AttentionParams& p = arguments.params;
  const int pack = p.num_heads / p.num_kv_heads;
  int n = 0;
  wait_for_prior_kernels();
  for_each_piece(p, arguments.parts, smem.part, [&](const Piece& piece) {
    for (int tile = piece.tile_begin; tile < piece.tile_end; ++tile, ++n) {
      const int place = n % kDecodeMaskTiles;
      mbarrier_wait(shared_address(&smem.emptied_masks[place]), (n / kDecodeMaskTiles & 1) ^ 1);
      if (piece.sequence.len_kv > 0) {
        if constexpr (kAdditiveBytes > 0)
          copy_mask_tile<kAdditiveBytes>(p.additive_mask, piece, pack, tile * kBlockN, warp,
                                         kAdditiveRowBytes, smem.rows[place]);
        if constexpr (kBooleanBytes > 0)
          copy_mask_tile<kBooleanBytes>(p.boolean_mask, piece, pack, tile * kBlockN, warp, kBooleanRowBytes,
                                        smem.rows[place] + kMaskRows * kAdditiveRowBytes);
      }
      sync_warp();
      if (thread_x() % 32 == 0) mbarrier_arrive(shared_address(&smem.filled_masks[place]));
    }
  });
}

/// A tile's elements as the products' warps read them.
template <class Storage>
class CopiedMasksIn {
 public:
  /// Of tile n, counted from 0, which it waits for.
  TESSERA_DEVICE CopiedMasksIn(Storage& smem, int n) : smem_(smem), place_(n % kDecodeMaskTiles) {
    if constexpr (kHasMasks)
      mbarrier_wait(shared_address(&smem.filled_masks[place_]), n / kDecodeMaskTiles & 1);
  }
  /// This warp has read them.
  TESSERA_DEVICE void release() const {
    if constexpr (kHasMasks) {
      sync_warp();
      if (thread_x() % 32 == 0) mbarrier_arrive(shared_address(&smem_.emptied_masks[place_]));
    }
  }
  /// Of a row by mask_row(), and of keys `key` of the tile, which is even, and key + 1.
  TESSERA_DEVICE float2 additive(int row, int key) const {
    const unsigned char* from = row_of(row, 0, kAdditiveRowBytes) + key * kAdditiveBytes;
    if constexpr (TESSERA_MASK_DTYPE == kMaskF32) return *reinterpret_cast<const float2*>(from);
    const unsigned word = *reinterpret_cast<const unsigned*>(from);
    if constexpr (TESSERA_MASK_DTYPE == kMaskF16) return cvt_f32x2_f16x2(word);
    return make_float2(float_of_bits(word << 16), float_of_bits(word & 0xffff0000u));
  }
  TESSERA_DEVICE uchar2 boolean(int row, int key) const {
    return *reinterpret_cast<const uchar2*>(row_of(row, kMaskRows * kAdditiveRowBytes, kBooleanRowBytes) +
                                            key);
  }
  /// Of one key.
  TESSERA_DEVICE float additive_at(int row, int key) const {
    const float2 pair = additive(row, key & ~1);
    return key % 2 == 0 ? pair.x : pair.y;
  }
  TESSERA_DEVICE unsigned char boolean_at(int row, int key) const {
    return row_of(row, kMaskRows * kAdditiveRowBytes, kBooleanRowBytes)[key];
  }

 private:
  TESSERA_DEVICE const unsigned char* row_of(int row, int offset, int row_bytes) const {
    if constexpr (kHasMasks) return smem_.rows[place_] + offset + row * row_bytes;
    return nullptr;
  }
  Storage& smem_;
  int place_;
};
using CopiedMasks = CopiedMasksIn<SharedStorage>;

}  // namespace tessera::kernels
