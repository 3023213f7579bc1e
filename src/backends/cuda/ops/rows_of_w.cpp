#include "backends/cuda/ops/rows_of_w.h"

#include <algorithm>

#include "core/block_format.h"
#include "sm90/gemm_block_stream_traits.h"

namespace tessera::cuda {

PieceBytes piece_bytes(DType weight) {
  return dispatch_weight(weight, []<class T>() {
    if constexpr (is_block_format<T>) {
      if constexpr (kernels::HasFragment<T>::kValue) {
        using Piece = kernels::WeightPiece<T>;
        using Slot = kernels::WeightSlot<T>;
        return PieceBytes{Piece::kBytes,      Piece::kUnitBytes, Piece::kStages,
                          Piece::kBitsStages, Slot::kBytes,      Slot::kStrideBytes};
      }
    }
    return PieceBytes{};
  });
}

std::int64_t count_groups(std::span<const RowsOfW> w) {
  std::int64_t groups = 0;
  for (const RowsOfW& rows : w) groups += rows.groups;
  return groups;
}

std::int64_t blocks_of_upper(const RowsOfW& upper, const RowsOfW& lower, std::int64_t blocks) {
  const auto time = [&](std::int64_t of_upper) {
    return std::max(divide_up(upper.groups, of_upper) * upper.piece.row,
                    divide_up(lower.groups, blocks - of_upper) * lower.piece.row);
  };
  std::int64_t best = std::min(upper.groups, blocks - 1);
  const std::int64_t least = std::max<std::int64_t>(1, blocks - lower.groups);
  for (std::int64_t of_upper = best - 1; of_upper >= least; --of_upper)
    if (time(of_upper) < time(best)) best = of_upper;
  return best;
}

}  // namespace tessera::cuda
