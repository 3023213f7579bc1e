#include "attention/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "attention/modifier.h"
#include "attention/narrow.h"
#include "attention/overlap.h"
#include "attention/require.h"
#include "attention/tensor_extents.h"
#include "tessera/error.h"

namespace tessera {
namespace {

// Far beyond any memory, and small enough that sums and products of two of them fit in 64 bits.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 31;
constexpr int kMaxHeads = 1 << 20;

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
    if (d.stride < 0) fail_argument(fmt::format("{}.{}_stride", tensor, d.name), d.stride, "0 or more");
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
      fail_argument(fmt::format("{}.{}_stride", tensor, d.name), d.stride,
                    fmt::format("at least {}, so that no two output elements share memory", span));
    }
    span += d.stride * (d.extent - 1);
  }
}

template <class Void>
std::array<Dimension, 3> dimensions_of(const BasicAttentionTensor<Void>& t, const TensorExtents& e) {
  return {{{"batch", e.outer, t.batch_stride},
           {"seq", e.tokens, t.seq_stride},
           {"head", e.heads, t.head_stride}}};
}

template <class Void>
void check_dtype(std::string_view name, const BasicAttentionTensor<Void>& t, DType dtype,
                 std::string_view like) {
  if (t.dtype == dtype) return;
  fail_argument(fmt::format("{}.dtype", name), dtype_name(t.dtype),
                fmt::format("{}, the same as {}.dtype", dtype_name(dtype), like));
}

template <class Void>
void check_tensor(std::string_view name, const BasicAttentionTensor<Void>& t, const TensorExtents& e) {
  check_strides(name, dimensions_of(t, e), e.head_dim);
}

void check_lse(std::string_view name, const LseOutput& lse, std::int64_t outer, std::int64_t tokens,
               std::int64_t heads, bool is_output) {
  const std::array<Dimension, 3> dimensions = {{{"batch", outer, lse.batch_stride},
                                                {"head", heads, lse.head_stride},
                                                {"seq", tokens, lse.seq_stride}}};
  check_strides(name, dimensions, 1);
  if (is_output) check_no_overlap(name, dimensions, 1);
}

void check_mask_dtype(std::string_view name, const ScoreMask& mask, bool is_boolean) {
  const bool dtype_ok = is_boolean ? mask.dtype == DType::kBool || mask.dtype == DType::kU8
                                   : mask.dtype == DType::kF32 || mask.dtype == DType::kF16 ||
                                         mask.dtype == DType::kBF16 || mask.dtype == DType::kF64;
  require(dtype_ok, fmt::format("{}.dtype", name), dtype_name(mask.dtype),
          is_boolean ? "bool or u8" : "f32, f16, bf16 or f64");
}

void check_mask(std::string_view name, const ScoreMask& mask, const AttentionProblem& p) {
  const std::array<Dimension, 4> dimensions = {{{"batch", p.batch, mask.batch_stride},
                                                {"head", p.num_heads, mask.head_stride},
                                                {"q", p.seq_len_q, mask.q_stride},
                                                {"kv", p.seq_len_kv, mask.kv_stride}}};
  check_strides(name, dimensions, 1);
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
    const std::int64_t stride = s.alibi->batch_stride;
    require(stride == 0 || stride >= p.num_heads || (stride > 0 && p.batch == 1), "scores.alibi.batch_stride",
            stride, "0 or at least num_heads");
  }
  if (s.additive_mask) check_mask("scores.additive_mask", *s.additive_mask, p);
  if (s.boolean_mask) check_mask("scores.boolean_mask", *s.boolean_mask, p);
  if (s.diagonal) {
    const auto check_window = [](std::string_view field, const std::optional<std::int64_t>& window) {
      if (window && *window < 0) fail_argument(field, *window, "0 or more, or none for no limit");
    };
    const auto alignment = s.diagonal->alignment;
    require(alignment == DiagonalAlignment::kBottomRight || alignment == DiagonalAlignment::kTopLeft,
            "scores.diagonal.alignment", static_cast<int>(alignment), "kBottomRight or kTopLeft");
    check_window("scores.diagonal.window_left", s.diagonal->window_left);
    check_window("scores.diagonal.window_right", s.diagonal->window_right);
  }
}

void check_paged(const PagedKv& paged) {
  require_range("paged_kv.page_size", paged.page_size, 1, std::numeric_limits<int>::max());
  require_range("paged_kv.num_pages", paged.num_pages, 0, kMaxTokens);
  require_range("paged_kv.max_pages_per_seq", paged.max_pages_per_seq, 0, std::numeric_limits<int>::max());
  require(paged.block_table_stride >= 0, "paged_kv.block_table_stride", paged.block_table_stride,
          "0 or more");
}

void check_kv_storage(const AttentionProblem& p) {
  const int forms = (p.ragged_kv ? 1 : 0) + (p.paged_kv ? 1 : 0) + (p.seq_lens_kv != nullptr ? 1 : 0);
  if (forms > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "more than one of ragged_kv, paged_kv and seq_lens_kv is set; expected at most one, since "
                "each says where the "
                "keys are");
  }
  if (p.ragged_q) require_range("ragged_q.total_tokens", p.ragged_q->total_tokens, 0, kMaxTokens);
  if (p.ragged_kv) require_range("ragged_kv.total_tokens", p.ragged_kv->total_tokens, 0, kMaxTokens);
  if (p.paged_kv) check_paged(*p.paged_kv);
}

bool is_attention_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF64;
}

template <class Void>
StridedRows rows_of(const BasicAttentionTensor<Void>& t, const TensorExtents& e) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(t.dtype, 1));
  // A stride that leads nowhere is any number.
  const auto dimension = [&](std::int64_t extent, std::int64_t stride) {
    return StridedRows::Dimension{extent, extent > 1 ? stride * bytes : 0};
  };
  return {t.data,
          {{dimension(e.outer, t.batch_stride), dimension(e.tokens, t.seq_stride),
            dimension(e.heads, t.head_stride)}},
          e.head_dim * bytes};
}

void check_apart(const AttentionOutput& o, const TensorExtents& o_extents, std::string_view name,
                 const AttentionInput& input, const TensorExtents& extents) {
  if (o_extents.is_empty() || extents.is_empty()) return;
  if (!overlap(rows_of(o, o_extents), rows_of(input, extents))) return;
  fail_argument("o.data", static_cast<const void*>(o.data),
                fmt::format("memory that {} (at {}) has no part of", name, input.data));
}

StridedRows rows_of(const LseOutput& lse, const TensorExtents& e) {
  const auto dimension = [](std::int64_t extent, std::int64_t stride) {
    return StridedRows::Dimension{extent, extent > 1 ? stride * static_cast<std::int64_t>(sizeof(float)) : 0};
  };
  return {lse.data,
          {{dimension(e.outer, lse.batch_stride), dimension(e.tokens, lse.seq_stride),
            dimension(e.heads, lse.head_stride)}},
          sizeof(float)};
}

/// A merged result lies where one of its parts does, element for element, or has no part of its memory.
void check_in_place_or_apart(std::string_view name, const StridedRows& out, std::string_view part_name,
                             const StridedRows& part) {
  const auto same_stride = [](const StridedRows::Dimension& a, const StridedRows::Dimension& b) {
    return a.stride_bytes == b.stride_bytes;
  };
  const bool is_in_place =
      out.data == part.data && std::equal(out.dimensions.begin(), out.dimensions.end(),
                                          part.dimensions.begin(), part.dimensions.end(), same_stride);
  if (is_in_place || !overlap(out, part)) return;
  fail_argument(fmt::format("{}.data", name), out.data,
                fmt::format("memory that {0} (at {1}) has no part of, or {0}'s with its strides", part_name,
                            part.data));
}

/// q is of o's dtype, or of 8 bits beside keys and values of 8 bits.
void check_q_dtype(const AttentionProblem& p) {
  if (!has_narrow_q(p)) {
    require(is_attention_dtype(p.q.dtype), "q.dtype", dtype_name(p.q.dtype),
            "f32, f16, bf16, f64 for the reference, or f8e4m3 beside k and v of f8e4m3");
    check_dtype("o", p.o, p.q.dtype, "q");
  } else {
    if (!has_narrow_kv(p))
      fail_argument("k.dtype", dtype_name(p.k.dtype),
                    "f8e4m3, as q.dtype is: q is of 8 bits only if k and v are");
    require(
        is_attention_dtype(p.o.dtype), "o.dtype", dtype_name(p.o.dtype),
        "bf16, f16 or f32 (f64 in the reference), since q of f8e4m3 doesn't say what to round results to");
  }
  if (p.q_scales && !has_narrow_q(p)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("q_scales is set although q is {}; expected f8e4m3 queries with it",
                            dtype_name(p.q.dtype)));
  }
}

void check_kv_dtypes(const AttentionProblem& p) {
  const bool narrow = has_narrow_kv(p);
  if (!narrow && p.k.dtype != p.q.dtype) {
    fail_argument("k.dtype", dtype_name(p.k.dtype),
                  fmt::format("{}, the same as q.dtype, or f8e4m3", dtype_name(p.q.dtype)));
  }
  if (p.v.dtype != p.k.dtype) {
    fail_argument("v.dtype", dtype_name(p.v.dtype),
                  fmt::format("{}, the same as k.dtype", dtype_name(p.k.dtype)));
  }
  if (p.kv_scales && !narrow) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("kv_scales is set although k and v are {}; expected f8e4m3 keys and values with it",
                    dtype_name(p.k.dtype)));
  }
}

/// Sizes and dtypes: what all that follows counts on.
void check_sizes(const AttentionProblem& p) {
  require(p.device.kind == DeviceKind::kCpu || p.device.kind == DeviceKind::kCuda ||
              p.device.kind == DeviceKind::kHip,
          "device.kind", static_cast<int>(p.device.kind), "kCpu, kCuda or kHip");
  require(p.device.index >= 0, "device.index", p.device.index, "0 or more");
  require_range("batch", p.batch, 0, kMaxBatch);
  require_range("seq_len_q", p.seq_len_q, 0, kMaxTokens);
  require_range("seq_len_kv", p.seq_len_kv, 0, kMaxTokens);
  require_range("num_heads", p.num_heads, 1, kMaxHeads);
  require_range("num_kv_heads", p.num_kv_heads, 1, p.num_heads);
  if (p.num_heads % p.num_kv_heads != 0) {
    fail_argument("num_kv_heads", p.num_kv_heads, fmt::format("a divisor of num_heads = {}", p.num_heads));
  }
  require_range("head_dim_qk", p.head_dim_qk, 1, kMaxHeadDim);
  require_range("head_dim_v", p.head_dim_v, 1, kMaxHeadDim);
  check_q_dtype(p);
  check_kv_dtypes(p);
  if (p.scores.additive_mask) check_mask_dtype("scores.additive_mask", *p.scores.additive_mask, false);
  if (p.scores.boolean_mask) check_mask_dtype("scores.boolean_mask", *p.scores.boolean_mask, true);
  check_kv_storage(p);
  validate_modifier(p);
}

/// Strides and the numbers of the score terms.
void check_layout(const AttentionProblem& p) {
  const TensorExtents q_extents = query_extents(p), k_extents = key_extents(p);
  TensorExtents v_extents = k_extents;
  v_extents.head_dim = p.head_dim_v;
  TensorExtents o_extents = q_extents;
  o_extents.head_dim = p.head_dim_v;

  check_tensor("q", p.q, q_extents);
  check_tensor("k", p.k, k_extents);
  check_tensor("v", p.v, v_extents);
  check_tensor("o", p.o, o_extents);
  check_no_overlap("o", dimensions_of(p.o, o_extents), o_extents.head_dim);
  if (p.lse) check_lse("lse", *p.lse, o_extents.outer, o_extents.tokens, o_extents.heads, true);
  if (p.q_scales) {
    check_strides("q_scales",
                  std::array<Dimension, 2>{{{"batch", p.batch, p.q_scales->batch_stride},
                                            {"head", p.num_kv_heads, p.q_scales->head_stride}}},
                  1);
  }
  if (p.kv_scales) {
    check_strides(
        "kv_scales",
        std::array<Dimension, 2>{{{"batch", p.ragged_kv ? 1 : k_extents.outer, p.kv_scales->batch_stride},
                                  {"head", k_extents.heads, p.kv_scales->head_stride}}},
        1);
  }
  check_scores(p);
  check_apart(p.o, o_extents, "q", p.q, q_extents);
  check_apart(p.o, o_extents, "k", p.k, k_extents);
  check_apart(p.o, o_extents, "v", p.v, v_extents);
}

}  // namespace

void validate(const AttentionProblem& problem) {
  check_sizes(problem);
  validate_pointers(problem);
  check_layout(problem);
}

void validate(const MergeStatesProblem& p) {
  require_range("batch", p.batch, 0, kMaxBatch);
  require_range("seq_len_q", p.seq_len_q, 0, kMaxTokens);
  require_range("num_heads", p.num_heads, 1, kMaxHeads);
  require_range("head_dim", p.head_dim, 1, kMaxHeadDim);
  require(is_attention_dtype(p.o_a.dtype), "o_a.dtype", dtype_name(p.o_a.dtype),
          "f32, f16, bf16, or f64 for the reference");
  const TensorExtents extents{p.batch, p.seq_len_q, p.num_heads, p.head_dim};
  check_dtype("o_b", p.o_b, p.o_a.dtype, "o_a");
  check_dtype("o", p.o, p.o_a.dtype, "o_a");
  check_tensor("o_a", p.o_a, extents);
  check_tensor("o_b", p.o_b, extents);
  check_tensor("o", p.o, extents);
  check_no_overlap("o", dimensions_of(p.o, extents), extents.head_dim);
  check_lse("lse_a", p.lse_a, p.batch, p.seq_len_q, p.num_heads, false);
  check_lse("lse_b", p.lse_b, p.batch, p.seq_len_q, p.num_heads, false);
  if (p.lse) check_lse("lse", *p.lse, p.batch, p.seq_len_q, p.num_heads, true);
  validate_pointers(p);
  if (extents.is_empty()) return;
  check_in_place_or_apart("o", rows_of(p.o, extents), "o_a", rows_of(p.o_a, extents));
  check_in_place_or_apart("o", rows_of(p.o, extents), "o_b", rows_of(p.o_b, extents));
  if (!p.lse) return;
  check_in_place_or_apart("lse", rows_of(*p.lse, extents), "lse_a", rows_of(p.lse_a, extents));
  check_in_place_or_apart("lse", rows_of(*p.lse, extents), "lse_b", rows_of(p.lse_b, extents));
}

}  // namespace tessera
