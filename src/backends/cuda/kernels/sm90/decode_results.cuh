#pragma once

#include "common/attention_row.cuh"
#include "sm90/decode_merge.cuh"
#include "sm90/decode_traits.cuh"

// From a warpgroup's accumulators to o and lse, or to partial results.

namespace tessera::kernels {

/// A thread's two rows of a piece, 8 apart, of the 16 of its warp.
struct Rows {
  RowIndex index[2];
  bool exists[2];
  int keys_begin[2];
  int keys_end[2];
};

/// Writes a piece's finished rows, whose o may be filled up. Which of the thread's two have a result that is
/// NaN or infinite: bits.
template <int kCount>
TESSERA_DEVICE unsigned store_rows(const AttentionParams& p, const Piece& piece, const Rows& rows,
                                   int64 first_partial, const float (&max)[2], const float (&sums)[2],
                                   const float (&o)[kCount]) {
  const int lane = thread_x() % 32;
  const int warp = consumer_warp();
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    float sum = sums[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (!rows.exists[r]) continue;
    const RowIndex index = rows.index[r];
    const float* sink = p.sinks != nullptr && piece.is_whole ? p.sinks + index.h : nullptr;
    const RowNorm norm = row_norm(max[r] * kLn2, sum, sink);
    const bool has_keys = max[r] != -infinity();
    const int64 partial = first_partial + warp * 16 + lane / 4 + 8 * r;
    // A maximum above 2^24 is off by rounding so much that even its own score's weight, else 1, may be as
    // good as 0.
    const bool is_lost = has_keys && sum < 0.5f;
    float probe = is_lost ? float_of_bits(0x7fffffffu) : sum * 0.0f;
    float* out_partial = p.o_partial + partial * kHeadDimV + lane % 4 * 2;
    T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, piece.sequence, piece.b, index.h, index.i) +
             lane % 4 * 2;
    TESSERA_UNROLL
    for (int i = 0; i < kHeadDimV / 8; ++i) {
      const float x = has_keys ? o[4 * i + 2 * r] * norm.factor : 0.0f;
      const float y = has_keys ? o[4 * i + 2 * r + 1] * norm.factor : 0.0f;
      probe += x * 0.0f + y * 0.0f;
      if (piece.is_whole) {
        *reinterpret_cast<unsigned*>(out + 8 * i) = cvt_x2<T>(x, y);
      } else {
        *reinterpret_cast<float2*>(out_partial + 8 * i) = make_float2(x, y);
      }
    }
    if (lane % 4 == 0) {
      if (!piece.is_whole) {
        p.lse_partial[partial] = norm.lse;
      } else if (p.lse.data != nullptr) {
        p.lse.data[lse_offset(p, piece.sequence, piece.b, index.h, index.i)] = norm.lse;
      }
    }
    if (probe != 0.0f) spoilt |= 1u << r;  // NaN
  }
  return spoilt;
}

/// Does a packed row of a piece again, by a warp, by the plain loop, which never reads a hidden key's value:
/// that may be NaN, and 0 NaN is NaN.
TESSERA_DEVICE void redo_row_of_piece(const AttentionParams& p, const Piece& piece, int64 first_partial,
                                      int pack, int row) {
  const RowIndex index = packed_row_index(row, pack, piece.kv_head * pack);
  const int h = index.h;
  const KeyRange keys = keys_of_query(p, piece.sequence, index.i);
  const int begin = maximum(keys.begin, piece.tile_begin * kBlockN);
  const int end = minimum(keys.end, piece.tile_end * kBlockN);
  RowStateOf<kHeadDimV> state;
  attend_row_inlined<T, Kv, TESSERA_TERMS>(p, piece.sequence, piece.b, h, index.i, begin, end, state);
  const float* sink = p.sinks != nullptr && piece.is_whole ? p.sinks + h : nullptr;
  store_row_at<T>(p, piece.sequence, piece.b, h, index.i, piece.is_whole ? -1 : first_partial + row, sink,
                  state);
}

/// Does this warp's rows of a piece again whose bits are set.
TESSERA_DEVICE void redo_rows(const AttentionParams& p, const Piece& piece, int64 first_partial, int pack,
                              unsigned spoilt) {
  TESSERA_UNROLL_BY(1)
  for (int local = 0; local < 16; ++local) {
    if (warp_any((spoilt >> local / 8 & 1u) != 0 && thread_x() % 32 / 4 == local % 8))
      redo_row_of_piece(p, piece, first_partial, pack, consumer_warp() * 16 + local);
  }
}

/// Merges the pieces of a head, one in each block of a cluster, by the warps that computed them. The block's
/// slots are free.
TESSERA_DEVICE void merge_pieces_of_cluster(const AttentionParams& p, SharedStorage& smem, int blocks) {
  const Part& part = smem.part;
  const int pack = p.num_heads / p.num_kv_heads;
  const int warp = consumer_warp();
  float* shares = reinterpret_cast<float*>(smem.slots[0]) + warp * kMaxSplits;
  const int rank = block_x() % blocks;
  const int head = block_x() / blocks;
  const int b = head / p.num_kv_heads;
  const int kv_head = head % p.num_kv_heads;
  const Sequence s = load_sequence(p, b);
  const int count = (tiles_of_sequence(p, s, kBlockN).count() - 1) / part.length + 1;
  if (count == 1) return;  // it is whole
  for (int row = rank * 4 + warp; row < s.len_q * pack; row += 4 * blocks) {
    const RowIndex index = packed_row_index(row, pack, kv_head * pack);
    const PartialRow partial = partial_row_of(p, block_x() - rank, count, b, kv_head, row);
    float o[kMergedColumns] = {};
    const float lse =
        merge_pieces(partial, p.sinks != nullptr ? p.sinks + index.h : nullptr, 0, 1, shares, o);
    store_merged(p, s, b, index, lse, o);
    sync_warp();
  }
}

}  // namespace tessera::kernels
