#include "backends/gpu/ops/kernel_arguments.h"

#include <cstddef>
#include <cstdint>

#include "core/block_format.h"

namespace tessera::gpu {

using kernels::RowsArgument;

namespace {

RowsArgument cache_rows(void* data, const KvCacheView& c) {
  const bool vector = is_aligned(data, c.dtype, c.page_stride) && is_aligned(data, c.dtype, c.token_stride) &&
                      is_aligned(data, c.dtype, c.head_stride);
  return {data, c.page_stride, element_type(c.dtype), vector ? 1 : 0};
}

}  // namespace

int element_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kernels::kElementF16;
    case DType::kBF16:
      return kernels::kElementBF16;
    case DType::kF32:
      return kernels::kElementF32;
    case DType::kF8E4M3:
      return kernels::kElementF8E4M3;
#define TESSERA_CASE(Format) \
  case DType::k##Format:     \
    return kernels::kElement##Format;
      TESSERA_BLOCK_FORMATS(TESSERA_CASE)
#undef TESSERA_CASE
    default:
      throw_no_weight_dtype(dtype);
  }
}

bool is_aligned(const void* data, DType dtype, std::int64_t stride) {
  const std::int64_t stride_alignment = dtype == DType::kF32 ? 4 : 8;
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % stride_alignment == 0;
}

RowsArgument rows_of(const Matrix& m) {
  const std::int64_t stride = m.rows > 1 ? m.row_stride : 0;
  return {m.data, stride, element_type(m.dtype), is_aligned(m.data, m.dtype, stride) ? 1 : 0};
}

RowsArgument rows_of(const Weight& w) {
  // Of blocks: whether each row stands at a multiple of 16 bytes.
  const bool vector = block_format(w.dtype).elements > 1
                          ? reinterpret_cast<std::uintptr_t>(w.data) % 16 == 0 &&
                                dtype_bytes(w.dtype, static_cast<std::size_t>(w.columns)) % 16 == 0
                          : is_aligned(w.data, w.dtype, w.rows > 1 ? w.columns : 0);
  return {const_cast<void*>(w.data), w.columns, element_type(w.dtype), vector ? 1 : 0};
}

kernels::GemmParams gemm_params(const GemmArguments& a, int gated) {
  kernels::GemmParams p{};
  p.x = rows_of(a.x);
  p.weight = rows_of(a.weight);
  p.out = rows_of(a.out);
  p.m = a.x.rows;
  p.n = a.weight.rows;
  p.k = a.weight.columns;
  if (a.bias) p.bias = rows_of(*a.bias);
  p.accumulate = a.accumulate ? 1 : 0;
  p.gated = gated;
  return p;
}

kernels::RoutingParams routing_params(const ExpertRouting& r, std::int64_t rows) {
  return {r.experts, r.weights, r.order, r.offsets, rows * r.num_slots, r.num_experts, r.num_slots};
}

kernels::ExpertGemmParams expert_gemm_params(const ExpertGemmArguments& a) {
  GemmArguments of_first{a.x, a.weight, a.bias, a.out};
  of_first.weight.rows = rows_of_expert(a);
  kernels::ExpertGemmParams p{};
  p.gemm = gemm_params(of_first, a.activation ? 1 + static_cast<int>(*a.activation) : 0);
  p.gemm.accumulate = a.accumulate ? 1 : 0;
  p.routing = routing_params(a.routing, num_slots_in_all(a) / a.routing.num_slots);
  p.gemm.m = p.routing.slots;
  p.expert_bytes =
      static_cast<kernels::int64>(static_cast<std::size_t>(of_first.weight.rows) *
                                  dtype_bytes(a.weight.dtype, static_cast<std::size_t>(a.weight.columns)));
  p.slots_of_row = a.x.rows == p.routing.slots ? 1 : a.routing.num_slots;
  return p;
}

GemmArguments rows_from(const GemmArguments& a, std::int64_t begin, std::int64_t count) {
  GemmArguments part = a;
  part.x.rows = part.out.rows = count;
  part.x.data = static_cast<std::byte*>(a.x.data) +
                dtype_bytes(a.x.dtype, static_cast<std::size_t>(begin * a.x.row_stride));
  part.out.data = static_cast<std::byte*>(a.out.data) +
                  dtype_bytes(a.out.dtype, static_cast<std::size_t>(begin * a.out.row_stride));
  return part;
}

kernels::RopeRotation rotation_of(const std::int32_t* positions, const float* inverse_frequencies,
                                  int num_pairs, int head_dim, RopePairing pairing, float attention_factor) {
  return {
      positions,       inverse_frequencies, num_pairs, head_dim, pairing == RopePairing::kInterleaved ? 1 : 0,
      attention_factor};
}

RowsArgument heads_of(const Matrix& m, std::int64_t head_stride) {
  RowsArgument rows = rows_of(m);
  if (!is_aligned(m.data, m.dtype, head_stride)) rows.vector = 0;
  return rows;
}

kernels::RopeAppendParams rope_append_params(const RopeAppendArguments& a) {
  const KvCacheView& c = a.cache;
  kernels::RopeAppendParams p{};
  p.rotation =
      rotation_of(a.positions, a.inverse_frequencies, a.num_pairs, a.head_dim, a.pairing, a.attention_factor);
  p.q = heads_of(a.q, a.head_dim);
  p.k = heads_of(a.k, a.head_dim);
  p.v = heads_of(a.v, a.head_dim);
  p.cache_k = cache_rows(c.k, c);
  p.cache_v = cache_rows(c.v, c);
  p.cache_token_stride = c.token_stride;
  p.cache_head_stride = c.head_stride;
  p.sequences = a.sequences;
  p.block_table = c.block_table;
  p.block_table_stride = c.block_table_stride;
  p.page_size = c.page_size;
  p.num_heads = a.num_heads;
  p.num_kv_heads = a.num_kv_heads;
  return p;
}

}  // namespace tessera::gpu
