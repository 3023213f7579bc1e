// Short convolutions over the rows of sequences, channel by channel, between two gates if there are any.

#include "common/sequence_part.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// What a convolution is of: x of a row, times its gate if there is one.
template <class T>
TESSERA_DEVICE void load_conv_input(const CausalConvParams& p, int64 row, int64 column, int count,
                                    float (&u)[kGroupSize]) {
  load_columns_of<T>(p.x, row, column, count, u);
  if (p.x_gate.data == nullptr) return;
  float gate[kGroupSize];
  load_columns_of<T>(p.x_gate, row, column, count, gate);
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) u[i] *= gate[i];
}

/// Grid: (sequences * row_tiles * channel_blocks). A thread has a group of channels and a sequence's
/// kConvRows rows; the first tile's brings the state along: nobody else reads or writes it.
template <class T, int kTaps>
TESSERA_DEVICE void causal_conv(const CausalConvParams& p) {
  const int channel_block = block_x() % p.channel_blocks, rest = block_x() / p.channel_blocks;
  const int tile = rest % p.row_tiles;
  const SequencePart sequence = sequence_part(p.sequences, rest / p.row_tiles);
  const int begin = tile * kConvRows, end = minimum(begin + kConvRows, sequence.rows);
  const int64 group = static_cast<int64>(channel_block) * kConvThreads + thread_x();
  const int count = group_count(p.channels, group);
  if (begin >= end || count <= 0) return;
  const int64 column = group * kGroupSize;
  float* const state = p.state + sequence.slot * (p.taps - 1) * p.channels + column;

  // The last of the taps that there may be; those before have weights of 0.
  float weight[kTaps][kGroupSize], u[kTaps][kGroupSize], bias[kGroupSize];
  TESSERA_UNROLL
  for (int j = 0; j < kTaps; ++j) {
    const int tap = j - (kTaps - p.taps);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      weight[j][i] = tap >= 0 && i < count ? p.weight[tap * p.channels + column + i] : 0.0f;
      u[j][i] = 0.0f;
    }
    // u[j] is that of row begin - kTaps + j, which the loop below moves on before it adds up.
    const int before = kTaps - j;  // rows
    if (before >= p.taps) continue;
    if (before <= begin) {
      load_conv_input<T>(p, sequence.first + begin - before, column, count, u[j]);
    } else if (!sequence.begins) {
      const float* const stored = state + (begin - before + p.taps - 1) * p.channels;
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) u[j][i] = i < count ? stored[i] : 0.0f;
    }
  }
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) bias[i] = p.bias != nullptr && i < count ? p.bias[column + i] : 0.0f;

  constexpr int kRowsAtOnce = is_same<T, AnyElement> ? 1 : 4;  // whose loads don't wait for each other
  for (int first = begin; first < end; first += kRowsAtOnce) {
    float x[kRowsAtOnce][kGroupSize], gate[kRowsAtOnce][kGroupSize];
    TESSERA_UNROLL
    for (int n = 0; n < kRowsAtOnce; ++n) {
      const int64 row = sequence.first + minimum(first + n, end - 1);
      load_conv_input<T>(p, row, column, count, x[n]);
      if (p.out_gate.data != nullptr) load_columns_of<T>(p.out_gate, row, column, count, gate[n]);
    }
    TESSERA_UNROLL
    for (int n = 0; n < kRowsAtOnce; ++n) {
      if (first + n >= end) continue;
      float y[kGroupSize];
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) {
        TESSERA_UNROLL
        for (int j = 0; j + 1 < kTaps; ++j) u[j][i] = u[j + 1][i];
        u[kTaps - 1][i] = x[n][i];
        y[i] = bias[i];
        TESSERA_UNROLL
        for (int j = 0; j < kTaps; ++j) y[i] = fmaf(weight[j][i], u[j][i], y[i]);
        if (p.is_activated != 0) y[i] = gate_activation(0, y[i]);
        if (p.out_gate.data != nullptr) y[i] *= gate[n][i];
      }
      store_columns_of<T>(p.out, sequence.first + first + n, column, count, y);
    }
  }

  if (tile != 0) return;
  TESSERA_UNROLL
  for (int j = 1; j < kTaps; ++j) {
    const int before = kTaps - j;  // of the sequence's last rows the newest has 1
    if (before >= p.taps) continue;
    if (sequence.rows > end)
      load_conv_input<T>(p, sequence.first + sequence.rows - before, column, count, u[j]);
    float* const stored = state + (p.taps - 1 - before) * p.channels;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (i < count) stored[i] = u[j][i];
    }
  }
}

template <class T, int kTaps>
TESSERA_DEVICE void run_causal_conv(const CausalConvParams& p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  causal_conv<T, kTaps>(p);
}

}  // namespace tessera::kernels

// Of up to so many taps; x, gates and out of one type in whole groups at multiples of 16 bytes, and any.
TESSERA_KERNEL(causal_conv_4_f32, kConvThreads)(const CausalConvParams p) { run_causal_conv<float, 4>(p); }
TESSERA_KERNEL(causal_conv_4_f16, kConvThreads)(const CausalConvParams p) { run_causal_conv<f16, 4>(p); }
TESSERA_KERNEL(causal_conv_4_bf16, kConvThreads)(const CausalConvParams p) { run_causal_conv<bf16, 4>(p); }
TESSERA_KERNEL(causal_conv_4_any, kConvThreads)(const CausalConvParams p) {
  run_causal_conv<AnyElement, 4>(p);
}
TESSERA_KERNEL(causal_conv_8_any, kConvThreads)(const CausalConvParams p) {
  run_causal_conv<AnyElement, 8>(p);
}
