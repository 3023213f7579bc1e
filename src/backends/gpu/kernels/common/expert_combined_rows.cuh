#pragma once

#include "common/expert_slots.cuh"
#include "common/gemv_rows.cuh"

// out = sum over a row's slots of weights[slot] (x[slot] w_e^T + bias_e) (+ out), e being a slot's expert:
// the last product of a mixture's few rows and the sum of what it gives. A block takes 4 rows of w of all of
// a row's experts, and its threads columns of all of them, as if they stood one after the other.
//
// Grid: (groups of 4 rows of w, rows).

namespace tessera::kernels {

/// The slots of this block's row, and the rows of their experts' weights that it takes.
struct CombinedRow {
  const int* experts;
  const float* weights;
  RowsArgument x;  // from the row's first slot on

  TESSERA_DEVICE explicit CombinedRow(const ExpertGemmParams& p) {
    const int64 first_slot = static_cast<int64>(block_y()) * p.routing.num_slots;
    experts = p.routing.experts + first_slot;
    weights = p.routing.weights + first_slot;
    x = from_row(p.gemm.x, first_slot, p.gemm.x.row_stride);
  }
};

/// What biases add to the sums of a block's rows of w: thread t brings those of slots t, t + threads, ...
TESSERA_DEVICE void add_biases(const ExpertGemmParams& p, const CombinedRow& row, int64 first_row,
                               float (&sum)[kGemvRows]) {
  if (p.gemm.bias.data == nullptr) return;
  for (int slot = thread_x(); slot < p.routing.num_slots; slot += block_size()) {
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) {
      const int64 n = minimum(first_row + r, p.gemm.n - 1);
      sum[r] = fmaf(row.weights[slot], load_scalar(p.gemm.bias, row.experts[slot] * p.gemm.n + n), sum[r]);
    }
  }
}

/// Writes the block's sums.
TESSERA_DEVICE void finish_combined(const ExpertGemmParams& p, int64 first_row, float (&sum)[kGemvRows],
                                    int warps) {
  GemmParams g = p.gemm;
  g.out = from_row(g.out, block_y(), g.out.row_stride);
  g.bias.data = nullptr;
  g.m = 1;
  finish_rows<1>(g, first_row, sum, warps);
}

}  // namespace tessera::kernels
