#include "backends/cpu/attention/merge.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "attention/token_rows.h"
#include "core/block_format.h"

namespace tessera::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

template <class T>
float load(const std::byte* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return static_cast<float>(value);
}

template <class T>
void store(float value, std::byte* address) {
  const T rounded(value);
  std::memcpy(address, &rounded, sizeof(T));
}

template <class T>
void store_row(const float* row, float factor, std::int64_t count, std::byte* target) {
  for (std::int64_t i = 0; i < count; ++i) {
    store<T>(row[i] * factor, target + i * static_cast<std::int64_t>(sizeof(T)));
  }
}

const std::byte* row_of(const void* data, DType dtype, std::int64_t element) {
  return static_cast<const std::byte*>(data) + element * static_cast<std::int64_t>(dtype_bytes(dtype, 1));
}

template <class T>
void merge_row(const std::byte* a, const std::byte* b, float weight_a, float weight_b, int head_dim,
               std::byte* o) {
  for (int i = 0; i < head_dim; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * sizeof(T);
    // A part without keys has weight 0 and counts for nothing, whatever its o holds.
    const float part_a = weight_a == 0 ? 0.0f : weight_a * load<T>(a + at);
    const float part_b = weight_b == 0 ? 0.0f : weight_b * load<T>(b + at);
    store<T>(part_a + part_b, o + at);
  }
}

}  // namespace

void merge_splits(const CallContext& call, const TileTask& task, float* partials, int num_splits,
                  std::int64_t rows) {
  const std::int64_t head_dim = call.shape.head_dim_v;
  const std::int64_t stride = partial_stride(call.shape.head_dim_v);
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    float* merged = partials + row * stride;
    float row_max = kNothing;
    for (int s = 0; s < num_splits; ++s) row_max = std::max(row_max, (merged + s * rows * stride)[head_dim]);
    float row_sum = 0;
    for (int s = 0; s < num_splits; ++s) {
      const float* part = merged + s * rows * stride;
      const float weight = part[head_dim] == kNothing ? 0.0f : std::exp(part[head_dim] - row_max);
      row_sum += weight * part[head_dim + 1];
      if (s == 0) {
        for (std::int64_t i = 0; i < head_dim; ++i) merged[i] *= weight;
      } else if (part[head_dim] != kNothing) {
        for (std::int64_t i = 0; i < head_dim; ++i) merged[i] += weight * part[i];
      }
    }
    const std::int64_t query = query_of_row(call, row);
    const int head = head_of_row(call, task, row);
    const RowResult result = finish_row(call, head, row_max, row_sum);
    if (!stays_in_range(row_max, row_sum, merged, head_dim)) {
      attend_exactly(call, task, query, head);
      continue;
    }
    std::byte* o = o_row(call, task, query, head);
    dispatch_activation(call.problem->o.dtype,
                        [&]<class T>() { store_row<T>(merged, result.o_factor, head_dim, o); });
    store_lse(call, task, query, head, result.lse);
  }
}

void merge_states_of_sequence(const MergeStatesProblem& p, std::int64_t sequence) {
  for (std::int64_t query = 0; query < p.seq_len_q; ++query) {
    for (int head = 0; head < p.num_heads; ++head) {
      const auto row = [&](const auto& rows) { return dense_row(rows, sequence, query, head); };
      const float lse_a = p.lse_a.data[row(p.lse_a)];
      const float lse_b = p.lse_b.data[row(p.lse_b)];
      // A part that is NaN makes the union NaN, beside a part without keys too.
      const float larger = std::isnan(lse_b) ? lse_b : std::max(lse_a, lse_b);
      float lse = kNothing;
      float weight_a = 0;
      float weight_b = 0;
      if (larger != kNothing) {
        // In double: the difference to lse of a large lse would lose the digits that the weights need.
        const double exp_a = std::exp(static_cast<double>(lse_a) - larger);
        const double exp_b = std::exp(static_cast<double>(lse_b) - larger);
        weight_a = static_cast<float>(exp_a / (exp_a + exp_b));
        weight_b = static_cast<float>(exp_b / (exp_a + exp_b));
        lse = static_cast<float>(larger + std::log(exp_a + exp_b));
      }
      const std::byte* a = row_of(p.o_a.data, p.o_a.dtype, row(p.o_a));
      const std::byte* b = row_of(p.o_b.data, p.o_b.dtype, row(p.o_b));
      std::byte* o =
          static_cast<std::byte*>(p.o.data) + row(p.o) * static_cast<std::int64_t>(dtype_bytes(p.o.dtype, 1));
      dispatch_activation(p.o.dtype,
                          [&]<class T>() { merge_row<T>(a, b, weight_a, weight_b, p.head_dim, o); });
      if (p.lse) p.lse->data[row(*p.lse)] = lse;
    }
  }
}

}  // namespace tessera::cpu
