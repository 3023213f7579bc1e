// out = x w^T (+ bias) (+ out), or gated, for one or two rows of 16-bit x, bound by reading w once: blocks
// that stay for the whole product and keep a ring of asynchronous copies of w under way. x may be made here:
// the RMSNorm of fp32 rows; and the result may be rotated and appended to the cache (rope.cu's equations).
//
// Grid: as many blocks as are resident at once. Block b takes groups b, b + grid, ... of 4 rows of w. A step
// is a group's rows by 256 columns: each lane of a warp copies 8 columns of each row into shared memory and
// is the only one to read them again, so that no barrier stands between a copy and its use. Warps share the
// columns of a group, step by step, unless rows are short. The rings are filled before the kernel waits for
// the one that makes x, so that these weights arrive while that one runs.
//
//   rows of w     0..3                                             4 grid..4 grid + 3
//   columns       [0, 256) [256, 512) ... [1792, 2048) [2048, ...  [0, 256) ...
//   of block 0    warp 0   warp 1         warp 7       warp 0      warp 0               each in its own ring
//
// The order of a row's sum depends on k alone.

#include "sm80/fused_rows.cuh"
#include "sm80/gemv_stream_traits.h"
#include "sm80/ptx.cuh"

namespace tessera::kernels {

constexpr int kWarps = kStreamWarps;
constexpr int kThreads = kStreamThreads;
constexpr int kRows = kStreamRows;
constexpr int kChunk = kStreamChunk;
constexpr int kLaneBytes = kStreamLaneBytes;
constexpr int kRowBytes = 32 * kLaneBytes;
constexpr int kStepBytes = kStreamStepBytes;
constexpr int kGroupsAtOnce = kStreamGroupsAtOnce;

template <int kM>
constexpr int kStages = stream_stages(kM);
template <int kM>
constexpr int kNormedGroups = stream_norm_groups(kM);

/// The groups of 4 rows that a warp takes, and its part of their columns.
struct Share {
  int chunks;   // of a row
  int warps_k;  // that share a row's
  int warps_n;  // that take rows of their own
  int chunk;    // this warp's first; then each warps_k-th
  int row;      // of warps_n
  int groups;   // of all blocks

  TESSERA_DEVICE explicit Share(const GemmParams& p) {
    chunks = static_cast<int>((p.k + kChunk - 1) / kChunk);
    warps_k = kWarps;
    while (warps_k > chunks) warps_k /= 2;
    warps_n = kWarps / warps_k;
    chunk = thread_x() / 32 % warps_k;
    row = thread_x() / 32 / warps_k;
    groups = static_cast<int>((p.n + kRows - 1) / kRows);
  }
  /// The group of a row of warps in round `round` of this block; from `groups` on there is none.
  TESSERA_DEVICE int group(int round, int row_of_warps) const {
    return (round * grid_x() + block_x()) * warps_n + row_of_warps;
  }
  TESSERA_DEVICE int rounds() const {
    const int per_round = grid_x() * warps_n;
    return (groups + per_round - 1) / per_round;
  }
};

/// Row r of group `group`.
TESSERA_DEVICE int weight_row(const StreamParams& p, int group, int r) {
  const int block = group >> p.group_shift;
  const int in_block = group - (block << p.group_shift);
  return (block << p.group_shift << 2) + 2 * in_block + r % 2 + r / 2 * p.rows_apart;
}

/// The copies of a warp's steps, one after the other.
template <class T, int kM>
struct Copies {
  const StreamParams& p;
  const Share& share;
  unsigned ring;  // this lane's place in its first stage
  int round = 0, chunk, stage = 0;
  bool has_group;
  const T* row[kRows];

  TESSERA_DEVICE Copies(const StreamParams& params, const Share& s, const unsigned char* lane_ring)
      : p(params), share(s), ring(shared_address(lane_ring)), chunk(s.chunk) {
    point_at_rows();
  }
  TESSERA_DEVICE void point_at_rows() {
    const int group = share.group(round, share.row);
    has_group = group < share.groups;
    if (!has_group) return;
    const int first = weight_row(p, group, 0);
    row[0] = static_cast<const T*>(p.gemm.weight.data) + first * p.gemm.k;
    row[1] = row[0] + p.gemm.k;
    row[2] = row[0] + p.rows_apart * p.gemm.k;
    row[3] = row[2] + p.gemm.k;
    if (p.rows_apart != 2 || first + kRows <= p.gemm.n) return;
    TESSERA_UNROLL
    for (int r = 1; r < kRows; ++r) {
      if (first + r >= p.gemm.n) row[r] = row[0];  // multiplied, not written
    }
  }
  /// Starts the next step's into the stage after the last.
  TESSERA_DEVICE void start_next() {
    if (has_group) {
      const int column = chunk * kChunk + thread_x() % 32 * kGroupSize;
      const bool valid = column < p.gemm.k;
      TESSERA_UNROLL
      for (int r = 0; r < kRows; ++r)
        cp_async_16(ring + stage * kStepBytes + r * kRowBytes, row[r] + (valid ? column : 0), valid);
      chunk += share.warps_k;
      if (chunk >= share.chunks) {
        chunk = share.chunk;
        ++round;
        point_at_rows();
      }
    }
    stage = stage == kStages<kM> - 1 ? 0 : stage + 1;
    cp_async_commit();  // empty at the end, so that waits count alike
  }
};

/// Brings x to shared memory, (kM, chunks, 32) groups of columns, zeros beyond k. All at once: x is short,
/// and loads wait their turn behind the copies of w.
template <class T, int kM>
TESSERA_DEVICE void load_x(const GemmParams& p, int groups, Words* x) {
  TESSERA_UNROLL
  for (int m = 0; m < kM; ++m) {
    const Words* row = reinterpret_cast<const Words*>(static_cast<const T*>(p.x.data) +
                                                      minimum<int64>(m, p.m - 1) * p.x.row_stride);
    for (int i = thread_x(); i < groups; i += kThreads) {
      const bool valid = i * kGroupSize < p.k;
      cp_async_16(shared_address(x + m * groups + i), row + (valid ? i : 0), valid);
    }
  }
  cp_async_commit();
  cp_async_wait<0>();
}

/// Adds a step's products; `x` and `w` are this lane's groups of columns.
template <class T, int kM>
TESSERA_DEVICE void multiply_step(const Words* x, int x_groups, const unsigned char* w,
                                  float (&sum)[kRows * kM]) {
  float xs[kM][kGroupSize];
  TESSERA_UNROLL
  for (int m = 0; m < kM; ++m) {
    PackedGroup<T> packed;
    packed.part[0] = x[m * x_groups];
    packed.get(xs[m]);
  }
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    PackedGroup<T> packed;
    packed.part[0] = *reinterpret_cast<const Words*>(w + r * kRowBytes);
    float ws[kGroupSize];
    packed.get(ws);
    TESSERA_UNROLL
    for (int m = 0; m < kM; ++m) {
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) sum[r * kM + m] = fmaf(ws[i], xs[m][i], sum[r * kM + m]);
    }
  }
}

/// The sums of groups of rows, in shared memory: of each group those of its warps_k warps.
template <int kM>
struct Sums {
  const StreamParams& p;
  const Share& share;
  const float* sum;  // (groups, warps_k, kRows, kM)

  /// Row r of the group at `place` among the sums, whole.
  TESSERA_DEVICE float total(int place, int r, int m, int64 row) const {
    float total = 0.0f;
    for (int w = 0; w < share.warps_k; ++w) total += sum[((place * share.warps_k + w) * kRows + r) * kM + m];
    return p.gemm.bias.data != nullptr ? total + load_scalar(p.gemm.bias, row) : total;
  }
  TESSERA_DEVICE void store(int m, int64 column, float value) const {
    const int64 offset = m * p.gemm.out.row_stride + column;
    if (p.gemm.accumulate) value += load_scalar(p.gemm.out, offset);
    store_scalar(p.gemm.out, offset, value);
  }

  TESSERA_DEVICE void finish_row(int place, int group, int r, int m) const {
    const int row = weight_row(p, group, r);
    if (row < p.gemm.n) store(m, row, total(place, r, m, row));
  }
  TESSERA_DEVICE void finish_gated(int place, int group, int r, int m) const {
    const int row = weight_row(p, group, r);
    const float gate = total(place, r, m, row);
    store(m, row, gate_activation(p.gemm.gated - 1, gate) * total(place, r + 2, m, row + p.gemm.n / 2));
  }
  /// Pair `pair` of the group's two, rotated unless it is of v.
  template <class T>
  TESSERA_DEVICE void finish_pair(int place, int group, int pair, int m, const float* turns) const {
    const RopeRotation& rotation = p.rope.rotation;
    const int first = rotation.interleaved ? 2 * pair : pair;
    const int second = rotation.interleaved ? first + 1 : pair + 2;
    const int row = weight_row(p, group, first);
    const int other_row = weight_row(p, group, second);
    store_pair<T>(p, m, row, other_row, total(place, first, m, row), total(place, second, m, other_row),
                  turns);
  }

  /// Writes what rounds [first, end) came to.
  template <class T>
  TESSERA_DEVICE void finish(int first, int end, const float* turns) const {
    const bool has_rope = p.rope.num_heads != 0;
    const int outputs = p.gemm.gated != 0 || has_rope ? kRows / 2 : kRows;
    const int count = (end - first) * share.warps_n * outputs * kM;
    for (int i = thread_x(); i < count; i += kThreads) {
      const int m = i % kM;
      const int output = i / kM % outputs;
      const int place = i / (kM * outputs);
      const int group = share.group(first + place / share.warps_n, place % share.warps_n);
      if (group >= share.groups || m >= p.gemm.m) continue;
      if (has_rope) {
        finish_pair<T>(place, group, output, m, turns);
      } else if (p.gemm.gated != 0) {
        finish_gated(place, group, output, m);
      } else {
        finish_row(place, group, output, m);
      }
    }
  }
};

/// Dynamic shared memory: the rings; x; the sums; cosines and sines of each row of x.
template <class T, int kM, bool kNormed>
TESSERA_DEVICE void gemv_stream(const StreamParams& p) {
  TESSERA_DYNAMIC_SHARED(shared);
  const Share share(p.gemm);
  const int lane = thread_x() % 32;
  const unsigned char* ring = shared + thread_x() / 32 * kStages<kM> * kStepBytes + lane * kLaneBytes;
  const int x_groups = share.chunks * 32;
  Words* x = reinterpret_cast<Words*>(shared + kWarps * kStages<kM> * kStepBytes);
  float* sums = reinterpret_cast<float*>(x + kM * x_groups);
  float* turns = sums + kGroupsAtOnce * kWarps * kRows * kM;

  allow_next_kernel();
  Copies<T, kM> copies(p, share, ring);
  const auto fill_ring = [&] {
    TESSERA_UNROLL_BY(1)
    for (int s = 0; s < kStages<kM>; ++s) copies.start_next();
  };
  if constexpr (kNormed) {
    const NormWeights<T, kNormedGroups<kM>> weights(p, kThreads);
    Turn<kM> turn(p);
    fill_ring();
    turn.store(p, turns);
    wait_for_prior_kernels();
    norm_x<T, kM>(p, kThreads, x_groups, weights, x);
  } else {
    fill_ring();
    wait_for_prior_kernels();
    load_x<T, kM>(p.gemm, x_groups, x);
  }
  sync_threads();

  const int rounds = share.rounds();
  const int rounds_at_once = kGroupsAtOnce / share.warps_n;
  const Sums<kM> finisher{p, share, sums};
  int stage = 0;
  for (int first = 0; first < rounds; first += rounds_at_once) {
    const int end = minimum(first + rounds_at_once, rounds);
    for (int round = first; round < end; ++round) {
      if (share.group(round, share.row) >= share.groups) break;
      float sum[kRows * kM] = {};
      for (int chunk = share.chunk; chunk < share.chunks; chunk += share.warps_k) {
        cp_async_wait<kStages<kM> - 1>();
        multiply_step<T, kM>(x + chunk * 32 + lane, x_groups, ring + stage * kStepBytes, sum);
        stage = stage == kStages<kM> - 1 ? 0 : stage + 1;
        copies.start_next();
      }
      int index;
      const float value = reduce_values(sum, index);
      const int place = (round - first) * share.warps_n + share.row;
      // Lanes with the same index have the same value.
      sums[(place * share.warps_k + share.chunk) * kRows * kM + index] = value;
    }
    sync_threads();
    finisher.template finish<T>(first, end, turns);
    sync_threads();
  }
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

#define TESSERA_STREAM_KERNEL(name, ...)                                    \
  extern "C" __global__ void __launch_bounds__(kThreads, kMostStreamBlocks) \
      name(const __grid_constant__ StreamParams p) {                        \
    gemv_stream<__VA_ARGS__>(p);                                            \
  }
#define TESSERA_STREAM_KERNELS(T)                               \
  TESSERA_STREAM_KERNEL(gemv_stream_##T##_1, T, 1, false)       \
  TESSERA_STREAM_KERNEL(gemv_stream_##T##_2, T, 2, false)       \
  TESSERA_STREAM_KERNEL(gemv_stream_normed_##T##_1, T, 1, true) \
  TESSERA_STREAM_KERNEL(gemv_stream_normed_##T##_2, T, 2, true)
#ifndef TESSERA_ONLY
#define TESSERA_ONLY 0
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 1
TESSERA_STREAM_KERNELS(f16)
#endif
#if TESSERA_ONLY == 0 || TESSERA_ONLY == 2
TESSERA_STREAM_KERNELS(bf16)
#endif
