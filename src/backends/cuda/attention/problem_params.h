#pragma once

#include "common/attention_params.h"
#include "tessera/attention.h"

namespace tessera::cuda {

template <class Tensor>
kernels::TensorArgument tensor_argument(const Tensor& t) {
  return {const_cast<void*>(static_cast<const void*>(t.data)), t.batch_stride, t.seq_stride, t.head_stride};
}

/// What a problem says to the kernels; what a kernel's choice adds (packing, splits) is left 0.
kernels::AttentionParams problem_params(const AttentionProblem& problem);

}  // namespace tessera::cuda
