#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/attention_params.h"
#include "tessera/attention.h"
#include "tessera/dtype.h"

namespace tessera::gpu {

template <class Tensor>
kernels::TensorArgument tensor_argument(const Tensor& t) {
  return {const_cast<void*>(static_cast<const void*>(t.data)), t.batch_stride, t.seq_stride, t.head_stride};
}

inline kernels::LseArgument lse_argument(const LseOutput& lse) {
  return {lse.data, lse.batch_stride, lse.head_stride, lse.seq_stride};
}

/// "f32", "f16" or "bf16", as the kernels' entry points end.
inline std::string_view dtype_suffix(DType dtype) { return dtype_name(dtype); }

/// The types that kernels are compiled for, as their entry points end: o's, and that of k and v if it is
/// another: "bf16_f8e4m3".
std::string types_suffix(const AttentionProblem& problem);

/// Bytes that vector loads and tensor maps want addresses to be a multiple of.
constexpr std::uintptr_t kTensorAlignment = 16;

/// Whether q, k, v and o start at multiples of kTensorAlignment.
inline bool tensors_are_aligned(const AttentionProblem& p) {
  const auto address = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  return (address(p.q.data) | address(p.k.data) | address(p.v.data) | address(p.o.data)) % kTensorAlignment ==
         0;
}

/// Elements, in up to kTensorAlignment bytes, that may be loaded at once wherever a row of a tensor begins,
/// and that divide it.
template <class Tensor>
int elements_at_once(const Tensor& t, std::int64_t head_dim) {
  const std::uint64_t element_bytes = dtype_bytes(t.dtype, 1);
  const auto strides = static_cast<std::uint64_t>(t.batch_stride | t.seq_stride | t.head_stride | head_dim);
  const std::uint64_t all =
      strides * element_bytes | reinterpret_cast<std::uintptr_t>(t.data) | kTensorAlignment;
  return static_cast<int>((all & -all) / element_bytes);
}

/// As kernels name an additive or boolean mask's dtype. Throws Error{kUnsupported} for one that they don't
/// read.
kernels::MaskDType mask_dtype(DType dtype);

/// What a problem says to the kernels; what a kernel's choice adds (packing, splits) is left 0.
kernels::AttentionParams problem_params(const AttentionProblem& problem);

/// Empty, or why no kernel for GPUs takes a valid problem, whatever the GPU.
std::string unsupported_problem(const AttentionProblem& problem);

}  // namespace tessera::gpu
