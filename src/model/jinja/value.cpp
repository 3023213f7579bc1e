#include "model/jinja/value.h"

#include <fmt/core.h>

#include <algorithm>

#include "model/jinja/operators.h"

namespace tessera::jinja {
namespace {

struct TextObject : Object {
  MarkedText text;
};

struct ReasonObject : Object {
  std::string reason;
};

constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
// A dict of so few keys is searched from the front.
constexpr std::size_t kSmallDict = 8;
constexpr std::size_t kNamesPerStep = 16;

}  // namespace

Value Value::none() {
  Value value;
  value.kind = Kind::kNone;
  return value;
}

Value Value::of(bool boolean) {
  Value value;
  value.kind = Kind::kBool;
  value.boolean = boolean;
  return value;
}

Value Value::of(std::int64_t integer) {
  Value value;
  value.kind = Kind::kInt;
  value.integer = integer;
  return value;
}

Value Value::of(double real) {
  Value value;
  value.kind = Kind::kFloat;
  value.real = real;
  return value;
}

double Value::as_real() const { return kind == Kind::kFloat ? real : static_cast<double>(as_integer()); }

std::size_t Dict::position(Heap& heap, std::size_t hash, Value key) const {
  const auto [begin, end] = index_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (equal(heap, entries[at->second].first, key)) return at->second;
  }
  return kNowhere;
}

const Value* Dict::find(std::string_view key) const {
  if (entries.size() > kSmallDict) {
    const auto [begin, end] = index_.equal_range(hash_text(key));
    for (auto at = begin; at != end; ++at) {
      const auto& [candidate, value] = entries[at->second];
      if (candidate.is(Kind::kString) && candidate.view() == key) return &value;
    }
    return nullptr;
  }
  for (const auto& [candidate, value] : entries) {
    if (candidate.is(Kind::kString) && candidate.view() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(Heap& heap, Value key) const {
  const std::size_t at = position(heap, hash(heap, key), key);
  return at == kNowhere ? nullptr : &entries[at].second;
}

void Dict::set(Heap& heap, Value key, Value value) {
  const std::size_t hashed = hash(heap, key);
  if (const std::size_t at = position(heap, hashed, key); at != kNowhere) {
    entries[at].second = value;
    return;
  }
  index_.emplace(hashed, entries.size());
  entries.emplace_back(key, value);
}

bool Dict::erase(Heap& heap, Value key) {
  const std::size_t hashed = hash(heap, key);
  const std::size_t at = position(heap, hashed, key);
  if (at == kNowhere) return false;
  entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
  index_.clear();
  for (std::size_t i = 0; i < entries.size(); ++i) index_.emplace(hash(heap, entries[i].first), i);
  return true;
}

void Dict::clear() {
  entries.clear();
  index_.clear();
}

const Value* Scope::find(Heap& heap, std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    heap.step(scope->names.size() / kNamesPerStep);
    for (const auto& [candidate, value] : scope->names) {
      if (candidate == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(Heap& heap, std::string_view name, Value value) {
  heap.step(names.size() / kNamesPerStep);
  for (auto& [candidate, old] : names) {
    if (candidate == name) {
      old = value;
      return;
    }
  }
  names.emplace_back(name, value);
}

bool Loop::peek(Value& value) {
  if (ahead.empty()) {
    if (exhausted || !pull(value)) {
      exhausted = true;
      return false;
    }
    ahead.push_back(value);
  }
  value = ahead.back();
  return true;
}

bool Loop::advance() {
  Value value;
  if (!peek(value)) return false;
  ahead.pop_back();
  ++index0;
  previous = current;
  current = value;
  return true;
}

std::int64_t Loop::count() {
  if (length >= 0) return length;
  std::vector<Value> rest(ahead.rbegin(), ahead.rend());
  for (Value value; !exhausted && pull(value);) rest.push_back(value);
  exhausted = true;
  ahead.assign(rest.rbegin(), rest.rend());
  length = index0 + 1 + static_cast<std::int64_t>(rest.size());
  return length;
}

void Heap::step(std::size_t count) {
  steps_ += count;
  if (steps_ > limits_.max_steps) {
    throw Failure{fmt::format("the template takes more than {} steps", limits_.max_steps)};
  }
}

void Heap::charge(std::size_t bytes) {
  if (bytes > limits_.max_bytes - bytes_) {
    throw Failure{fmt::format("the template makes more than {} bytes of values", limits_.max_bytes)};
  }
  bytes_ += bytes;
}

Value Heap::string(MarkedText text) {
  charge(text.size() + text.foreign().size() * sizeof(TextRange));
  read(text.size());
  auto* const object = make<TextObject>();
  object->text = std::move(text);
  Value value;
  value.kind = Kind::kString;
  value.text = &object->text;
  return value;
}

Value Heap::string(std::string_view text, bool foreign) {
  return string(MarkedText(std::string(text), foreign));
}

Value Heap::sequence(Kind kind, std::vector<Value> items) {
  charge(items.size() * sizeof(Value));
  Value value;
  value.kind = kind;
  value.sequence = make<Sequence>();
  value.sequence->items = std::move(items);
  return value;
}

Value Heap::dict() {
  Value value;
  value.kind = Kind::kDict;
  value.dict = make<Dict>();
  return value;
}

Value Heap::undefined(std::string reason) {
  charge(reason.size());
  auto* const object = make<ReasonObject>();
  object->reason = std::move(reason);
  Value value;
  value.reason = &object->reason;
  return value;
}

Value Heap::function(std::string_view name, NativeFunction native, Value self) {
  auto* const function = make<Function>();
  function->name = name;
  function->native = native;
  function->self = self;
  Value value;
  value.kind = Kind::kFunction;
  value.function = function;
  return value;
}

void Heap::set(Dict& dict, Value key, Value value) {
  charge(128);  // the entry and its place in the index
  dict.set(*this, key, value);
}

}  // namespace tessera::jinja
