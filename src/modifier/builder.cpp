#include "modifier/builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

namespace tessera::modifier {
namespace {

bool is_arithmetic(Op op) {
  return op == Op::kAdd || op == Op::kSubtract || op == Op::kMultiply || op == Op::kDivide ||
         op == Op::kModulo || op == Op::kMin || op == Op::kMax;
}

bool is_comparison(Op op) {
  return op == Op::kLess || op == Op::kLessEqual || op == Op::kEqual || op == Op::kNotEqual;
}

}  // namespace

Builder::Builder(const ScoreModifier& modifier) : modifier_(modifier) {}

void Builder::fail_type(std::string_view what, Type found, Type expected, Position position) const {
  std::string hint;
  if (expected == Type::kFloat32 && found == Type::kInt32) hint = "; float(x) converts";
  if (expected == Type::kInt32 && found == Type::kFloat32) hint = "; int(x) converts, towards 0";
  if (expected == Type::kInt32 && found == Type::kBool) hint = "; int(x) is 1 where it holds, else 0";
  if (expected == Type::kBool) hint = "; a comparison such as x != 0 is one";
  fail_at(modifier_, position,
          fmt::format("{} {}; expected {}{}", what, name_of(found), name_of(expected), hint));
}

int Builder::add(Node node, Position position) {
  for (int k = 0; k < node.num_operands; ++k)
    node.rank =
        join(node.rank, nodes_[static_cast<std::size_t>(node.operands[static_cast<std::size_t>(k)])].rank);
  const auto same = std::find(nodes_.begin(), nodes_.end(), node);
  if (same != nodes_.end()) return static_cast<int>(same - nodes_.begin());
  if (nodes_.size() == kMaxNodes) {
    fail_at(modifier_, position,
            fmt::format("the modifier has more than {} operations; expected fewer, or tables of what they "
                        "compute as tensors",
                        kMaxNodes));
  }
  nodes_.push_back(node);
  positions_.push_back(position);
  return static_cast<int>(nodes_.size()) - 1;
}

int Builder::operation(Op op, Type type, std::initializer_list<int> operands, Position position) {
  Node node;
  node.op = op;
  node.type = type;
  for (const int operand : operands) node.operands[node.num_operands++] = static_cast<std::int16_t>(operand);
  return add(node, position);
}

Value Builder::number(const Number& number) {
  numbers_.push_back(number);
  return {true, static_cast<int>(numbers_.size()) - 1};
}

Value Builder::literal(double value, bool is_whole, Position position) {
  if (is_whole) {
    Number n;
    n.literal = value;
    n.position = position;
    return number(n);
  }
  Node node;
  node.type = Type::kFloat32;
  node.real = static_cast<float>(value);
  if (!std::isfinite(node.real)) fail_at(modifier_, position, "the number is beyond fp32's range");
  return {false, add(node, position)};
}

Value Builder::scalar(int index, Position position) {
  Number n;
  n.op = Op::kScalar;
  n.scalar = index;
  n.position = position;
  return number(n);
}

Value Builder::variable(Variable variable, Position position) {
  Node node;
  node.op = Op::kVariable;
  node.rank = rank_of(variable);
  node.index = static_cast<int>(variable);
  return {false, add(node, position)};
}

Value Builder::score(Position position) {
  Node node;
  node.op = Op::kScore;
  node.type = Type::kFloat32;
  node.rank = Rank::kScore;
  return {false, add(node, position)};
}

Value Builder::load(int tensor, const std::vector<Value>& indices, Position position) {
  Node node;
  node.op = Op::kLoad;
  node.type = element_type(modifier_.tensors[static_cast<std::size_t>(tensor)].dtype);
  node.index = tensor;
  for (const Value index : indices)
    node.operands[node.num_operands++] =
        static_cast<std::int16_t>(node_of(index, Type::kInt32, "an index is", position));
  return {false, add(node, position)};
}

/// The node of a number as a type.
int Builder::typed(int index, Type type) {
  const Number n = numbers_[static_cast<std::size_t>(index)];
  const int made = type == Type::kInt32 ? n.as_int32 : n.as_float32;
  if (made >= 0) return made;
  Node node;
  node.type = type;
  node.op = n.op;
  if (n.op == Op::kConstant) {
    if (type == Type::kFloat32) {
      node.real = static_cast<float>(n.literal);
      if (!std::isfinite(node.real)) fail_at(modifier_, n.position, "the number is beyond fp32's range");
    } else {
      if (std::abs(n.literal) > std::numeric_limits<std::int32_t>::max()) {
        fail_at(modifier_, n.position,
                fmt::format("{:.0f} is int32 here and beyond its range, {} to either side", n.literal,
                            std::numeric_limits<std::int32_t>::max()));
      }
      node.integer = static_cast<std::int32_t>(n.literal);
    }
  } else if (n.op == Op::kScalar) {
    const double value = modifier_.scalars[static_cast<std::size_t>(n.scalar)].second;
    const std::string& name = modifier_.scalars[static_cast<std::size_t>(n.scalar)].first;
    if (type == Type::kInt32 &&
        (std::floor(value) != value || std::abs(value) > std::numeric_limits<std::int32_t>::max())) {
      fail_at(modifier_, n.position,
              fmt::format("{} is int32 here and its value is {}; expected a whole number within int32's "
                          "range, or float(…) of what it meets",
                          name, value));
    }
    if (type == Type::kFloat32 && !std::isfinite(static_cast<float>(value))) {
      fail_at(modifier_, n.position,
              fmt::format("{} is fp32 here and its value is {}; expected a number within fp32's range", name,
                          value));
    }
    node.index = n.scalar;
  } else {
    if (n.op == Op::kModulo && type == Type::kFloat32)
      fail_type("'%' is of", Type::kFloat32, Type::kInt32, n.position);
    if (n.op == Op::kSelect) node.operands[node.num_operands++] = static_cast<std::int16_t>(n.condition);
    for (const int operand : n.operands) {
      if (operand >= 0) node.operands[node.num_operands++] = static_cast<std::int16_t>(typed(operand, type));
    }
  }
  const int result = add(node, n.position);
  Number& kept = numbers_[static_cast<std::size_t>(index)];
  (type == Type::kInt32 ? kept.as_int32 : kept.as_float32) = result;
  return result;
}

int Builder::node_of(Value value, Type type, std::string_view what, Position position) {
  if (value.is_number && type == Type::kBool) fail_type(what, Type::kInt32, type, position);
  if (value.is_number) return typed(value.index, type);
  if (type_of(value.index) != type) fail_type(what, type_of(value.index), type, position);
  return value.index;
}

Value Builder::unary(Op op, std::string_view sign, Value a, Position position) {
  const std::string what = fmt::format("'{}' is of", sign);
  switch (op) {
    case Op::kNot:
      return {false, operation(op, Type::kBool, {node_of(a, Type::kBool, what, position)}, position)};
    case Op::kToFloat: {
      if (a.is_number) return {false, typed(a.index, Type::kFloat32)};
      if (type_of(a.index) == Type::kFloat32) return a;
      if (type_of(a.index) == Type::kBool)
        a = {false, operation(Op::kToInt, Type::kInt32, {a.index}, position)};
      return {false, operation(op, Type::kFloat32, {a.index}, position)};
    }
    case Op::kToInt: {
      if (a.is_number) a = {false, typed(a.index, Type::kFloat32)};
      if (type_of(a.index) == Type::kInt32) return a;
      return {false, operation(op, Type::kInt32, {a.index}, position)};
    }
    case Op::kNegate:
    case Op::kAbs: {
      if (a.is_number) {
        Number n = numbers_[static_cast<std::size_t>(a.index)];
        if (n.op == Op::kConstant) {
          return literal(op == Op::kNegate ? -n.literal : std::abs(n.literal), true, position);
        }
        Number result;
        result.op = op;
        result.operands[0] = a.index;
        result.sign = sign;
        result.position = position;
        return number(result);
      }
      const Type type = type_of(a.index);
      if (type == Type::kBool) fail_type(what, type, Type::kInt32, position);
      return {false, operation(op, type, {a.index}, position)};
    }
    default:
      return {false, operation(op, Type::kFloat32, {node_of(a, Type::kFloat32, what, position)}, position)};
  }
}

Value Builder::binary(Op op, std::string_view sign, Value a, Value b, Position position) {
  const std::string what = fmt::format("'{}' is of", sign);
  if (op == Op::kAnd || op == Op::kOr || op == Op::kBit) {
    const Type type = op == Op::kBit ? Type::kInt32 : Type::kBool;
    const int left = node_of(a, type, what, position), right = node_of(b, type, what, position);
    return {false, operation(op, type, {left, right}, position)};
  }
  if (a.is_number && b.is_number && is_arithmetic(op)) {
    Number result;
    result.op = op;
    result.operands[0] = a.index;
    result.operands[1] = b.index;
    result.sign = sign;
    result.position = position;
    return number(result);
  }
  Type type = Type::kInt32;  // of numbers alone
  if (!a.is_number || !b.is_number) type = type_of(a.is_number ? b.index : a.index);
  const bool takes_bool = op == Op::kEqual || op == Op::kNotEqual;
  if (type == Type::kBool && !takes_bool) fail_type(what, type, Type::kInt32, position);
  if (type == Type::kFloat32 && op == Op::kModulo) fail_type(what, type, Type::kInt32, position);
  if (!a.is_number && !b.is_number && type_of(a.index) != type_of(b.index)) {
    fail_at(modifier_, position,
            fmt::format("'{}' is of {} and {}; expected both of one type: float(x) and int(x) convert", sign,
                        name_of(type_of(a.index)), name_of(type_of(b.index))));
  }
  const int left = node_of(a, type, what, position), right = node_of(b, type, what, position);
  return {false, operation(op, is_comparison(op) ? Type::kBool : type, {left, right}, position)};
}

Value Builder::select(Value condition, Value a, Value b, Position position) {
  const int if_true = node_of(condition, Type::kBool, "the condition before '?' is", position);
  if (a.is_number && b.is_number) {
    Number result;
    result.op = Op::kSelect;
    result.condition = if_true;
    result.operands[0] = a.index;
    result.operands[1] = b.index;
    result.sign = "?";
    result.position = position;
    return number(result);
  }
  const Type type = type_of(a.is_number ? b.index : a.index);
  const std::string what = fmt::format("beside {} the other side of ':' is", name_of(type));
  const int left = node_of(a, type, what, position), right = node_of(b, type, what, position);
  return {false, operation(Op::kSelect, type, {if_true, left, right}, position)};
}

Program Builder::finish(int score, int visible, std::vector<Position>& positions) const {
  Program program;
  std::vector<int> numbers(nodes_.size(), Program::kNone);
  // Operands first, in the order in which the roots come to them. No deeper than there are nodes.
  const auto take = [&](const auto& self, int index) -> int {
    int& number = numbers[static_cast<std::size_t>(index)];
    if (number != Program::kNone) return number;
    Node node = nodes_[static_cast<std::size_t>(index)];
    for (int k = 0; k < node.num_operands; ++k) {
      std::int16_t& operand = node.operands[static_cast<std::size_t>(k)];
      operand = static_cast<std::int16_t>(self(self, operand));
    }
    program.nodes.push_back(node);
    positions.push_back(positions_[static_cast<std::size_t>(index)]);
    return number = static_cast<int>(program.nodes.size()) - 1;
  };
  if (score != Program::kNone) program.score = take(take, score);
  if (visible != Program::kNone) program.visible = take(take, visible);
  for (const CapturedTensor& tensor : modifier_.tensors)
    program.tensors.push_back({tensor.dtype, static_cast<int>(tensor.sizes.size())});
  program.num_scalars = static_cast<int>(modifier_.scalars.size());
  return program;
}

}  // namespace tessera::modifier
