#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/element.h"
#include "modifier/interval.h"
#include "modifier/ir.h"
#include "tessera/attention.h"

namespace tessera::modifier {

/// One int32 for each Variable; those of the query and the key are what the evaluation is at.
using Variables = std::array<std::int32_t, kNumVariables>;

/// Element offset of a captured tensor at int32 indices, each clamped into it.
inline std::int64_t clamped_offset(const CapturedTensor& tensor, const std::int32_t* indices) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    const auto last = static_cast<std::int32_t>(tensor.sizes[d] - 1);
    offset += std::int64_t{least(greatest(indices[d], 0), last)} * tensor.strides[d];
  }
  return offset;
}

/// fp32 to int32 as Op::kToInt says.
template <class Real>
std::int32_t saturate(Real value) {
  if (std::isnan(value)) return 0;
  if (value >= Real(2147483648.0)) return std::numeric_limits<std::int32_t>::max();
  if (value <= Real(-2147483648.0)) return std::numeric_limits<std::int32_t>::min();
  return static_cast<std::int32_t>(value);
}

/// Computes a program one score after the other, with `Real` for its fp32: each node as its rank allows, so
/// that the keys of a query cost only what changes from key to key. Tensors are in CPU memory. The program
/// and the modifier must outlive it.
template <class Real>
class Evaluator {
 public:
  Evaluator(const Program& program, const ScoreModifier& modifier)
      : program_(program), modifier_(modifier), values_(program.nodes.size()) {
    std::vector<bool> of_visible(program.nodes.size(), false);
    if (program.visible != Program::kNone) of_visible[static_cast<std::size_t>(program.visible)] = true;
    for (std::size_t i = program.nodes.size(); i-- > 0;) {
      const Node& node = program.nodes[i];
      if (!of_visible[i]) continue;
      for (int k = 0; k < node.num_operands; ++k) of_visible[operand(node, k)] = true;
    }
    for (std::size_t i = 0; i < program.nodes.size(); ++i) {
      const Rank rank = program.nodes[i].rank;
      if (rank <= Rank::kQuery) {
        of_query_.push_back(i);
      } else {
        (of_visible[i] ? of_visible_ : of_score_).push_back(i);
      }
    }
  }

  /// What the variables are from here on.
  void set(const Variables& variables) { variables_ = variables; }
  void set_key(std::int32_t j) { variables_[static_cast<std::size_t>(Variable::kKey)] = j; }

  /// Computes a node from its operands, which are computed, and the variables. Not one that needs the score.
  void compute(std::size_t node);
  /// What was computed: of int32, and of bool as 0 or 1.
  std::int32_t integer_of(std::size_t node) const { return values_[node].integer; }
  Real real_of(std::size_t node) const { return values_[node].real; }

  /// Makes ready for the keys of a query: variables but for that of the key.
  void begin_query(const Variables& variables) {
    set(variables);
    for (const std::size_t i : of_query_) compute(i);
  }

  /// Whether the query sees key j.
  bool is_visible(std::int32_t j) {
    set_key(j);
    for (const std::size_t i : of_visible_) compute(i);
    return program_.visible == Program::kNone ||
           values_[static_cast<std::size_t>(program_.visible)].integer != 0;
  }

  /// The new score of the key that is_visible() was asked about last.
  Real score(Real score) {
    if (program_.score == Program::kNone) return score;
    score_ = score;
    for (const std::size_t i : of_score_) compute(i);
    return values_[static_cast<std::size_t>(program_.score)].real;
  }

 private:
  struct Value {
    std::int32_t integer = 0;  ///< of int32, and of bool: 0 or 1
    Real real = 0;
  };

  static std::size_t operand(const Node& node, int k) {
    return static_cast<std::size_t>(node.operands[static_cast<std::size_t>(k)]);
  }
  const Value& of(const Node& node, int k) const { return values_[operand(node, k)]; }

  Value load(const Node& node) const {
    const CapturedTensor& tensor = modifier_.tensors[static_cast<std::size_t>(node.index)];
    std::array<std::int32_t, kMaxTensorRank> indices = {};
    for (int k = 0; k < node.num_operands; ++k) indices[static_cast<std::size_t>(k)] = of(node, k).integer;
    const std::int64_t offset = clamped_offset(tensor, indices.data());
    Value value;
    switch (tensor.dtype) {
      case DType::kI32:
        value.integer = static_cast<const std::int32_t*>(tensor.data)[offset];
        break;
      case DType::kU8:
        value.integer = static_cast<const std::uint8_t*>(tensor.data)[offset];
        break;
      case DType::kBool:
        value.integer = static_cast<const std::uint8_t*>(tensor.data)[offset] != 0;
        break;
      default:
        value.real = static_cast<Real>(load_element(tensor.data, tensor.dtype, offset));
    }
    return value;
  }

  Real real(const Node& node) const {
    const auto a = [&] { return of(node, 0).real; };
    const auto b = [&] { return of(node, 1).real; };
    switch (node.op) {
      case Op::kConstant:
        return Real(node.real);
      case Op::kScalar:
        return Real(static_cast<float>(modifier_.scalars[static_cast<std::size_t>(node.index)].second));
      case Op::kScore:
        return score_;
      case Op::kAdd:
        return a() + b();
      case Op::kSubtract:
        return a() - b();
      case Op::kMultiply:
        return a() * b();
      case Op::kDivide:
        return a() / b();
      case Op::kNegate:
        return -a();
      case Op::kAbs:
        return std::abs(a());
      case Op::kMin:
        return least(a(), b());
      case Op::kMax:
        return greatest(a(), b());
      case Op::kExp:
        return std::exp(a());
      case Op::kExp2:
        return std::exp2(a());
      case Op::kLog:
        return std::log(a());
      case Op::kLog2:
        return std::log2(a());
      case Op::kTanh:
        return std::tanh(a());
      case Op::kSqrt:
        return std::sqrt(a());
      case Op::kFloor:
        return std::floor(a());
      default:  // kToFloat
        return static_cast<Real>(of(node, 0).integer);
    }
  }

  std::int32_t integer(const Node& node) const {
    const auto wrap = [](std::int64_t value) {
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(value));
    };
    const std::int64_t a = node.num_operands > 0 ? of(node, 0).integer : 0;
    const std::int64_t b = node.num_operands > 1 ? of(node, 1).integer : 0;
    switch (node.op) {
      case Op::kConstant:
        return node.integer;
      case Op::kScalar:
        return static_cast<std::int32_t>(modifier_.scalars[static_cast<std::size_t>(node.index)].second);
      case Op::kVariable:
        return variables_[static_cast<std::size_t>(node.index)];
      case Op::kAdd:
        return wrap(a + b);
      case Op::kSubtract:
        return wrap(a - b);
      case Op::kMultiply:
        return wrap(a * b);
      case Op::kDivide:
        return wrap(floor_divide(a, b));
      case Op::kModulo:
        return wrap(a - b * floor_divide(a, b));
      case Op::kNegate:
        return wrap(-a);
      case Op::kAbs:
        return wrap(a < 0 ? -a : a);
      case Op::kMin:
        return wrap(least(a, b));
      case Op::kMax:
        return wrap(greatest(a, b));
      case Op::kBit:
        return b < 0 || b > 31 ? 0 : static_cast<std::int32_t>(static_cast<std::uint32_t>(a) >> b & 1u);
      default:  // kToInt
        return operand_type(node) == Type::kBool ? wrap(a) : saturate(of(node, 0).real);
    }
  }

  bool boolean(const Node& node) const {
    const bool a = of(node, 0).integer != 0, b = node.num_operands > 1 && of(node, 1).integer != 0;
    switch (node.op) {
      case Op::kAnd:
        return a && b;
      case Op::kOr:
        return a || b;
      case Op::kNot:
        return !a;
      default:
        break;
    }
    if (operand_type(node) == Type::kFloat32) return compare(node.op, of(node, 0).real, of(node, 1).real);
    return compare(node.op, of(node, 0).integer, of(node, 1).integer);
  }

  template <class Number>
  static bool compare(Op op, Number a, Number b) {
    if (op == Op::kLess) return a < b;
    if (op == Op::kLessEqual) return a <= b;
    return op == Op::kEqual ? a == b : a != b;
  }

  Type operand_type(const Node& node) const { return program_.nodes[operand(node, 0)].type; }

  const Program& program_;
  const ScoreModifier& modifier_;
  std::vector<Value> values_;
  std::vector<std::size_t> of_query_, of_visible_, of_score_;  ///< nodes by when they are computed
  Variables variables_ = {};
  Real score_ = 0;
};

template <class Real>
void Evaluator<Real>::compute(std::size_t i) {
  const Node& node = program_.nodes[i];
  Value& value = values_[i];
  if (node.op == Op::kLoad) {
    value = load(node);
  } else if (node.op == Op::kSelect) {
    value = of(node, of(node, 0).integer != 0 ? 1 : 2);
  } else if (node.type == Type::kFloat32) {
    value.real = real(node);
  } else {
    value.integer = node.type == Type::kBool ? boolean(node) : integer(node);
  }
}

}  // namespace tessera::modifier
