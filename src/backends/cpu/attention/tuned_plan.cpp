#include "backends/cpu/attention/tuned_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "backends/cpu/attention/config.h"
#include "backends/cpu/simd_target.h"
#include "core/binary_cache.h"
#include "core/proc_value.h"
#include "tessera/error.h"
#include "tessera/threads.h"

namespace tessera::cpu {
namespace {

/// "Intel(R) Xeon(R) Platinum 8480+", as Linux names it.
std::string processor_name() {
  const std::string name = proc_value("/proc/cpuinfo", "model name");
  return name.empty() ? "a processor without a name" : name;
}

/// The store for a number of threads and the others that were made before.
struct Store {
  Store(int threads, const std::string& device, std::span<const std::string_view> identity)
      : num_threads(threads), tunings(BinaryCache::default_folder(), identity, device) {}

  const int num_threads;
  const TuningStore tunings;
  const Store* next = nullptr;
};

const Store* find_store(const Store* first, int num_threads) {
  while (first != nullptr && first->num_threads != num_threads) first = first->next;
  return first;
}

}  // namespace

const TuningStore& tunings() {
  static std::atomic<const Store*> stores{nullptr};  // never destroyed, and no lock: processes fork
  const int threads = num_threads();
  const Store* first = stores.load();
  if (const Store* store = find_store(first, threads)) return store->tunings;
  const std::string count = std::to_string(threads);
  const std::string_view identity[] = {"cpu", simd_target_name(simd_target()), count};
  auto made = std::make_unique<Store>(threads, processor_name(), identity);
  do {
    if (const Store* store = find_store(first, threads)) return store->tunings;  // another thread was sooner
    made->next = first;
  } while (!stores.compare_exchange_weak(first, made.get()));
  return made.release()->tunings;
}

AttentionPlan plan_candidate(const AttentionProblem& problem, const AttentionCandidate& candidate) {
  AttentionPlan plan = make_plan(problem, candidate.config);
  if (plan.kernel != candidate.kernel)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} takes such problems here, not {}", plan.kernel, candidate.kernel));
  return plan;
}

TunedPlan plan_tuned(const AttentionProblem& problem, const AttentionConfig& config,
                     const AttentionTunings& tunings) {
  TunedCandidate tuned = find_tuned(problem, config, tunings);
  if (tuned.candidate) {
    try {
      return {plan_candidate(problem, *tuned.candidate), std::move(tuned.why)};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      tuned.why += not_used(error.message());
    }
  }
  return {make_plan(problem, config), std::move(tuned.why)};
}

std::vector<AttentionCandidate> attention_candidates(const AttentionProblem& problem) {
  const AttentionPlan untuned = make_plan(problem, {});
  std::vector<AttentionCandidate> candidates = {{untuned.kernel, {}}};
  if (problem.batch_invariant) return candidates;
  std::vector<AttentionConfig> configs = {untuned.config};
  const auto consider = [&](const AttentionConfig& config) {
    try {
      const AttentionPlan plan = make_plan(problem, config);
      if (plan.kernel != untuned.kernel || std::ranges::find(configs, plan.config) != configs.end()) return;
      configs.push_back(plan.config);
      candidates.push_back({plan.kernel, config});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
    }
  };
  const AttentionConfig& own = untuned.config;
  // A decode's rows are one tile, whatever its keys.
  const bool has_row_tiles = own.block_m < problem.seq_len_q * (problem.num_heads / problem.num_kv_heads);
  const std::vector<int> blocks_m = has_row_tiles
                                        ? std::vector{0, own.block_m / 4, own.block_m / 2, 2 * own.block_m}
                                        : std::vector{0, own.block_m / 2};
  for (const int block_m : blocks_m) {
    for (const int block_n : {0, own.block_n / 2, 2 * own.block_n, 4 * own.block_n})
      consider({.block_m = block_m, .block_n = block_n});
  }
  for (const int splits : {1, own.num_splits / 2, 2 * own.num_splits, 4 * own.num_splits}) {
    // Splits of less than a tile would have nothing to do.
    if (splits > 0 && std::int64_t{splits} * own.block_n <= problem.seq_len_kv)
      consider({.num_splits = splits});
  }
  return candidates;
}

}  // namespace tessera::cpu
