#include "backends/cuda/attention/attention_kernel.h"

namespace tessera::cuda {

extern const AttentionKernel kSm80Decode;
extern const AttentionKernel kSm90Prefill;
extern const AttentionKernel kSm80Prefill;
extern const AttentionKernel kSm80PrefillF32;
extern const AttentionKernel kGeneric;

std::span<const AttentionKernel* const> attention_kernels() {
  // The preferred first.
  static constexpr std::array kKernels = {
      &kSm80Decode,
      &kSm90Prefill,
      &kSm80Prefill,
      &kSm80PrefillF32,
      &kGeneric,
  };
  return kKernels;
}

const AttentionKernel& generic_attention() { return kGeneric; }

}  // namespace tessera::cuda
