#pragma once

#include "sm90/decode_terms.cuh"

// The queries of sm90/attention_decode_e4m3.cu: packed rows as f16 in registers, and what their products are
// multiplied by.

namespace tessera::kernels {

constexpr int kRowTiles = TESSERA_ROW_TILES;
constexpr int kTileRows = kNarrowDecodeTileRows;
// Two at a time come by one ldmatrix; the copy engine has filled rows up with zeros.
constexpr int kQkSteps = (kHeadDimQk + 31) / 32 * 2;
static_assert(kHeadDimQk % 16 == 0, "16 bytes");
static_assert(sizeof(Kv) == 1 && kRowTiles * kTileRows <= kNarrowDecodeQueryRows);

template <class>
constexpr bool kIsF16 = false;
template <>
constexpr bool kIsF16<f16> = true;

/// The packed rows of a piece as the products take and give them: a lane gives columns of row lane / 4 of
/// each tile of q, and gets scores of rows lane % 4 * 2 and the next.
struct NarrowRows {
  unsigned q[kRowTiles][kQkSteps][2];
  float unit[kRowTiles][2];  // what products are multiplied by: score_unit() and the scales of what is stored
  RowIndex index[kRowTiles][2];
  RowTerms terms[kRowTiles][2];
  int keys_begin[kRowTiles][2];
  int keys_end[kRowTiles][2];
};

/// A row of q, four elements a step: 16 step + lane % 4 * 4. The power of two that it has been divided by.
TESSERA_DEVICE float load_q(const T* from, unsigned (&q)[kQkSteps][2]) {
  uint2 words[kQkSteps];
  TESSERA_UNROLL
  for (int step = 0; step < kQkSteps; ++step)
    words[step] = from == nullptr || step >= kHeadDimQk / 16
                      ? make_uint2(0, 0)
                      : *reinterpret_cast<const uint2*>(from + 16 * step);
  if constexpr (kIsF16<T>) {
    TESSERA_UNROLL
    for (int step = 0; step < kQkSteps; ++step) {
      q[step][0] = words[step].x;
      q[step][1] = words[step].y;
    }
    return 1.0f;
  } else {
    unsigned top = 0;  // exponents of both halves
    TESSERA_UNROLL
    for (int step = 0; step < kQkSteps; ++step)
      top = __vmaxu2(top, __vmaxu2(words[step].x & 0x7f807f80u, words[step].y & 0x7f807f80u));
    top = __vmaxu2(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = __vmaxu2(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const int exponent =
        static_cast<int>(maximum(top >> 23, top >> 7 & 0xff));  // of the largest, with its bias
    const int power = minimum(maximum(exponent - 127 - 14, -126), 126);
    const float factor = float_of_bits(static_cast<unsigned>(127 - power) << 23);
    TESSERA_UNROLL
    for (int step = 0; step < kQkSteps; ++step) {
      q[step][0] = cvt_x2<f16>(to_float(bf16{static_cast<unsigned short>(words[step].x)}) * factor,
                               to_float(bf16{static_cast<unsigned short>(words[step].x >> 16)}) * factor);
      q[step][1] = cvt_x2<f16>(to_float(bf16{static_cast<unsigned short>(words[step].y)}) * factor,
                               to_float(bf16{static_cast<unsigned short>(words[step].y >> 16)}) * factor);
    }
    return float_of_bits(static_cast<unsigned>(127 + power) << 23);
  }
}

/// What q k^T is multiplied by: for the modifier, for the polynomial of softcap, or for scores in units of
/// log2.
TESSERA_DEVICE float score_unit(const AttentionParams& p) {
  if (kHasTerms && kHasModifier) return 1.0f;
  return p.softmax_scale * (kHasSoftcap ? kPerTanhUnit / p.softcap : kLog2E);
}

TESSERA_DEVICE void load_rows(const AttentionParams& p, const Piece& piece, int pack, NarrowRows& rows) {
  const Sequence& s = piece.sequence;
  const int lane = thread_x() % 32;
  const int num_rows = s.len_q * pack;
  const float scale = product_scale_of_head(p, piece.b, piece.kv_head) * score_unit(p);
  TESSERA_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    const int own = n * kTileRows + lane / 4;
    const RowIndex index = packed_row_index(own, pack, piece.kv_head * pack);
    const T* from =
        static_cast<const T*>(p.q.data) + query_offset(p, p.q, s, piece.b, index.h, index.i) + lane % 4 * 4;
    const float power = load_q(own < num_rows ? from : nullptr, rows.q[n]);
    TESSERA_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int row = n * kTileRows + lane % 4 * 2 + e;
      rows.unit[n][e] = __shfl_sync(0xffffffffu, power, (lane % 4 * 2 + e) * 4) * scale;
      rows.index[n][e] = packed_row_index(minimum(row, num_rows - 1), pack, piece.kv_head * pack);
      rows.terms[n][e].load(p, piece, rows.index[n][e]);
      const KeyRange keys = keys_of_query(p, s, rows.index[n][e].i);
      rows.keys_begin[n][e] = keys.begin;
      rows.keys_end[n][e] = row < num_rows ? keys.end : 0;
    }
  }
}

}  // namespace tessera::kernels
