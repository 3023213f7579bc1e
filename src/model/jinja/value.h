#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/jinja/marked_text.h"
#include "tessera/error.h"

/// The values that a template computes with. They behave as Python's do under jinja2, as far as templates can
/// see.
namespace tessera::jinja {

struct MacroNode;
class Heap;
class Interpreter;

/// What ends a template: the interpreter adds the line to it.
struct Failure {
  std::string message;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kRange,     ///< a range(): a tuple but for its type
  kView,      ///< keys(), values() or items() of a dict: can't be indexed
  kIterator,  ///< what a filter such as map gives: can be read once
  kDict,
  kNamespace,
  kLoop,
  kFunction,
};

struct Sequence;
struct Dict;
struct Loop;
struct Function;

/// Small and free to copy: what it points to lives as long as the Heap.
struct Value {
  Kind kind = Kind::kUndefined;
  bool escaped = false;  ///< a string that the filter `safe` made: text added to it by + is escaped for HTML
  union {
    bool boolean;
    std::int64_t integer;
    double real;
    const MarkedText* text;
    const std::string* reason = nullptr;  ///< why a value is undefined; null: nobody said
    Sequence* sequence;
    Dict* dict;  ///< also a namespace's
    Loop* loop;
    const Function* function;
  };

  static Value none();
  static Value of(bool value);
  static Value of(std::int64_t value);
  static Value of(double value);

  bool is(Kind other) const { return kind == other; }
  bool is_number() const { return kind == Kind::kBool || kind == Kind::kInt || kind == Kind::kFloat; }
  bool is_integral() const { return kind == Kind::kBool || kind == Kind::kInt; }
  bool has_sequence() const { return kind >= Kind::kList && kind <= Kind::kIterator; }
  std::int64_t as_integer() const { return kind == Kind::kBool ? boolean : integer; }  ///< if is_integral()
  double as_real() const;                                                              ///< if is_number()
  std::string_view view() const { return text->view(); }                               ///< of a string
};

struct Object {
  virtual ~Object() = default;
};

struct Sequence : Object {
  std::vector<Value> items;
  std::size_t next = 0;                        ///< of an iterator: what has been read
  std::string_view view_name;                  ///< of a view: "dict_keys", …
  std::int64_t start = 0, stop = 0, step = 1;  ///< of a range
};

/// Remembers the order in which keys came.
struct Dict : Object {
  std::vector<std::pair<Value, Value>> entries;

  const Value* find(std::string_view key) const;
  /// Throws Failure for a key that can't be one (a list, say).
  const Value* find(Heap& heap, Value key) const;
  void set(Heap& heap, Value key, Value value);
  bool erase(Heap& heap, Value key);
  void clear();

 private:
  std::size_t position(Heap& heap, std::size_t hash, Value key) const;
  std::unordered_multimap<std::size_t, std::size_t> index_;  ///< hash to position
};

/// Positional and named arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

/// The names of a block of the template. A name that is not here is the parent's.
struct Scope : Object {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> names;
  bool captured = false;  ///< a macro looks names up here

  const Value* find(Heap& heap, std::string_view name) const;
  void set(Heap& heap, std::string_view name, Value value);
};

using NativeFunction = Value (*)(Interpreter&, Value self, const Arguments&);

/// A macro, or something built in, which may be bound to a value (a method).
struct Function : Object {
  std::string_view name;
  NativeFunction native = nullptr;
  Value self;
  const MacroNode* macro = nullptr;
  Scope* scope = nullptr;  ///< in which the macro stands
};

/// What `loop` is within a for loop.
struct Loop : Object {
  std::function<bool(Value&)> pull;  ///< the next item that the loop takes, if there is one
  std::int64_t length = -1;          ///< if that is known before all have been pulled
  std::int64_t index0 = -1;
  std::int64_t depth0 = 0;
  Value current, previous;
  std::vector<Value> ahead;  ///< pulled already, the next one last
  bool exhausted = false;
  std::vector<Value> last_changed;
  bool has_changed = false;
  std::function<Value(Interpreter&, Value iterable, std::int64_t depth0)> recurse;

  bool advance();
  bool peek(Value& value);
  std::int64_t count();
};

/// What a rendering may take: templates come from anyone.
struct Limits {
  std::size_t max_steps = 20'000'000;            ///< expressions, statements, and 64 bytes looked at
  std::size_t max_bytes = std::size_t{1} << 28;  ///< of all values made
  int max_depth = 400;  ///< of expressions and statements in one another, calls included
};

/// Owns every object that a rendering makes, and stops it when it takes too much. Cycles do no harm.
class Heap {
 public:
  explicit Heap(const Limits& limits = {}) : limits_(limits) {}

  const Limits& limits() const { return limits_; }
  /// Each throws Failure beyond the limits.
  void step(std::size_t count = 1);
  void charge(std::size_t bytes);
  void read(std::size_t bytes) { step(bytes / 64); }

  template <class T>
  T* make() {
    charge(sizeof(T) + sizeof(void*));
    auto object = std::make_unique<T>();
    T* const result = object.get();
    objects_.push_back(std::move(object));
    return result;
  }

  Value string(MarkedText text);
  Value string(std::string_view text, bool foreign = false);
  Value sequence(Kind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(Kind::kList, std::move(items)); }
  Value iterator(std::vector<Value> items) { return sequence(Kind::kIterator, std::move(items)); }
  Value dict();
  Value undefined(std::string reason);
  Value function(std::string_view name, NativeFunction native, Value self = {});
  void set(Dict& dict, Value key, Value value);

 private:
  Limits limits_;
  std::size_t steps_ = 0, bytes_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

}  // namespace tessera::jinja
