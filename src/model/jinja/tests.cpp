// What may stand behind `is`.
#include <fmt/core.h>

#include "model/jinja/arguments.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"
#include "model/jinja/text_methods.h"

namespace tessera::jinja {
namespace {

template <Kind... kKinds>
Value is_kind(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("the test", arguments, {});
  return Value::of((self.is(kKinds) || ...));
}

Value defined(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("defined", arguments, {});
  return Value::of(!self.is(Kind::kUndefined));
}

template <bool kWanted>
Value is_boolean(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("the test", arguments, {});
  return Value::of(self.is(Kind::kBool) && self.boolean == kWanted);
}

/// What has a length and can be indexed (Undefined has both).
Value sequence(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("sequence", arguments, {});
  const bool holds = self.is(Kind::kString) || self.is(Kind::kList) || self.is(Kind::kTuple) ||
                     self.is(Kind::kRange) || self.is(Kind::kDict) || self.is(Kind::kUndefined);
  return Value::of(holds);
}

Value iterable(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("iterable", arguments, {});
  return Value::of(self.has_sequence() || self.is(Kind::kString) || self.is(Kind::kDict) ||
                   self.is(Kind::kUndefined) || self.is(Kind::kLoop));
}

Value is_callable(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("callable", arguments, {});
  return Value::of(self.is(Kind::kFunction) || self.is(Kind::kUndefined) || self.is(Kind::kLoop));
}

Value remainder_is(Interpreter& interpreter, Value self, Value by, std::int64_t wanted) {
  return Value::of(
      equal(interpreter.heap(), apply(interpreter.heap(), Operation::kModulo, self, by), Value::of(wanted)));
}

template <std::int64_t kWanted>
Value parity(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("the test", arguments, {});
  return remainder_is(interpreter, self, Value::of(std::int64_t{2}), kWanted);
}

Value divisible_by(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("divisibleby", arguments, {"num"}, 1);
  return remainder_is(interpreter, self, bound[0], 0);
}

template <bool (*kHolds)(std::string_view)>
Value has_case(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("the test", arguments, {});
  return Value::of(kHolds(to_text(interpreter.heap(), self).view()));
}

Value in(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("in", arguments, {"seq"}, 1);
  return Value::of(contains(interpreter.heap(), bound[0], self));
}

Value same_as(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("sameas", arguments, {"other"}, 1);
  const Value other = bound[0];
  if (self.kind != other.kind) return Value::of(false);
  switch (self.kind) {
    case Kind::kUndefined:
    case Kind::kFloat:
    case Kind::kString:
    case Kind::kInt:
      throw Failure{fmt::format("'is sameas' between {}s depends on Python's memory", type_name(self)),
                    ErrorCode::kUnsupported};
    case Kind::kNone:
      return Value::of(true);
    case Kind::kBool:
      return Value::of(self.boolean == other.boolean);
    default:
      return Value::of(self.sequence == other.sequence);
  }
}

template <Comparison kComparison>
Value compares(Interpreter& interpreter, Value self, const Arguments& arguments) {
  const Bound bound("the test", arguments, {"other"}, 1);
  Heap& heap = interpreter.heap();
  switch (kComparison) {
    case Comparison::kEqual:
      return Value::of(equal(heap, self, bound[0]));
    case Comparison::kNotEqual:
      return Value::of(!equal(heap, self, bound[0]));
    case Comparison::kLess:
      return Value::of(compare(heap, self, bound[0], "<") < 0);
    case Comparison::kLessEqual:
      return Value::of(compare(heap, self, bound[0], "<=") <= 0);
    case Comparison::kGreater:
      return Value::of(compare(heap, self, bound[0], ">") > 0);
    default:
      return Value::of(compare(heap, self, bound[0], ">=") >= 0);
  }
}

template <NativeFunction (*kFind)(std::string_view)>
Value exists(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("the test", arguments, {});
  return Value::of(self.is(Kind::kString) && kFind(self.view()) != nullptr);
}

Value escaped(Interpreter&, Value self, const Arguments& arguments) {
  const Bound bound("escaped", arguments, {});
  return Value::of(self.is(Kind::kString) && self.escaped);
}

constexpr NamedFunction kTests[] = {
    {"boolean", is_kind<Kind::kBool>},
    {"callable", is_callable},
    {"defined", defined},
    {"divisibleby", divisible_by},
    {"eq", compares<Comparison::kEqual>},
    {"equalto", compares<Comparison::kEqual>},
    {"==", compares<Comparison::kEqual>},
    {"escaped", escaped},
    {"even", parity<0>},
    {"false", is_boolean<false>},
    {"filter", exists<find_filter>},
    {"float", is_kind<Kind::kFloat>},
    {"ge", compares<Comparison::kGreaterEqual>},
    {">=", compares<Comparison::kGreaterEqual>},
    {"greaterthan", compares<Comparison::kGreater>},
    {"gt", compares<Comparison::kGreater>},
    {">", compares<Comparison::kGreater>},
    {"in", in},
    {"integer", is_kind<Kind::kInt>},
    {"iterable", iterable},
    {"le", compares<Comparison::kLessEqual>},
    {"<=", compares<Comparison::kLessEqual>},
    {"lessthan", compares<Comparison::kLess>},
    {"lower", has_case<is_lower_case>},
    {"lt", compares<Comparison::kLess>},
    {"<", compares<Comparison::kLess>},
    {"mapping", is_kind<Kind::kDict>},
    {"ne", compares<Comparison::kNotEqual>},
    {"!=", compares<Comparison::kNotEqual>},
    {"none", is_kind<Kind::kNone>},
    {"number", is_kind<Kind::kBool, Kind::kInt, Kind::kFloat>},
    {"odd", parity<1>},
    {"sameas", same_as},
    {"sequence", sequence},
    {"string", is_kind<Kind::kString>},
    {"test", exists<find_test>},
    {"true", is_boolean<true>},
    {"undefined", is_kind<Kind::kUndefined>},
    {"upper", has_case<is_upper_case>},
};

}  // namespace

NativeFunction find_test(std::string_view name) { return find_function(kTests, name); }

}  // namespace tessera::jinja
