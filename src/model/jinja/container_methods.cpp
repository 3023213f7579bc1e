// Methods of lists and dicts, and what loops have. Values that a template is given are copies, so that a
// template that appends to a list changes nothing outside.
#include <fmt/core.h>

#include <algorithm>

#include "model/jinja/arguments.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"

namespace tessera::jinja {
namespace {

Value append(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("append()", arguments, {"object"}, 1);
  interpreter.heap().charge(sizeof(Value));
  self.sequence->items.push_back(bound[0]);
  return Value::none();
}

Value extend(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("extend()", arguments, {"iterable"}, 1);
  for (const Value item : items_of(interpreter.heap(), bound[0])) {
    interpreter.heap().charge(sizeof(Value));
    self.sequence->items.push_back(item);
  }
  return Value::none();
}

Value insert(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("insert()", arguments, {"index", "object"}, 2);
  std::vector<Value>& items = self.sequence->items;
  const auto count = static_cast<std::int64_t>(items.size());
  std::int64_t at = bound.integer(0, 0);
  if (at < 0) at = std::max<std::int64_t>(std::max(at, -count) + count, 0);
  interpreter.heap().charge(sizeof(Value));
  interpreter.heap().step(items.size() / 8);
  items.insert(items.begin() + std::min(at, count), bound[1]);
  return Value::none();
}

Value pop_item(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("pop()", arguments, {"index"});
  std::vector<Value>& items = self.sequence->items;
  const auto count = static_cast<std::int64_t>(items.size());
  std::int64_t at = bound.integer(0, -1);
  if (at < 0 && at >= -count) at += count;
  if (at < 0 || at >= count) throw Failure{items.empty() ? "pop from empty list" : "pop index out of range"};
  const Value item = items[static_cast<std::size_t>(at)];
  interpreter.heap().step(items.size() / 8);
  items.erase(items.begin() + at);
  return item;
}

Value index(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("index()", arguments, {"value"}, 1);
  const std::vector<Value>& items = self.sequence->items;
  interpreter.heap().step(items.size());
  const auto found =
      std::ranges::find_if(items, [&](Value item) { return equal(interpreter.heap(), item, bound[0]); });
  if (found == items.end()) throw Failure{"the value is not in list"};
  return Value::of(static_cast<std::int64_t>(found - items.begin()));
}

Value count(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("count()", arguments, {"value"}, 1);
  interpreter.heap().step(self.sequence->items.size());
  return Value::of(static_cast<std::int64_t>(std::ranges::count_if(
      self.sequence->items, [&](Value item) { return equal(interpreter.heap(), item, bound[0]); })));
}

Value reverse(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("reverse()", arguments, {});
  interpreter.heap().step(self.sequence->items.size());
  std::ranges::reverse(self.sequence->items);
  return Value::none();
}

Value copy_list(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("copy()", arguments, {});
  return interpreter.heap().list(self.sequence->items);
}

Value clear_list(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("clear()", arguments, {});
  self.sequence->items.clear();
  return Value::none();
}

constexpr NamedFunction kListMethods[] = {
    {"append", append}, {"clear", clear_list}, {"copy", copy_list}, {"count", count},     {"extend", extend},
    {"index", index},   {"insert", insert},    {"pop", pop_item},   {"reverse", reverse},
};

enum class View { kKeys, kValues, kItems };

template <View kView>
Value view(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("the method", arguments, {});
  Heap& heap = interpreter.heap();
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict->entries) {
    items.push_back(kView == View::kKeys     ? key
                    : kView == View::kValues ? value
                                             : heap.sequence(Kind::kTuple, {key, value}));
  }
  const Value result = heap.sequence(Kind::kView, std::move(items));
  result.sequence->view_name = kView == View::kKeys     ? "dict_keys"
                               : kView == View::kValues ? "dict_values"
                                                        : "dict_items";
  return result;
}

Value get(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("get()", arguments, {"key", "default"}, 1);
  const Value* const found = self.dict->find(interpreter.heap(), bound[0]);
  return found != nullptr ? *found : bound.value_or(1, Value::none());
}

Value pop_key(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("pop()", arguments, {"key", "default"}, 1);
  interpreter.heap().step(self.dict->entries.size());
  if (const Value* const found = self.dict->find(interpreter.heap(), bound[0]); found != nullptr) {
    const Value value = *found;
    self.dict->erase(interpreter.heap(), bound[0]);
    return value;
  }
  if (!bound.has(1)) throw Failure{"pop(): the key is not in the dict"};
  return bound[1];
}

Value set_default(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("setdefault()", arguments, {"key", "default"}, 1);
  if (const Value* const found = self.dict->find(interpreter.heap(), bound[0]); found != nullptr)
    return *found;
  const Value value = bound.value_or(1, Value::none());
  interpreter.heap().set(*self.dict, bound[0], value);
  return value;
}

Value update(Interpreter& interpreter, Value self, const Arguments& arguments) {
  Heap& heap = interpreter.heap();
  if (arguments.positional.size() > 1) throw Failure{"update() takes at most one positional argument"};
  for (const Value other : arguments.positional) {
    if (other.is(Kind::kDict)) {
      const auto entries = other.dict->entries;  // it may be the same dict
      for (const auto& [key, value] : entries) heap.set(*self.dict, key, value);
      continue;
    }
    for (const Value item : items_of(heap, other)) {
      const std::vector<Value> pair = items_of(heap, item);
      if (pair.size() != 2) throw Failure{"update(): a dict is made of pairs"};
      heap.set(*self.dict, pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) heap.set(*self.dict, heap.string(name), value);
  return Value::none();
}

Value copy_dict(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("copy()", arguments, {});
  const Value copy = interpreter.heap().dict();
  for (const auto& [key, value] : self.dict->entries) interpreter.heap().set(*copy.dict, key, value);
  return copy;
}

Value clear_dict(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("clear()", arguments, {});
  self.dict->clear();
  return Value::none();
}

constexpr NamedFunction kDictMethods[] = {
    {"clear", clear_dict},         {"copy", copy_dict},         {"get", get},
    {"items", view<View::kItems>}, {"keys", view<View::kKeys>}, {"pop", pop_key},
    {"setdefault", set_default},   {"update", update},          {"values", view<View::kValues>},
};

Value cycle(Interpreter&, Value self, const Arguments& arguments) {
  if (arguments.positional.empty()) throw Failure{"no items for cycling given"};
  const auto at = static_cast<std::size_t>(std::max<std::int64_t>(self.loop->index0, 0));
  return arguments.positional[at % arguments.positional.size()];
}

Value changed(Interpreter& interpreter, Value self, const Arguments& arguments) {
  Loop& loop = *self.loop;
  const bool same = loop.has_changed &&
                    std::ranges::equal(loop.last_changed, arguments.positional,
                                       [&](Value a, Value b) { return equal(interpreter.heap(), a, b); });
  loop.has_changed = true;
  if (!same) loop.last_changed = arguments.positional;
  return Value::of(!same);
}

bool find_loop_attribute(Interpreter& interpreter, Value self, std::string_view name, Value& found) {
  Loop& loop = *self.loop;
  Heap& heap = interpreter.heap();
  Value next;
  if (name == "index")
    found = Value::of(loop.index0 + 1);
  else if (name == "index0")
    found = Value::of(loop.index0);
  else if (name == "first")
    found = Value::of(loop.index0 == 0);
  else if (name == "last")
    found = Value::of(!loop.peek(next));
  else if (name == "length")
    found = Value::of(loop.count());
  else if (name == "revindex")
    found = Value::of(loop.count() - loop.index0);
  else if (name == "revindex0")
    found = Value::of(loop.count() - loop.index0 - 1);
  else if (name == "previtem")
    found = loop.previous;
  else if (name == "nextitem")
    found = loop.peek(next) ? next : heap.undefined("there is no next item");
  else if (name == "depth")
    found = Value::of(loop.depth0 + 1);
  else if (name == "depth0")
    found = Value::of(loop.depth0);
  else if (name == "cycle")
    found = heap.function("cycle", cycle, self);
  else if (name == "changed")
    found = heap.function("changed", changed, self);
  else
    return false;
  return true;
}

}  // namespace

NativeFunction find_list_method(std::string_view name) { return find_function(kListMethods, name); }
NativeFunction find_dict_method(std::string_view name) { return find_function(kDictMethods, name); }

bool find_attribute(Interpreter& interpreter, Value object, std::string_view name, Value& found) {
  NativeFunction method = nullptr;
  switch (object.kind) {
    case Kind::kString:
      method = find_string_method(name);
      break;
    case Kind::kList:
      method = find_list_method(name);
      break;
    case Kind::kTuple:
    case Kind::kRange:
      if (name == "index" || name == "count") method = find_list_method(name);
      break;
    case Kind::kDict:
      method = find_dict_method(name);
      break;
    case Kind::kLoop:
      return find_loop_attribute(interpreter, object, name, found);
    case Kind::kNamespace: {
      const Value* const value = object.dict->find(name);
      if (value != nullptr) found = *value;
      return value != nullptr;
    }
    case Kind::kFunction:
      if (name == "name" && object.function->macro != nullptr) {
        found = interpreter.heap().string(object.function->name);
        return true;
      }
      return false;
    default:
      return false;
  }
  if (method == nullptr) return false;
  found = interpreter.heap().function(name, method, object);
  return true;
}

}  // namespace tessera::jinja
