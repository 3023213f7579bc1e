#include "ops/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/block_format.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// Half-open range of addresses.
struct ByteRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

/// "x" or "x.rows", put together only when a message needs it: a check that passes allocates nothing.
struct Name {
  Name(const char* whole) : tensor(whole) {}
  Name(std::string_view tensor_name, std::string_view field_name) : tensor(tensor_name), field(field_name) {}
  std::string text() const { return fmt::format("{}{}", tensor, field); }
  std::string_view tensor, field;
};

/// Checks of one kernel call; every message begins with the kernel's name.
class Checker {
 public:
  Checker(std::string_view kernel, ActivationDTypes allowed) : kernel_(kernel), allowed_(allowed) {}

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", kernel_, message));
  }

  template <class T>
  void at_least(Name name, T value, T least, std::string_view meaning = "") const {
    if (value < least) {
      fail(fmt::format("{} is {}; expected at least {}{}{}", name.text(), value, least,
                       meaning.empty() ? "" : ", ", meaning));
    }
  }

  void equal(Name name, std::int64_t value, Name other, std::int64_t expected) const {
    if (value != expected) {
      fail(fmt::format("{} is {}; expected {} = {}", name.text(), value, other.text(), expected));
    }
  }

  void not_null(Name name, const void* pointer, std::int64_t elements) const {
    if (pointer == nullptr && elements > 0) {
      fail(fmt::format("{} is null; expected {} elements", name.text(), elements));
    }
  }

  void eps(float value) const {
    if (!(value >= 0) || !std::isfinite(value)) {
      fail(fmt::format("eps is {}; expected a finite number of at least 0", value));
    }
  }

  void activation_dtype(std::string_view name, DType dtype) const {
    const bool fits = dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
                      (dtype == DType::kF64 && allowed_ == ActivationDTypes::kDeviceOrF64);
    if (!fits) fail(fmt::format("{}.dtype is {}; expected f32, f16 or bf16", name, dtype_name(dtype)));
  }

  void matrix(std::string_view name, const Matrix& m) const {
    activation_dtype(name, m.dtype);
    at_least(Name(name, ".rows"), m.rows, std::int64_t{0});
    at_least(Name(name, ".columns"), m.columns, std::int64_t{1});
    not_null(Name(name, ".data"), m.data, m.rows);
    if (m.rows > 1) at_least(Name(name, ".row_stride"), m.row_stride, m.columns, "its columns");
    extent(name, m.rows, m.row_stride, m.columns, dtype_bytes(m.dtype, 1));
    const std::uintptr_t alignment = dtype_bytes(m.dtype, 1);
    if (reinterpret_cast<std::uintptr_t>(m.data) % alignment != 0) {
      fail(fmt::format("{}.data is not aligned to its elements of {} bytes", name, alignment));
    }
  }

  /// Of a vocabulary whose ids fit in 31 bits.
  void logits(const Matrix& m) const {
    matrix("logits", m);
    if (m.columns > std::numeric_limits<std::int32_t>::max()) {
      fail(fmt::format("logits.columns is {}; expected ids that fit in 31 bits", m.columns));
    }
  }

  void same_shape(std::string_view name, const Matrix& m, std::string_view other,
                  const Matrix& expected) const {
    equal(Name(name, ".rows"), m.rows, Name(other, ".rows"), expected.rows);
    equal(Name(name, ".columns"), m.columns, Name(other, ".columns"), expected.columns);
  }

  /// A (1, columns) weight such as a norm's or a bias.
  void vector_weight(std::string_view name, const Weight& w, std::int64_t columns) const {
    if (w.dtype != DType::kF32 && w.dtype != DType::kF16 && w.dtype != DType::kBF16) {
      fail(fmt::format("{}.dtype is {}; expected f32, f16 or bf16", name, dtype_name(w.dtype)));
    }
    equal(Name(name, ".rows"), w.rows, "a vector's rows", 1);
    equal(Name(name, ".columns"), w.columns, "the columns it applies to", columns);
    not_null(Name(name, ".data"), w.data, columns);
  }

  void matrix_weight(std::string_view name, const Weight& w) const {
    weight_description(name, w.dtype, w.rows, w.columns);
    not_null(Name(name, ".data"), w.data, w.columns);
  }

  void weight_description(std::string_view name, DType dtype, std::int64_t rows, std::int64_t columns) const {
    if (!is_weight_dtype(dtype)) {
      fail(fmt::format("{}.dtype is {}; expected {}", name, dtype_name(dtype), weight_dtype_list()));
    }
    at_least(Name(name, ".rows"), rows, std::int64_t{1});
    at_least(Name(name, ".columns"), columns, std::int64_t{1});
    const BlockFormat& format = block_format(dtype);
    if (columns % format.elements != 0) {
      fail(fmt::format("{}.columns is {}; expected a multiple of {} for {}", name, columns, format.elements,
                       format.name));
    }
    extent(name, rows, columns, columns, 4);  // the widest element; those of blocks take less
  }

  /// The tensor's last byte must be addressable.
  void extent(std::string_view name, std::int64_t rows, std::int64_t stride, std::int64_t columns,
              std::size_t element_bytes) const {
    if (rows == 0) return;
    std::int64_t last = 0;
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(rows - 1, stride, &last) || __builtin_add_overflow(last, columns, &last) ||
        __builtin_mul_overflow(last, static_cast<std::int64_t>(element_bytes), &bytes)) {
      fail(fmt::format("{} has {} rows at a stride of {} elements; expected a tensor smaller than 2^63 bytes",
                       name, rows, stride));
    }
  }

  /// `out` may be `in` itself if may_be_same, and must not overlap it in any other way.
  void no_overlap(std::string_view out_name, const Matrix& out, std::string_view in_name, const Matrix& in,
                  bool may_be_same) const {
    if (!overlaps(out, in)) return;
    const bool same =
        out.data == in.data && out.dtype == in.dtype && (out.row_stride == in.row_stride || out.rows <= 1);
    if (same && may_be_same) return;
    fail(fmt::format("{} overlaps {}; expected {}memory of its own", out_name, in_name,
                     may_be_same ? "the same tensor or " : ""));
  }

 private:
  static ByteRange range(const Matrix& m) {
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(m.data);
    const std::int64_t elements = m.rows == 0 ? 0 : (m.rows - 1) * m.row_stride + m.columns;
    return {begin, begin + dtype_bytes(m.dtype, static_cast<std::size_t>(elements))};
  }

  /// Rows of one wider tensor, such as the parts of a packed projection, interleave without overlapping.
  static bool overlaps(const Matrix& a, const Matrix& b) {
    const ByteRange ra = range(a);
    const ByteRange rb = range(b);
    if (ra.end <= rb.begin || rb.end <= ra.begin) return false;
    const std::uintptr_t stride_a = dtype_bytes(a.dtype, static_cast<std::size_t>(a.row_stride));
    const std::uintptr_t stride_b = dtype_bytes(b.dtype, static_cast<std::size_t>(b.row_stride));
    if (a.rows <= 1 || b.rows <= 1 || stride_a != stride_b) return true;
    const std::uintptr_t width_a = dtype_bytes(a.dtype, static_cast<std::size_t>(a.columns));
    const std::uintptr_t width_b = dtype_bytes(b.dtype, static_cast<std::size_t>(b.columns));
    // Place of b's rows within a's period.
    const std::uintptr_t offset = rb.begin >= ra.begin
                                      ? (rb.begin - ra.begin) % stride_a
                                      : (stride_a - (ra.begin - rb.begin) % stride_a) % stride_a;
    return offset < width_a || offset + width_b > stride_a;
  }

  std::string_view kernel_;
  ActivationDTypes allowed_;
};

void check_rotation(const Checker& check, int heads, int head_dim, int num_pairs,
                    const float* inverse_frequencies, float attention_factor) {
  check.at_least("heads", heads, 1);
  check.at_least("head_dim", head_dim, 1);
  check.at_least("num_pairs", num_pairs, 0);
  if (num_pairs > head_dim / 2) {
    check.fail(fmt::format("num_pairs is {}; expected at most head_dim / 2 = {}", num_pairs, head_dim / 2));
  }
  check.not_null("inverse_frequencies", inverse_frequencies, num_pairs);
  if (!std::isfinite(attention_factor)) {
    check.fail(fmt::format("attention_factor is {}; expected a finite number", attention_factor));
  }
}

/// What a routing of so many slots has in all, which must be numbers of 31 bits.
void check_routing(const Checker& check, const ExpertRouting& r, std::int64_t slots) {
  check.at_least("routing.num_experts", r.num_experts, 1);
  check.at_least("routing.num_slots", r.num_slots, 1);
  check.at_least("routing.num_experts", r.num_experts, r.num_slots, "its num_slots");
  if (slots > std::numeric_limits<std::int32_t>::max())
    check.fail(fmt::format("the rows have {} slots; expected numbers that fit in 31 bits", slots));
  check.not_null("routing.experts", r.experts, slots);
  check.not_null("routing.order", r.order, slots);
  check.not_null("routing.offsets", r.offsets, slots);
}

/// Checks the rows of a norm, which may be heads; x and out with all of a token's heads.
template <class Arguments>
std::pair<Matrix, Matrix> check_heads(const Checker& check, const Arguments& a) {
  check.at_least("heads", a.heads, 1);
  Matrix x = a.x;
  Matrix out = a.out;
  check.equal("out.columns", out.columns, "x.columns", x.columns);
  if (a.heads > 1) {
    check.at_least("x.columns", x.columns, std::int64_t{1});
    check.at_least("head_stride", a.head_stride, x.columns, "its columns");
    check.extent("x", a.heads, a.head_stride, x.columns, 8);
    x.columns = out.columns = (a.heads - 1) * a.head_stride + x.columns;
  }
  check.matrix("x", x);
  check.matrix("out", out);
  check.same_shape("out", out, "x", x);
  check.eps(a.eps);
  check.no_overlap("out", out, "x", x, true);
  return {x, out};
}

template <class Arguments>
void check_residual(const Checker& check, const Arguments& a, const Matrix& x, const Matrix& out) {
  if (!a.residual) return;
  if (a.heads > 1) check.fail(fmt::format("heads is {} with a residual; expected 1", a.heads));
  check.matrix("residual", *a.residual);
  check.same_shape("residual", *a.residual, "x", x);
  check.no_overlap("residual", *a.residual, "x", x, false);
  check.no_overlap("residual", *a.residual, "out", out, false);
}

/// Weights of each head, as one row of them all.
void check_head_weight(const Checker& check, std::string_view name, Weight weight,
                       const LayerNormArguments& a) {
  check.equal({name, ".rows"}, weight.rows, "heads", std::int64_t{a.heads});
  weight.columns *= std::exchange(weight.rows, 1);
  check.vector_weight(name, weight, a.heads * a.x.columns);
}

}  // namespace

void validate(const EmbeddingArguments& a, ActivationDTypes allowed) {
  const Checker check("embedding", allowed);
  check.matrix("out", a.out);
  check.matrix_weight("table", a.table);
  check.equal("out.columns", a.out.columns, "table.columns", a.table.columns);
  check.not_null("tokens", a.tokens, a.out.rows);
}

void validate_contents(const EmbeddingArguments& a) {
  const Checker check("embedding", ActivationDTypes::kDeviceOrF64);
  for (std::int64_t t = 0; t < a.out.rows; ++t) {
    if (a.tokens[t] < 0 || a.tokens[t] >= a.table.rows) {
      check.fail(
          fmt::format("tokens[{}] is {}; expected an id from 0 to {}", t, a.tokens[t], a.table.rows - 1));
    }
  }
}

void validate(const RmsNormArguments& a, ActivationDTypes allowed) {
  const Checker check("rms_norm", allowed);
  const auto [x, out] = check_heads(check, a);
  check.vector_weight("weight", a.weight, a.x.columns);
  check_residual(check, a, x, out);
}

void validate(const LayerNormArguments& a, ActivationDTypes allowed) {
  const Checker check("layer_norm", allowed);
  const auto [x, out] = check_heads(check, a);
  check_head_weight(check, "weight", a.weight, a);
  if (a.bias) check_head_weight(check, "bias", *a.bias, a);
  check_residual(check, a, x, out);
}

void validate(const GemmArguments& a, ActivationDTypes allowed) {
  const Checker check("gemm", allowed);
  check.matrix("x", a.x);
  check.matrix("out", a.out);
  check.matrix_weight("weight", a.weight);
  check.equal("x.columns", a.x.columns, "weight.columns", a.weight.columns);
  check.equal("out.columns", a.out.columns, "weight.rows", a.weight.rows);
  check.equal("out.rows", a.out.rows, "x.rows", a.x.rows);
  if (a.bias) check.vector_weight("bias", *a.bias, a.out.columns);
  check.no_overlap("out", a.out, "x", a.x, false);
}

void validate(const NormedGemmArguments& a, ActivationDTypes allowed) {
  const Checker check("normed_gemm", allowed);
  if (a.lower) {
    if (a.activation) check.fail("lower rows are given with an activation; expected them without");
    check.equal("out.columns", a.gemm.out.columns, "all w's rows", a.gemm.weight.rows + a.lower->weight.rows);
    validate(without_lower_rows(a), allowed);
    return validate(only_lower_rows(a), allowed);
  }
  GemmArguments gemm = a.gemm;
  if (a.activation) {
    check.equal("weight.rows", gemm.weight.rows, "two rows a column of out", 2 * gemm.out.columns);
    gemm.weight.rows = gemm.out.columns;
    if (gemm.bias) gemm.bias->columns = gemm.out.columns;
  }
  validate(gemm, allowed);
  if (gemm.x.dtype != DType::kF32) {
    check.fail(fmt::format("x.dtype is {}; expected f32", dtype_name(gemm.x.dtype)));
  }
  check.vector_weight("norm_weight", a.norm_weight, gemm.x.columns);
  check.eps(a.eps);
  if (!a.rope) return;
  if (a.activation || gemm.accumulate) {
    check.fail("rope is given with an activation or accumulate; expected it alone");
  }
  validate(*a.rope, allowed);
  const std::int64_t heads = std::int64_t{a.rope->num_heads} + 2 * a.rope->num_kv_heads;
  check.at_least("first_head", a.first_head, 0);
  check.at_least("columns of q, k and v from first_head on", (heads - a.first_head) * a.rope->head_dim,
                 gemm.out.columns, "out.columns");
  check.equal("out.columns % head_dim", gemm.out.columns % a.rope->head_dim, "columns of whole heads",
              std::int64_t{0});
  check.equal("rope.q.rows", a.rope->q.rows, "x.rows", gemm.x.rows);
}

void validate(const RopeArguments& a, ActivationDTypes allowed) {
  const Checker check("rope", allowed);
  check.matrix("x", a.x);
  check_rotation(check, a.heads, a.head_dim, a.num_pairs, a.inverse_frequencies, a.attention_factor);
  check.at_least("x.columns", a.x.columns, std::int64_t{a.heads} * a.head_dim, "heads * head_dim");
  check.not_null("positions", a.positions, a.x.rows);
}

void validate(const RopeAppendArguments& a, ActivationDTypes allowed) {
  const Checker check("rope_append", allowed);
  check.matrix("q", a.q);
  check.matrix("k", a.k);
  check.matrix("v", a.v);
  check.at_least("num_kv_heads", a.num_kv_heads, 1);
  check_rotation(check, a.num_heads, a.head_dim, a.num_pairs, a.inverse_frequencies, a.attention_factor);
  check.at_least("q.columns", a.q.columns, std::int64_t{a.num_heads} * a.head_dim, "num_heads * head_dim");
  const std::int64_t kv_columns = std::int64_t{a.num_kv_heads} * a.head_dim;
  check.at_least("k.columns", a.k.columns, kv_columns, "num_kv_heads * head_dim");
  check.at_least("v.columns", a.v.columns, kv_columns, "num_kv_heads * head_dim");
  check.equal("k.rows", a.k.rows, "q.rows", a.q.rows);
  check.equal("v.rows", a.v.rows, "q.rows", a.q.rows);
  check.no_overlap("q", a.q, "k", a.k, false);
  check.no_overlap("q", a.q, "v", a.v, false);
  check.not_null("positions", a.positions, a.q.rows);
  check.not_null("sequences", a.sequences, a.q.rows);

  const KvCacheView& c = a.cache;
  if (c.dtype != DType::kF8E4M3) check.activation_dtype("cache", c.dtype);
  check.at_least("cache.page_size", c.page_size, 1);
  check.at_least("cache.num_pages", c.num_pages, std::int64_t{0});
  check.not_null("cache.k", c.k, c.num_pages);
  check.not_null("cache.v", c.v, c.num_pages);
  check.at_least("cache.head_stride", c.head_stride, std::int64_t{a.num_kv_heads > 1 ? a.head_dim : 0});
  check.at_least("cache.token_stride", c.token_stride, std::int64_t{c.page_size > 1 ? a.head_dim : 0});
  check.at_least("cache.page_stride", c.page_stride, std::int64_t{c.num_pages > 1 ? a.head_dim : 0});
  check.extent("cache", c.num_pages, c.page_stride, a.head_dim, 8);
  check.extent("cache", c.page_size, c.token_stride, a.head_dim, 8);
  check.extent("cache", a.num_kv_heads, c.head_stride, a.head_dim, 8);
  if (c.block_table != nullptr) {
    check.at_least("cache.block_table_stride", c.block_table_stride, std::int64_t{1});
  }
}

void validate_contents(const RopeAppendArguments& a) {
  const Checker check("rope_append", ActivationDTypes::kDeviceOrF64);
  const KvCacheView& c = a.cache;
  for (std::int64_t t = 0; t < a.q.rows; ++t) {
    const std::int32_t position = a.positions[t];
    const std::int32_t sequence = a.sequences[t];
    if (sequence < 0) check.fail(fmt::format("sequences[{}] is {}; expected at least 0", t, sequence));
    const std::int64_t pages_a_sequence = c.block_table == nullptr ? 1 : c.block_table_stride;
    if (position < 0 || position / c.page_size >= pages_a_sequence) {
      check.fail(fmt::format("positions[{}] is {}; expected 0 to {} for {} page(s) of {} tokens a sequence",
                             t, position, pages_a_sequence * c.page_size - 1, pages_a_sequence, c.page_size));
    }
    const std::int64_t page = c.block_table == nullptr
                                  ? sequence
                                  : c.block_table[sequence * c.block_table_stride + position / c.page_size];
    if (page < 0 || page >= c.num_pages) {
      check.fail(fmt::format("token {} (sequence {}, position {}) falls on page {}; expected 0 to {}", t,
                             sequence, position, page, c.num_pages - 1));
    }
  }
}

void validate(const GatedActivationArguments& a, ActivationDTypes allowed) {
  const Checker check("gated_activation", allowed);
  check.matrix("gate", a.gate);
  check.matrix("out", a.out);
  check.same_shape("out", a.out, "gate", a.gate);
  check.no_overlap("out", a.out, "gate", a.gate, true);
  if (!a.up) {
    if (a.activation == GatedActivation::kClampedSwiGlu)
      check.fail("up is missing, which this activation adds 1 to");
    return;
  }
  check.matrix("up", *a.up);
  check.same_shape("up", *a.up, "gate", a.gate);
  check.no_overlap("out", a.out, "up", *a.up, true);
}

void validate(const RouteExpertsArguments& a, ActivationDTypes allowed) {
  const Checker check("route_experts", allowed);
  check.matrix("logits", a.logits);
  check.equal("logits.columns", a.logits.columns, "routing.num_experts", a.routing.num_experts);
  check.at_least("routing.num_slots", a.routing.num_slots, 1);
  check_routing(check, a.routing, a.logits.rows * a.routing.num_slots);
  check.not_null("routing.weights", a.routing.weights, a.logits.rows);
  check.at_least("num_groups", a.num_groups, 1);
  if (a.routing.num_experts % a.num_groups != 0)
    check.fail(fmt::format("num_groups is {}; expected a divisor of routing.num_experts, {}", a.num_groups,
                           a.routing.num_experts));
  check.at_least("num_groups_used", a.num_groups_used, 1);
  check.at_least("num_groups", a.num_groups, a.num_groups_used, "num_groups_used");
  if (a.num_experts_of_group != 1 && a.num_experts_of_group != 2)
    check.fail(fmt::format("num_experts_of_group is {}; expected 1 or 2", a.num_experts_of_group));
  check.at_least("the number of experts in the groups used",
                 a.routing.num_experts / a.num_groups * a.num_groups_used, a.routing.num_slots,
                 "routing.num_slots");
  if (!std::isfinite(a.weight_scale))
    check.fail(fmt::format("weight_scale is {}; expected a finite number", a.weight_scale));
}

void validate(const ExpertGemmArguments& a, ActivationDTypes allowed) {
  const Checker check("expert_gemm", allowed);
  check.matrix("x", a.x);
  check.matrix("out", a.out);
  check.matrix_weight("weight", a.weight);
  check.equal("x.columns", a.x.columns, "weight.columns", a.weight.columns);
  const std::int64_t slots = num_slots_in_all(a), n = a.activation ? 2 * a.out.columns : a.out.columns;
  check_routing(check, a.routing, slots);
  check.equal("weight.rows", a.weight.rows, "those of all experts", n * a.routing.num_experts);
  check.equal("slots % num_slots", slots % a.routing.num_slots, "slots of whole rows", std::int64_t{0});
  if (a.activation && a.combines) check.fail("an activation is given with combines; expected one of them");
  if (a.accumulate && !a.combines) check.fail("accumulate is given without combines; expected both");
  if (a.combines) {
    check.equal("out.rows", a.out.rows, "x.rows / num_slots", slots / a.routing.num_slots);
    check.not_null("routing.weights", a.routing.weights, slots);
  } else if (a.x.rows != slots) {
    check.equal("x.rows", a.x.rows, "out.rows / num_slots", slots / a.routing.num_slots);
  }
  if (a.bias) {
    Weight row = *a.bias;
    check.equal("bias.rows", row.rows, "routing.num_experts", a.routing.num_experts);
    row.rows = 1;
    check.vector_weight("bias", row, n);
  }
  check.no_overlap("out", a.out, "x", a.x, false);
}

void validate_contents(const ExpertGemmArguments& a) {
  const Checker check("expert_gemm", ActivationDTypes::kDeviceOrF64);
  const ExpertRouting& r = a.routing;
  const std::int64_t slots = num_slots_in_all(a);
  if (slots == 0) return;
  const auto in_range = [&](std::string_view name, std::int64_t i, std::int64_t value, std::int64_t least,
                            std::int64_t most) {
    if (value < least || value > most)
      check.fail(fmt::format("routing.{}[{}] is {}; expected {} to {}", name, i, value, least, most));
  };
  for (std::int64_t i = 0; i < slots; ++i) {
    in_range("experts", i, r.experts[i], 0, r.num_experts - 1);
    in_range("order", i, r.order[i], 0, slots - 1);
  }
  in_range("offsets", 0, r.offsets[0], 0, 0);
  for (int e = 0; e < r.num_experts; ++e) in_range("offsets", e + 1, r.offsets[e + 1], r.offsets[e], slots);
}

void refuse_fused(const ExpertGemmArguments& a) {
  if (!a.activation && !a.combines) return;
  throw Error(
      ErrorCode::kUnsupported,
      "expert_gemm: this device has no kernel with an activation or that combines for these arguments; "
      "expected a caller that asks takes_fused_expert_gemm() first");
}

void validate(const CombineExpertsArguments& a, ActivationDTypes allowed) {
  const Checker check("combine_experts", allowed);
  check.matrix("x", a.x);
  check.matrix("out", a.out);
  check.at_least("num_slots", a.num_slots, 1);
  check.equal("x.rows", a.x.rows, "out.rows * num_slots", a.out.rows * a.num_slots);
  check.equal("x.columns", a.x.columns, "out.columns", a.out.columns);
  check.not_null("weights", a.weights, a.out.rows);
  check.no_overlap("out", a.out, "x", a.x, a.num_slots == 1);
}

namespace {

void check_sequences(const Checker& check, const SequenceRows& s, std::int64_t rows, const float* state) {
  check.at_least("sequences.batch", s.batch, std::int64_t{0});
  check.at_least("sequences.seq_len_q", s.seq_len_q, std::int64_t{0});
  check.at_least("sequences.num_slots", s.num_slots, s.batch, "one for each sequence");
  if (s.seq_len_q > rows || s.batch > rows) {
    check.fail(fmt::format("{} sequences have up to {} rows; expected no more than the {} rows there are",
                           s.batch, s.seq_len_q, rows));
  }
  check.not_null("sequences.cu_seqlens", s.cu_seqlens, rows);
  check.not_null("sequences.seq_lens", s.seq_lens, rows);
  check.not_null("sequences.slots", s.slots, rows);
  check.not_null("state", state, rows);
}

void check_floats(const Checker& check, const char* name, const Weight& w, std::int64_t rows,
                  std::int64_t columns) {
  if (w.dtype != DType::kF32)
    check.fail(fmt::format("{}.dtype is {}; expected f32", name, dtype_name(w.dtype)));
  check.equal({name, ".rows"}, w.rows, "the rows it is for", rows);
  check.equal({name, ".columns"}, w.columns, "the columns it is for", columns);
  check.not_null({name, ".data"}, w.data, rows * columns);
}

/// What kernels on the host can see, and would follow.
void check_sequence_contents(const char* kernel, const SequenceRows& s, std::int64_t rows) {
  const Checker check(kernel, ActivationDTypes::kDevice);
  if (rows == 0) return;
  if (s.cu_seqlens[0] != 0 || s.cu_seqlens[s.batch] != rows) {
    check.fail(fmt::format("sequences.cu_seqlens goes from {} to {}; expected 0 to {}, the rows",
                           s.cu_seqlens[0], s.cu_seqlens[s.batch], rows));
  }
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int64_t count = std::int64_t{s.cu_seqlens[b + 1]} - s.cu_seqlens[b];
    if (count < 0 || count > s.seq_len_q || s.seq_lens[b] < count) {
      check.fail(fmt::format("sequence {} has {} rows of {} tokens; expected 0 to {} rows and as many tokens",
                             b, count, s.seq_lens[b], s.seq_len_q));
    }
    if (s.slots[b] < 0 || s.slots[b] >= s.num_slots) {
      check.fail(fmt::format("sequences.slots[{}] is {}; expected 0 to {}", b, s.slots[b], s.num_slots - 1));
    }
  }
}

}  // namespace

void validate(const CausalConvArguments& a, ActivationDTypes allowed) {
  const Checker check("causal_conv", allowed);
  check.matrix("x", a.x);
  check.matrix("out", a.out);
  check.same_shape("out", a.out, "x", a.x);
  check.no_overlap("out", a.out, "x", a.x, false);
  if (a.x_gate) {
    check.matrix("x_gate", *a.x_gate);
    check.same_shape("x_gate", *a.x_gate, "x", a.x);
    check.no_overlap("out", a.out, "x_gate", *a.x_gate, false);
  }
  if (a.out_gate) {
    check.matrix("out_gate", *a.out_gate);
    check.same_shape("out_gate", *a.out_gate, "x", a.x);
    check.no_overlap("out", a.out, "out_gate", *a.out_gate, false);
  }
  if (a.weight.rows < 2 || a.weight.rows > kMostConvTaps)
    check.fail(fmt::format("weight.rows is {}; expected 2 to {} taps", a.weight.rows, kMostConvTaps));
  check_floats(check, "weight", a.weight, a.weight.rows, a.x.columns);
  if (a.bias) check_floats(check, "bias", *a.bias, 1, a.x.columns);
  check_sequences(check, a.sequences, a.x.rows, a.state);
}

void validate_contents(const CausalConvArguments& a) {
  check_sequence_contents("causal_conv", a.sequences, a.x.rows);
}

void validate(const GatedDeltaArguments& a, ActivationDTypes allowed) {
  const Checker check("gated_delta", allowed);
  check.at_least("num_key_heads", a.num_key_heads, 1);
  check.at_least("num_value_heads", a.num_value_heads, 1);
  check.at_least("value_dim", a.value_dim, 1);
  if (a.num_value_heads % a.num_key_heads != 0) {
    check.fail(fmt::format("num_value_heads is {}; expected a multiple of num_key_heads = {}",
                           a.num_value_heads, a.num_key_heads));
  }
  if (a.key_dim < 1 || a.key_dim > kMostDeltaKeyDim)
    check.fail(fmt::format("key_dim is {}; expected 1 to {}", a.key_dim, kMostDeltaKeyDim));
  const std::int64_t keys = std::int64_t{a.num_key_heads} * a.key_dim;
  const std::int64_t values = std::int64_t{a.num_value_heads} * a.value_dim;
  const auto part = [&](const char* name, const Matrix& m, std::int64_t columns) {
    check.matrix(name, m);
    check.equal({name, ".rows"}, m.rows, "out.rows", a.out.rows);
    check.equal({name, ".columns"}, m.columns, "the heads' columns", columns);
  };
  check.matrix("out", a.out);
  check.equal("out.columns", a.out.columns, "the heads' columns", values);
  part("q", a.q, keys);
  part("k", a.k, keys);
  part("v", a.v, values);
  part("a", a.a, a.num_value_heads);
  part("b", a.b, a.num_value_heads);
  for (const Matrix& m : {a.q, a.k, a.v, a.a, a.b}) check.no_overlap("out", a.out, "an input", m, false);
  check_floats(check, "a_log", a.a_log, 1, a.num_value_heads);
  check_floats(check, "dt_bias", a.dt_bias, 1, a.num_value_heads);
  check_sequences(check, a.sequences, a.out.rows, a.state);
}

void validate_contents(const GatedDeltaArguments& a) {
  check_sequence_contents("gated_delta", a.sequences, a.out.rows);
}

void validate(const SoftmaxArguments& a, ActivationDTypes allowed) {
  const Checker check("softmax", allowed);
  check.matrix("x", a.x);
  check.matrix("out", a.out);
  check.same_shape("out", a.out, "x", a.x);
  check.no_overlap("out", a.out, "x", a.x, true);
}

void validate(const ScaleArguments& a, ActivationDTypes allowed) {
  const Checker check("scale", allowed);
  check.matrix("x", a.x);
}

void validate(const SoftcapArguments& a, ActivationDTypes allowed) {
  const Checker check("softcap", allowed);
  check.matrix("x", a.x);
  if (!std::isnormal(a.cap) || a.cap < 0) {
    check.fail(fmt::format("cap is {}; expected a positive number, finite and not subnormal", a.cap));
  }
}

void validate(const CausalMaskArguments& a, ActivationDTypes allowed) {
  const Checker check("causal_mask", allowed);
  check.matrix("x", a.x);
}

void validate(const AdjustLogitsArguments& a, ActivationDTypes allowed) {
  const Checker check("adjust_logits", allowed);
  check.logits(a.logits);
  check.matrix("out", a.out);
  check.same_shape("out", a.out, "logits", a.logits);
  if (a.out.dtype != DType::kF32) {
    check.fail(fmt::format("out.dtype is {}; expected f32", dtype_name(a.out.dtype)));
  }
  check.no_overlap("out", a.out, "logits", a.logits, true);
  if (a.mask_rows != nullptr) {
    check.not_null("masks", a.masks, a.logits.rows);
    check.at_least("mask_stride", a.mask_stride, (a.logits.columns + 31) / 32, "a bit a token");
  }
}

void validate(const LogprobsArguments& a, ActivationDTypes allowed) {
  const Checker check("logprobs", allowed);
  check.logits(a.logits);
  check.not_null("tokens", a.tokens, a.logits.rows);
  check.not_null("logprobs", a.logprobs, a.logits.rows);
  if (a.num_top < 0 || a.num_top > a.logits.columns) {
    check.fail(fmt::format("num_top is {}; expected 0 to {}, the vocabulary", a.num_top, a.logits.columns));
  }
  check.not_null("top_tokens", a.top_tokens, a.logits.rows * a.num_top);
  check.not_null("top_logprobs", a.top_logprobs, a.logits.rows * a.num_top);
}

void validate_contents(const AdjustLogitsArguments& a) {
  const Checker check("adjust_logits", ActivationDTypes::kDeviceOrF64);
  for (std::int64_t s = 0; a.mask_rows != nullptr && s < a.logits.rows; ++s) {
    if (a.mask_rows[s] < -1)
      check.fail(fmt::format("mask_rows[{}] is {}; expected -1 or a row", s, a.mask_rows[s]));
  }
  if (a.bias_offsets == nullptr) return;
  if (a.bias_offsets[0] != 0) check.fail(fmt::format("bias_offsets[0] is {}; expected 0", a.bias_offsets[0]));
  std::vector<std::int32_t> tokens;
  for (std::int64_t s = 0; s < a.logits.rows; ++s) {
    const std::int32_t begin = a.bias_offsets[s], end = a.bias_offsets[s + 1];
    if (end < begin) {
      check.fail(
          fmt::format("bias_offsets[{}] is {}; expected at least the one before, {}", s + 1, end, begin));
    }
    check.not_null("biases", a.biases, end);
    tokens.clear();
    for (std::int32_t i = begin; i < end; ++i) {
      const LogitBias& bias = a.biases[i];
      if (bias.token < 0 || bias.token >= a.logits.columns) {
        check.fail(
            fmt::format("biases[{}].token is {}; expected 0 to {}", i, bias.token, a.logits.columns - 1));
      }
      if (!std::isfinite(bias.bias)) {
        check.fail(fmt::format("biases[{}].bias is {}; expected a finite number", i, bias.bias));
      }
      tokens.push_back(bias.token);
    }
    std::ranges::sort(tokens);
    if (const auto twice = std::ranges::adjacent_find(tokens); twice != tokens.end()) {
      check.fail(fmt::format("sequence {} has two biases for token {}; expected one", s, *twice));
    }
  }
}

void validate(const SampleArguments& a, ActivationDTypes allowed) {
  const Checker check("sample", allowed);
  check.logits(a.logits);
  check.not_null("parameters", a.parameters, a.logits.rows);
  check.not_null("steps", a.steps, a.logits.rows);
  check.not_null("tokens", a.tokens, a.logits.rows);
  if (a.history != nullptr) {
    check.not_null("history_lens", a.history_lens, a.logits.rows);
    check.at_least("history_stride", a.history_stride, std::int64_t{0});
  }
}

void validate_contents(const SampleArguments& a) {
  const Checker check("sample", ActivationDTypes::kDeviceOrF64);
  for (std::int64_t s = 0; s < a.logits.rows; ++s) {
    const SamplingParameters& p = a.parameters[s];
    const auto reject = [&](std::string_view name, auto value, std::string_view expected) {
      check.fail(fmt::format("parameters[{}].{} is {}; expected {}", s, name, value, expected));
    };
    if (!(p.temperature >= 0) || !std::isfinite(p.temperature)) {
      reject("temperature", p.temperature, "a finite number of at least 0");
    }
    if (p.top_k < 0) reject("top_k", p.top_k, "at least 0");
    if (!(p.top_p > 0 && p.top_p <= 1)) reject("top_p", p.top_p, "more than 0 and at most 1");
    if (!(p.min_p >= 0 && p.min_p <= 1)) reject("min_p", p.min_p, "0 to 1");
    if (!(p.repetition_penalty > 0) || !std::isfinite(p.repetition_penalty)) {
      reject("repetition_penalty", p.repetition_penalty, "a finite number above 0");
    }
    if (a.steps[s] < 0) check.fail(fmt::format("steps[{}] is {}; expected at least 0", s, a.steps[s]));
    if (p.repetition_penalty == 1) continue;
    if (a.history == nullptr) {
      check.fail(fmt::format("parameters[{}].repetition_penalty is {} but history is null", s,
                             p.repetition_penalty));
    }
    const std::int64_t length = a.history_lens[s];
    if (length < 0 || (length > a.history_stride && a.logits.rows > 1)) {
      check.fail(fmt::format("history_lens[{}] is {}; expected 0 to history_stride = {}", s, length,
                             a.history_stride));
    }
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int32_t token = a.history[s * a.history_stride + i];
      if (token < 0 || token >= a.logits.columns) {
        check.fail(fmt::format("history[{}][{}] is {}; expected an id from 0 to {}", s, i, token,
                               a.logits.columns - 1));
      }
    }
  }
}

void validate(const HostWeight& w) {
  const Checker check(w.name.empty() ? std::string_view("make_weight") : w.name, ActivationDTypes::kDevice);
  check.weight_description("weight", w.dtype, w.rows, w.columns);
  check.not_null("weight.data", w.data, w.columns);
}

}  // namespace tessera
