#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "model/paged_attention.h"
#include "ops/backend.h"

namespace tessera {

/// Replays steps of a shape that was seen before on devices that gain from it (a CUDA graph), and runs them
/// kernel by kernel elsewhere.
class StepRecorder {
 public:
  explicit StepRecorder(OpsBackend& ops) : ops_(ops), records_(ops.record([] {}, ops.stream()) != nullptr) {}

  /// What makes two steps the same list of kernels with the same arguments.
  struct Key {
    StepShape shape;
    bool samples = true;  ///< else it ends with the logits
    bool uses_history = false;

    friend auto operator<=>(const Key&, const Key&) = default;
  };

  /// Runs `work`, or its recording. Work is recorded when its key comes the second time: the first run makes
  /// what kernels make lazily. address_generation: recordings made at another one are dropped. `work` must
  /// not refer to anything that changes between steps but device memory.
  void run(const Key& key, std::int64_t address_generation, const std::function<void()>& work) {
    if (!records_) {
      work();
      return;
    }
    if (address_generation != address_generation_ && !recordings_.empty()) {
      ops_.synchronize(ops_.stream());  // the last one may still run
      recordings_.clear();
    }
    address_generation_ = address_generation;
    const auto [entry, is_new] = recordings_.try_emplace(key);
    if (is_new) {
      work();
      return;
    }
    if (!entry->second) entry->second = ops_.record(work, ops_.stream());
    entry->second->replay(ops_.stream());
  }

 private:
  OpsBackend& ops_;
  bool records_;
  std::int64_t address_generation_ = -1;
  std::map<Key, std::unique_ptr<RecordedWork>> recordings_;
};

}  // namespace tessera
