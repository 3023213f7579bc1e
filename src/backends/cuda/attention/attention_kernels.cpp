#include "backends/cuda/attention/attention_kernels.h"

#include <array>

namespace tessera::cuda {

extern const gpu::AttentionKernel kSm90Decode;
extern const gpu::AttentionKernel kSm80Decode;
extern const gpu::AttentionKernel kSm80DecodeSegments;
extern const gpu::AttentionKernel kSm90PrefillE4M3;
extern const gpu::AttentionKernel kSm90Prefill;
extern const gpu::AttentionKernel kSm90PrefillF32;
extern const gpu::AttentionKernel kSm90PrefillWide;
extern const gpu::AttentionKernel kSm80Prefill;
extern const gpu::AttentionKernel kSm80PrefillF32;
extern const gpu::AttentionKernel kSm90Latent;

gpu::AttentionKernels attention_kernels() {
  // The preferred first.
  static constexpr std::array kKernels = {
      &kSm90Decode,  &kSm80Decode,     &kSm80DecodeSegments,  &kSm90PrefillE4M3,
      &kSm90Prefill, &kSm90PrefillF32, &kSm90Latent,          &kSm90PrefillWide,
      &kSm80Prefill, &kSm80PrefillF32, &gpu::kTiledAttention, &gpu::kGenericAttention,
  };
  return kKernels;
}

std::span<const gpu::DeviceProperties> largest_devices() {
  static const std::array<gpu::DeviceProperties, 2> devices = {{
      {.name = "A100",
       .compute_capability = 80,
       .num_multiprocessors = 108,
       .l2_bytes = 40 << 20,
       .shared_per_multiprocessor_bytes = 167936,
       .shared_per_block_bytes = 166912,
       .memory_bytes_per_us = 1.555e6,
       .warp_size = 32,
       .architecture = "sm_80"},
      {.name = "H200",
       .compute_capability = 90,
       .num_multiprocessors = 132,
       .l2_bytes = 60 << 20,
       .shared_per_multiprocessor_bytes = 233472,
       .shared_per_block_bytes = 232448,
       .memory_bytes_per_us = 4.9e6,
       .warp_size = 32,
       .architecture = "sm_90a"},
  }};
  return devices;
}

}  // namespace tessera::cuda
