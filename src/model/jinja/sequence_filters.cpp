// Filters that look into lists, dicts and what else can be iterated over.
#include <fmt/core.h>

#include <algorithm>

#include "core/text.h"
#include "model/jinja/arguments.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"
#include "model/jinja/text_methods.h"

namespace tessera::jinja {
namespace {

/// item.a.b.0 for the attribute "a.b.0".
Value attribute_of(Interpreter& interpreter, Value item, Value attribute, Value otherwise = {}) {
  if (attribute.is(Kind::kNone)) return item;
  const auto step = [&](Value key) {
    item = interpreter.item(item, key);
    if (item.is(Kind::kUndefined) && !otherwise.is(Kind::kUndefined) && !otherwise.is(Kind::kNone))
      item = otherwise;
  };
  if (!attribute.is(Kind::kString)) {
    step(attribute);
    return item;
  }
  for (std::string_view rest = attribute.view();;) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool number =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    step(number ? Value::of(static_cast<std::int64_t>(std::stoll(std::string(part))))
                : interpreter.heap().string(part));
    if (dot == rest.size()) return item;
    rest.remove_prefix(dot + 1);
  }
}

Value without_case(Heap& heap, Value value) {
  return value.is(Kind::kString) ? heap.string(lower(*value.text)) : value;
}

/// Stable, by keys; errors of comparisons come out of it.
std::vector<Value> sort_by(Heap& heap, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
  // A comparison may throw, or see numbers that are not: std::stable_sort wants neither, so this merges
  // itself.
  std::vector<std::pair<Value, Value>> merged(keyed.size());
  const auto comes_first = [&](Value a, Value b) {
    heap.step();
    return reverse ? compare(heap, b, a, "<") < 0 : compare(heap, a, b, "<") < 0;
  };
  for (std::size_t width = 1; width < keyed.size(); width *= 2) {
    for (std::size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, keyed.size()),
                        end = std::min(begin + 2 * width, keyed.size());
      std::size_t left = begin, right = middle;
      for (std::size_t i = begin; i < end; ++i) {
        const bool take_right =
            left == middle || (right < end && comes_first(keyed[right].first, keyed[left].first));
        merged[i] = keyed[take_right ? right++ : left++];
      }
    }
    keyed.swap(merged);
  }
  std::vector<Value> items;
  for (const auto& [key, item] : keyed) items.push_back(item);
  return items;
}

Value length_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("length", arguments, {});
  if (self.is(Kind::kString)) interpreter.heap().read(self.text->size());
  return Value::of(length(self));
}

Value default_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  const bool replaced = self.is(Kind::kUndefined) || (bound.truth(1, false) && !truth(self));
  if (!replaced) return self;
  return bound.has(0) ? bound[0] : interpreter.heap().string("");
}

Value join_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  Heap& heap = interpreter.heap();
  const MarkedText separator = bound.has(0) ? to_text(heap, bound[0]) : MarkedText();
  MarkedText text;
  bool first = true;
  for (Value item : items_of(heap, self)) {
    if (bound.is_set(1)) item = attribute_of(interpreter, item, bound[1]);
    const MarkedText printed = to_text(heap, item);
    heap.charge(printed.size() + separator.size());
    if (!first) text.append(separator);
    text.append(printed);
    first = false;
  }
  return heap.string(std::move(text));
}

Value first(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("first", arguments, {});
  if (self.is(Kind::kIterator)) {
    Sequence& sequence = *self.sequence;
    if (sequence.next < sequence.items.size()) return sequence.items[sequence.next++];
    return interpreter.heap().undefined("No first item, sequence was empty.");
  }
  const std::vector<Value> items = items_of(interpreter.heap(), self);
  return items.empty() ? interpreter.heap().undefined("No first item, sequence was empty.") : items.front();
}

Value last(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("last", arguments, {});
  if (self.is(Kind::kIterator)) throw Failure{"'generator' object is not reversible"};
  const std::vector<Value> items = items_of(interpreter.heap(), self);
  return items.empty() ? interpreter.heap().undefined("No last item, sequence was empty.") : items.back();
}

Value list_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("list", arguments, {});
  return interpreter.heap().list(items_of(interpreter.heap(), self));
}

Value items_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("items", arguments, {});
  Heap& heap = interpreter.heap();
  if (self.is(Kind::kUndefined)) return heap.iterator({});
  if (!self.is(Kind::kDict)) throw Failure{"Can only get item pairs from a mapping."};
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.dict->entries)
    pairs.push_back(heap.sequence(Kind::kTuple, {key, value}));
  return heap.iterator(std::move(pairs));
}

Value dictsort(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  Heap& heap = interpreter.heap();
  require_defined(self);
  if (!self.is(Kind::kDict)) throw Failure{fmt::format("dictsort: expected a dict, got {}", type_name(self))};
  const std::string_view by = bound.has(1) ? bound.text(1).view() : "key";
  if (by != "key" && by != "value")
    throw Failure{"dictsort: you can only sort by either \"key\" or \"value\""};
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : self.dict->entries) {
    const Value sorted_by = by == "key" ? key : value;
    keyed.emplace_back(bound.truth(0, false) ? sorted_by : without_case(heap, sorted_by),
                       heap.sequence(Kind::kTuple, {key, value}));
  }
  return heap.list(sort_by(heap, std::move(keyed), bound.truth(2, false)));
}

Value sort_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  Heap& heap = interpreter.heap();
  std::vector<Value> attributes = {bound.is_set(2) ? bound[2] : Value::none()};
  if (attributes[0].is(Kind::kString)) {
    std::vector<Value> parts;
    for (std::string_view rest = attributes[0].view();;) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      parts.push_back(heap.string(rest.substr(0, comma)));
      if (comma == rest.size()) break;
      rest.remove_prefix(comma + 1);
    }
    attributes = parts;
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value item : items_of(heap, self)) {
    std::vector<Value> keys;
    for (const Value attribute : attributes) {
      const Value key = attribute_of(interpreter, item, attribute);
      keys.push_back(bound.truth(1, false) ? key : without_case(heap, key));
    }
    keyed.emplace_back(heap.list(std::move(keys)), item);
  }
  return heap.list(sort_by(heap, std::move(keyed), bound.truth(0, false)));
}

Value unique(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  Heap& heap = interpreter.heap();
  Dict& seen = *heap.dict().dict;
  std::vector<Value> items;
  for (const Value item : items_of(heap, self)) {
    Value key = attribute_of(interpreter, item, bound.is_set(1) ? bound[1] : Value::none());
    if (!bound.truth(0, false)) key = without_case(heap, key);
    if (seen.find(heap, key) != nullptr) continue;
    heap.set(seen, key, Value::none());
    items.push_back(item);
  }
  return heap.iterator(std::move(items));
}

template <bool kMax>
Value extreme(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound(kMax ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  Heap& heap = interpreter.heap();
  const std::vector<Value> items = items_of(heap, self);
  if (items.empty()) return heap.undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](Value item) {
    const Value key = attribute_of(interpreter, item, bound.is_set(1) ? bound[1] : Value::none());
    return bound.truth(0, false) ? key : without_case(heap, key);
  };
  Value best = items[0], best_key = key_of(best);
  for (std::size_t i = 1; i < items.size(); ++i) {
    const Value key = key_of(items[i]);
    const std::partial_ordering order = compare(heap, key, best_key, kMax ? ">" : "<");
    if (kMax ? order > 0 : order < 0) {
      best = items[i];
      best_key = key;
    }
  }
  return best;
}

Value sum(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  Heap& heap = interpreter.heap();
  Value total = bound.value_or(1, Value::of(std::int64_t{0}));
  if (total.is(Kind::kString)) throw Failure{"sum() can't sum strings"};
  for (Value item : items_of(heap, self)) {
    if (bound.is_set(0)) item = attribute_of(interpreter, item, bound[0]);
    total = apply(heap, Operation::kAdd, total, item);
  }
  return total;
}

Value reverse(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("reverse", arguments, {});
  Heap& heap = interpreter.heap();
  if (self.is(Kind::kString))
    return slice(heap, self, Value::none(), Value::none(), Value::of(std::int64_t{-1}));
  const bool reversible = !self.is(Kind::kIterator);
  std::vector<Value> items = items_of(heap, self);
  std::ranges::reverse(items);
  return reversible ? heap.iterator(std::move(items)) : heap.list(std::move(items));
}

Value attr(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("attr", arguments, {"name"}, 1);
  require_defined(self);
  Value found;
  if (find_attribute(interpreter, self, bound.text(0).view(), found)) return found;
  return interpreter.heap().undefined(
      fmt::format("'{} object' has no attribute '{}'", type_name(self), printable(bound.text(0).view())));
}

Arguments without_first(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

Value map_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  Heap& heap = interpreter.heap();
  std::vector<Value> items;
  if (!truth(self)) return heap.iterator({});
  if (arguments.positional.empty()) {
    const Bound bound("map", arguments, {"attribute", "default"}, 1);
    for (const Value item : items_of(heap, self)) {
      items.push_back(attribute_of(interpreter, item, bound[0], bound[1]));
    }
    return heap.iterator(std::move(items));
  }
  const Value name = arguments.positional[0];
  if (!name.is(Kind::kString)) throw Failure{"map: the name of a filter was expected"};
  const Arguments rest = without_first(arguments, 1);
  for (const Value item : items_of(heap, self))
    items.push_back(interpreter.apply_filter(name.view(), item, rest));
  return heap.iterator(std::move(items));
}

/// select, reject, selectattr and rejectattr.
template <bool kKeep, bool kAttribute>
Value select(Interpreter& interpreter, Value self, const Arguments& arguments) {
  Heap& heap = interpreter.heap();
  std::vector<Value> kept;
  if (!truth(self)) return heap.iterator({});
  constexpr std::size_t kOwn = kAttribute ? 1 : 0;
  if (arguments.positional.size() < kOwn) throw Failure{"Missing parameter for attribute name"};
  const bool tests = arguments.positional.size() > kOwn;
  const Value name = tests ? arguments.positional[kOwn] : Value::none();
  if (tests && !name.is(Kind::kString)) throw Failure{"the name of a test was expected"};
  const Arguments rest = without_first(arguments, tests ? kOwn + 1 : kOwn);
  for (const Value item : items_of(heap, self)) {
    const Value looked_at = kAttribute ? attribute_of(interpreter, item, arguments.positional[0]) : item;
    const bool holds = tests ? interpreter.apply_test(name.view(), looked_at, rest) : truth(looked_at);
    if (holds == kKeep) kept.push_back(item);
  }
  return heap.iterator(std::move(kept));
}

Value batch(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("batch", arguments, {"linecount", "fill_with"}, 1);
  Heap& heap = interpreter.heap();
  const std::int64_t size = bound.integer(0, 1);
  std::vector<Value> rows, row;
  for (const Value item : items_of(heap, self)) {
    if (static_cast<std::int64_t>(row.size()) == size) rows.push_back(heap.list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    while (bound.is_set(1) && static_cast<std::int64_t>(row.size()) < size) {
      heap.charge(sizeof(Value));
      row.push_back(bound[1]);
    }
    rows.push_back(heap.list(std::move(row)));
  }
  return heap.iterator(std::move(rows));
}

Value slice_filter(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("slice", arguments, {"slices", "fill_with"}, 1);
  Heap& heap = interpreter.heap();
  const std::vector<Value> items = items_of(heap, self);
  const std::int64_t slices = bound.integer(0, 1);
  if (slices == 0) throw Failure{"division by zero"};
  if (slices < 0) return heap.iterator({});
  heap.charge(static_cast<std::size_t>(std::min<std::int64_t>(slices, 1 << 28)) * sizeof(Sequence));
  std::vector<Value> rows;
  const std::int64_t count = static_cast<std::int64_t>(items.size()), each = count / slices,
                     extra = count % slices;
  auto at = items.begin();
  for (std::int64_t i = 0; i < slices; ++i) {
    std::vector<Value> row(at, at + each + (i < extra ? 1 : 0));
    at += each + (i < extra ? 1 : 0);
    if (bound.is_set(1) && i >= extra) row.push_back(bound[1]);
    rows.push_back(heap.list(std::move(row)));
  }
  return heap.iterator(std::move(rows));
}

constexpr NamedFunction kSequenceFilters[] = {
    {"attr", attr},
    {"batch", batch},
    {"count", length_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"dictsort", dictsort},
    {"first", first},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last},
    {"length", length_filter},
    {"list", list_filter},
    {"map", map_filter},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", select<false, false>},
    {"rejectattr", select<false, true>},
    {"reverse", reverse},
    {"select", select<true, false>},
    {"selectattr", select<true, true>},
    {"slice", slice_filter},
    {"sort", sort_filter},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

std::span<const NamedFunction> sequence_filters() { return kSequenceFilters; }

}  // namespace tessera::jinja
