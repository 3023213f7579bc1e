#include "backends/gpu/ceilings.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "backends/gpu/runtime/kernel_library.h"
#include "common/ceilings_traits.h"

namespace tessera::gpu {
namespace {

using kernels::kCeilingThreads;

/// Best of a few runs of `work`, in seconds.
double best_seconds(Gpu& device, Stream stream, const std::function<void()>& work) {
  GpuTimer timer(device);
  work();
  double best_ms = 1e30;
  for (int run = 0; run < 5; ++run) {
    timer.start(stream);
    work();
    timer.stop(stream);
    best_ms = std::min(best_ms, timer.elapsed_ms());
  }
  return best_ms * 1e-3;
}

Ceilings measure(Platform& platform, int index, DType dtype) {
  Gpu& device = platform.gpu(index);
  KernelLibrary& library = device.kernels();
  const OwnedStream stream(device);
  const ModuleSpec module{"common/ceilings.cu", {}};
  const auto blocks = static_cast<unsigned>(device.properties().num_multiprocessors * 8);
  const LaunchShape shape{{blocks, 1, 1}, {kCeilingThreads, 1, 1}, 0};

  Ceilings ceilings;
  // Several times the L2 cache, and not so much that it would not fit beside a model.
  const std::size_t size_bytes =
      std::min(std::max<std::size_t>(device.properties().l2_bytes * 16, std::size_t{256} << 20),
               device.free_memory_bytes() / 4);
  const std::shared_ptr<std::byte> data = device.allocate(size_bytes, "read rate", stream.handle());
  device.fill(data.get(), 0, size_bytes, stream.handle());
  const std::shared_ptr<std::byte> sink = device.allocate(256, "read rate", stream.handle());
  const Kernel& read = library.find(module, "read_rate");
  const double read_s = best_seconds(device, stream.handle(), [&] {
    launch_kernel(device, read, shape, stream.handle(), "read rate", static_cast<const void*>(data.get()),
                  static_cast<long long>(size_bytes / 16), static_cast<void*>(sink.get()));
  });
  ceilings.bytes_per_s = static_cast<double>(size_bytes) / read_s;

  constexpr int kIterations = 4096;
  const double threads = static_cast<double>(blocks) * kCeilingThreads;
  const std::optional<MatrixRate> matrix_rate = platform.matrix_rate(device.properties());
  if (matrix_rate) {
    const Kernel& mma = library.find(matrix_rate->module, matrix_rate->entry);
    const double mma_s = best_seconds(device, stream.handle(), [&] {
      launch_kernel(device, mma, shape, stream.handle(), "mma rate", kIterations,
                    static_cast<void*>(sink.get()));
    });
    ceilings.flops_per_s =
        threads / device.properties().warp_size * kIterations * matrix_rate->flops_per_warp / mma_s;
    if (dtype != DType::kF32) return ceilings;
  }

  const Kernel& fma = library.find(module, "fma_rate");
  const double fma_s = best_seconds(device, stream.handle(), [&] {
    launch_kernel(device, fma, shape, stream.handle(), "fma rate", kIterations, 1.0f,
                  static_cast<void*>(sink.get()));
  });
  // Three 16-bit products make one of fp32 accuracy.
  ceilings.flops_per_s =
      std::max(threads * kIterations * kernels::kCeilingFmas * 2 / fma_s, ceilings.flops_per_s / 3);
  return ceilings;
}

}  // namespace

Ceilings measured_ceilings(Platform& platform, int index, DType dtype) {
  static std::mutex mutex;
  static std::map<std::tuple<DeviceKind, int, bool>, Ceilings> measured;
  const std::lock_guard lock(mutex);
  const std::tuple key(platform.kind(), index, dtype == DType::kF32);
  const auto found = measured.find(key);
  if (found != measured.end()) return found->second;
  return measured.emplace(key, measure(platform, index, dtype)).first->second;
}

}  // namespace tessera::gpu
