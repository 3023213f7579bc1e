#pragma once

#include "common/rope_turns.cuh"
#include "common/rows.cuh"

// What products of few rows do besides: norm their rows of x before, and rotate and append their results.

namespace tessera::kernels {

using Words = Vector<unsigned, 4>;

/// The norm's weights, of T or fp32, of a thread's columns, as stored: groups thread, thread + threads, ...
template <class T, int kGroups>
struct NormWeights {
  Words words[kGroups][2];
  bool is_f32;

  /// Starts the loads: they would wait behind the copies of w if they came later.
  TESSERA_DEVICE NormWeights(const StreamParams& p, int threads) : is_f32(p.norm_weight.type == kElementF32) {
    const Words* source = static_cast<const Words*>(p.norm_weight.data);
    TESSERA_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      const int i = thread_x() + n * threads;
      if (i * kGroupSize >= p.gemm.k) continue;
      words[n][0] = source[is_f32 ? 2 * i : i];
      if (is_f32) words[n][1] = source[2 * i + 1];
    }
  }
  TESSERA_DEVICE void get(int n, float (&w)[kGroupSize]) const {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      w[i] = is_f32 ? packed_element(words[n][i / 4].element, i % 4, float())
                    : packed_element(words[n][0].element, i, T());
    }
  }
};

/// Brings the RMSNorm of fp32 rows to shared memory, (kM, groups) groups of columns, zeros beyond k, by the
/// block's first `threads` threads. add_up(number): the sum of theirs.
template <class T, int kM, int kGroups, class AddUp>
TESSERA_DEVICE void norm_x(const StreamParams& p, int threads, int groups,
                           const NormWeights<T, kGroups>& weights, Words* x, const AddUp& add_up) {
  const int64 k = p.gemm.k;
  PackedGroup<float> v[kM][kGroups];
  TESSERA_UNROLL
  for (int m = 0; m < kM; ++m) {
    const float* row =
        static_cast<const float*>(p.gemm.x.data) + minimum<int64>(m, p.gemm.m - 1) * p.gemm.x.row_stride;
    TESSERA_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      const int i = thread_x() + n * threads;
      if (i * kGroupSize < k) v[m][n].load(row, i);
    }
  }
  TESSERA_UNROLL
  for (int m = 0; m < kM; ++m) {
    const auto sum_of_squares = [&](float shrink) {
      float sum = 0.0f;
      TESSERA_UNROLL
      for (int n = 0; n < kGroups; ++n) {
        if ((thread_x() + n * threads) * kGroupSize >= k) continue;
        float a[kGroupSize];
        v[m][n].get(a);
        TESSERA_UNROLL
        for (int i = 0; i < kGroupSize; ++i) sum += a[i] * shrink * (a[i] * shrink);
      }
      return add_up(sum);
    };
    float shrink = 1.0f;
    float sum = sum_of_squares(shrink);
    if (sum == infinity()) {
      shrink = kNormShrink;
      sum = sum_of_squares(shrink);
    }
    const float norm = 1.0f / sqrtf(sum / static_cast<float>(k) + p.eps * shrink * shrink);
    TESSERA_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      const int i = thread_x() + n * threads;
      if (i >= groups) continue;
      PackedGroup<T> out = {};
      if (i * kGroupSize < k) {
        float a[kGroupSize], w[kGroupSize];
        v[m][n].get(a);
        weights.get(n, w);
        TESSERA_UNROLL
        for (int j = 0; j < kGroupSize; ++j) a[j] = a[j] * shrink * norm * w[j];
        out.set(a);
      }
      x[m * groups + i] = out.part[0];
    }
  }
}

/// The same by all threads.
template <class T, int kM, int kGroups>
TESSERA_DEVICE void norm_x(const StreamParams& p, int threads, int groups,
                           const NormWeights<T, kGroups>& weights, Words* x) {
  TESSERA_SHARED(scratch, float[kMaxWarps]);
  norm_x<T, kM>(p, threads, groups, weights, x,
                [&](float sum) { return block_reduce(sum, 0.0f, scratch, Add()); });
}

/// One pair's turns at each row's position, if heads are rotated.
template <int kM>
struct Turn {
  float frequency = 0.0f;
  int position[kM] = {};

  /// Starts the loads, before the copies of w.
  TESSERA_DEVICE explicit Turn(const StreamParams& p) {
    const RopeRotation& r = p.rope.rotation;
    if (p.rope.num_heads == 0 || thread_x() >= r.num_pairs) return;
    frequency = r.inverse_frequencies[thread_x()];
    TESSERA_UNROLL
    for (int m = 0; m < kM; ++m) position[m] = r.positions[minimum<int64>(m, p.gemm.m - 1)];
  }
  /// To (kM, 2, num_pairs): cosines, sines.
  TESSERA_DEVICE void store(const StreamParams& p, float* turns) const {
    const RopeRotation& r = p.rope.rotation;
    if (p.rope.num_heads == 0 || thread_x() >= r.num_pairs) return;
    TESSERA_UNROLL
    for (int m = 0; m < kM; ++m) {
      float* table = turns + m * 2 * r.num_pairs + thread_x();
      turn(position[m], frequency, r.attention_factor, table[r.num_pairs], table[0]);
    }
  }
};

/// The first row of w of group `group` of 16, eight of which stand rows_apart: BlockGemmParams.
TESSERA_DEVICE int first_row_of_group(const StreamParams& p, int group) {
  const int block = group >> p.group_shift;
  return (block << p.group_shift << 4) + 8 * (group - (block << p.group_shift));
}

/// w's row of row r of a tile of tile_rows rows.
TESSERA_DEVICE int row_of_tile(const StreamParams& p, int tile, int tile_rows, int r) {
  return first_row_of_group(p, tile * (tile_rows / 16) + r / 16) + r % 8 + r % 16 / 8 * p.rows_apart;
}

/// Whether heads of w's row `row` are rotated: q's and k's.
TESSERA_DEVICE bool is_rotated(const StreamParams& p, int row) {
  return p.first_head + row / p.rope.rotation.head_dim < p.rope.num_heads + p.rope.num_kv_heads;
}
/// The pair of a head that w's row `row` is the first of.
TESSERA_DEVICE int pair_of_row(const RopeRotation& rotation, int row) {
  const int in_head = row % rotation.head_dim;
  return rotation.interleaved ? in_head / 2 : in_head;
}

/// Writes rows `row` and `other_row` of w times row m of x, which make a pair of a head's: to out if of q,
/// else to the cache, at slot().
template <class T, class Slot>
TESSERA_DEVICE void store_appended(const StreamParams& p, int m, int row, int other_row, float a, float b,
                                   Slot slot) {
  const RopeAppendParams& rope = p.rope;
  const int head = p.first_head + row / rope.rotation.head_dim;
  const int in_head = row % rope.rotation.head_dim;
  const int kv_head = (head - rope.num_heads) % rope.num_kv_heads;
  const RowsArgument& cache = is_rotated(p, row) ? rope.cache_k : rope.cache_v;
  T* to = head < rope.num_heads
              ? static_cast<T*>(p.gemm.out.data) + m * p.gemm.out.row_stride + row
              : static_cast<T*>(cache.data) + slot() + kv_head * rope.cache_head_stride + in_head;
  to[0] = from_float<T>(a);
  to[other_row - row] = from_float<T>(b);
}

/// The same, rotated unless they are of v, by the turns in `turns` (Turn::store()).
template <class T>
TESSERA_DEVICE void store_pair(const StreamParams& p, int m, int row, int other_row, float a, float b,
                               const float* turns) {
  const RopeRotation& rotation = p.rope.rotation;
  if (is_rotated(p, row))
    rotate(rotation, turns + m * 2 * rotation.num_pairs, pair_of_row(rotation, row), a, b);
  store_appended<T>(p, m, row, other_row, a, b, [&] { return cache_slot(p.rope, m); });
}

/// The same, by a turn that is made here.
template <class T>
TESSERA_DEVICE void store_turned_pair(const StreamParams& p, int m, int row, int other_row, float a,
                                      float b) {
  const RopeRotation& r = p.rope.rotation;
  if (is_rotated(p, row)) {
    float s, c;
    turn(r.positions[m], r.inverse_frequencies[pair_of_row(r, row)], r.attention_factor, s, c);
    rotate(c, s, a, b);
  }
  store_appended<T>(p, m, row, other_row, a, b, [&] { return cache_slot(p.rope, m); });
}

}  // namespace tessera::kernels
