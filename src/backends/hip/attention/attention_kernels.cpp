#include "backends/hip/attention/attention_kernels.h"

#include <array>

#include "backends/hip/runtime/targets.h"

namespace tessera::hip {

extern const gpu::AttentionKernel kMatrixDecode;
extern const gpu::AttentionKernel kMatrixPrefill;

gpu::AttentionKernels attention_kernels() {
  // The preferred first.
  static constexpr std::array kKernels = {
      &kMatrixDecode,
      &kMatrixPrefill,
      &gpu::kTiledAttention,
      &gpu::kGenericAttention,
  };
  return kKernels;
}

std::span<const gpu::DeviceProperties> largest_devices() {
  const auto device = [](const char* name, const char* architecture, int num_multiprocessors,
                         std::size_t l2_bytes) {
    constexpr std::size_t kSharedBytes = 64 * 1024;
    return gpu::DeviceProperties{.name = name,
                                 .num_multiprocessors = num_multiprocessors,
                                 .l2_bytes = l2_bytes,
                                 .shared_per_multiprocessor_bytes = kSharedBytes,
                                 .shared_per_block_bytes = kSharedBytes,
                                 .warp_size = matrix_unit(architecture) == MatrixUnit::kMfma ? 64 : 32,
                                 .architecture = architecture};
  };
  static const std::array devices = {
      device("MI250X", "gfx90a", 110, 8 << 20),       device("MI300X", "gfx942", 304, 4 << 20),
      device("RX 7900 XTX", "gfx1100", 48, 6 << 20),  device("RX 7600", "gfx1102", 16, 2 << 20),
      device("Radeon 8060S", "gfx1151", 20, 2 << 20), device("RX 9070 XT", "gfx1201", 32, 8 << 20)};
  return devices;
}

}  // namespace tessera::hip
