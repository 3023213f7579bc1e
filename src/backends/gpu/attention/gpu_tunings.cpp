#include "backends/gpu/attention/gpu_tunings.h"

#include <fmt/core.h>

#include "backends/gpu/runtime/kernel_library.h"

namespace tessera::gpu {

const TuningStore& GpuTunings::of(Gpu& device) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<const TuningStore>& store = stores_[device.index()];
  if (store == nullptr) {
    const DeviceProperties& d = device.properties();
    const std::string size =
        fmt::format("{} {} {}", d.compute_capability, d.num_multiprocessors, d.architecture);
    const std::string kernels = device.kernels().fingerprint("attention");
    const std::string_view identity[] = {backend_, size, kernels};
    store = std::make_unique<TuningStore>(device.kernels().cache().folder(), identity, d.name, shipped_);
  }
  return *store;
}

}  // namespace tessera::gpu
