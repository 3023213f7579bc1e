#include "backends/hip/attention/attention_kernels.h"

#include <array>

namespace tessera::hip {

gpu::AttentionKernels attention_kernels() {
  // The preferred first.
  static constexpr std::array kKernels = {
      &gpu::kGenericAttention,
  };
  return kKernels;
}

}  // namespace tessera::hip
