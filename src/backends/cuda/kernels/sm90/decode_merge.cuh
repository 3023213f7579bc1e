#pragma once

#include "common/decode_parts.cuh"
#include "sm90/attention_arguments.h"
#include "sm90/attention_decode_traits.h"
#include "sm90/decode_dims.cuh"
#include "sm90/ptx.cuh"

// From the partial results of a head's pieces to o and lse:
//
//   lse = log(sum exp(lse_n)),  o = sum exp(lse_n - lse) o_n        n: pieces of a head

namespace tessera::kernels {

/// What the lanes of a warp that shares a row's head_dim out hold each: pairs of neighbours, 64 columns
/// apart.
constexpr int kMergedColumns = decode_merged_columns(kHeadDimV) / 32;

/// Of a lane's elements i and i + 1; the row may end before.
TESSERA_DEVICE int merged_column(int i) { return i / 2 * 64 + thread_x() % 32 * 2; }
TESSERA_DEVICE bool has_merged_column(int i) { return kHeadDimV % 64 == 0 || merged_column(i) < kHeadDimV; }

/// The partial results of a row.
struct PartialRow {
  const float* o;
  const float* lse;
  int64 stride;  // in rows, between pieces
  int count;
};

TESSERA_DEVICE PartialRow partial_row_of(const AttentionParams& p, int first_part, int count, int b,
                                         int kv_head, int row) {
  const int64 first = partial_row_of_piece(p, first_part, b, kv_head) + row;
  return {p.o_partial + first * kHeadDimV, p.lse_partial + first,
          static_cast<int64>(p.seq_len_q) * (p.num_heads / p.num_kv_heads), count};
}

/// By a warp: turns each piece's lse into its share of the row, shares[0 .. count), with the sink's logit (or
/// null) in the denominator. The row's lse.
TESSERA_DEVICE float shares_of_pieces(const PartialRow& row, const float* sink, float* shares) {
  const int lane = thread_x() % 32;
  float lse[kMaxSplits / 32];
  float top = -infinity();
  TESSERA_UNROLL
  for (int i = 0; i < kMaxSplits / 32; ++i) {
    const int n = lane + 32 * i;
    lse[i] = n < row.count ? row.lse[n * row.stride] : -infinity();
  }
  TESSERA_UNROLL
  for (int i = 0; i < kMaxSplits / 32; ++i) top = maximum_or_nan(top, lse[i]);
  for (int mask = 16; mask > 0; mask /= 2) top = maximum_or_nan(top, shuffle_xor(top, mask));
  const bool has_keys = top != -infinity();
  if (has_keys && sink != nullptr) top = maximum(top, *sink);
  float sum = 0.0f;
  TESSERA_UNROLL
  for (int i = 0; i < kMaxSplits / 32; ++i) {
    lse[i] = lse[i] == -infinity() ? 0.0f : expf(lse[i] - top);
    sum += lse[i];
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (has_keys && sink != nullptr) sum += expf(*sink - top);
  TESSERA_UNROLL
  for (int i = 0; i < kMaxSplits / 32; ++i) {
    const int n = lane + 32 * i;
    if (n < row.count) shares[n] = has_keys ? lse[i] / sum : 0.0f;
  }
  sync_warp();
  return has_keys ? top + logf(sum) : -infinity();
}

/// Of a row, that a warp has on their way at once.
constexpr int kEarlyPieces = kMergedColumns > 4 ? 32 / kMergedColumns : 9;

/// Elements i and i + 1 that the lane has of piece n.
TESSERA_DEVICE float2 merged_pair(const PartialRow& row, int n, int i) {
  if (!has_merged_column(i)) return make_float2(0.0f, 0.0f);
  return *reinterpret_cast<const float2*>(row.o + n * row.stride * kHeadDimV + merged_column(i));
}

/// By a warp: o of a row by pieces begin, begin + step, ..., whose first ones are on their way while their
/// shares are computed, and its lse. shares: [0 .. count).
TESSERA_DEVICE float merge_pieces(const PartialRow& row, const float* sink, int begin, int step,
                                  float* shares, float (&o)[kMergedColumns]) {
  float2 early[kEarlyPieces][kMergedColumns / 2];
  TESSERA_UNROLL
  for (int k = 0; k < kEarlyPieces; ++k) {
    const int n = begin + k * step;
    TESSERA_UNROLL
    for (int i = 0; i < kMergedColumns; i += 2) {
      early[k][i / 2] = n < row.count ? merged_pair(row, n, i) : make_float2(0.0f, 0.0f);
    }
  }
  const float lse = shares_of_pieces(row, sink, shares);
  TESSERA_UNROLL
  for (int k = 0; k < kEarlyPieces; ++k) {
    const int n = begin + k * step;
    if (n >= row.count) break;
    TESSERA_UNROLL
    for (int i = 0; i < kMergedColumns; i += 2) {
      o[i] += shares[n] * early[k][i / 2].x;
      o[i + 1] += shares[n] * early[k][i / 2].y;
    }
  }
  TESSERA_UNROLL_BY(8)
  for (int n = begin + kEarlyPieces * step; n < row.count; n += step) {
    TESSERA_UNROLL
    for (int i = 0; i < kMergedColumns; i += 2) {
      const float2 values = merged_pair(row, n, i);
      o[i] += shares[n] * values.x;
      o[i + 1] += shares[n] * values.y;
    }
  }
  return lse;
}

TESSERA_DEVICE void store_merged(const AttentionParams& p, const Sequence& s, int b, const RowIndex& index,
                                 float lse, const float (&o)[kMergedColumns]) {
  const int lane = thread_x() % 32;
  T* out = static_cast<T*>(p.o.data) + query_offset(p, p.o, s, b, index.h, index.i);
  TESSERA_UNROLL
  for (int i = 0; i < kMergedColumns; i += 2) {
    if (has_merged_column(i))
      *reinterpret_cast<unsigned*>(out + merged_column(i)) = cvt_x2<T>(o[i], o[i + 1]);
  }
  if (lane == 0 && p.lse.data != nullptr) p.lse.data[lse_offset(p, s, b, index.h, index.i)] = lse;
}

/// What attention_decode_combine does, with its wait for the pieces. Heads that are whole are in o already;
/// of the others the blocks take every grid-th group of rows.
TESSERA_DEVICE void combine_pieces(const DecodeCombineArguments& arguments) {
  TESSERA_SHARED(shares, float[4][kMaxSplits]);
  TESSERA_SHARED(sums, float[4][32 * kMergedColumns]);
  const AttentionParams& p = arguments.params;
  const int lane = thread_x() % 32;
  const int warp = thread_x() / 32;
  const int pack = p.num_heads / p.num_kv_heads;
  const int kv_head = block_y();
  const int b = p.batch_begin + block_z();
  const int warps_of_row = arguments.warps_of_row;
  const int rows_at_once = 4 / warps_of_row;
  const int head = b * p.num_kv_heads + kv_head;
  const bool knows_pieces = is_uniform(p) && arguments.parts.parts_of_head == 0;
  DecodePiecesOfHead pieces = {0, 0};
  if (knows_pieces) pieces = pieces_of_uniform_head(p, arguments.parts, head);
  wait_for_prior_kernels();
  if (!knows_pieces) pieces = arguments.parts.pieces[head];
  const Sequence s = load_sequence(p, b);
  if (s.len_q == 0 || pieces.count == 1) return;
  const int num_rows = s.len_q * pack;
  for (int first = block_x() * rows_at_once; first < num_rows; first += grid_x() * rows_at_once) {
    const int row = first + warp / warps_of_row;
    const bool exists = row < num_rows;
    float o[kMergedColumns] = {};
    float lse = 0.0f;
    const RowIndex index = packed_row_index(row, pack, kv_head * pack);
    if (exists) {
      const PartialRow partial = partial_row_of(p, pieces.first_part, pieces.count, b, kv_head, row);
      lse = merge_pieces(partial, p.sinks != nullptr ? p.sinks + index.h : nullptr, warp % warps_of_row,
                         warps_of_row, shares[warp], o);
    }
    if (warps_of_row > 1) {
      TESSERA_UNROLL
      for (int i = 0; i < kMergedColumns; ++i) sums[warp][lane * kMergedColumns + i] = o[i];
      sync_threads();
      for (int other = 1; other < (warp % warps_of_row == 0 ? warps_of_row : 1); ++other) {
        TESSERA_UNROLL
        for (int i = 0; i < kMergedColumns; ++i) o[i] += sums[warp + other][lane * kMergedColumns + i];
      }
    }
    if (exists && warp % warps_of_row == 0) store_merged(p, s, b, index, lse, o);
    sync_threads();  // shares and sums are free again
  }
}

}  // namespace tessera::kernels
