#pragma once

#include "common/gemv_rows.cuh"

// out = x w^T (+ bias) (+ out), or gated, for up to 8 rows of x, bound by reading w once. A block takes 4
// rows of w and its threads groups of 8 columns of all of them; sums stay in registers and meet in shuffles
// and shared memory. gemv_any takes what does not stand at multiples of 16 bytes, one element at a time.
//
// Grid: (groups of 4 rows of w). Each row of x is summed in the same order whatever m is, so that results are
// batch-invariant. The first weights are loaded before the kernel waits for the one that makes x.

namespace tessera::kernels {

/// Adds the products of group `group` of the rows of w, weights(r, w) being that of row r as floats, with all
/// rows of x. What few rows of x leave in registers is x; else w, so that each is converted once.
template <class X, int kM, class Weights>
TESSERA_DEVICE void add_products(const GemmParams& p, int64 group, float (&sum)[kGemvRows * kM],
                                 Weights weights) {
  if constexpr (kM <= 2) {
    float x[kM][kGroupSize];
    TESSERA_UNROLL
    for (int m = 0; m < kM; ++m) load_typed<X>(row_of_x<X>(p, m), group * kGroupSize, kGroupSize, true, x[m]);
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      float w[kGroupSize];
      weights(r, w);
      TESSERA_UNROLL
      for (int m = 0; m < kM; ++m) {
        TESSERA_UNROLL
        for (int i = 0; i < kGroupSize; ++i) sum[r * kM + m] = fmaf(w[i], x[m][i], sum[r * kM + m]);
      }
    }
  } else {
    constexpr int kAtOnce = 4;  // rows of x whose loads are under way together
    float w[kGemvRows][kGroupSize];
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) weights(r, w[r]);
    TESSERA_UNROLL
    for (int first = 0; first < kM; first += kAtOnce) {
      PackedGroup<X> packed[kAtOnce];
      TESSERA_UNROLL
      for (int n = 0; n < kAtOnce; ++n) packed[n].load(row_of_x<X>(p, first + n), group);
      TESSERA_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        float x[kGroupSize];
        packed[n].get(x);
        TESSERA_UNROLL
        for (int r = 0; r < kGemvRows; ++r) {
          float& total = sum[r * kM + first + n];
          TESSERA_UNROLL
          for (int i = 0; i < kGroupSize; ++i) total = fmaf(w[r][i], x[i], total);
        }
      }
    }
  }
}

/// The groups that a thread takes in one turn of the loop, as stored.
template <class W, int kSteps>
struct WeightStep {
  PackedGroup<W> group[kSteps][kGemvRows];

  TESSERA_DEVICE void load(const W* const (&row)[kGemvRows], int64 first, int64 groups) {
    TESSERA_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      if (first + s * kGemvThreads >= groups) continue;
      TESSERA_UNROLL
      for (int r = 0; r < kGemvRows; ++r) group[s][r].load(row[r], first + s * kGemvThreads);
    }
  }
};

template <class X, class W, int kM>
TESSERA_DEVICE void gemv(const GemmParams& p) {
  // Groups of each row that a thread has in flight; the registers of many sums leave room for fewer.
  constexpr int kSteps = kM <= 2 && sizeof(W) == 2 ? 2 : 1;
  const int64 first_row = first_row_of_block(p);
  const int64 groups = p.k / kGroupSize;
  const W* row[kGemvRows];
  TESSERA_UNROLL
  for (int r = 0; r < kGemvRows; ++r)
    row[r] = static_cast<const W*>(p.weight.data) + minimum(weight_row(p, first_row, r), p.n - 1) * p.k;

  allow_next_kernel();
  WeightStep<W, kSteps> step;
  step.load(row, thread_x(), groups);
  wait_for_prior_kernels();
  float sum[kGemvRows * kM] = {};
  for (int64 first = thread_x(); first < groups;) {
    const int64 next = first + kSteps * kGemvThreads;
    WeightStep<W, kSteps> following;
    if constexpr (kM > 2) following.load(row, next, groups);
    TESSERA_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const int64 group = first + s * kGemvThreads;
      if (group >= groups) continue;
      add_products<X, kM>(p, group, sum, [&](int r, float(&w)[kGroupSize]) { step.group[s][r].get(w); });
    }
    if constexpr (kM > 2) {
      step = following;
    } else {
      step.load(row, next, groups);  // other blocks cover the wait
    }
    first = next;
  }
  finish_rows<kM>(p, first_row, sum);
}

// ---- Q8_0: blocks of 34 bytes, an fp16 scale and 32 int8 values, which no wide load fits. Chunks of rows
// come through shared memory, where they are read by two bytes.

constexpr int kQ8Chunk = kGemvThreads * kGroupSize;  // columns
constexpr int kQ8ChunkVectors =
    kQ8Chunk / formats::Q8_0::kElements * formats::Q8_0::kBytes / 16;  // of 16 bytes, of one row
constexpr int kQ8Loads = (kGemvRows * kQ8ChunkVectors + kGemvThreads - 1) / kGemvThreads;

/// A chunk of kGemvRows rows on the way from global to shared memory. Rows are multiples of 256 columns.
struct Q8Chunk {
  MovedWords vector[kQ8Loads];

  TESSERA_DEVICE void load(const GemmParams& p, int64 first_row, int64 column) {
    const auto bytes_of = [](int64 columns) {
      return columns / formats::Q8_0::kElements * formats::Q8_0::kBytes;
    };
    const int64 row_bytes = bytes_of(p.k);
    const int64 left = bytes_of(p.k - column) / 16;
    TESSERA_UNROLL
    for (int n = 0; n < kQ8Loads; ++n) {
      const int i = thread_x() + n * kGemvThreads;
      const int r = i / kQ8ChunkVectors;
      const int place = i % kQ8ChunkVectors;
      if (r >= kGemvRows || place >= left) continue;
      const unsigned char* row = static_cast<const unsigned char*>(p.weight.data) +
                                 minimum(weight_row(p, first_row, r), p.n - 1) * row_bytes + bytes_of(column);
      vector[n] = reinterpret_cast<const MovedWords*>(row)[place];
    }
  }
  TESSERA_DEVICE void store(MovedWords* shared) const {
    TESSERA_UNROLL
    for (int n = 0; n < kQ8Loads; ++n) {
      const int i = thread_x() + n * kGemvThreads;
      if (i < kGemvRows * kQ8ChunkVectors) shared[i] = vector[n];
    }
  }
};

template <class X, int kM>
TESSERA_DEVICE void gemv_q8(const GemmParams& p) {
  TESSERA_SHARED(blocks, MovedWords[kGemvRows * kQ8ChunkVectors]);
  const int64 first_row = first_row_of_block(p);
  allow_next_kernel();
  Q8Chunk chunk = {};
  chunk.load(p, first_row, 0);
  wait_for_prior_kernels();
  float sum[kGemvRows * kM] = {};
  for (int64 column = 0; column < p.k; column += kQ8Chunk) {
    chunk.store(blocks);
    sync_threads();
    if (column + kQ8Chunk < p.k) chunk.load(p, first_row, column + kQ8Chunk);
    const int64 group = column / kGroupSize + thread_x();
    if (group * kGroupSize < p.k) {
      add_products<X, kM>(p, group, sum, [&](int r, float(&w)[kGroupSize]) {
        const unsigned short* block =
            reinterpret_cast<const unsigned short*>(blocks + r * kQ8ChunkVectors) + thread_x() / 4 * 17;
        load_q8_group(block, thread_x() % 4, w);
      });
    }
    sync_threads();
  }
  finish_rows<kM>(p, first_row, sum);
}

// ---- Of any type.

/// Adds the products of a row of blocks with all rows of x. A lane takes groups of 8 columns, whose integers
/// share a step.
TESSERA_DEVICE void add_block_row(const GemmParams& p, int64 n, int lane, float (&sum)[kMostGemvRows]) {
  for (int64 group = lane; group * kGroupSize < p.k; group += kWarpSize) {
    const int64 column = group * kGroupSize;
    float w[kGroupSize];
    decode_blocks(p.weight, n * p.k + column, w);
    TESSERA_UNROLL
    for (int m = 0; m < kMostGemvRows; ++m) {
      if (m >= p.m) continue;
      float x[kGroupSize];
      load_group<kAnyType>(p.x, m * p.x.row_stride + column, kGroupSize, x);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) sum[m] = fmaf(w[i], x[i], sum[m]);
    }
  }
}

/// Grid: (groups of kGemvWarps rows of w), a warp a row.
TESSERA_DEVICE void multiply_any(const GemmParams& p) {
  constexpr int kMaxM = kMostGemvRows;
  allow_next_kernel();
  wait_for_prior_kernels();
  const int lane = thread_x() % kWarpSize;
  const int64 n = static_cast<int64>(block_x()) * kGemvWarps + thread_x() / kWarpSize;
  if (n >= p.n) return;
  float sum[kMaxM] = {};
  if (is_blocks(p.weight)) add_block_row(p, n, lane, sum);
  for (int64 column = is_blocks(p.weight) ? p.k : lane; column < p.k; column += kWarpSize) {
    const float w = load_scalar(p.weight, n * p.k + column);
    TESSERA_UNROLL
    for (int m = 0; m < kMaxM; ++m) {
      if (m < p.m) sum[m] = fmaf(w, load_scalar(p.x, m * p.x.row_stride + column), sum[m]);
    }
  }
  int m;
  float total = reduce_values(sum, m);  // never gated
  if (m >= p.m || lane % (kWarpSize / kMaxM) != 0) return;
  if (p.bias.data != nullptr) total += load_scalar(p.bias, n);
  const int64 offset = m * p.out.row_stride + n;
  if (p.accumulate) total += load_scalar(p.out, offset);
  store_scalar(p.out, offset, total);
}

}  // namespace tessera::kernels
