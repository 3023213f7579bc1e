#include "backends/cpu/ops/experts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "backends/cpu/ops/gemm.h"
#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/scratch.h"
#include "core/parallel.h"

namespace tessera::cpu {
namespace {

/// Rows of a task, so that handing them out costs little.
constexpr std::int64_t kRowsOfTask = 8;

template <class Body>
void for_rows(std::int64_t rows, Body body) {
  parallel_for(static_cast<std::size_t>((rows + kRowsOfTask - 1) / kRowsOfTask), [&](std::size_t task) {
    const std::int64_t begin = static_cast<std::int64_t>(task) * kRowsOfTask;
    for (std::int64_t row = begin; row < std::min(begin + kRowsOfTask, rows); ++row) body(row);
  });
}

/// One row's slots: a pass over the logits for each. `keys` has the logits, a NaN as -inf.
void route_row(const ExpertRouting& r, std::int64_t row, const float* logits, float* keys, bool normalized) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::int32_t* const experts = r.experts + row * r.num_slots;
  float* const weights = r.weights + row * r.num_slots;
  for (int e = 0; e < r.num_experts; ++e) keys[e] = std::isnan(logits[e]) ? -kInfinity : logits[e];
  for (int slot = 0; slot < r.num_slots; ++slot) {
    std::int32_t best = -1;
    for (int e = 0; e < r.num_experts; ++e) {
      // What was taken is NaN now, and nothing compares with it.
      if (!std::isnan(keys[e]) && (best < 0 || keys[e] > keys[best])) best = e;
    }
    experts[slot] = best;
    keys[best] = std::numeric_limits<float>::quiet_NaN();
  }
  const float first = logits[experts[0]];
  const float top = std::isnan(first) ? -kInfinity : first;
  float sum = 0;
  if (!normalized) {
    for (int e = 0; e < r.num_experts; ++e) sum += std::exp(logits[e] - top);
  }
  for (int slot = 0; slot < r.num_slots; ++slot) {
    weights[slot] = std::exp(logits[experts[slot]] - top);
    if (normalized) sum += weights[slot];
  }
  for (int slot = 0; slot < r.num_slots; ++slot) weights[slot] /= sum;
}

/// Counting sort, which keeps the order of slots of one expert.
void group_slots(const ExpertRouting& r, std::int64_t slots) {
  std::fill_n(r.offsets, r.num_experts + 1, 0);
  for (std::int64_t t = 0; t < slots; ++t) ++r.offsets[r.experts[t] + 1];
  for (int e = 0; e < r.num_experts; ++e) r.offsets[e + 1] += r.offsets[e];
  const Scratch places(static_cast<std::size_t>(r.num_experts) * sizeof(std::int32_t), "places of experts");
  auto* const next = static_cast<std::int32_t*>(places.data());
  std::copy_n(r.offsets, r.num_experts, next);
  for (std::int64_t t = 0; t < slots; ++t) r.order[next[r.experts[t]]++] = static_cast<std::int32_t>(t);
}

/// The part of a weight or bias that is `expert`'s.
Weight part_of(const Weight& all, std::int64_t expert, std::int64_t rows) {
  Weight part = all;
  part.rows = rows;
  part.data =
      static_cast<const std::byte*>(all.data) +
      static_cast<std::size_t>(expert * rows) * dtype_bytes(all.dtype, static_cast<std::size_t>(all.columns));
  return part;
}

std::size_t bytes_of_row(const Matrix& m) {
  return dtype_bytes(m.dtype, static_cast<std::size_t>(m.columns));
}

std::byte* start_of_row(const Matrix& m, std::int64_t row) {
  return static_cast<std::byte*>(m.data) + dtype_bytes(m.dtype, static_cast<std::size_t>(row * m.row_stride));
}

/// `rows` rows of scratch memory, one after the other.
Matrix scratch_matrix(const Scratch& memory, const Matrix& like, std::int64_t rows) {
  return {memory.data(), like.dtype, rows, like.columns, like.columns};
}

}  // namespace

void route_experts(const RouteExpertsArguments& a) {
  const ExpertRouting& r = a.routing;
  if (a.logits.rows == 0) return;
  for_rows(a.logits.rows, [&](std::int64_t row) {
    const Scratch memory =
        scratch_floats(2, static_cast<std::int64_t>(padded_row(r.num_experts)), "router's logits");
    float* const logits = memory.floats();
    row_kernels().load_as_f32(a.logits.data, a.logits.dtype, row * a.logits.row_stride,
                              static_cast<std::size_t>(r.num_experts), logits);
    route_row(r, row, logits, logits + padded_row(r.num_experts), a.normalized);
  });
  group_slots(r, a.logits.rows * r.num_slots);
}

void expert_gemm(const ExpertGemmArguments& a) {
  const ExpertRouting& r = a.routing;
  if (a.out.rows == 0) return;
  const bool shares_x = a.x.rows != a.out.rows;
  const auto row_of_x = [&](std::int32_t t) { return shares_x ? t / r.num_slots : t; };
  std::int64_t most = 0;
  for (int e = 0; e < r.num_experts; ++e)
    most = std::max<std::int64_t>(most, r.offsets[e + 1] - r.offsets[e]);
  const bool gathers = most > 1;
  const Scratch x_memory(gathers ? static_cast<std::size_t>(most) * bytes_of_row(a.x) : 0,
                         "experts' rows of x");
  const Scratch out_memory(gathers ? static_cast<std::size_t>(most) * bytes_of_row(a.out) : 0,
                           "experts' results");
  for (int e = 0; e < r.num_experts; ++e) {
    const std::int32_t* const slots = r.order + r.offsets[e];
    const std::int64_t count = r.offsets[e + 1] - r.offsets[e];
    if (count == 0) continue;
    GemmArguments gemm;
    gemm.weight = part_of(a.weight, e, rows_of_expert(a));
    if (a.bias) gemm.bias = part_of(*a.bias, e, 1);
    gemm.batch_invariant = a.batch_invariant;
    if (count == 1) {
      gemm.x = rows_of(a.x, row_of_x(*slots), 1);
      gemm.out = rows_of(a.out, *slots, 1);
      cpu::gemm(gemm);
      continue;
    }
    gemm.x = scratch_matrix(x_memory, a.x, count);
    gemm.out = scratch_matrix(out_memory, a.out, count);
    for_rows(count, [&](std::int64_t i) {
      std::memcpy(start_of_row(gemm.x, i), start_of_row(a.x, row_of_x(slots[i])), bytes_of_row(a.x));
    });
    cpu::gemm(gemm);
    for_rows(count, [&](std::int64_t i) {
      std::memcpy(start_of_row(a.out, slots[i]), start_of_row(gemm.out, i), bytes_of_row(a.out));
    });
  }
}

void combine_experts(const CombineExpertsArguments& a) {
  const auto columns = static_cast<std::size_t>(a.out.columns);
  const std::int64_t padded = static_cast<std::int64_t>(padded_row(a.out.columns));
  for_rows(a.out.rows, [&](std::int64_t row) {
    const Scratch memory = scratch_floats(2, padded, "a row of experts' results");
    float* const sum = memory.floats();
    float* const x = sum + padded;
    if (a.accumulate) {
      row_kernels().load_as_f32(a.out.data, a.out.dtype, row * a.out.row_stride, columns, sum);
    } else {
      std::fill_n(sum, padded, 0.0f);
    }
    for (std::int64_t s = row * a.num_slots; s < (row + 1) * a.num_slots; ++s) {
      row_kernels().load_as_f32(a.x.data, a.x.dtype, s * a.x.row_stride, columns, x);
      const float weight = a.weights[s];
      for (std::int64_t c = 0; c < padded; ++c) sum[c] += weight * x[c];
    }
    row_kernels().store_from_f32(sum, columns, a.out.data, a.out.dtype, row * a.out.row_stride);
  });
}

}  // namespace tessera::cpu
