// Mixtures of experts (Shazeer et al., "Outrageously Large Neural Networks", 2017) but for their products:
// which experts a row goes to, slots put together by expert, and the sum of what a row's slots gave.

#include "common/rows.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// What a logit counts as, and no number for one that was taken.
TESSERA_DEVICE float key_of_logit(float logit) { return logit != logit ? -infinity() : logit; }
TESSERA_DEVICE float taken_key() { return float_of_bits(0x7fc00000u); }
constexpr float kLeastSumOfScores = 1e-20f;  // ops/arguments.h

/// The largest of a warp's keys and its expert, the lowest among equals; expert -1 has none.
struct BestExpert {
  float key;
  int expert;

  TESSERA_DEVICE void take(float other_key, int other) {
    if (other < 0) return;
    if (expert < 0 || other_key > key || (other_key == key && other < expert)) {
      key = other_key;
      expert = other;
    }
  }
};

TESSERA_DEVICE BestExpert best_of_warp(const float* keys, int num_experts) {
  BestExpert best = {0.0f, -1};
  for (int e = thread_x() % kWarpSize; e < num_experts; e += kWarpSize) {
    if (keys[e] == keys[e]) best.take(keys[e], e);
  }
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const float key = shuffle_xor(best.key, mask);
    const int expert = shuffle_xor(best.expert, mask);
    best.take(key, expert);
  }
  return best;
}

/// Takes the experts of all groups but the best. `group_keys`: one a group.
TESSERA_DEVICE void keep_best_groups(const RouteExpertsParams& p, float* keys, float* group_keys) {
  const int lane = thread_x() % kWarpSize;
  const int num_experts = p.routing.num_experts, size = num_experts / p.num_groups;
  for (int group = lane; group < p.num_groups; group += kWarpSize) {
    float best = -infinity(), second = -infinity();
    for (int e = group * size; e < (group + 1) * size; ++e) {
      second = maximum(second, minimum(best, keys[e]));
      best = maximum(best, keys[e]);
    }
    group_keys[group] = key_of_logit(size > 1 && p.num_experts_of_group > 1 ? best + second : best);
  }
  sync_warp();
  for (int used = 0; used < p.num_groups_used; ++used) {
    const BestExpert best = best_of_warp(group_keys, p.num_groups);
    sync_warp();
    if (lane == 0) group_keys[best.expert] = taken_key();
    sync_warp();
  }
  for (int e = lane; e < num_experts; e += kWarpSize) {
    const float key = group_keys[e / size];
    if (key == key) keys[e] = taken_key();
  }
}

/// One row's slots, by a warp; `keys` are its own, one an expert and one a group.
TESSERA_DEVICE void route_row(const RouteExpertsParams& p, int64 row, float* keys) {
  const int lane = thread_x() % kWarpSize;
  const RoutingParams& r = p.routing;
  const bool is_sigmoid = p.is_sigmoid != 0, by_scores = p.by_scores != 0;
  const auto logit_of = [&](int expert) { return load_scalar(p.logits, row * p.logits.row_stride + expert); };
  // A score is part / whole.
  float top = 0.0f, whole = 1.0f;
  const auto part_of = [&](int expert) {
    const float logit = logit_of(expert);
    return is_sigmoid ? 1.0f / (1.0f + expf(-logit)) : expf(logit - top);
  };
  for (int e = lane; e < r.num_experts; e += kWarpSize) keys[e] = key_of_logit(logit_of(e));
  sync_warp();
  if (!is_sigmoid && (by_scores || p.normalized == 0)) {
    top = best_of_warp(keys, r.num_experts).key;
    whole = 0.0f;
    for (int e = lane; e < r.num_experts; e += kWarpSize) whole += part_of(e);
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) whole += shuffle_xor(whole, mask);
  }
  if (by_scores) {
    for (int e = lane; e < r.num_experts; e += kWarpSize)
      keys[e] = key_of_logit(part_of(e) / whole + (p.score_bias == nullptr ? 0.0f : p.score_bias[e]));
    sync_warp();
    if (p.num_groups > 1) keep_best_groups(p, keys, keys + r.num_experts);
    sync_warp();
  }
  // A lane keeps the slot whose number it has, so that nobody waits for what was stored.
  int* const experts = r.experts + row * r.num_slots;
  float* const weights = r.weights + row * r.num_slots;
  float own = 0.0f, sum = 0.0f;
  for (int slot = 0; slot < r.num_slots; ++slot) {
    const BestExpert best = best_of_warp(keys, r.num_experts);
    if (slot == 0 && !is_sigmoid && !by_scores) top = best.key;
    // A key may be the logit itself, unless that was a NaN.
    const bool is_logit = !is_sigmoid && !by_scores && best.key != -infinity();
    const float part = (is_logit ? expf(best.key - top) : part_of(best.expert)) / whole;
    sum += part;
    sync_warp();
    if (lane == 0) {
      experts[slot] = best.expert;
      keys[best.expert] = taken_key();
    }
    if (lane == slot) own = part;
    if (slot >= kWarpSize && lane == slot % kWarpSize) weights[slot] = part;
    sync_warp();
  }
  const float divisor = p.normalized == 0 ? 1.0f : sum < kLeastSumOfScores ? kLeastSumOfScores : sum;
  for (int slot = lane; slot < r.num_slots; slot += kWarpSize) {
    const float part = slot == lane ? own : weights[slot];
    const float weight = part / divisor * p.weight_scale;
    weights[slot] = p.expert_scales == nullptr ? weight : weight * p.expert_scales[experts[slot]];
  }
  sync_warp();
}

/// The sum of `value` over the threads of a block before this one; `all` is that over the block.
TESSERA_DEVICE int sum_before(int value, int* of_warps, int& all) {
  const int lane = thread_x() % kWarpSize;
  int sum = value;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int before = shuffle(sum, maximum(lane - distance, 0));
    if (lane >= distance) sum += before;
  }
  if (lane == kWarpSize - 1) of_warps[thread_x() / kWarpSize] = sum;
  sync_threads();
  int result = sum - value;
  all = 0;
  for (int warp = 0; warp < kGroupThreads / kWarpSize; ++warp) {
    if (warp < thread_x() / kWarpSize) result += of_warps[warp];
    all += of_warps[warp];
  }
  sync_threads();  // of_warps may be used again
  return result;
}

}  // namespace tessera::kernels

/// Grid: (groups of rows), a warp a row. Shared memory: a key an expert, one a group, and this a warp.
TESSERA_KERNEL(route_experts, kRouteThreads)(const RouteExpertsParams p) {
  TESSERA_DYNAMIC_SHARED(all_keys);
  allow_next_kernel();
  wait_for_prior_kernels();
  const int warp = thread_x() / kWarpSize;
  const int64 row = static_cast<int64>(block_x()) * (kRouteThreads / kWarpSize) + warp;
  if (row >= p.rows) return;
  route_row(p, row, reinterpret_cast<float*>(all_keys) + warp * (p.routing.num_experts + p.num_groups));
}

/// Few rows by one block, slots put together, too: a thread counts the slots that come before its own. Shared
/// memory: as above.
TESSERA_KERNEL(route_few_rows, kRouteFewThreads)(const RouteExpertsParams p) {
  TESSERA_DYNAMIC_SHARED(all_keys);
  TESSERA_SHARED(experts, int[kMostFewSlots]);
  allow_next_kernel();
  wait_for_prior_kernels();
  const RoutingParams& r = p.routing;
  const int warp = thread_x() / kWarpSize;
  for (int64 row = warp; row < p.rows; row += kRouteFewThreads / kWarpSize)
    route_row(p, row, reinterpret_cast<float*>(all_keys) + warp * (r.num_experts + p.num_groups));
  sync_threads();
  const int slots = static_cast<int>(r.slots);
  for (int slot = thread_x(); slot < slots; slot += kRouteFewThreads) experts[slot] = r.experts[slot];
  sync_threads();
  for (int slot = thread_x(); slot < slots; slot += kRouteFewThreads) {
    int place = 0;
    for (int i = 0; i < slots; ++i)
      place += experts[i] < experts[slot] || (experts[i] == experts[slot] && i < slot) ? 1 : 0;
    r.order[place] = slot;
  }
  for (int expert = thread_x(); expert <= r.num_experts; expert += kRouteFewThreads) {
    int before = 0;
    for (int i = 0; i < slots; ++i) before += experts[i] < expert ? 1 : 0;
    r.offsets[expert] = before;
  }
}

/// Grid: (experts). A block counts the slots of experts before its own, which is where its own begin, and
/// writes these in their order.
TESSERA_KERNEL(group_slots, kGroupThreads)(const RoutingParams r) {
  TESSERA_SHARED(of_warps, int[kGroupThreads / kWarpSize]);
  TESSERA_SHARED(scratch, int[kMaxWarps]);
  allow_next_kernel();
  wait_for_prior_kernels();
  const int expert = block_x();
  int before = 0;
  for (int64 i = thread_x(); i < r.slots; i += kGroupThreads) before += r.experts[i] < expert ? 1 : 0;
  int next = block_reduce(before, 0, scratch, Add());
  if (thread_x() == 0) r.offsets[expert] = next;
  for (int64 first = 0; first < r.slots; first += kGroupThreads) {
    const int64 slot = first + thread_x();
    const bool is_own = slot < r.slots && r.experts[slot] == expert;
    int all = 0;
    const int place = sum_before(is_own ? 1 : 0, of_warps, all);
    if (is_own) r.order[next + place] = static_cast<int>(slot);
    next += all;
  }
  if (thread_x() == 0 && expert == r.num_experts - 1) r.offsets[expert + 1] = next;
}

/// Grid: (rows * blocks_per_row), one block a part of a row.
TESSERA_KERNEL(combine_experts, kElementwiseThreads)(const CombineExpertsParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x() / p.blocks_per_row;
  const int64 part = block_x() % p.blocks_per_row;
  for (int n = 0; n < kElementwiseGroups; ++n) {
    const int64 group = (part * kElementwiseGroups + n) * kElementwiseThreads + thread_x();
    const int count = group_count(p.columns, group);
    if (count <= 0) continue;
    const int64 column = group * kGroupSize;
    float sum[kGroupSize] = {};
    if (p.accumulate != 0) load_group<kAnyType>(p.out, row * p.out.row_stride + column, count, sum);
    for (int64 slot = row * p.num_slots; slot < (row + 1) * p.num_slots; ++slot) {
      const float weight = p.weights[slot];
      float x[kGroupSize];
      load_group<kAnyType>(p.x, slot * p.x.row_stride + column, count, x);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) sum[i] = fmaf(weight, x[i], sum[i]);
    }
    store_group<kAnyType>(p.out, row * p.out.row_stride + column, count, sum);
  }
}
