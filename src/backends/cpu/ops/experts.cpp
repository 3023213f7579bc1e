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

constexpr float kLowestKey = -std::numeric_limits<float>::infinity();
/// The key of what may not be chosen, or was: nothing compares with it.
constexpr float kTaken = std::numeric_limits<float>::quiet_NaN();

float key_of(float value) { return std::isnan(value) ? kLowestKey : value; }

/// The largest key's place, the first among equals; takes it.
std::int32_t take_best(float* keys, int count) {
  std::int32_t best = -1;
  for (int i = 0; i < count; ++i) {
    if (!std::isnan(keys[i]) && (best < 0 || keys[i] > keys[best])) best = i;
  }
  keys[best] = kTaken;
  return best;
}

/// Takes the experts of all groups but the best. `group_keys`: one a group.
void keep_best_groups(const RouteExpertsArguments& a, float* keys, float* group_keys) {
  const int size = a.routing.num_experts / a.num_groups;
  for (int group = 0; group < a.num_groups; ++group) {
    float best = kLowestKey, second = kLowestKey;
    for (int e = group * size; e < (group + 1) * size; ++e) {
      second = std::max(second, std::min(best, keys[e]));
      best = std::max(best, keys[e]);
    }
    group_keys[group] = key_of(size > 1 && a.num_experts_of_group > 1 ? best + second : best);
  }
  for (int used = 0; used < a.num_groups_used; ++used) take_best(group_keys, a.num_groups);
  for (int e = 0; e < a.routing.num_experts; ++e) {
    if (!std::isnan(group_keys[e / size])) keys[e] = kTaken;
  }
}

/// One row's slots: a pass over the experts for each. keys: a number an expert, and one a group.
void route_row(const RouteExpertsArguments& a, std::int64_t row, const float* logits, float* keys) {
  const ExpertRouting& r = a.routing;
  std::int32_t* const experts = r.experts + row * r.num_slots;
  float* const weights = r.weights + row * r.num_slots;
  const bool by_logits = chooses_by_logits(a), is_sigmoid = a.scoring == ExpertScoring::kSigmoid;
  for (int e = 0; e < r.num_experts; ++e) keys[e] = key_of(logits[e]);
  // A score is part(logit) / whole.
  const float top = is_sigmoid ? 0 : *std::max_element(keys, keys + r.num_experts);
  const auto part = [&](float logit) {
    return is_sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit - top);
  };
  float whole = 1;
  if (!is_sigmoid && (!by_logits || !a.normalized)) {
    whole = 0;
    for (int e = 0; e < r.num_experts; ++e) whole += part(logits[e]);
  }
  if (!by_logits) {
    for (int e = 0; e < r.num_experts; ++e)
      keys[e] = key_of(part(logits[e]) / whole + (a.score_bias == nullptr ? 0.0f : a.score_bias[e]));
    if (a.num_groups > 1) keep_best_groups(a, keys, keys + r.num_experts);
  }
  float sum = 0;
  for (int slot = 0; slot < r.num_slots; ++slot) {
    experts[slot] = take_best(keys, r.num_experts);
    weights[slot] = part(logits[experts[slot]]) / whole;
    sum += weights[slot];
  }
  const float divisor = !a.normalized ? 1.0f : sum < kLeastSumOfScores ? kLeastSumOfScores : sum;
  for (int slot = 0; slot < r.num_slots; ++slot) {
    weights[slot] = weights[slot] / divisor * a.weight_scale;
    if (a.expert_scales != nullptr) weights[slot] *= a.expert_scales[experts[slot]];
  }
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
        scratch_floats(3, static_cast<std::int64_t>(padded_row(r.num_experts)), "router's logits");
    float* const logits = memory.floats();
    row_kernels().load_as_f32(a.logits.data, a.logits.dtype, row * a.logits.row_stride,
                              static_cast<std::size_t>(r.num_experts), logits);
    route_row(a, row, logits, logits + padded_row(r.num_experts));
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
