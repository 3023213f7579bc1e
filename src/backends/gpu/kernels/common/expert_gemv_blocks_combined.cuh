#pragma once

#include "common/expert_combined_rows.cuh"
#include "common/gemv_blocks.cuh"

// Weights of blocks: a warp takes steps of all of a row's experts in turn (gemv_blocks.cuh).

namespace tessera::kernels {

/// Step `number` of a row's slots, each of which has as many as columns fill.
struct CombinedStep {
  int slot;
  int64 column;
  GemmParams product;

  TESSERA_DEVICE CombinedStep(const ExpertGemmParams& p, const CombinedRow& row, int number) {
    constexpr int kColumns = step_columns(kWarpSize);
    const auto steps = static_cast<int>((p.gemm.k + kColumns - 1) / kColumns);
    slot = number / steps;
    column = static_cast<int64>(number % steps) * kColumns;
    product = product_of_expert(p, row.experts[slot]);
    product.x = from_row(row.x, slot, row.x.row_stride);
    product.m = 1;
  }
};

template <class Format, class X>
TESSERA_DEVICE void gemv_blocks_combined(const ExpertGemmParams& p) {
  using Unit = BlockUnit<Format>;
  constexpr int kUnits = Format::kElements / kUnitColumns;  // of a block
  constexpr int kColumns = step_columns(kWarpSize);
  constexpr int kVectors = StepPlace<Format>::kVectors;
  TESSERA_DYNAMIC_SHARED(all_shared);
  const int lane = thread_x() % kWarpSize;
  const int warp = uniform(thread_x() / kWarpSize);
  const int warps = block_size() / kWarpSize;
  auto* const shared = reinterpret_cast<MovedWords*>(all_shared) +
                       warp * warp_vectors(Format::kElements, Format::kBytes, kGemvRows, kWarpSize);
  const int64 first_row = static_cast<int64>(block_x()) * kGemvRows;

  allow_next_kernel();
  wait_for_prior_kernels();
  const CombinedRow row(p);
  const int steps = static_cast<int>((p.gemm.k + kColumns - 1) / kColumns) * p.routing.num_slots;
  float sum[kGemvRows] = {};
  add_biases(p, row, first_row, sum);
  // The host gives no more warps than there are steps.
  CombinedStep now(p, row, warp);
  StepPlace<Format> place(now.product, first_row, now.column);
  MovedStep<Format> moved;
  moved.load(now.product, place);
  for (int number = warp; number < steps; number += warps) {
    sync_warp();
    moved.store(now.product, place, shared);
    sync_warp();
    int block_begin[kGemvRows];  // of a lane's block, in a row's part of shared memory
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) block_begin[r] = place.shift(r) + lane / kUnits * Format::kBytes;
    // As in gemv_blocks: lanes without a unit multiply something, too.
    const bool has_unit = now.column + lane * kUnitColumns < p.gemm.k;
    const int64 lane_column =
        has_unit ? now.column + lane / kUnits * Format::kElements + Unit::column(lane % kUnits) : 0;
    const auto unit_of = [&](int r) {
      Unit unit;
      unit.load({reinterpret_cast<const unsigned char*>(shared + r * kVectors), block_begin[r]},
                lane % kUnits);
      return unit;
    };
    UnitOfX<X, 1> x;
    x.load(now.product, lane_column, Unit());
    const float factor = has_unit ? row.weights[now.slot] : 0.0f;
    keep_order();
    now = CombinedStep(p, row, minimum(number + warps, steps - 1));
    place = StepPlace<Format>(now.product, first_row, now.column);
    moved.load(now.product, place);
    keep_order();
    float products[kGemvRows] = {};
    add_few<Unit, X, 1>(x, unit_of, products);
    TESSERA_UNROLL
    for (int r = 0; r < kGemvRows; ++r) sum[r] = has_unit ? fmaf(factor, products[r], sum[r]) : sum[r];
  }
  finish_combined(p, first_row, sum, warps);
}

}  // namespace tessera::kernels
