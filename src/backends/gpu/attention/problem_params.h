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

/// The largest power of two, kTensorAlignment at most, that divides all numbers whose bits `joined` has.
inline int piece_bytes(std::uint64_t joined) {
  joined |= kTensorAlignment;
  return static_cast<int>(joined & -joined);
}

/// The bits of a row's bytes and of the distances of rows in bytes, for piece_bytes().
template <class Tensor>
std::uint64_t joined_row_bytes(const Tensor& t, std::int64_t head_dim) {
  return static_cast<std::uint64_t>(t.batch_stride | t.seq_stride | t.head_stride | head_dim) *
         dtype_bytes(t.dtype, 1);
}

/// As kernels name an additive or boolean mask's dtype. Throws Error{kUnsupported} for one that they don't
/// read.
kernels::MaskDType mask_dtype(DType dtype);

/// What a problem says to the kernels; what a kernel's choice adds (packing, splits) is left 0.
kernels::AttentionParams problem_params(const AttentionProblem& problem);

/// Empty, or why no kernel for GPUs takes a valid problem, whatever the GPU.
std::string unsupported_problem(const AttentionProblem& problem);

}  // namespace tessera::gpu
