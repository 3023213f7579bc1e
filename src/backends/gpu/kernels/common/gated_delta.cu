// The gated delta rule (Yang, Kautz & Hatamizadeh, "Gated Delta Networks", 2024), token by token: a block
// keeps some columns of a head's matrix in registers over all rows of a sequence, whose keys and queries come
// by pieces through shared memory, the next piece on its way while one is worked on.

#include "common/sequence_part.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// What the rows of a piece bring.
template <int kKeys>
struct alignas(16) DeltaRows {
  float k[kDeltaRows][kKeys], q[kDeltaRows][kKeys];  // of length 1, and q by sqrt(key_dim)
  float v[kDeltaRows][kDeltaColumns], out[kDeltaRows][kDeltaColumns];
  float decay[kDeltaRows], beta[kDeltaRows];
};

/// log(1 + exp(x)). log(1 + e) of a small e is e times log(u) / (u - 1) with u = 1 + e as rounded (Kahan).
TESSERA_DEVICE float softplus(float x) {
  const float e = expf(-fabsf(x)), u = 1.0f + e;
  return maximum(x, 0.0f) + (u == 1.0f ? e : logf(u) * (e / (u - 1.0f)));
}

/// The sum of kLanes neighbouring lanes, in all of them.
template <int kLanes>
TESSERA_DEVICE float sum_of_lanes(float value) {
  TESSERA_UNROLL
  for (int mask = 1; mask < kLanes; mask *= 2) value += shuffle_xor(value, mask);
  return value;
}

/// A group of a key or query on its way.
template <class T>
struct PendingGroup {
  PackedGroup<T> packed;
  bool is_there;

  TESSERA_DEVICE void load(const RowsArgument& m, int64 row, int64 column, int count) {
    is_there = count > 0;
    if (is_there) packed.load(static_cast<const T*>(m.data) + row * m.row_stride + column, 0);
  }
  TESSERA_DEVICE void get(float (&v)[kGroupSize]) const {
    if (is_there) {
      packed.get(v);
    } else {
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) v[i] = 0.0f;
    }
  }
};
template <>
struct PendingGroup<AnyElement> {
  float v[kGroupSize];

  TESSERA_DEVICE void load(const RowsArgument& m, int64 row, int64 column, int count) {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) v[i] = 0.0f;
    if (count > 0) load_columns_of<AnyElement>(m, row, column, count, v);
  }
  TESSERA_DEVICE void get(float (&out)[kGroupSize]) const {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) out[i] = v[i];
  }
};

/// Which head and columns a block has.
struct DeltaPlace {
  SequencePart sequence;
  int head, first_column;
  int64 key_column, value_column;
};

/// A piece's rows as a thread brings them: its groups of keys and queries, which as many threads share as a
/// key has groups, its values, and of one row the numbers of decay and change.
template <class T, int kKeys>
struct DeltaPiece {
  static constexpr int kThreads = kDeltaThreads<kKeys>;
  static constexpr int kLanes = kKeys / kGroupSize;  // of a key
  static constexpr int kKeysAtOnce = kThreads / kLanes;
  static constexpr int kPasses = 2 * kDeltaRows / kKeysAtOnce;
  static constexpr int kValues = kDeltaRows * kDeltaColumns / kThreads;

  PendingGroup<T> group[kPasses];
  float v[kValues], a, b;

  static TESSERA_DEVICE int lane() { return thread_x() % kLanes; }
  /// Of pass n: the row within the piece; keys and queries by turns.
  static TESSERA_DEVICE int key_row(int n) { return (n * kKeysAtOnce + thread_x() / kLanes) / 2; }
  static TESSERA_DEVICE bool is_query() { return thread_x() / kLanes % 2 != 0; }

  TESSERA_DEVICE void load(const GatedDeltaParams& p, const DeltaPlace& place, int begin) {
    const int count = place.sequence.rows - begin;
    const int64 first = place.sequence.first + begin;
    const int64 column = static_cast<int64>(lane()) * kGroupSize;
    const RowsArgument& m = is_query() ? p.q : p.k;
    TESSERA_UNROLL
    for (int n = 0; n < kPasses; ++n) {
      const int columns = key_row(n) < count ? group_count(p.key_dim, lane()) : 0;
      group[n].load(m, first + key_row(n), place.key_column + column, columns);
    }
    TESSERA_UNROLL
    for (int n = 0; n < kValues; ++n) {
      const int i = n * kThreads + thread_x(), row = i / kDeltaColumns, own = i % kDeltaColumns;
      const bool is_there = row < count && place.first_column + own < p.value_dim;
      v[n] = is_there ? load_element_of<T>(p.v, first + row, place.value_column + own) : 0.0f;
    }
    const bool has_row = thread_x() < minimum(count, kDeltaRows);
    a = has_row ? load_element_of<T>(p.a, first + thread_x(), place.head) : 0.0f;
    b = has_row ? load_element_of<T>(p.b, first + thread_x(), place.head) : 0.0f;
  }

  TESSERA_DEVICE void store(float rate, float dt_bias, float root, DeltaRows<kKeys>& rows) const {
    TESSERA_UNROLL
    for (int n = 0; n < kPasses; ++n) {
      float x[kGroupSize], squares = 0.0f;
      group[n].get(x);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) squares = fmaf(x[i], x[i], squares);
      const float length = sqrtf(sum_of_lanes<kLanes>(squares) + 1e-6f);  // kDeltaLengthEps
      const float factor = 1.0f / (is_query() ? length * root : length);
      float* const out = (is_query() ? rows.q : rows.k)[key_row(n)] + lane() * kGroupSize;
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) out[i] = x[i] * factor;
    }
    TESSERA_UNROLL
    for (int n = 0; n < kValues; ++n) {
      const int i = n * kThreads + thread_x();
      rows.v[i / kDeltaColumns][i % kDeltaColumns] = v[n];
    }
    if (thread_x() < kDeltaRows) {
      rows.decay[thread_x()] = expf(-rate * softplus(a + dt_bias));
      rows.beta[thread_x()] = 1.0f / (1.0f + expf(-b));
    }
  }
};

/// A lane's part of its columns: keys 4 l to 4 l + 3 of each 4 kDeltaLanes, multiplied by all of them, so
/// that keys and queries are read seldom.
template <int kKeys>
struct DeltaColumns {
  static constexpr int kParts = kKeys / (4 * kDeltaLanes);
  static constexpr int kOwn = kDeltaOwnColumns<kKeys>;
  float number[kOwn][kParts][4];

  static TESSERA_DEVICE int key(int n) { return (n * kDeltaLanes + thread_x() % kDeltaLanes) * 4; }
  /// Within the block's.
  static TESSERA_DEVICE int column(int c) { return c * (kDeltaColumns / kOwn) + thread_x() / kDeltaLanes; }

  /// Of `stored`, the block's first column, numbers of key_dim keys a column; four at once where all columns
  /// stand at multiples of 16 bytes.
  TESSERA_DEVICE void load(const float* stored, int key_dim, int num_columns) {
    TESSERA_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      const float* const from = stored + static_cast<int64>(column(c)) * key_dim;
      TESSERA_UNROLL
      for (int n = 0; n < kParts; ++n) {
        const int left = column(c) < num_columns ? key_dim - key(n) : 0;
        Vector<float, 4> words = {};
        if (key_dim % 4 == 0) {
          if (left > 0) words = *reinterpret_cast<const Vector<float, 4>*>(from + key(n));
        } else {
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i)
            if (i < left) words.element[i] = from[key(n) + i];
        }
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) number[c][n][i] = words.element[i];
      }
    }
  }
  TESSERA_DEVICE void store(float* stored, int key_dim, int num_columns) const {
    TESSERA_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      float* const to = stored + static_cast<int64>(column(c)) * key_dim;
      TESSERA_UNROLL
      for (int n = 0; n < kParts; ++n) {
        const int left = column(c) < num_columns ? key_dim - key(n) : 0;
        if (key_dim % 4 == 0) {
          Vector<float, 4> words;
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i) words.element[i] = number[c][n][i];
          if (left > 0) *reinterpret_cast<Vector<float, 4>*>(to + key(n)) = words;
        } else {
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i)
            if (i < left) to[key(n) + i] = number[c][n][i];
        }
      }
    }
  }

  /// A row of a piece; the lane's parts of what comes out.
  TESSERA_DEVICE void step(const DeltaRows<kKeys>& rows, int t, float (&out)[kOwn]) {
    const float decay = rows.decay[t], beta = rows.beta[t];
    float k[kParts][4], known[kOwn][4] = {}, part[kOwn][4] = {};
    TESSERA_UNROLL
    for (int n = 0; n < kParts; ++n) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        k[n][i] = rows.k[t][key(n) + i];
        TESSERA_UNROLL
        for (int c = 0; c < kOwn; ++c) known[c][i] = fmaf(number[c][n][i], k[n][i], known[c][i]);
      }
    }
    float change[kOwn];
    TESSERA_UNROLL
    for (int c = 0; c < kOwn; ++c) change[c] = (known[c][0] + known[c][1]) + (known[c][2] + known[c][3]);
    TESSERA_UNROLL
    for (int mask = 1; mask < kDeltaLanes; mask *= 2) {
      TESSERA_UNROLL
      for (int c = 0; c < kOwn; ++c) change[c] += shuffle_xor(change[c], mask);
    }
    TESSERA_UNROLL
    for (int c = 0; c < kOwn; ++c) change[c] = beta * fmaf(-decay, change[c], rows.v[t][column(c)]);
    TESSERA_UNROLL
    for (int n = 0; n < kParts; ++n) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float q = rows.q[t][key(n) + i];
        TESSERA_UNROLL
        for (int c = 0; c < kOwn; ++c) {
          number[c][n][i] = fmaf(change[c], k[n][i], decay * number[c][n][i]);
          part[c][i] = fmaf(number[c][n][i], q, part[c][i]);
        }
      }
    }
    TESSERA_UNROLL
    for (int c = 0; c < kOwn; ++c) out[c] = (part[c][0] + part[c][1]) + (part[c][2] + part[c][3]);
  }

  /// kRows rows, a power of two up to a column's lanes: each of so many lanes ends with what comes out of one
  /// of them, added up in the order of sum_of_lanes.
  template <int kRows>
  TESSERA_DEVICE void steps(DeltaRows<kKeys>& rows, int first) {
    float out[kRows][kOwn];
    TESSERA_UNROLL
    for (int t = 0; t < kRows; ++t) step(rows, first + t, out[t]);
    const int lane = thread_x() % kDeltaLanes;
    TESSERA_UNROLL
    for (int mask = 1; mask < kDeltaLanes; mask *= 2) {
      const bool is_odd = (lane & mask) != 0;
      TESSERA_UNROLL
      for (int c = 0; c < kOwn; ++c) {
        if (mask < kRows) {
          TESSERA_UNROLL
          for (int i = 0; i < kRows / (2 * mask); ++i) {
            const float kept = is_odd ? out[2 * i + 1][c] : out[2 * i][c];
            out[i][c] = kept + shuffle_xor(is_odd ? out[2 * i][c] : out[2 * i + 1][c], mask);
          }
        } else {
          out[0][c] += shuffle_xor(out[0][c], mask);
        }
      }
    }
    if (lane >= kRows) return;
    TESSERA_UNROLL
    for (int c = 0; c < kOwn; ++c) rows.out[first + lane][column(c)] = out[0][c];
  }
};

/// Grid: (sequences * heads of values * column_blocks).
template <class T, int kKeys>
TESSERA_DEVICE void gated_delta(const GatedDeltaParams& p, DeltaRows<kKeys>& rows) {
  constexpr int kThreads = kDeltaThreads<kKeys>;
  allow_next_kernel();
  wait_for_prior_kernels();
  const int column_block = block_x() % p.column_blocks, rest = block_x() / p.column_blocks;
  DeltaPlace place;
  place.sequence = sequence_part(p.sequences, rest / p.num_value_heads);
  if (place.sequence.rows == 0) return;
  place.head = rest % p.num_value_heads;
  place.first_column = column_block * kDeltaColumns;
  const int key_head = p.values_of_key == 0 ? place.head % p.num_key_heads : place.head / p.values_of_key;
  place.key_column = static_cast<int64>(key_head) * p.key_dim;
  place.value_column = static_cast<int64>(place.head) * p.value_dim + place.first_column;

  DeltaPiece<T, kKeys> piece;
  piece.load(p, place, 0);
  float* const stored =
      p.state +
      ((place.sequence.slot * p.num_value_heads + place.head) * p.value_dim + place.first_column) * p.key_dim;
  const int num_columns = p.value_dim - place.first_column;
  DeltaColumns<kKeys> state;
  state.load(stored, p.key_dim, place.sequence.begins ? 0 : num_columns);
  const float rate = expf(p.a_log[place.head]), dt_bias = p.dt_bias[place.head];
  const float root = sqrtf(static_cast<float>(p.key_dim));
  for (int begin = 0; begin < place.sequence.rows; begin += kDeltaRows) {
    const int count = minimum(kDeltaRows, place.sequence.rows - begin);
    piece.store(rate, dt_bias, root, rows);
    sync_threads();
    if (begin + kDeltaRows < place.sequence.rows) piece.load(p, place, begin + kDeltaRows);
    int t = 0;
    constexpr int kRowsAtOnce = kKeys <= 128 ? 8 : 1;  // as registers allow
    for (; t + kRowsAtOnce <= count; t += kRowsAtOnce) state.template steps<kRowsAtOnce>(rows, t);
    for (; t < count; ++t) state.template steps<1>(rows, t);
    sync_threads();
    for (int n = thread_x(); n < count * kDeltaColumns; n += kThreads) {
      const int t = n / kDeltaColumns, i = n % kDeltaColumns;
      if (place.first_column + i < p.value_dim)
        store_element_of<T>(p.out, place.sequence.first + begin + t, place.value_column + i, rows.out[t][i]);
    }
  }
  state.store(stored, p.key_dim, num_columns);
}

}  // namespace tessera::kernels

// Of heads of up to so many keys; all but the state of one type, keys and queries in whole groups at
// multiples of 16 bytes, and any.
TESSERA_KERNEL(gated_delta_128_f32, kDeltaThreads<128>)(const GatedDeltaParams p) {
  TESSERA_SHARED(rows, DeltaRows<128>);
  gated_delta<float, 128>(p, rows);
}
TESSERA_KERNEL(gated_delta_128_f16, kDeltaThreads<128>)(const GatedDeltaParams p) {
  TESSERA_SHARED(rows, DeltaRows<128>);
  gated_delta<f16, 128>(p, rows);
}
TESSERA_KERNEL(gated_delta_128_bf16, kDeltaThreads<128>)(const GatedDeltaParams p) {
  TESSERA_SHARED(rows, DeltaRows<128>);
  gated_delta<bf16, 128>(p, rows);
}
TESSERA_KERNEL(gated_delta_128_any, kDeltaThreads<128>)(const GatedDeltaParams p) {
  TESSERA_SHARED(rows, DeltaRows<128>);
  gated_delta<AnyElement, 128>(p, rows);
}
TESSERA_KERNEL(gated_delta_256_any, kDeltaThreads<256>)(const GatedDeltaParams p) {
  TESSERA_SHARED(rows, DeltaRows<256>);
  gated_delta<AnyElement, 256>(p, rows);
}
