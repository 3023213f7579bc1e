#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/require.h"
#include "attention/tensor_extents.h"
#include "attention/validate.h"

namespace tessera {
namespace {

/// Checks a pointer to elements of `element_bytes`, which is read or written. expected(): what it should be.
template <class Expected>
void check_pointer(std::string_view field, const void* pointer, std::size_t element_bytes,
                   Expected&& expected) {
  if (pointer == nullptr) [[unlikely]]
    fail_argument(field, "null", expected());
  if (reinterpret_cast<std::uintptr_t>(pointer) % element_bytes != 0) [[unlikely]]
    fail_argument(field, pointer, fmt::format("an address that is a multiple of {} bytes", element_bytes));
}

template <class Void>
void check_tensor(std::string_view field, const BasicAttentionTensor<Void>& t, const TensorExtents& e,
                  int head_dim) {
  if (e.is_empty()) return;
  check_pointer(field, t.data, dtype_bytes(t.dtype, 1), [&] {
    return fmt::format("a pointer to a tensor of {} x {} x {} x {} elements", e.outer, e.tokens, e.heads,
                       head_dim);
  });
}

void check_lse(std::string_view field, const LseOutput& lse, const TensorExtents& e) {
  if (e.is_empty()) return;
  check_pointer(field, lse.data, sizeof(float),
                [&] { return fmt::format("a pointer to {} x {} x {} floats", e.outer, e.heads, e.tokens); });
}

void check_heads(std::string_view field, const float* numbers) {
  check_pointer(field, numbers, sizeof(float), [] { return "a pointer to num_heads floats"; });
}

void check_scales(std::string_view field, const float* scales) {
  if (scales == nullptr) return;  // 1
  check_pointer(field, scales, sizeof(float), [] { return "null or a pointer to floats"; });
}

void check_sequences(std::string_view field, const std::int32_t* numbers) {
  check_pointer(field, numbers, sizeof(std::int32_t), [] { return "a pointer to batch numbers"; });
}

void check_mask_pointer(std::string_view field, const ScoreMask& mask, const AttentionProblem& p) {
  if (p.batch == 0 || p.seq_len_q == 0 || p.seq_len_kv == 0) return;
  check_pointer(field, mask.data, dtype_bytes(mask.dtype, 1),
                [] { return "a pointer to the mask's elements"; });
}

void check_captured(const ScoreModifier& modifier) {
  for (const CapturedTensor& tensor : modifier.tensors) {
    const std::size_t element_bytes = dtype_bytes(tensor.dtype, 1);
    if (tensor.data != nullptr && reinterpret_cast<std::uintptr_t>(tensor.data) % element_bytes == 0)
        [[likely]]
      continue;
    check_pointer(fmt::format("scores.modifier.tensors ({}).data", tensor.name), tensor.data, element_bytes,
                  [] { return "a pointer to the tensor's elements"; });
  }
}

void check_score_pointers(const AttentionProblem& p) {
  const ScoreTerms& s = p.scores;
  if (s.alibi) check_heads("scores.alibi.slopes", s.alibi->slopes);
  if (s.additive_mask) check_mask_pointer("scores.additive_mask.data", *s.additive_mask, p);
  if (s.boolean_mask) check_mask_pointer("scores.boolean_mask.data", *s.boolean_mask, p);
  if (s.sinks) check_heads("scores.sinks.logits", s.sinks->logits);
  if (s.modifier) check_captured(*s.modifier);
}

/// name: "ragged_q"; cu_seqlens: "ragged_q.cu_seqlens".
void check_ragged(std::string_view name, std::string_view cu_seqlens, const RaggedTokens& ragged,
                  const AttentionProblem& p, std::int64_t max_len, std::string_view max_name) {
  check_pointer(cu_seqlens, ragged.cu_seqlens, sizeof(std::int32_t),
                [&] { return fmt::format("a pointer to batch + 1 = {} numbers", p.batch + 1); });
  if (p.device.kind != DeviceKind::kCpu) return;
  if (ragged.cu_seqlens[0] != 0) fail_argument(fmt::format("{}[0]", cu_seqlens), ragged.cu_seqlens[0], "0");
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t length = std::int64_t{ragged.cu_seqlens[b + 1]} - ragged.cu_seqlens[b];
    if (length < 0 || length > max_len) {
      fail_argument(fmt::format("{}[{}]", cu_seqlens, b + 1), ragged.cu_seqlens[b + 1],
                    fmt::format("from {} to {} (the entry before it, plus at most {})", ragged.cu_seqlens[b],
                                ragged.cu_seqlens[b] + max_len, max_name));
    }
  }
  if (ragged.cu_seqlens[p.batch] != ragged.total_tokens) {
    fail_argument(fmt::format("{}.total_tokens", name), ragged.total_tokens,
                  fmt::format("cu_seqlens[batch] = {}", ragged.cu_seqlens[p.batch]));
  }
}

void check_pages(const AttentionProblem& p, const PagedKv& paged) {
  const std::int64_t capacity = std::int64_t{paged.max_pages_per_seq} * paged.page_size;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t length = paged.seq_lens_kv[b];
    if (length < 0 || length > std::min(capacity, p.seq_len_kv)) {
      fail_argument(fmt::format("paged_kv.seq_lens_kv[{}]", b), length,
                    fmt::format("from 0 to {} (seq_len_kv = {}, max_pages_per_seq * page_size = {})",
                                std::min(capacity, p.seq_len_kv), p.seq_len_kv, capacity));
    }
    const std::int64_t pages = (length + paged.page_size - 1) / paged.page_size;
    for (std::int64_t i = 0; i < pages; ++i) {
      const std::int32_t page = paged.block_table[b * paged.block_table_stride + i];
      if (page < 0 || page >= paged.num_pages) {
        fail_argument(fmt::format("paged_kv.block_table[{}][{}]", b, i), page,
                      fmt::format("a page from 0 to {}", paged.num_pages - 1));
      }
    }
  }
}

void check_paged(const AttentionProblem& p) {
  const PagedKv& paged = *p.paged_kv;
  if (p.batch == 0) return;
  check_sequences("paged_kv.seq_lens_kv", paged.seq_lens_kv);
  if (paged.max_pages_per_seq > 0) {
    check_pointer("paged_kv.block_table", paged.block_table, sizeof(std::int32_t),
                  [] { return "a pointer to batch rows of max_pages_per_seq page numbers"; });
  }
  if (p.device.kind == DeviceKind::kCpu) check_pages(p, paged);
}

void check_padded(const AttentionProblem& p) {
  check_sequences("seq_lens_kv", p.seq_lens_kv);
  if (p.device.kind != DeviceKind::kCpu) return;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (p.seq_lens_kv[b] < 0 || p.seq_lens_kv[b] > p.seq_len_kv)
      require_range(fmt::format("seq_lens_kv[{}]", b), p.seq_lens_kv[b], 0, p.seq_len_kv);
  }
}

}  // namespace

void validate_pointers(const AttentionProblem& p) {
  if (p.ragged_q) check_ragged("ragged_q", "ragged_q.cu_seqlens", *p.ragged_q, p, p.seq_len_q, "seq_len_q");
  if (p.ragged_kv)
    check_ragged("ragged_kv", "ragged_kv.cu_seqlens", *p.ragged_kv, p, p.seq_len_kv, "seq_len_kv");
  if (p.paged_kv) check_paged(p);
  if (p.seq_lens_kv != nullptr) check_padded(p);
  const TensorExtents queries = query_extents(p), keys = key_extents(p);
  check_tensor("q.data", p.q, queries, p.head_dim_qk);
  check_tensor("k.data", p.k, keys, p.head_dim_qk);
  check_tensor("v.data", p.v, keys, p.head_dim_v);
  check_tensor("o.data", p.o, queries, p.head_dim_v);
  if (p.lse) check_lse("lse.data", *p.lse, queries);
  if (p.q_scales) check_scales("q_scales.q", p.q_scales->q);
  if (p.kv_scales) {
    check_scales("kv_scales.k", p.kv_scales->k);
    check_scales("kv_scales.v", p.kv_scales->v);
  }
  check_score_pointers(p);
}

void validate_pointers(const MergeStatesProblem& p) {
  const TensorExtents rows{p.batch, p.seq_len_q, p.num_heads, p.head_dim};
  check_tensor("o_a.data", p.o_a, rows, p.head_dim);
  check_tensor("o_b.data", p.o_b, rows, p.head_dim);
  check_tensor("o.data", p.o, rows, p.head_dim);
  check_lse("lse_a.data", p.lse_a, rows);
  check_lse("lse_b.data", p.lse_b, rows);
  if (p.lse) check_lse("lse.data", *p.lse, rows);
}

}  // namespace tessera
