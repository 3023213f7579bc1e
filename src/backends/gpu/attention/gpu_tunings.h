#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "attention/tuning_store.h"
#include "backends/gpu/runtime/gpu.h"

namespace tessera::gpu {

/// The tuned shapes of a backend's GPUs. Own results are for a GPU of the same name, compute capability and
/// size and for kernels of the same text. Safe to use from several threads.
class GpuTunings {
 public:
  /// shipped: TuningStore's.
  GpuTunings(std::string_view backend, std::span<const std::string_view> shipped)
      : backend_(backend), shipped_(shipped) {}

  /// Lives as long as this.
  const TuningStore& of(Gpu& device) const;

 private:
  std::string backend_;
  std::span<const std::string_view> shipped_;
  mutable std::mutex mutex_;
  mutable std::map<int, std::unique_ptr<const TuningStore>> stores_;  // by index; guarded by mutex_
};

}  // namespace tessera::gpu
