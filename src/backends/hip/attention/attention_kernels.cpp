#include "backends/hip/attention/attention_kernels.h"

#include <array>

namespace tessera::hip {

extern const gpu::AttentionKernel kMatrixDecode;
extern const gpu::AttentionKernel kMatrixPrefill;

gpu::AttentionKernels attention_kernels() {
  // The preferred first.
  static constexpr std::array kKernels = {
      &kMatrixDecode,
      &kMatrixPrefill,
      &gpu::kGenericAttention,
  };
  return kKernels;
}

}  // namespace tessera::hip
