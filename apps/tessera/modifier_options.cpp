#include "modifier_options.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/aligned_memory.h"
#include "core/element.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 26;

[[noreturn]] void fail_tensor(const std::string& text, const std::string& why) {
  throw UsageError(fmt::format(
      "--modifier-tensor {}: {}; expected NAME=TYPE[SIZE,...]:CONTENT, such as doc=i32[4096]:steps/512 or "
      "slope=f32[16]:slopes; CONTENT is a number, steps/N (0 for the first N, then 1, ...) or slopes "
      "(ALiBi's)",
      text, why));
}

template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

/// The number of element `i` of `size` along the last dimension.
double content(const std::string& text, const std::string& kind, std::int64_t i, std::int64_t size) {
  if (kind == "slopes") return std::exp2(-8.0 * static_cast<double>(i + 1) / static_cast<double>(size));
  if (kind.starts_with("steps/")) {
    std::int64_t step = 0;
    if (!parse_number(std::string_view(kind).substr(6), step) || step <= 0)
      fail_tensor(text, "steps are of 1 or more");
    return static_cast<double>(i / step);
  }
  double number = 0;
  if (!parse_number(kind, number)) fail_tensor(text, fmt::format("'{}' is no content", kind));
  return number;
}

/// Returns false if the type has no such number.
bool store(void* data, DType dtype, std::int64_t i, double number) {
  const auto store_whole = [&]<class T>(T* numbers, double largest) {
    if (!(number >= static_cast<double>(std::numeric_limits<T>::min()) && number <= largest)) return false;
    numbers[i] = static_cast<T>(number);
    return static_cast<double>(numbers[i]) == number;
  };
  if (dtype == DType::kI32) return store_whole(static_cast<std::int32_t*>(data), 0x7fffffff);
  if (dtype == DType::kU8) return store_whole(static_cast<std::uint8_t*>(data), 255);
  if (dtype == DType::kBool) return store_whole(static_cast<std::uint8_t*>(data), 1);
  store_element(data, dtype, i, number);
  return !std::isfinite(number) || std::isfinite(load_element(data, dtype, i));
}

CapturedTensor make_tensor(const std::string& text, std::vector<std::byte>& memory) {
  const std::size_t equals = text.find('='), open = text.find('['), close = text.find("]:");
  if (equals == std::string::npos || open == std::string::npos || close == std::string::npos ||
      open < equals || close < open)
    fail_tensor(text, "a part is missing");
  CapturedTensor tensor;
  tensor.name = text.substr(0, equals);
  tensor.dtype = parse_dtype(text.substr(equals + 1, open - equals - 1));
  const bool can_store = tensor.dtype == DType::kI32 || tensor.dtype == DType::kU8 ||
                         tensor.dtype == DType::kBool || tensor.dtype == DType::kF32 ||
                         tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
  if (!can_store) fail_tensor(text, "the type is none of f32, f16, bf16, i32, u8 and bool");
  std::int64_t count = 1;
  for (const std::string& size : split_at_commas(text.substr(open + 1, close - open - 1))) {
    std::int64_t number = 0;
    if (!parse_number(size, number) || number < 1 || number > kMaxElements / count)
      fail_tensor(text, fmt::format("'{}' is no size, or too large", size));
    tensor.sizes.push_back(number);
    count *= number;
  }
  tensor.strides.assign(tensor.sizes.size(), 1);
  for (std::size_t d = tensor.sizes.size() - 1; d-- > 0;)
    tensor.strides[d] = tensor.strides[d + 1] * tensor.sizes[d + 1];
  memory.resize(dtype_bytes(tensor.dtype, static_cast<std::size_t>(count)));
  tensor.data = memory.data();
  const std::string kind = text.substr(close + 2);
  const std::int64_t size = tensor.sizes.back();
  for (std::int64_t i = 0; i < count; ++i) {
    const double number = content(text, kind, i % size, size);
    if (!store(memory.data(), tensor.dtype, i, number))
      fail_tensor(text, fmt::format("{:g} is no number of its type, {}", number, dtype_name(tensor.dtype)));
  }
  return tensor;
}

std::pair<std::string, double> make_scalar(const std::string& text) {
  const std::size_t equals = text.find('=');
  double number = 0;
  if (equals == std::string::npos || !parse_number(std::string_view(text).substr(equals + 1), number))
    throw UsageError(fmt::format("--modifier-scalar {}: expected NAME=NUMBER", text));
  return {text.substr(0, equals), number};
}

}  // namespace

void add_modifier_options(Command& command, ModifierOptions& options) {
  command.add_text("--modifier-score", options.score, "New scores, as text: 'cap * tanh(score / cap)'",
                   "TEXT");
  command.add_text("--modifier-visible", options.visible,
                   "Which keys a query sees, as text: 'doc[q_idx] == doc[kv_idx]'", "TEXT");
  command.add_texts("--modifier-tensor", options.tensors,
                    "Tensor of the texts: doc=i32[4096]:steps/512, slope=f32[16]:slopes, prefix=i32[1]:100",
                    "NAME=TENSOR");
  command.add_texts("--modifier-scalar", options.scalars, "Number of the texts: cap=30", "NAME=NUMBER");
}

ScoreModifier make_modifier(const ModifierOptions& options, std::vector<std::vector<std::byte>>& memory) {
  ScoreModifier modifier;
  modifier.score = options.score;
  modifier.visible = options.visible;
  memory.resize(options.tensors.size());
  for (std::size_t i = 0; i < options.tensors.size(); ++i)
    modifier.tensors.push_back(make_tensor(options.tensors[i], memory[i]));
  for (const std::string& scalar : options.scalars) modifier.scalars.push_back(make_scalar(scalar));
  return modifier;
}

}  // namespace tessera::cli
