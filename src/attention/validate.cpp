#include "attention/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "tessera/error.h"

namespace tessera {
namespace {

// Far beyond any memory, and small enough that sums and products of two of them fit in 64 bits.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 31;
constexpr int kMaxHeads = 1 << 20;
constexpr int kMaxHeadDim = 512;

template <class Value>
[[noreturn]] void fail(std::string_view field, const Value& value, std::string_view expected) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is {}; expected {}", field, value, expected));
}

template <class Value>
void require(bool ok, std::string_view field, const Value& value, std::string_view expected) {
  if (!ok) fail(field, value, expected);
}

void require_range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) fail(field, value, fmt::format("a number from {} to {}", low, high));
}

/// One dimension of a strided tensor.
struct Dimension {
  std::string_view name;
  std::int64_t extent;
  std::int64_t stride;
};

/// Checks that strides are not negative and the furthest element's offset fits in 63 bits.
template <std::size_t kRank>
void check_strides(std::string_view tensor, const std::array<Dimension, kRank>& dimensions,
                   std::int64_t row_elements) {
  // The sum of kRank such products needs more than 64 bits.
  __extension__ using Wide = __int128;
  Wide last = row_elements;
  for (const Dimension& d : dimensions) {
    if (d.stride < 0) fail(fmt::format("{}.{}_stride", tensor, d.name), d.stride, "0 or more");
    if (d.extent > 1) last += Wide{d.extent - 1} * d.stride;
  }
  if (last > std::numeric_limits<std::int64_t>::max() / 8) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "the strides of {} reach past the end of a 64-bit address space; expected smaller strides",
            tensor));
  }
}

/// Checks that no two elements of an output share memory: each stride must step over all that lies within it.
template <std::size_t kRank>
void check_no_overlap(std::string_view tensor, std::array<Dimension, kRank> dimensions,
                      std::int64_t row_elements) {
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  // A tensor with an empty dimension has no elements to share, whatever its strides.
  if (std::any_of(dimensions.begin(), dimensions.end(), [](const Dimension& d) { return d.extent == 0; }))
    return;
  std::int64_t span = row_elements;
  for (const Dimension& d : dimensions) {
    if (d.extent <= 1) continue;
    if (d.stride < span) {
      fail(fmt::format("{}.{}_stride", tensor, d.name), d.stride,
           fmt::format("at least {}, so that no two output elements share memory", span));
    }
    span += d.stride * (d.extent - 1);
  }
}

bool is_empty(std::int64_t a, std::int64_t b, std::int64_t c) { return a == 0 || b == 0 || c == 0; }

/// Logical shape of a tensor in memory: the outer dimension is the batch, the pages, or 1 for ragged tokens.
struct TensorExtents {
  std::int64_t outer;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t head_dim;
};

template <class Void>
std::array<Dimension, 3> dimensions_of(const BasicAttentionTensor<Void>& t, const TensorExtents& e) {
  return {{{"batch", e.outer, t.batch_stride},
           {"seq", e.tokens, t.seq_stride},
           {"head", e.heads, t.head_stride}}};
}

template <class Void>
void check_tensor(std::string_view name, const BasicAttentionTensor<Void>& t, const TensorExtents& e,
                  DType dtype) {
  if (t.dtype != dtype) {
    fail(fmt::format("{}.dtype", name), dtype_name(t.dtype),
         fmt::format("{}, the same as q.dtype", dtype_name(dtype)));
  }
  check_strides(name, dimensions_of(t, e), e.head_dim);
  if (t.data == nullptr && !is_empty(e.outer, e.tokens, e.heads)) {
    fail(fmt::format("{}.data", name), "null",
         fmt::format("a pointer to a tensor of {} x {} x {} x {} elements", e.outer, e.tokens, e.heads,
                     e.head_dim));
  }
}

void check_lse(std::string_view name, const LseOutput& lse, std::int64_t outer, std::int64_t tokens,
               std::int64_t heads, bool is_output) {
  const std::array<Dimension, 3> dimensions = {{{"batch", outer, lse.batch_stride},
                                                {"head", heads, lse.head_stride},
                                                {"seq", tokens, lse.seq_stride}}};
  check_strides(name, dimensions, 1);
  if (is_output) check_no_overlap(name, dimensions, 1);
  if (lse.data == nullptr && !is_empty(outer, tokens, heads)) {
    fail(fmt::format("{}.data", name), "null",
         fmt::format("a pointer to {} x {} x {} floats", outer, heads, tokens));
  }
}

void check_mask(std::string_view name, const ScoreMask& mask, const AttentionProblem& p, bool is_boolean) {
  const bool dtype_ok = is_boolean ? mask.dtype == DType::kBool || mask.dtype == DType::kU8
                                   : mask.dtype == DType::kF32 || mask.dtype == DType::kF16 ||
                                         mask.dtype == DType::kBF16 || mask.dtype == DType::kF64;
  require(dtype_ok, fmt::format("{}.dtype", name), dtype_name(mask.dtype),
          is_boolean ? "bool or u8" : "f32, f16, bf16 or f64");
  const std::array<Dimension, 4> dimensions = {{{"batch", p.batch, mask.batch_stride},
                                                {"head", p.num_heads, mask.head_stride},
                                                {"q", p.seq_len_q, mask.q_stride},
                                                {"kv", p.seq_len_kv, mask.kv_stride}}};
  check_strides(name, dimensions, 1);
  if (mask.data == nullptr && !is_empty(p.batch, p.seq_len_q, p.seq_len_kv)) {
    fail(fmt::format("{}.data", name), "null", "a pointer to the mask's elements");
  }
}

void check_scores(const AttentionProblem& p) {
  const ScoreTerms& s = p.scores;
  if (s.softmax_scale) {
    require(std::isfinite(*s.softmax_scale), "scores.softmax_scale", *s.softmax_scale, "a finite number");
  }
  if (s.softcap) {
    require(std::isfinite(*s.softcap) && *s.softcap > 0, "scores.softcap", *s.softcap,
            "a finite number above 0");
  }
  if (s.alibi) {
    require(s.alibi->slopes != nullptr, "scores.alibi.slopes", "null", "a pointer to num_heads floats");
    require(s.alibi->batch_stride == 0 || s.alibi->batch_stride >= p.num_heads, "scores.alibi.batch_stride",
            s.alibi->batch_stride, "0 or at least num_heads");
  }
  if (s.additive_mask) check_mask("scores.additive_mask", *s.additive_mask, p, false);
  if (s.boolean_mask) check_mask("scores.boolean_mask", *s.boolean_mask, p, true);
  if (s.diagonal) {
    const auto check_window = [](std::string_view field, const std::optional<std::int64_t>& window) {
      if (window && *window < 0) fail(field, *window, "0 or more, or none for no limit");
    };
    check_window("scores.diagonal.window_left", s.diagonal->window_left);
    check_window("scores.diagonal.window_right", s.diagonal->window_right);
  }
  if (s.sinks)
    require(s.sinks->logits != nullptr, "scores.sinks.logits", "null", "a pointer to num_heads floats");
}

void check_ragged(std::string_view name, const RaggedTokens& ragged, const AttentionProblem& p,
                  std::int64_t max_len, std::string_view max_name) {
  require_range(fmt::format("{}.total_tokens", name), ragged.total_tokens, 0, kMaxTokens);
  require(ragged.cu_seqlens != nullptr, fmt::format("{}.cu_seqlens", name), "null",
          fmt::format("a pointer to batch + 1 = {} numbers", p.batch + 1));
  if (p.device.kind != DeviceKind::kCpu) return;
  if (ragged.cu_seqlens[0] != 0) fail(fmt::format("{}.cu_seqlens[0]", name), ragged.cu_seqlens[0], "0");
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t length = std::int64_t{ragged.cu_seqlens[b + 1]} - ragged.cu_seqlens[b];
    if (length < 0 || length > max_len) {
      fail(fmt::format("{}.cu_seqlens[{}]", name, b + 1), ragged.cu_seqlens[b + 1],
           fmt::format("from {} to {} (the entry before it, plus at most {})", ragged.cu_seqlens[b],
                       ragged.cu_seqlens[b] + max_len, max_name));
    }
  }
  if (ragged.cu_seqlens[p.batch] != ragged.total_tokens) {
    fail(fmt::format("{}.total_tokens", name), ragged.total_tokens,
         fmt::format("cu_seqlens[batch] = {}", ragged.cu_seqlens[p.batch]));
  }
}

void check_paged(const AttentionProblem& p) {
  const PagedKv& paged = *p.paged_kv;
  require_range("paged_kv.page_size", paged.page_size, 1, std::numeric_limits<int>::max());
  require_range("paged_kv.num_pages", paged.num_pages, 0, kMaxTokens);
  require_range("paged_kv.max_pages_per_seq", paged.max_pages_per_seq, 0, std::numeric_limits<int>::max());
  require(paged.block_table_stride >= 0, "paged_kv.block_table_stride", paged.block_table_stride,
          "0 or more");
  if (p.batch == 0) return;
  require(paged.seq_lens_kv != nullptr, "paged_kv.seq_lens_kv", "null", "a pointer to batch numbers");
  require(paged.block_table != nullptr || paged.max_pages_per_seq == 0, "paged_kv.block_table", "null",
          "a pointer to batch rows of max_pages_per_seq page numbers");
  if (p.device.kind != DeviceKind::kCpu) return;
  const std::int64_t capacity = std::int64_t{paged.max_pages_per_seq} * paged.page_size;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t length = paged.seq_lens_kv[b];
    if (length < 0 || length > std::min(capacity, p.seq_len_kv)) {
      fail(fmt::format("paged_kv.seq_lens_kv[{}]", b), length,
           fmt::format("from 0 to {} (seq_len_kv = {}, max_pages_per_seq * page_size = {})",
                       std::min(capacity, p.seq_len_kv), p.seq_len_kv, capacity));
    }
    const std::int64_t pages = (length + paged.page_size - 1) / paged.page_size;
    for (std::int64_t i = 0; i < pages; ++i) {
      const std::int32_t page = paged.block_table[b * paged.block_table_stride + i];
      if (page < 0 || page >= paged.num_pages) {
        fail(fmt::format("paged_kv.block_table[{}][{}]", b, i), page,
             fmt::format("a page from 0 to {}", paged.num_pages - 1));
      }
    }
  }
}

void check_kv_storage(const AttentionProblem& p) {
  const int forms = (p.ragged_kv ? 1 : 0) + (p.paged_kv ? 1 : 0) + (p.seq_lens_kv != nullptr ? 1 : 0);
  if (forms > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "more than one of ragged_kv, paged_kv and seq_lens_kv is set; expected at most one, since "
                "each says where the "
                "keys are");
  }
  if (p.ragged_q) check_ragged("ragged_q", *p.ragged_q, p, p.seq_len_q, "seq_len_q");
  if (p.ragged_kv) check_ragged("ragged_kv", *p.ragged_kv, p, p.seq_len_kv, "seq_len_kv");
  if (p.paged_kv) check_paged(p);
  if (p.seq_lens_kv != nullptr && p.device.kind == DeviceKind::kCpu) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      require_range(fmt::format("seq_lens_kv[{}]", b), p.seq_lens_kv[b], 0, p.seq_len_kv);
    }
  }
}

bool is_attention_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF64;
}

}  // namespace

void validate(const AttentionProblem& p) {
  require_range("batch", p.batch, 0, kMaxBatch);
  require_range("seq_len_q", p.seq_len_q, 0, kMaxTokens);
  require_range("seq_len_kv", p.seq_len_kv, 0, kMaxTokens);
  require_range("num_heads", p.num_heads, 1, kMaxHeads);
  require_range("num_kv_heads", p.num_kv_heads, 1, p.num_heads);
  if (p.num_heads % p.num_kv_heads != 0) {
    fail("num_kv_heads", p.num_kv_heads, fmt::format("a divisor of num_heads = {}", p.num_heads));
  }
  require_range("head_dim_qk", p.head_dim_qk, 1, kMaxHeadDim);
  require_range("head_dim_v", p.head_dim_v, 1, kMaxHeadDim);
  require(is_attention_dtype(p.q.dtype), "q.dtype", dtype_name(p.q.dtype),
          "f32, f16, bf16, or f64 for the reference");
  check_kv_storage(p);

  const TensorExtents q_extents = p.ragged_q
                                      ? TensorExtents{1, p.ragged_q->total_tokens, p.num_heads, p.head_dim_qk}
                                      : TensorExtents{p.batch, p.seq_len_q, p.num_heads, p.head_dim_qk};
  TensorExtents k_extents{p.batch, p.seq_len_kv, p.num_kv_heads, p.head_dim_qk};
  if (p.ragged_kv) k_extents = {1, p.ragged_kv->total_tokens, p.num_kv_heads, p.head_dim_qk};
  if (p.paged_kv) k_extents = {p.paged_kv->num_pages, p.paged_kv->page_size, p.num_kv_heads, p.head_dim_qk};
  TensorExtents v_extents = k_extents;
  v_extents.head_dim = p.head_dim_v;
  TensorExtents o_extents = q_extents;
  o_extents.head_dim = p.head_dim_v;

  check_tensor("q", p.q, q_extents, p.q.dtype);
  check_tensor("k", p.k, k_extents, p.q.dtype);
  check_tensor("v", p.v, v_extents, p.q.dtype);
  check_tensor("o", p.o, o_extents, p.q.dtype);
  check_no_overlap("o", dimensions_of(p.o, o_extents), o_extents.head_dim);
  if (p.lse) check_lse("lse", *p.lse, o_extents.outer, o_extents.tokens, o_extents.heads, true);
  check_scores(p);
}

void validate(const MergeStatesProblem& p) {
  require_range("batch", p.batch, 0, kMaxBatch);
  require_range("seq_len_q", p.seq_len_q, 0, kMaxTokens);
  require_range("num_heads", p.num_heads, 1, kMaxHeads);
  require_range("head_dim", p.head_dim, 1, kMaxHeadDim);
  require(is_attention_dtype(p.o_a.dtype), "o_a.dtype", dtype_name(p.o_a.dtype),
          "f32, f16, bf16, or f64 for the reference");
  const TensorExtents extents{p.batch, p.seq_len_q, p.num_heads, p.head_dim};
  check_tensor("o_a", p.o_a, extents, p.o_a.dtype);
  check_tensor("o_b", p.o_b, extents, p.o_a.dtype);
  check_tensor("o", p.o, extents, p.o_a.dtype);
  check_no_overlap("o", dimensions_of(p.o, extents), extents.head_dim);
  check_lse("lse_a", p.lse_a, p.batch, p.seq_len_q, p.num_heads, false);
  check_lse("lse_b", p.lse_b, p.batch, p.seq_len_q, p.num_heads, false);
  if (p.lse) check_lse("lse", *p.lse, p.batch, p.seq_len_q, p.num_heads, true);
}

}  // namespace tessera
