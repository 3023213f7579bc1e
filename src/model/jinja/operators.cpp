#include "model/jinja/operators.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "model/jinja/characters.h"
#include "model/jinja/format.h"
#include "model/jinja/print.h"

namespace tessera::jinja {
namespace {

[[noreturn]] void fail_overflow() {
  throw Failure{"an integer leaves the range of 64 bits", ErrorCode::kUnsupported};
}

bool equal(Heap& heap, Value a, Value b, int depth) {
  require_nesting(depth);
  heap.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_integer() == b.as_integer();
    return a.as_real() == b.as_real();
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      heap.read(std::min(a.text->size(), b.text->size()));
      return a.view() == b.view();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      if (a.sequence == b.sequence) return true;
      return std::ranges::equal(a.sequence->items, b.sequence->items,
                                [&](Value x, Value y) { return equal(heap, x, y, depth + 1); });
    case Kind::kDict: {
      if (a.dict == b.dict) return true;
      if (a.dict->entries.size() != b.dict->entries.size()) return false;
      return std::ranges::all_of(a.dict->entries, [&](const auto& entry) {
        const Value* const other = b.dict->find(heap, entry.first);
        return other != nullptr && equal(heap, entry.second, *other, depth + 1);
      });
    }
    case Kind::kView:
    case Kind::kIterator:
      return a.sequence == b.sequence;
    case Kind::kNamespace:
      return a.dict == b.dict;
    case Kind::kLoop:
      return a.loop == b.loop;
    default:
      return a.function == b.function;
  }
}

std::partial_ordering compare(Heap& heap, Value a, Value b, std::string_view operation, int depth) {
  require_nesting(depth);
  heap.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_integer() <=> b.as_integer();
    return a.as_real() <=> b.as_real();
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    heap.read(std::min(a.text->size(), b.text->size()));
    return a.view().compare(b.view()) <=> 0;
  }
  if (a.kind == b.kind && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const auto &x = a.sequence->items, &y = b.sequence->items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(heap, x[i], y[i], depth + 1)) return compare(heap, x[i], y[i], operation, depth + 1);
    }
    return x.size() <=> y.size();
  }
  require_defined(a);
  require_defined(b);
  throw Failure{fmt::format("'{}' not supported between instances of '{}' and '{}'", operation, type_name(a),
                            type_name(b))};
}

std::size_t hash(Heap& heap, Value value, int depth) {
  require_nesting(depth);
  heap.step();
  switch (value.kind) {
    case Kind::kUndefined:
      return 1;
    case Kind::kNone:
      return 2;
    case Kind::kBool:
    case Kind::kInt:
      return std::hash<double>()(value.as_real());
    case Kind::kFloat:
      return std::hash<double>()(value.real);
    case Kind::kString:
      heap.read(value.text->size());
      return hash_text(value.view());
    case Kind::kTuple:
    case Kind::kRange: {
      std::size_t result = 3;
      for (const Value item : value.sequence->items) result = result * 1000003 ^ hash(heap, item, depth + 1);
      return result;
    }
    case Kind::kList:
    case Kind::kView:
    case Kind::kDict:
      throw Failure{fmt::format("unhashable type: '{}'", type_name(value))};
    default:
      return std::hash<const void*>()(value.function);
  }
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw Failure{"division by zero"};
  if (a == std::numeric_limits<std::int64_t>::min() && b == -1) fail_overflow();
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

std::int64_t floor_modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) throw Failure{"division by zero"};
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_modulo(double a, double b) {
  if (b == 0) throw Failure{"division by zero"};
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value power(Value a, Value b) {
  if (a.is_integral() && b.is_integral() && b.as_integer() >= 0) {
    std::int64_t result = 1, base = a.as_integer(), exponent = b.as_integer();
    while (exponent > 0) {
      if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
      exponent >>= 1;
      if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
    }
    return Value::of(result);
  }
  const double x = a.as_real(), y = b.as_real();
  if (x == 0 && y < 0) throw Failure{"0.0 cannot be raised to a negative power"};
  if (x < 0 && std::isfinite(x) && std::isfinite(y) && y != std::floor(y)) {
    throw Failure{"a complex number", ErrorCode::kUnsupported};
  }
  const double result = std::pow(x, y);
  if (std::isinf(result) && std::isfinite(x) && std::isfinite(y))
    throw Failure{"numerical result out of range"};
  return Value::of(result);
}

Value arithmetic(Operation operation, Value a, Value b) {
  if (operation == Operation::kPower) return power(a, b);
  if (operation == Operation::kDivide) {
    if (b.as_real() == 0) throw Failure{"division by zero"};
    return Value::of(a.as_real() / b.as_real());
  }
  if (a.is_integral() && b.is_integral()) {
    const std::int64_t x = a.as_integer(), y = b.as_integer();
    std::int64_t result = 0;
    bool overflow = false;
    switch (operation) {
      case Operation::kAdd:
        overflow = __builtin_add_overflow(x, y, &result);
        break;
      case Operation::kSubtract:
        overflow = __builtin_sub_overflow(x, y, &result);
        break;
      case Operation::kMultiply:
        overflow = __builtin_mul_overflow(x, y, &result);
        break;
      case Operation::kFloorDivide:
        result = floor_divide(x, y);
        break;
      default:
        result = floor_modulo(x, y);
        break;
    }
    if (overflow) fail_overflow();
    return Value::of(result);
  }
  const double x = a.as_real(), y = b.as_real();
  switch (operation) {
    case Operation::kAdd:
      return Value::of(x + y);
    case Operation::kSubtract:
      return Value::of(x - y);
    case Operation::kMultiply:
      return Value::of(x * y);
    case Operation::kFloorDivide: {
      const double rest = floor_modulo(x, y);
      const double quotient = (x - rest) / y;
      return Value::of(quotient == 0 ? std::copysign(0.0, x / y) : std::floor(quotient + 0.5));
    }
    default:
      return Value::of(floor_modulo(x, y));
  }
}

Value repeat(Heap& heap, Value value, std::int64_t count) {
  count = std::max<std::int64_t>(count, 0);
  const std::size_t size = value.is(Kind::kString) ? value.text->size() : value.sequence->items.size();
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(size, static_cast<std::size_t>(count), &bytes) ||
      bytes > heap.limits().max_bytes) {
    bytes = heap.limits().max_bytes + 1;
  }
  heap.charge(bytes);
  if (size == 0) count = 0;
  if (value.is(Kind::kString)) {
    MarkedText text;
    for (std::int64_t i = 0; i < count; ++i) text.append(*value.text);
    return heap.string(std::move(text));
  }
  heap.charge(bytes * (sizeof(Value) - 1));
  std::vector<Value> items;
  for (std::int64_t i = 0; i < count; ++i) {
    items.insert(items.end(), value.sequence->items.begin(), value.sequence->items.end());
  }
  return heap.sequence(value.kind, std::move(items));
}

bool can_repeat(Value value) {
  return value.is(Kind::kString) || value.is(Kind::kList) || value.is(Kind::kTuple);
}

}  // namespace

std::string_view type_name(Value value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return value.sequence->view_name;
    case Kind::kIterator:
      return "generator";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kFunction:
      return value.function->macro != nullptr ? "Macro" : "function";
  }
  return "";
}

std::string undefined_reason(Value value) {
  return value.reason != nullptr ? *value.reason : std::string("the value is undefined");
}

void require_defined(Value value) {
  if (value.is(Kind::kUndefined)) throw Failure{undefined_reason(value)};
}

void require_nesting(int depth) {
  if (depth > kMaxNesting) throw Failure{fmt::format("a value is nested more than {} deep", kMaxNesting)};
}

bool truth(Value value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.real != 0;
    case Kind::kString:
      return !value.text->empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return !value.sequence->items.empty();
    case Kind::kDict:
      return !value.dict->entries.empty();
    case Kind::kLoop:
      return value.loop->count() != 0;
    default:
      return true;
  }
}

std::size_t hash_text(std::string_view text) { return std::hash<std::string_view>()(text); }
std::size_t hash(Heap& heap, Value value) { return hash(heap, value, 0); }
bool equal(Heap& heap, Value a, Value b) { return equal(heap, a, b, 0); }
std::partial_ordering compare(Heap& heap, Value a, Value b, std::string_view operation) {
  return compare(heap, a, b, operation, 0);
}

bool contains(Heap& heap, Value container, Value item) {
  switch (container.kind) {
    case Kind::kString:
      require_defined(item);
      if (!item.is(Kind::kString)) {
        throw Failure{fmt::format("'in <string>' requires string as left operand, not {}", type_name(item))};
      }
      heap.read(container.text->size());
      return find_text(container.view(), item.view()) != std::string_view::npos;
    case Kind::kDict:
      return container.dict->find(heap, item) != nullptr;
    case Kind::kUndefined:
      return false;
    default: {
      for (const Value& candidate : items_of(heap, container)) {
        heap.step();
        if (equal(heap, candidate, item)) return true;
      }
      return false;
    }
  }
}

std::int64_t length(Value value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return count_characters(value.view());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return static_cast<std::int64_t>(value.sequence->items.size());
    case Kind::kDict:
      return static_cast<std::int64_t>(value.dict->entries.size());
    case Kind::kLoop:
      return value.loop->count();
    default:
      throw Failure{fmt::format("object of type '{}' has no len()", type_name(value))};
  }
}

Value apply(Heap& heap, Operation operation, Value a, Value b) {
  if (a.is_number() && b.is_number()) return arithmetic(operation, a, b);
  if (operation == Operation::kModulo && a.is(Kind::kString)) return format_percent(heap, a, b);
  require_defined(a);
  require_defined(b);
  if (operation == Operation::kAdd && a.kind == b.kind) {
    if (a.is(Kind::kString)) {
      MarkedText text = b.escaped && !a.escaped ? escape_html(*a.text) : *a.text;
      text.append(a.escaped && !b.escaped ? escape_html(*b.text) : *b.text);
      Value sum = heap.string(std::move(text));
      sum.escaped = a.escaped || b.escaped;
      return sum;
    }
    if (a.is(Kind::kList) || a.is(Kind::kTuple)) {
      std::vector<Value> items = a.sequence->items;
      items.insert(items.end(), b.sequence->items.begin(), b.sequence->items.end());
      return heap.sequence(a.kind, std::move(items));
    }
  }
  if (operation == Operation::kMultiply) {
    if (can_repeat(a) && b.is_integral()) return repeat(heap, a, b.as_integer());
    if (can_repeat(b) && a.is_integral()) return repeat(heap, b, a.as_integer());
  }
  constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
  const std::string_view sign = kSigns[static_cast<int>(operation)];
  if (operation == Operation::kAdd && a.is(Kind::kString)) {
    throw Failure{fmt::format("can only concatenate str (not \"{}\") to str", type_name(b))};
  }
  throw Failure{
      fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", sign, type_name(a), type_name(b))};
}

Value negate(Value value) {
  require_defined(value);
  if (value.is(Kind::kFloat)) return Value::of(-value.real);
  if (!value.is_integral())
    throw Failure{fmt::format("bad operand type for unary -: '{}'", type_name(value))};
  std::int64_t result = 0;
  if (__builtin_sub_overflow(std::int64_t{0}, value.as_integer(), &result)) fail_overflow();
  return Value::of(result);
}

bool find_item(Heap& heap, Value value, Value index, Value& item) {
  if (value.is(Kind::kDict)) {
    if (index.is(Kind::kString)) heap.read(index.text->size());
    const Value* const found =
        index.is(Kind::kString) ? value.dict->find(index.view()) : value.dict->find(heap, index);
    if (found != nullptr) item = *found;
    return found != nullptr;
  }
  const bool indexable =
      value.is(Kind::kString) || value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange);
  if (!indexable || !index.is_integral()) return false;
  std::int64_t at = index.as_integer();
  if (value.is(Kind::kString)) {
    heap.read(value.text->size());
    const std::vector<std::size_t> offsets = character_offsets(value.view());
    const auto count = static_cast<std::int64_t>(offsets.size()) - 1;
    if (at < 0) at += count;
    if (at < 0 || at >= count) return false;
    const auto i = static_cast<std::size_t>(at);
    item = heap.string(value.text->part(offsets[i], offsets[i + 1]));
    return true;
  }
  const auto count = static_cast<std::int64_t>(value.sequence->items.size());
  if (at < 0) at += count;
  if (at < 0 || at >= count) return false;
  item = value.sequence->items[static_cast<std::size_t>(at)];
  return true;
}

Value slice(Heap& heap, Value value, Value start, Value stop, Value step) {
  require_defined(value);
  if (value.is(Kind::kRange)) throw Failure{"slices of a range", ErrorCode::kUnsupported};
  if (!value.is(Kind::kString) && !value.is(Kind::kList) && !value.is(Kind::kTuple)) {
    throw Failure{fmt::format("'{}' object can't be sliced", type_name(value))};
  }
  const auto bound = [](Value v, std::int64_t otherwise) {
    if (v.is(Kind::kNone)) return otherwise;
    require_defined(v);
    if (!v.is_integral()) {
      throw Failure{"slice indices must be integers or None or have an __index__ method"};
    }
    return v.as_integer();
  };
  const bool is_text = value.is(Kind::kString);
  std::vector<std::size_t> offsets;
  if (is_text) {
    heap.read(value.text->size());
    offsets = character_offsets(value.view());
  }
  const std::int64_t count = is_text ? static_cast<std::int64_t>(offsets.size()) - 1 : length(value);
  const std::int64_t by = bound(step, 1);
  if (by == 0) throw Failure{"slice step cannot be zero"};
  // As Python's slice.indices: from the end if negative, then into the range that the direction allows.
  const std::int64_t lowest = by < 0 ? -1 : 0, highest = by < 0 ? count - 1 : count;
  const auto clamp = [&](std::int64_t at) {
    return std::clamp(at < 0 ? std::max(at, -count - 1) + count : at, lowest, highest);
  };
  const std::int64_t first = start.is(Kind::kNone) ? (by < 0 ? highest : lowest) : clamp(bound(start, 0));
  const std::int64_t last = stop.is(Kind::kNone) ? (by < 0 ? lowest : highest) : clamp(bound(stop, 0));
  std::vector<std::int64_t> picked;
  if (is_text && by == 1) {
    const auto begin = static_cast<std::size_t>(first), end = static_cast<std::size_t>(std::max(first, last));
    return heap.string(value.text->part(offsets[begin], offsets[end]));
  }
  for (std::int64_t i = first; by > 0 ? i < last : i > last;) {
    picked.push_back(i);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  heap.step(picked.size() / 8);
  if (is_text) {
    MarkedText text;
    for (const std::int64_t i : picked) {
      text.append(*value.text, offsets[static_cast<std::size_t>(i)],
                  offsets[static_cast<std::size_t>(i) + 1]);
    }
    return heap.string(std::move(text));
  }
  std::vector<Value> items;
  for (const std::int64_t i : picked) items.push_back(value.sequence->items[static_cast<std::size_t>(i)]);
  return heap.sequence(value.kind, std::move(items));
}

std::vector<Value> items_of(Heap& heap, Value value) {
  std::vector<Value> items;
  switch (value.kind) {
    case Kind::kUndefined:
      break;
    case Kind::kString: {
      const std::vector<std::size_t> offsets = character_offsets(value.view());
      for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
        items.push_back(heap.string(value.text->part(offsets[i], offsets[i + 1])));
      }
      break;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      items = value.sequence->items;
      break;
    case Kind::kIterator:
      items.assign(value.sequence->items.begin() + static_cast<std::ptrdiff_t>(value.sequence->next),
                   value.sequence->items.end());
      value.sequence->next = value.sequence->items.size();
      break;
    case Kind::kDict:
      for (const auto& entry : value.dict->entries) items.push_back(entry.first);
      break;
    default:
      throw Failure{fmt::format("'{}' object is not iterable", type_name(value))};
  }
  heap.step(1 + items.size() / 8);
  return items;
}

MarkedText escape_html(const MarkedText& text) {
  MarkedText escaped;
  const std::string_view view = text.view();
  std::size_t done = 0;
  for (std::size_t i = 0; i < view.size(); ++i) {
    const std::string_view entity = view[i] == '&'    ? "&amp;"
                                    : view[i] == '<'  ? "&lt;"
                                    : view[i] == '>'  ? "&gt;"
                                    : view[i] == '\'' ? "&#39;"
                                    : view[i] == '"'  ? "&#34;"
                                                      : "";
    if (entity.empty()) continue;
    escaped.append(text, done, i);
    escaped.append(entity, text.is_foreign(i));
    done = i + 1;
  }
  escaped.append(text, done);
  return escaped;
}

}  // namespace tessera::jinja
