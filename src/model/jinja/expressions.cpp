// The part of the interpreter that evaluates expressions.
#include <fmt/core.h>

#include "core/text.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"

namespace tessera::jinja {

Value Interpreter::operand(const Expression& expression, std::size_t index, Scope& scope) {
  const ExpressionPtr& operand = expression.operands[index];
  return operand ? evaluate(*operand, scope) : Value::none();
}

Value Interpreter::evaluate(const Expression& expression, Scope& scope) {
  const Nesting nesting(*this);
  heap_.step();
  line_ = expression.line;
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kString: {
      Value value;
      value.kind = Kind::kString;
      value.text = &expression.text;
      return value;
    }
    case ExpressionKind::kName: {
      const Value* const found = scope.find(heap_, expression.name);
      if (found != nullptr) return *found;
      return heap_.undefined(fmt::format("'{}' is undefined", expression.name));
    }
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: {
      std::vector<Value> items;
      for (const ExpressionPtr& operand : expression.operands) items.push_back(evaluate(*operand, scope));
      return heap_.sequence(expression.kind == ExpressionKind::kList ? Kind::kList : Kind::kTuple,
                            std::move(items));
    }
    case ExpressionKind::kDict: {
      const Value dict = heap_.dict();
      for (std::size_t i = 0; i < expression.operands.size(); i += 2) {
        const Value key = operand(expression, i, scope);
        heap_.set(*dict.dict, key, operand(expression, i + 1, scope));
      }
      return dict;
    }
    case ExpressionKind::kAttribute: {
      const Value object = operand(expression, 0, scope);
      line_ = expression.line;
      return attribute(object, expression.name);
    }
    case ExpressionKind::kItem: {
      const Value object = operand(expression, 0, scope);
      const Value key = operand(expression, 1, scope);
      line_ = expression.line;
      return item(object, key);
    }
    case ExpressionKind::kSlice: {
      const Value object = operand(expression, 0, scope);
      const Value start = operand(expression, 1, scope), stop = operand(expression, 2, scope);
      const Value step = operand(expression, 3, scope);
      line_ = expression.line;
      return slice(heap_, object, start, stop, step);
    }
    case ExpressionKind::kCall:
      return evaluate_call(expression, scope);
    case ExpressionKind::kFilter:
      return evaluate_filter(expression, scope);
    case ExpressionKind::kTest: {
      const Value value = operand(expression, 0, scope);
      const Arguments arguments = evaluate_arguments(expression.arguments, scope);
      line_ = expression.line;
      return Value::of(apply_test(expression.name, value, arguments));
    }
    case ExpressionKind::kNot:
      return Value::of(!truth(operand(expression, 0, scope)));
    case ExpressionKind::kNegate: {
      const Value value = operand(expression, 0, scope);
      line_ = expression.line;
      return negate(value);
    }
    case ExpressionKind::kPositive: {
      const Value value = operand(expression, 0, scope);
      line_ = expression.line;
      require_defined(value);
      if (!value.is_number())
        throw Failure{fmt::format("bad operand type for unary +: '{}'", type_name(value))};
      return value.is(Kind::kFloat) ? value : Value::of(value.as_integer());
    }
    case ExpressionKind::kAnd: {
      const Value left = operand(expression, 0, scope);
      return truth(left) ? operand(expression, 1, scope) : left;
    }
    case ExpressionKind::kOr: {
      const Value left = operand(expression, 0, scope);
      return truth(left) ? left : operand(expression, 1, scope);
    }
    case ExpressionKind::kConditional: {
      if (truth(operand(expression, 0, scope))) return operand(expression, 1, scope);
      if (expression.operands[2]) return operand(expression, 2, scope);
      return heap_.undefined("the inline if-expression evaluated to false and no else section was defined");
    }
    case ExpressionKind::kCompare:
      return evaluate_compare(expression, scope);
    case ExpressionKind::kConcatenate: {
      MarkedText text;
      for (const ExpressionPtr& part : expression.operands) {
        const MarkedText printed = to_text(heap_, evaluate(*part, scope));
        heap_.charge(printed.size());
        text.append(printed);
      }
      return heap_.string(std::move(text));
    }
    case ExpressionKind::kArithmetic: {
      const Value left = operand(expression, 0, scope);
      const Value right = operand(expression, 1, scope);
      line_ = expression.line;
      return apply(heap_, expression.operation, left, right);
    }
  }
  return {};
}

Value Interpreter::evaluate_compare(const Expression& expression, Scope& scope) {
  Value left = operand(expression, 0, scope);
  for (std::size_t i = 0; i < expression.comparisons.size(); ++i) {
    const Value right = operand(expression, i + 1, scope);
    line_ = expression.line;
    heap_.step();
    bool holds = false;
    switch (expression.comparisons[i]) {
      case Comparison::kEqual:
        holds = equal(heap_, left, right);
        break;
      case Comparison::kNotEqual:
        holds = !equal(heap_, left, right);
        break;
      case Comparison::kLess:
        holds = compare(heap_, left, right, "<") < 0;
        break;
      case Comparison::kLessEqual:
        holds = compare(heap_, left, right, "<=") <= 0;
        break;
      case Comparison::kGreater:
        holds = compare(heap_, left, right, ">") > 0;
        break;
      case Comparison::kGreaterEqual:
        holds = compare(heap_, left, right, ">=") >= 0;
        break;
      case Comparison::kIn:
        holds = contains(heap_, right, left);
        break;
      case Comparison::kNotIn:
        holds = !contains(heap_, right, left);
        break;
    }
    if (!holds) return Value::of(false);
    left = right;
  }
  return Value::of(true);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments, Scope& scope) {
  Arguments result;
  for (const ExpressionPtr& argument : arguments.positional)
    result.positional.push_back(evaluate(*argument, scope));
  for (const auto& [name, argument] : arguments.named)
    result.named.emplace_back(name, evaluate(*argument, scope));
  if (arguments.sequence) {
    for (const Value& value : items_of(heap_, evaluate(*arguments.sequence, scope)))
      result.positional.push_back(value);
  }
  if (arguments.mapping) {
    const Value mapping = evaluate(*arguments.mapping, scope);
    if (!mapping.is(Kind::kDict))
      throw Failure{fmt::format("argument after ** must be a mapping, not {}", type_name(mapping))};
    for (const auto& [key, value] : mapping.dict->entries) {
      if (!key.is(Kind::kString)) throw Failure{"keywords must be strings"};
      result.named.emplace_back(key.view(), value);
    }
  }
  return result;
}

Value Interpreter::evaluate_call(const Expression& expression, Scope& scope) {
  const Value callee = operand(expression, 0, scope);
  const Arguments arguments = evaluate_arguments(expression.arguments, scope);
  line_ = expression.line;
  return call(callee, arguments);
}

Value Interpreter::evaluate_filter(const Expression& expression, Scope& scope) {
  const Value value = expression.operands[0] ? evaluate(*expression.operands[0], scope) : block_value_;
  const Arguments arguments = evaluate_arguments(expression.arguments, scope);
  line_ = expression.line;
  return apply_filter(expression.name, value, arguments);
}

Value Interpreter::apply_filter(std::string_view name, Value value, const Arguments& arguments) {
  const Nesting nesting(*this);
  heap_.step();
  const NativeFunction filter = find_filter(name);
  if (filter == nullptr) throw Failure{fmt::format("no filter named '{}'", printable(name))};
  return filter(*this, value, arguments);
}

bool Interpreter::apply_test(std::string_view name, Value value, const Arguments& arguments) {
  const Nesting nesting(*this);
  heap_.step();
  const NativeFunction test = find_test(name);
  if (test == nullptr) throw Failure{fmt::format("no test named '{}'", printable(name))};
  return truth(test(*this, value, arguments));
}

Value Interpreter::attribute(Value object, std::string_view name) {
  require_defined(object);
  Value found;
  if (find_attribute(*this, object, name, found)) return found;
  if (object.is(Kind::kDict)) {
    if (const Value* const value = object.dict->find(name); value != nullptr) return *value;
  }
  return heap_.undefined(
      fmt::format("'{} object' has no attribute '{}'", type_name(object), printable(name)));
}

Value Interpreter::item(Value object, Value key) {
  require_defined(object);
  Value found;
  if (object.is(Kind::kDict) && (key.is(Kind::kList) || key.is(Kind::kDict) || key.is(Kind::kView))) {
    return heap_.undefined(fmt::format("a {} is no key", type_name(key)));
  }
  if (find_item(heap_, object, key, found)) return found;
  if (key.is(Kind::kString) && find_attribute(*this, object, key.view(), found)) return found;
  MarkedText shown;
  append_repr(heap_, key, shown);
  return heap_.undefined(
      fmt::format("'{} object' has no element {}", type_name(object), printable(shown.view())));
}

}  // namespace tessera::jinja
