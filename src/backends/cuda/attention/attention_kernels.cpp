#include "backends/cuda/attention/attention_kernels.h"

#include <array>

namespace tessera::cuda {

extern const gpu::AttentionKernel kSm80Decode;
extern const gpu::AttentionKernel kSm90Prefill;
extern const gpu::AttentionKernel kSm80Prefill;
extern const gpu::AttentionKernel kSm80PrefillF32;

gpu::AttentionKernels attention_kernels() {
  // The preferred first.
  static constexpr std::array kKernels = {
      &kSm80Decode, &kSm90Prefill, &kSm80Prefill, &kSm80PrefillF32, &gpu::kGenericAttention,
  };
  return kKernels;
}

}  // namespace tessera::cuda
