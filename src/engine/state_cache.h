#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/execution_plan.h"
#include "ops/backend.h"

namespace tessera {

/// What layers without attention keep of sequences: memory of a fixed size in each, in slots, of which each
/// running sequence has one in all layers. Nothing is cleared: a sequence's first step takes what its slot
/// holds for zeros.
class StateCache {
 public:
  /// Without memory where all layers have attention. Throws Error{kOutOfMemory}.
  StateCache(const ModelConfig& config, std::int64_t num_slots, OpsBackend& ops);
  StateCache(const StateCache&) = delete;  // sequences refer to it
  StateCache& operator=(const StateCache&) = delete;

  /// One view a layer, those of layers with attention empty; none if all layers have attention.
  const std::vector<RecurrentStateView>& layers() const { return layers_; }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(memory_.size_bytes); }

 private:
  friend class StateSlot;

  DeviceBuffer memory_;
  std::vector<RecurrentStateView> layers_;
  std::vector<std::int32_t> free_;  // capacity for all, so that giving one back never allocates
};

/// The slot of one sequence; given back when it is destroyed. Must not outlive its StateCache.
class StateSlot {
 public:
  explicit StateSlot(StateCache& cache) : cache_(&cache) {}
  ~StateSlot() { release(); }
  StateSlot(StateSlot&& other) noexcept : cache_(other.cache_), index_(std::exchange(other.index_, kNone)) {}
  StateSlot& operator=(StateSlot&& other) noexcept;

  /// Takes a slot, unless it has one. There is one for each sequence that may run.
  void take();
  void release() noexcept;
  /// Of one that was taken.
  std::int32_t index() const { return index_; }

 private:
  static constexpr std::int32_t kNone = -1;

  StateCache* cache_;
  std::int32_t index_ = kNone;
};

}  // namespace tessera
