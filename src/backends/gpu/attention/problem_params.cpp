#include "backends/gpu/attention/problem_params.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "attention/narrow.h"
#include "backends/gpu/runtime/device_properties.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

kernels::MaskArgument mask_argument(const std::optional<ScoreMask>& mask) {
  if (!mask) return {};
  return {mask->data,     mask->batch_stride, mask->head_stride,
          mask->q_stride, mask->kv_stride,    mask_dtype(mask->dtype)};
}

int window_argument(const std::optional<std::int64_t>& window) {
  return window ? static_cast<int>(std::min<std::int64_t>(*window, kernels::kUnlimitedWindow))
                : kernels::kUnlimitedWindow;
}

}  // namespace

kernels::MaskDType mask_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kernels::kMaskF32;
    case DType::kF16:
      return kernels::kMaskF16;
    case DType::kBF16:
      return kernels::kMaskBF16;
    case DType::kU8:
    case DType::kBool:
      return kernels::kMaskU8;
    default:
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("no GPU kernel reads a mask of {}; expected f32, f16, bf16, or a "
                              "boolean one of u8 or bool",
                              dtype_name(dtype)));
  }
}

std::string types_suffix(const AttentionProblem& p) {
  std::string suffix(dtype_suffix(wide_dtype(p)));
  if (has_narrow_kv(p)) suffix += fmt::format("_{}", dtype_suffix(p.k.dtype));
  return suffix;
}

kernels::AttentionParams problem_params(const AttentionProblem& p) {
  kernels::AttentionParams a = {};
  a.q = tensor_argument(p.q);
  a.k = tensor_argument(p.k);
  a.v = tensor_argument(p.v);
  a.o = tensor_argument(p.o);
  if (p.lse) a.lse = lse_argument(*p.lse);
  if (p.q_scales) a.q_scales = {p.q_scales->q, p.q_scales->batch_stride, p.q_scales->head_stride};
  if (p.kv_scales)
    a.kv_scales = {p.kv_scales->k, p.kv_scales->v, p.kv_scales->batch_stride, p.kv_scales->head_stride};
  a.batch = static_cast<int>(p.batch);
  a.num_heads = p.num_heads;
  a.num_kv_heads = p.num_kv_heads;
  a.head_dim_qk = p.head_dim_qk;
  a.head_dim_v = p.head_dim_v;
  a.seq_len_q = static_cast<int>(p.seq_len_q);
  a.seq_len_kv = static_cast<int>(p.seq_len_kv);
  if (p.ragged_q) a.cu_seqlens_q = p.ragged_q->cu_seqlens;
  if (p.ragged_kv) a.cu_seqlens_kv = p.ragged_kv->cu_seqlens;
  a.seq_lens_kv = p.paged_kv ? p.paged_kv->seq_lens_kv : p.seq_lens_kv;
  a.settled_kv = p.settled_kv ? 1 : 0;
  a.page_size = 1;
  if (p.paged_kv) {
    a.block_table = p.paged_kv->block_table;
    a.block_table_stride = p.paged_kv->block_table_stride;
    a.page_size = p.paged_kv->page_size;
    const auto size = static_cast<unsigned>(a.page_size);
    a.page_shift = std::has_single_bit(size) ? std::countr_zero(size) : -1;
  }
  const ScoreTerms& s = p.scores;
  a.softmax_scale =
      s.softmax_scale.value_or(static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.head_dim_qk))));
  a.softcap = s.softcap.value_or(0.0f);
  if (s.alibi) {
    a.alibi_slopes = s.alibi->slopes;
    a.alibi_batch_stride = s.alibi->batch_stride;
  }
  a.additive_mask = mask_argument(s.additive_mask);
  a.boolean_mask = mask_argument(s.boolean_mask);
  if (s.sinks) a.sinks = s.sinks->logits;
  const DiagonalMask diagonal = s.diagonal.value_or(DiagonalMask{});
  a.window_left = window_argument(diagonal.window_left);
  a.window_right = window_argument(diagonal.window_right);
  a.top_left = diagonal.alignment == DiagonalAlignment::kTopLeft ? 1 : 0;
  return a;
}

std::string unsupported_problem(const AttentionProblem& p) {
  constexpr std::int64_t kMaxSeqLen = std::int64_t{1}
                                      << 29;  // kernels count tokens and packed rows in 32 bits
  if (wide_dtype(p) == DType::kF64) return "dtype f64 has no GPU kernel; use the reference";
  if (p.scores.additive_mask && p.scores.additive_mask->dtype == DType::kF64)
    return "an additive mask of f64 has no GPU kernel";
  const std::int64_t longest = std::max({p.seq_len_q * (p.num_heads / p.num_kv_heads), p.seq_len_kv});
  if (longest > kMaxSeqLen)
    return fmt::format("a sequence has {} tokens (times grouped heads); at most {} are supported", longest,
                       kMaxSeqLen);
  if (p.num_heads > kMaxGridYz)
    return fmt::format("num_heads is {}; at most {} are supported", p.num_heads, kMaxGridYz);
  return {};
}

}  // namespace tessera::gpu
