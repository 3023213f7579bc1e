// Layers that carry a state along a sequence instead of attending to its keys: short convolutions, and the
// gated delta rule (Yang, Kautz & Hatamizadeh, "Gated Delta Networks", 2024) token by token.
//
// A sequence whose rows are all that it has begins with zeros, whatever its slot holds.

#include "common/rows.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// A sequence's rows and state.
struct SequencePart {
  int64 first;  // row
  int rows;
  bool begins;
  int64 slot;
};

TESSERA_DEVICE SequencePart sequence_part(const SequenceRowsParams& p, int sequence) {
  const int first = p.cu_seqlens[sequence], rows = p.cu_seqlens[sequence + 1] - first;
  return {first, rows, p.seq_lens[sequence] == rows, p.slots[sequence]};
}

/// What a convolution is of: x of a row, times its gate if there is one.
TESSERA_DEVICE void load_conv_input(const CausalConvParams& p, int64 row, int64 column, int count,
                                    float (&u)[kGroupSize]) {
  load_group<kAnyType>(p.x, row * p.x.row_stride + column, count, u);
  if (p.x_gate.data == nullptr) return;
  float gate[kGroupSize];
  load_group<kAnyType>(p.x_gate, row * p.x_gate.row_stride + column, count, gate);
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) u[i] *= gate[i];
}

/// Grid: (sequences * row_tiles * channel_blocks). A thread has a group of channels and a sequence's
/// kConvRows rows; the first tile's brings the state along: nobody else reads or writes it.
template <int kTaps>
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
  float weight[kTaps][kGroupSize], u[kTaps][kGroupSize];
  TESSERA_UNROLL
  for (int j = 0; j < kTaps; ++j) {
    const int tap = j - (kTaps - p.taps);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      weight[j][i] = tap >= 0 && i < count ? p.weight[(column + i) * p.taps + tap] : 0.0f;
      u[j][i] = 0.0f;
    }
    // u[j] is that of row begin - kTaps + j, which the loop below moves on before it adds up.
    const int before = kTaps - j;  // rows
    if (before >= p.taps) continue;
    if (before <= begin) {
      load_conv_input(p, sequence.first + begin - before, column, count, u[j]);
    } else if (!sequence.begins) {
      const float* const stored = state + (begin - before + p.taps - 1) * p.channels;
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) u[j][i] = i < count ? stored[i] : 0.0f;
    }
  }
  float bias[kGroupSize];
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) bias[i] = p.bias != nullptr && i < count ? p.bias[column + i] : 0.0f;

  for (int t = begin; t < end; ++t) {
    const int64 row = sequence.first + t;
    TESSERA_UNROLL
    for (int j = 0; j + 1 < kTaps; ++j) {
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) u[j][i] = u[j + 1][i];
    }
    load_conv_input(p, row, column, count, u[kTaps - 1]);
    float y[kGroupSize];
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      y[i] = bias[i];
      TESSERA_UNROLL
      for (int j = 0; j < kTaps; ++j) y[i] = fmaf(weight[j][i], u[j][i], y[i]);
      if (p.is_activated != 0) y[i] = gate_activation(0, y[i]);
    }
    if (p.out_gate.data != nullptr) {
      float gate[kGroupSize];
      load_group<kAnyType>(p.out_gate, row * p.out_gate.row_stride + column, count, gate);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) y[i] *= gate[i];
    }
    store_group<kAnyType>(p.out, row * p.out.row_stride + column, count, y);
  }

  if (tile != 0) return;
  TESSERA_UNROLL
  for (int j = 1; j < kTaps; ++j) {
    const int before = kTaps - j;  // of the sequence's last rows the newest has 1
    if (before >= p.taps) continue;
    if (sequence.rows > end) load_conv_input(p, sequence.first + sequence.rows - before, column, count, u[j]);
    float* const stored = state + (p.taps - 1 - before) * p.channels;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (i < count) stored[i] = u[j][i];
    }
  }
}

TESSERA_DEVICE float softplus(float x) { return maximum(x, 0.0f) + log1pf(expf(-fabsf(x))); }

/// The sum of the lanes that share a column, in all of them.
TESSERA_DEVICE float sum_of_lanes(float value) {
  TESSERA_UNROLL
  for (int mask = 1; mask < kDeltaLanes; mask *= 2) value += shuffle_xor(value, mask);
  return value;
}

/// What the rows of a piece bring.
template <int kKeys>
struct alignas(16) DeltaRows {
  float k[kDeltaRows][kKeys], q[kDeltaRows][kKeys];  // of length 1, and q by sqrt(key_dim)
  float v[kDeltaRows][kDeltaColumns], out[kDeltaRows][kDeltaColumns];
  float decay[kDeltaRows], beta[kDeltaRows];
};

/// A head of keys or queries by kDeltaLanes lanes, zeros up to kKeys, divided by its length and `divisor`.
template <int kKeys>
TESSERA_DEVICE void load_unit_head(const RowsArgument& m, int64 offset, int key_dim, float divisor, int lane,
                                   float* out) {
  float squares = 0.0f;
  for (int i = lane; i < kKeys; i += kDeltaLanes) {
    const float x = i < key_dim ? load_scalar(m, offset + i) : 0.0f;
    out[i] = x;
    squares = fmaf(x, x, squares);
  }
  const float factor = 1.0f / (sqrtf(sum_of_lanes(squares) + 1e-6f) * divisor);
  for (int i = lane; i < kKeys; i += kDeltaLanes) out[i] *= factor;
}

/// Grid: (sequences * heads of values * column_blocks). A block has some of a head's columns in registers:
/// of a column's keys lane l has 4 l to 4 l + 3 of each 4 kDeltaLanes.
template <int kKeys>
TESSERA_DEVICE void gated_delta(const GatedDeltaParams& p, DeltaRows<kKeys>& rows) {
  constexpr int kParts = kKeys / (4 * kDeltaLanes);
  const int column_block = block_x() % p.column_blocks, rest = block_x() / p.column_blocks;
  const int head = rest % p.num_value_heads;
  const SequencePart sequence = sequence_part(p.sequences, rest / p.num_value_heads);
  if (sequence.rows == 0) return;
  const int lane = thread_x() % kDeltaLanes, own = thread_x() / kDeltaLanes;
  const int first_column = column_block * kDeltaColumns, column = first_column + own;
  const bool has_column = column < p.value_dim;
  const int key_head = p.values_of_key == 0 ? head % p.num_key_heads : head / p.values_of_key;
  const int64 key_offset = static_cast<int64>(key_head) * p.key_dim;
  const int64 value_offset = static_cast<int64>(head) * p.value_dim + first_column;
  float* const stored =
      p.state + ((sequence.slot * p.num_value_heads + head) * p.value_dim + column) * p.key_dim;
  const float rate = expf(p.a_log[head]), dt_bias = p.dt_bias[head];
  const float root = sqrtf(static_cast<float>(p.key_dim));

  float state[kParts][4];
  TESSERA_UNROLL
  for (int n = 0; n < kParts; ++n) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int key = (n * kDeltaLanes + lane) * 4 + i;
      state[n][i] = has_column && key < p.key_dim && !sequence.begins ? stored[key] : 0.0f;
    }
  }
  for (int begin = 0; begin < sequence.rows; begin += kDeltaRows) {
    const int count = minimum(kDeltaRows, sequence.rows - begin);
    const int64 first = sequence.first + begin;
    // A column's lanes bring a row's key or query. All lanes take part, since they add up together.
    for (int part = 0; part < 2 * count; part += kDeltaColumns) {
      const int t = (part + own) / 2, key_dim = t < count ? p.key_dim : 0;
      const bool is_key = own % 2 == 0;
      const RowsArgument& m = is_key ? p.k : p.q;
      load_unit_head<kKeys>(m, (first + t) * m.row_stride + key_offset, key_dim, is_key ? 1.0f : root, lane,
                            is_key ? rows.k[t] : rows.q[t]);
    }
    for (int n = thread_x(); n < count * kDeltaColumns; n += kDeltaThreads) {
      const int i = n % kDeltaColumns;
      if (first_column + i < p.value_dim)
        rows.v[n / kDeltaColumns][i] =
            load_scalar(p.v, (first + n / kDeltaColumns) * p.v.row_stride + value_offset + i);
    }
    for (int n = thread_x(); n < count; n += kDeltaThreads) {
      const float dt = load_scalar(p.a, (first + n) * p.a.row_stride + head) + dt_bias;
      rows.decay[n] = expf(-rate * softplus(dt));
      rows.beta[n] = 1.0f / (1.0f + expf(-load_scalar(p.b, (first + n) * p.b.row_stride + head)));
    }
    sync_threads();
    for (int t = 0; t < count; ++t) {
      const float decay = rows.decay[t];
      float k[kParts][4], known = 0.0f, out = 0.0f;
      TESSERA_UNROLL
      for (int n = 0; n < kParts; ++n) {
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) {
          k[n][i] = rows.k[t][(n * kDeltaLanes + lane) * 4 + i];
          known = fmaf(state[n][i], k[n][i], known);
        }
      }
      const float v = has_column ? rows.v[t][own] : 0.0f;
      const float change = rows.beta[t] * fmaf(-decay, sum_of_lanes(known), v);
      TESSERA_UNROLL
      for (int n = 0; n < kParts; ++n) {
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) {
          state[n][i] = fmaf(change, k[n][i], decay * state[n][i]);
          out = fmaf(state[n][i], rows.q[t][(n * kDeltaLanes + lane) * 4 + i], out);
        }
      }
      out = sum_of_lanes(out);
      if (lane == 0) rows.out[t][own] = out;
    }
    sync_threads();
    for (int n = thread_x(); n < count * kDeltaColumns; n += kDeltaThreads) {
      const int i = n % kDeltaColumns;
      if (first_column + i < p.value_dim)
        store_scalar(p.out, (first + n / kDeltaColumns) * p.out.row_stride + value_offset + i,
                     rows.out[n / kDeltaColumns][i]);
    }
    sync_threads();  // before the next rows take their place
  }
  TESSERA_UNROLL
  for (int n = 0; n < kParts; ++n) {
    TESSERA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int key = (n * kDeltaLanes + lane) * 4 + i;
      if (has_column && key < p.key_dim) stored[key] = state[n][i];
    }
  }
}

}  // namespace tessera::kernels

// Of up to so many taps.
TESSERA_KERNEL(causal_conv_4, kConvThreads)(const CausalConvParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  causal_conv<4>(p);
}
TESSERA_KERNEL(causal_conv_8, kConvThreads)(const CausalConvParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  causal_conv<8>(p);
}

// Of heads of up to so many keys.
TESSERA_KERNEL(gated_delta_128, kDeltaThreads)(const GatedDeltaParams p) {
  TESSERA_SHARED(rows, DeltaRows<128>);
  allow_next_kernel();
  wait_for_prior_kernels();
  gated_delta<128>(p, rows);
}
TESSERA_KERNEL(gated_delta_256, kDeltaThreads)(const GatedDeltaParams p) {
  TESSERA_SHARED(rows, DeltaRows<256>);
  allow_next_kernel();
  wait_for_prior_kernels();
  gated_delta<256>(p, rows);
}
