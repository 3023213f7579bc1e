#pragma once

#include "sm90/block_rows_x.cuh"
#include "sm90/ring_barriers.cuh"
#include "sm90/wgmma.cuh"

// What products with weights of blocks keep in shared memory, and how warpgroups multiply that: see
// gemm_few_rows_blocks.cu.

namespace tessera::kernels {

template <class Format, int kN>
struct BlockRowsStorage {
  using Traits = BlockRowsTraits<Format, kN>;
  struct alignas(1024) Stage {
    unsigned char x[Traits::kPanels][Traits::kPanelBytes];
    unsigned char w[Traits::kWarps][Traits::Unit::kUnitBytes];
  };
  Stage stages[Traits::kStages];
  RingBarriers<Traits::kStages> ring;
  float factors[Traits::kStages][kN];  // that rows of x were divided by
  TileSums<kN, Traits::kWarpgroups> tile;

  static_assert(sizeof(Stage) == block_rows_step_bytes(Traits::kFormat, kN));
  static_assert(Traits::kStages * (sizeof(RingBarriers<1>) + kN * 4) + sizeof(tile) <=
                    block_rows_other_bytes(kN),
                "the host asks for as much");
};

/// Multiplies a step's unit of w by x: sum = w xT, but for x's factors.
template <class Format, int kN>
TESSERA_DEVICE void multiply_step(float (&sum)[kN / 2], BlockFragment<Format>& w, unsigned x) {
  using Traits = BlockRowsTraits<Format, kN>;
  using Fragment = BlockFragment<Format>;
  constexpr int kSums = kN / 2;
  const unsigned long long first = descriptor_of_rows(x);
  const auto columns = [&](int group, int step) {
    return first + (group / 2 * Traits::kPanelBytes + group % 2 * 64 + step * 32) / 16;
  };
  float of_offsets[kSums];
  unsigned offsets[4];
  if constexpr (Traits::kHasOffsets) {
    w.offsets(offsets);
    pin_registers(offsets);
    wgmma_fence();
    const auto sums_of_x = [&](int i) {
      return first + (kPieceColumns / 64 * Traits::kPanelBytes + i * 32) / 16;
    };
    Wgmma<f16, kN>::registers_rows(of_offsets, offsets, sums_of_x(0), false);
    if constexpr (Fragment::kOffsetGroups == 16)
      Wgmma<f16, kN>::registers_rows(of_offsets, offsets, sums_of_x(1), true);
    wgmma_commit_group();
  }
  BlockOperands a[2];  // the next group's are made while those of one are multiplied
  if constexpr (Fragment::kStepColumns == 256) {
    TESSERA_UNROLL
    for (int group = 0; group < kPieceGroups; ++group) {
      BlockOperands& now = a[group % 2];
      w.operands(group, now);
      wgmma_fence();
      TESSERA_UNROLL
      for (int step = 0; step < 2; ++step)
        Wgmma<f16, kN>::registers_rows(sum, now[step], columns(group, step), group > 0 || step > 0);
      wgmma_commit_group();
      if (group > 0) {
        wgmma_wait_group<1>();
        pin_registers(a[(group - 1) % 2][0]);
        pin_registers(a[(group - 1) % 2][1]);
      }
    }
    wgmma_wait_group<0>();
    pin_registers(a[1][0]);
    pin_registers(a[1][1]);
    pin_registers(sum);
  } else {
    constexpr int kStepsTogether = Fragment::kStepColumns / 16;
    constexpr int kParts = 2 * kPieceGroups / kStepsTogether;
    float c[2][kSums];
    TESSERA_UNROLL
    for (int i = 0; i < kSums; ++i) sum[i] = 0.0f;
    const auto add_part = [&](int part) {
      const int step = part * kStepsTogether;
      pin_registers(c[part % 2]);
      pin_registers(a[step / 2 % 2][step % 2]);
      if (kStepsTogether == 2) pin_registers(a[step / 2 % 2][1]);
      TESSERA_UNROLL
      for (int i = 0; i < kSums; ++i)
        sum[i] = fmaf(c[part % 2][i], w.scale(step / 2, step % 2, i % 4 / 2), sum[i]);
    };
    TESSERA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const int first_step = part * kStepsTogether;
      BlockOperands& now = a[first_step / 2 % 2];
      if (first_step % 2 == 0) w.operands(first_step / 2, now);
      wgmma_fence();
      TESSERA_UNROLL
      for (int i = 0; i < kStepsTogether; ++i) {
        const int step = (first_step + i) % 2;
        Wgmma<f16, kN>::registers_rows(c[part % 2], now[step], columns(first_step / 2, step), i > 0);
      }
      wgmma_commit_group();
      if (part > 0) {
        wgmma_wait_group<1>();
        add_part(part - 1);
      }
    }
    wgmma_wait_group<0>();
    add_part(kParts - 1);
  }
  TESSERA_UNROLL
  for (int i = 0; i < kSums; ++i) sum[i] *= w.final_scale(i % 4 / 2);
  if constexpr (Traits::kHasOffsets) {
    pin_registers(of_offsets);
    pin_registers(offsets);
    TESSERA_UNROLL
    for (int i = 0; i < kSums; ++i)
      sum[i] = fmaf(of_offsets[i], w.final_offset_scale(i % 4 / 2) * kXSumFactor, sum[i]);
  }
}

/// Adds up the products of steps [begin, end) of a row. first_byte(r): where the lane's row r of two begins
/// in w. kAnyRows: that may be any multiple of 2 bytes.
template <class Format, int kN, bool kAnyRows = false, class FirstByte>
TESSERA_DEVICE void multiply_steps(BlockRowsStorage<Format, kN>& smem, const FirstByte& first_byte, int begin,
                                   int end, int& count, float (&d)[kN / 2]) {
  using Traits = BlockRowsTraits<Format, kN>;
  using Unit = typename Traits::Unit;
  const int lane = thread_x() % 32, warp = thread_x() / 32;
  for (int step = begin; step < end; ++step, ++count) {
    const int place = count % Traits::kStages;
    auto& stage = smem.stages[place];
    smem.ring.wait_filled(count);
    typename Traits::Fragment::Rows rows;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      // Where the row's piece begins in the first of its vectors: a multiple of 2 bytes.
      const unsigned in_vector =
          Unit::kIsAligned ? 0 : (first_byte(r) + static_cast<unsigned>(step) * Unit::kBytes) % 16;
      rows.row[r] = stage.w[warp] + (lane / 4 + 8 * r) * Unit::kStrideBytes + in_vector / 4 * 4;
      rows.behind[r] = Unit::kBytes % 4 == 0 && !kAnyRows ? 0 : in_vector % 4;
    }
    typename Traits::Fragment w;
    w.load(rows, lane % 4);
    float sum[kN / 2];
    multiply_step<Format, kN>(sum, w, shared_address(stage.x[0]));
    TESSERA_UNROLL
    for (int tile = 0; tile < kN / 8; ++tile) {
      const auto factors =
          *reinterpret_cast<const Vector<float, 2>*>(&smem.factors[place][tile * 8 + lane % 4 * 2]);
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i)
        d[tile * 4 + i] = fmaf(sum[tile * 4 + i], factors.element[i % 2], d[tile * 4 + i]);
    }
    smem.ring.release(count);
  }
}

}  // namespace tessera::kernels
