// Merging the segments of batch_invariant attention; included once for each target.
//
// Keys are cut at multiples of a number that no call's size changes. Each segment of a row is computed as if
// there were no other, and its result is merged into that of those before it, strictly in order and here
// alone: whether one task computes all segments of a row or each is a task, the operations are the same.
//
//   m = max(max_a, max_b);  o = exp(max_b - m) o_b + exp(max_a - m) o_a;  the same for the sums
//
// Dao et al., "Flash-Decoding for long-context inference" (2023), with a fixed order.
#if defined(TESSERA_CPU_ATTENTION_SEGMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_SEGMENTS_INL_H_
#undef TESSERA_CPU_ATTENTION_SEGMENTS_INL_H_
#else
#define TESSERA_CPU_ATTENTION_SEGMENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "attention/narrow.h"
#include "backends/cpu/attention/math-inl.h"
#include "backends/cpu/attention/rows-inl.h"
#include "backends/cpu/attention/tile.h"
#include "core/block_format.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// What makes one of rows' results before a segment, a, and of the segment, b. A row that sees no key of b
/// keeps a's bits, one that saw none before gets b's.
struct SegmentWeights {
  using V = hn::Vec<Floats>;

  SegmentWeights(V max_a, V max_b) : largest(hn::Max(max_a, max_b)) {
    const Floats d;
    // Where neither sees a key: any finite number in place of -inf keeps exp(-inf - max) = 0.
    const V hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
    const V offset = hn::IfThenZeroElse(hn::Eq(largest, hidden), largest);
    weight_a = Exp(d, hn::Sub(max_a, offset));
    weight_b = Exp(d, hn::Sub(max_b, offset));
  }

  /// Of a sum, or of a dimension of o.
  HWY_INLINE V Merge(V a, V b) const { return hn::MulAdd(b, weight_b, hn::Mul(a, weight_a)); }

  V largest, weight_a, weight_b;
};

/// What kernel_table's merge_segment does: rows that have a vector of dimensions where a tile has one of
/// rows.
inline void MergeSegmentRows(const CallContext& call, std::int64_t rows, const float* segment,
                             float* merged) {
  const Floats d;
  const std::int64_t head_dim = call.shape.head_dim_v;
  const std::int64_t stride = partial_stride(call.shape.head_dim_v);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* b = segment + r * stride;
    float* a = merged + r * stride;
    const SegmentWeights weights(hn::Set(d, a[head_dim]), hn::Set(d, b[head_dim]));
    const auto sum = weights.Merge(hn::Set(d, a[head_dim + 1]), hn::Set(d, b[head_dim + 1]));
    // Rows have room for whole vectors.
    for (std::int64_t i = 0; i < head_dim; i += kLanes)
      hn::StoreU(weights.Merge(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, a + i);
    a[head_dim] = hn::GetLane(weights.largest);
    a[head_dim + 1] = hn::GetLane(sum);
  }
}

/// What kernel_table's finish_segments does. The same operations as those of a tile that has no segments, so
/// that a row all of whose keys are in one gets the same bits.
inline void FinishSegmentRows(const CallContext& call, const TileTask& task, float* merged) {
  const Floats d;
  const std::int64_t head_dim = call.shape.head_dim_v;
  const std::int64_t stride = partial_stride(call.shape.head_dim_v);
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    float* o = merged + (row - task.row_begin) * stride;
    const std::int64_t query = query_of_row(call, row);
    const int head = head_of_row(call, task, row);
    const float row_max = call.shape.amx ? natural_maximum(o[head_dim]) : o[head_dim];
    const float row_sum = o[head_dim + 1];
    const RowResult result = finish_row(call, head, row_max, row_sum);
    // Rows have room for whole vectors. Adding 0 makes a zero's sign positive.
    for (std::int64_t i = 0; i < head_dim; i += kLanes) {
      const auto x = hn::MulAdd(hn::LoadU(d, o + i), hn::Set(d, result.o_factor), hn::Zero(d));
      hn::StoreU(x, d, o + i);
    }
    if (!stays_in_range(row_max, row_sum, o, head_dim)) {
      attend_exactly(call, task, query, head);
      continue;
    }
    dispatch_activation(wide_dtype(*call.problem), [&]<class T>() {
      if constexpr (std::is_same_v<T, BFloat16>) {
        // As the instruction does that AMX's tiles are rounded by.
        for (std::int64_t i = 0; call.shape.amx && i < head_dim; ++i) {
          if (std::abs(o[i]) < std::numeric_limits<float>::min()) o[i] = std::copysign(0.0f, o[i]);
        }
      }
      StoreRow<T>(o, head_dim, o_row(call, task, query, head));
    });
    store_lse(call, task, query, head, result.lse);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
