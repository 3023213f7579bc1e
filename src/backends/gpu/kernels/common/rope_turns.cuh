#pragma once

#include "common/rows.cuh"

// What kernels that rotate heads and append them to the cache have in common.

namespace tessera::kernels {

/// sin and cos of position * frequency, times factor. Positions go beyond what fp32 holds of the angle: whole
/// turns are taken off in fp64.
TESSERA_DEVICE void turn(int position, float frequency, float factor, float& s, float& c) {
  constexpr double kTurnsPerRadian = 0.15915494309189533577;
  constexpr double kTurnHigh = 6.283185307179586232;   // 2 pi rounded to fp64
  constexpr double kTurnLow = 2.4492935982947064e-16;  // and the rest
  const double angle = static_cast<double>(position) * static_cast<double>(frequency);
  const double turns = rint(angle * kTurnsPerRadian);
  const float rest = static_cast<float>((angle - turns * kTurnHigh) - turns * kTurnLow);
  s = sinf(rest) * factor;
  c = cosf(rest) * factor;
}

/// Fills `table`: num_pairs cosines, then num_pairs sines. Before it is read, sync_threads().
TESSERA_DEVICE void fill_turns(const RopeRotation& r, int64 token, float* table) {
  for (int pair = thread_x(); pair < r.num_pairs; pair += block_size()) {
    turn(r.positions[token], r.inverse_frequencies[pair], r.attention_factor, table[r.num_pairs + pair],
         table[pair]);
  }
}

/// Turns (x, y) by the angle of cosine c and sine s. The same bits wherever it is called.
TESSERA_DEVICE void rotate(float c, float s, float& x, float& y) {
  const float turned = fmaf(x, c, -(y * s));
  y = fmaf(x, s, y * c);
  x = turned;
}
/// By pair `pair` of the table.
TESSERA_DEVICE void rotate(const RopeRotation& r, const float* table, int pair, float& x, float& y) {
  rotate(table[pair], table[r.num_pairs + pair], x, y);
}

/// Where the token's keys and values go in the cache: elements before head 0.
TESSERA_DEVICE int64 cache_slot(const RopeAppendParams& p, int64 token) {
  const int position = p.rotation.positions[token];
  const int64 sequence = p.sequences[token];
  const int64 page = p.block_table == nullptr
                         ? sequence
                         : p.block_table[sequence * p.block_table_stride + position / p.page_size];
  return page * p.cache_k.row_stride + position % p.page_size * p.cache_token_stride;
}

}  // namespace tessera::kernels
