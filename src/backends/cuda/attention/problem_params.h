#pragma once

#include <string_view>

#include "common/attention_params.h"
#include "tessera/attention.h"

namespace tessera::cuda {

template <class Tensor>
kernels::TensorArgument tensor_argument(const Tensor& t) {
  return {const_cast<void*>(static_cast<const void*>(t.data)), t.batch_stride, t.seq_stride, t.head_stride};
}

/// "f32", "f16" or "bf16", as the kernels' entry points end.
inline std::string_view dtype_suffix(DType dtype) { return dtype_name(dtype); }

/// What a problem says to the kernels; what a kernel's choice adds (packing, splits) is left 0.
kernels::AttentionParams problem_params(const AttentionProblem& problem);

}  // namespace tessera::cuda
