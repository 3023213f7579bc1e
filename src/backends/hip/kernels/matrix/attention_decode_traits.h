#pragma once

#include "matrix/matrix_traits.h"

// attention_decode.hip's tiles, and what they take of LDS.

namespace tessera::kernels {

constexpr int kDecodeTile = 16;       // rows, keys and columns of a product
constexpr int kMostWideHeadQk = 576;  // head_dims of latent attention, on CDNA
constexpr int kMostWideHeadV = 512;
constexpr int kMostDecodeSums = 64;  // of a lane: a quarter of its registers

struct MatrixDecodeTiles {
  int num_waves;
  int row_tiles;
};

/// Groups of lanes, each of which has a part of an operand's k.
TESSERA_TRAIT int lane_groups(const MatrixUnitTraits& unit) { return unit.wave_size / kDecodeTile; }

/// Waves that take the same keys and a part of V's columns each.
TESSERA_TRAIT int decode_column_parts(const MatrixUnitTraits& unit, int row_tiles, int head_dim_v) {
  return parts_of(row_tiles * head_dim_v / lane_groups(unit), kMostDecodeSums);
}

/// Columns of such a part.
TESSERA_TRAIT int decode_part_dims(int parts, int head_dim_v) {
  return whole_parts(head_dim_v / parts, kDecodeTile);
}

/// LDS, in words: q's parts of each row tile as the lanes read them, whose place each wave's sums of some
/// output tiles take later; then the maxima and sums of waves with keys of their own.
struct MatrixDecodeLayout {
  int quads;         // of 4 words, of a lane's part of q
  int round_tiles;   // output tiles of a wave that are merged at once
  int round_stride;  // from one row of their sums to the next: lanes that write a row each take other banks
  int round;         // of a wave
  int state;         // of a wave
  int states;        // where they begin
  int all;
};

TESSERA_TRAIT MatrixDecodeLayout matrix_decode_layout(const MatrixDecodeTiles& t,
                                                      const MatrixUnitTraits& unit, int element_bytes,
                                                      int head_dim_qk, int head_dim_v) {
  const int parts = decode_column_parts(unit, t.row_tiles, head_dim_v);
  const int out_tiles = decode_part_dims(parts, head_dim_v) / kDecodeTile;
  const int most_round_tiles = t.num_waves * t.row_tiles < 8 ? 4 : 2;
  MatrixDecodeLayout l = {};
  l.quads = parts_of(head_dim_qk * element_bytes / lane_groups(unit), 16);
  l.round_tiles = out_tiles < most_round_tiles ? out_tiles : most_round_tiles;
  l.round_stride = kDecodeTile * l.round_tiles + 4;
  l.round = t.row_tiles * kDecodeTile * l.round_stride;
  l.state = 2 * t.row_tiles * kDecodeTile;
  l.states = larger_of(t.row_tiles * l.quads * unit.wave_size * 4, t.num_waves * l.round);
  l.all = l.states + t.num_waves / parts * l.state;
  return l;
}

}  // namespace tessera::kernels
