// Random cases as lines of text, so that one that fails can be run again.

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>

#include "core/text.h"
#include "tessera/error.h"
#include "verify/random_case.h"

namespace tessera {
namespace {

[[noreturn]] void fail(std::string_view field, std::string_view value, std::string_view expected) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} of the case is '{}'; expected {}", field, printable(value), expected));
}

/// The names of an enumeration's values, in order.
template <class Enum>
constexpr std::array<std::string_view, 0> kNames = {};
template <>
constexpr std::array kNames<StrideStyle> = {std::string_view("batch_seq_heads"),
                                            std::string_view("batch_heads_seq"), std::string_view("packed"),
                                            std::string_view("odd")};
template <>
constexpr std::array kNames<KvStorage> = {std::string_view("dense"), std::string_view("padded"),
                                          std::string_view("ragged"), std::string_view("paged")};
template <>
constexpr std::array kNames<KvScaling> = {std::string_view("none"), std::string_view("tensor"),
                                          std::string_view("head"), std::string_view("page_head")};
template <>
constexpr std::array kNames<Content> = {
    std::string_view("normal"),         std::string_view("equal_logits"),
    std::string_view("constant_value"), std::string_view("nan_hidden_keys"),
    std::string_view("nan_last_keys"),  std::string_view("nan_keys"),
    std::string_view("nan_values"),     std::string_view("nan_one_value"),
    std::string_view("infinite_keys"),  std::string_view("largest_values"),
    std::string_view("heavy_zeros")};

template <>
constexpr std::array<std::string_view, kNumModifierExamples> kNames<ModifierExample> = {
    "none",   "causal", "window",     "documents", "prefix_lm", "sinks_and_window", "dilated",
    "natten", "chunks", "draft_tree", "alibi",     "t5",        "softcap"};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Each kind of value: its text, and back.

template <class Number>
requires std::is_arithmetic_v<Number> std::string text_of(Number value) { return fmt::format("{}", value); }
std::string text_of(bool value) { return value ? "1" : "0"; }
std::string text_of(DType dtype) { return std::string(dtype_name(dtype)); }
template <class Enum>
requires(kNames<Enum>.size() > 0) std::string text_of(Enum value) {
  return std::string(kNames<Enum>[static_cast<std::size_t>(value)]);
}
std::string text_of(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) text += fmt::format("{}{}", text.empty() ? "" : ",", value);
  return text;
}
std::string text_of(const MaskRecipe& m) {
  return fmt::format("{},{}{}{}k{},{},{}", dtype_name(m.dtype), m.per_batch ? "b" : "", m.per_head ? "h" : "",
                     m.per_query ? "q" : "", m.hides_by_lowest ? "l" : "", m.hidden_share, m.kv_stride);
}
std::string text_of(const DiagonalMask& d) {
  const auto limit = [](const std::optional<std::int64_t>& w) {
    return w ? fmt::format("{}", *w) : std::string("all");
  };
  return fmt::format("{},{},{}", limit(d.window_left), limit(d.window_right),
                     d.alignment == DiagonalAlignment::kTopLeft ? "top_left" : "bottom_right");
}
template <class Value>
std::string text_of(const std::optional<Value>& value) {
  return value ? text_of(*value) : std::string();
}

template <class Number>
requires std::is_arithmetic_v<Number>
void read(std::string_view field, std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool ok = error == std::errc() && end == text.data() + text.size();
  if constexpr (std::is_floating_point_v<Number>) ok = ok && std::isfinite(value);
  if (!ok) fail(field, text, "a number");
}
void read(std::string_view field, std::string_view text, bool& value) {
  if (text != "0" && text != "1") fail(field, text, "0 or 1");
  value = text == "1";
}
void read(std::string_view, std::string_view text, DType& dtype) { dtype = parse_dtype(text); }
template <class Enum>
requires(kNames<Enum>.size() > 0) void read(std::string_view field, std::string_view text, Enum& value) {
  std::string names;
  for (std::size_t n = 0; n < kNames<Enum>.size(); ++n) {
    if (kNames<Enum>[n] == text) {
      value = static_cast<Enum>(n);
      return;
    }
    names += fmt::format("{}{}", n == 0 ? "" : ", ", kNames<Enum>[n]);
  }
  fail(field, text, names);
}
void read(std::string_view field, std::string_view text, std::vector<std::int64_t>& values) {
  values.clear();
  if (text.empty()) return;
  for (const std::string_view part : split(text, ',')) read(field, part, values.emplace_back());
}
void read(std::string_view field, std::string_view text, MaskRecipe& m) {
  const std::vector<std::string_view> parts = split(text, ',');
  if (parts.size() != 4) fail(field, text, "dtype,dimensions,hidden share,stride such as f32,bhqk,0.3,1");
  read(field, parts[0], m.dtype);
  const auto has = [&](char letter) { return parts[1].find(letter) != std::string_view::npos; };
  m.per_batch = has('b');
  m.per_head = has('h');
  m.per_query = has('q');
  m.hides_by_lowest = has('l');
  read(field, parts[2], m.hidden_share);
  read(field, parts[3], m.kv_stride);
}
void read(std::string_view field, std::string_view text, DiagonalMask& d) {
  const std::vector<std::string_view> parts = split(text, ',');
  if (parts.size() != 3) fail(field, text, "left,right,corner such as 16,0,bottom_right or all,0,top_left");
  const auto read_limit = [&](std::string_view part, std::optional<std::int64_t>& limit) {
    limit.reset();
    if (part != "all") read(field, part, limit.emplace());
  };
  read_limit(parts[0], d.window_left);
  read_limit(parts[1], d.window_right);
  d.alignment = parts[2] == "top_left" ? DiagonalAlignment::kTopLeft : DiagonalAlignment::kBottomRight;
}
template <class Value>
void read(std::string_view field, std::string_view text, std::optional<Value>& value) {
  value.reset();
  if (!text.empty()) read(field, text, value.emplace());
}

/// Calls field(name, value) for all that describes a case.
template <class Case, class Field>
void visit_fields(Case& c, Field&& field) {
  auto& a = c.attention;
  field("dtype", a.dtype);
  field("batch", a.batch);
  field("len_q", a.seq_len_q);
  field("len_kv", a.seq_len_kv);
  field("heads", a.num_heads);
  field("kv_heads", a.num_kv_heads);
  field("dim_qk", a.head_dim_qk);
  field("dim_v", a.head_dim_v);
  field("strides", a.strides);
  field("lens_q", a.lens_q);
  field("storage", a.kv_storage);
  field("lens_kv", a.lens_kv);
  field("page_size", a.page_size);
  field("kv_dtype", a.kv_dtype);
  field("kv_scales", a.kv_scaling);
  field("narrow_q", a.narrow_q);
  field("q_scales", a.q_scaling);
  field("shared_kv", a.shared_kv);
  field("values_in_keys", a.values_in_keys);
  field("scale", a.softmax_scale);
  field("softcap", a.softcap);
  field("alibi", a.alibi);
  field("alibi_per_batch", a.alibi_per_batch);
  field("sinks", a.sinks);
  field("additive", a.additive_mask);
  field("boolean", a.boolean_mask);
  field("diagonal", a.diagonal);
  field("modifier", a.modifier);
  field("content", a.content);
  field("q_spread", a.logit_spread);
  field("k_spread", a.k_spread);
  field("v_spread", a.v_spread);
  field("exponents", a.exponent_spread);
  field("seed", a.seed);
  field("lse", a.with_lse);
  field("invariant", a.batch_invariant);
  field("host", c.host_tensors);
  field("replayed", c.replayed);
  field("repeated", c.repeated);
  field("num_splits", c.num_splits);
}

void require_range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    fail(field, fmt::format("{}", value), fmt::format("a number from {} to {}", low, high));
}

void check_lengths(std::string_view field, const std::vector<std::int64_t>& lens, const AttentionCase& c,
                   std::int64_t most) {
  if (static_cast<std::int64_t>(lens.size()) != c.batch)
    fail(field, text_of(lens), fmt::format("as many numbers as batch, {}", c.batch));
  for (const std::int64_t len : lens) require_range(field, len, 0, most);
}

void check_mask(std::string_view field, const std::optional<MaskRecipe>& mask, bool is_boolean) {
  if (!mask) return;
  require_range(std::string(field) + " stride", mask->kv_stride, 1, 16);
  const bool ok =
      is_boolean ? mask->dtype == DType::kBool || mask->dtype == DType::kU8
                 : mask->dtype == DType::kF32 || mask->dtype == DType::kF16 || mask->dtype == DType::kBF16;
  if (!ok) fail(field, dtype_name(mask->dtype), is_boolean ? "bool or u8" : "f32, f16 or bf16");
}

/// Throws for what make_attention_data could not make.
void check(const AttentionCase& c) {
  if (c.dtype != DType::kF64 && c.dtype != DType::kF32 && c.dtype != DType::kF16 && c.dtype != DType::kBF16)
    fail("dtype", dtype_name(c.dtype), "f32, f16, bf16 or f64");
  if (c.kv_dtype && *c.kv_dtype != DType::kF8E4M3)
    fail("kv_dtype", dtype_name(*c.kv_dtype), "f8e4m3 or nothing");
  if (c.narrow_q && !c.kv_dtype) fail("narrow_q", "1", "0 without kv_dtype");
  if (c.q_scaling != KvScaling::kNone && !c.narrow_q)
    fail("q_scales", text_of(c.q_scaling), "none without narrow_q=1");
  if (c.kv_scaling != KvScaling::kNone && !c.kv_dtype)
    fail("kv_scales", text_of(c.kv_scaling), "none without kv_dtype");
  if (c.kv_scaling == KvScaling::kPageHead && c.batch_invariant)
    fail("kv_scales", text_of(c.kv_scaling), "none, tensor or head with invariant=1");
  constexpr std::int64_t kMost = 1 << 20;
  require_range("batch", c.batch, 0, 4096);
  require_range("len_q", c.seq_len_q, 0, kMost);
  require_range("len_kv", c.seq_len_kv, 0, kMost);
  require_range("heads", c.num_heads, 1, 4096);
  require_range("kv_heads", c.num_kv_heads, 1, c.num_heads);
  if (c.num_heads % c.num_kv_heads != 0) fail("kv_heads", text_of(c.num_kv_heads), "a divisor of heads");
  require_range("dim_qk", c.head_dim_qk, 1, kMaxHeadDim);
  require_range("dim_v", c.head_dim_v, 1, c.values_in_keys ? c.head_dim_qk : kMaxHeadDim);
  require_range("page_size", c.page_size, 1, kMost);
  require_range("exponents", c.exponent_spread, 0, 100);
  if (!c.lens_q.empty()) check_lengths("lens_q", c.lens_q, c, c.seq_len_q);
  if (c.kv_storage != KvStorage::kDense) check_lengths("lens_kv", c.lens_kv, c, c.seq_len_kv);
  check_mask("additive", c.additive_mask, false);
  check_mask("boolean", c.boolean_mask, true);
  constexpr double kMostElements = 1 << 29;
  const auto rows = [&](std::int64_t len, int heads) {
    return static_cast<double>(c.batch) * static_cast<double>(len) * heads;
  };
  double elements = rows(c.seq_len_q, c.num_heads) * (c.head_dim_qk + 2 * c.head_dim_v) +
                    rows(std::max<std::int64_t>(c.seq_len_kv, c.page_size), c.num_kv_heads) *
                        (c.head_dim_qk + c.head_dim_v);
  if (c.additive_mask || c.boolean_mask)
    elements += rows(c.seq_len_q, c.num_heads) * static_cast<double>(c.seq_len_kv);
  if (elements > kMostElements)
    fail("the size", fmt::format("{:.0f} elements", elements), fmt::format("at most {:.0f}", kMostElements));
}

}  // namespace

std::string to_text(const RandomCase& random_case) {
  std::vector<std::string> defaults;
  const RandomCase usual;
  visit_fields(usual, [&](std::string_view, const auto& value) { defaults.push_back(text_of(value)); });
  std::string text;
  std::size_t n = 0;
  visit_fields(random_case, [&](std::string_view name, const auto& value) {
    const std::string of_value = text_of(value);
    if (of_value != defaults[n++]) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, of_value);
  });
  return text;
}

RandomCase parse_random_case(std::string_view text) {
  RandomCase random_case;
  for (const std::string_view part : split(text, ' ')) {
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    bool found = false;
    visit_fields(random_case, [&](std::string_view field, auto& value) {
      if (field != name || equals == std::string_view::npos) return;
      found = true;
      read(field, part.substr(equals + 1), value);
    });
    if (!found) fail("a part", part, "name=value as printed for a case that fails");
  }
  check(random_case.attention);
  return random_case;
}

}  // namespace tessera
