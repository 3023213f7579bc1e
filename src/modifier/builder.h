#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "modifier/ir.h"
#include "modifier/text_error.h"
#include "tessera/attention.h"

namespace tessera::modifier {

/// An expression as the parser holds it: a node of the graph, or a number, which has no type yet: whole
/// literals, scalars and arithmetic of these are int32 or fp32 as what they meet is. `2 * w` is int32 in
/// `kv_idx < 2 * w` and fp32 in `score * (2 * w)`.
struct Value {
  bool is_number = false;
  int index = 0;  ///< of a node or of a number
};

/// Makes the graph: checks types and ranks, and gives equal expressions one node. Positions are those that
/// errors name. Everything throws as fail_at.
class Builder {
 public:
  /// Reads the modifier's tensors and scalars, not its texts. It must outlive the builder.
  explicit Builder(const ScoreModifier& modifier);

  Value literal(double value, bool is_whole, Position position);
  Value scalar(int index, Position position);
  Value variable(Variable variable, Position position);
  Value score(Position position);
  Value load(int tensor, const std::vector<Value>& indices, Position position);
  /// `sign`: the operation as the user wrote it.
  Value unary(Op op, std::string_view sign, Value a, Position position);
  Value binary(Op op, std::string_view sign, Value a, Value b, Position position);
  Value select(Value condition, Value a, Value b, Position position);

  /// The node of `value` as a `type`; `what` says where it stands: "score is", "an index is".
  int node_of(Value value, Type type, std::string_view what, Position position);

  const Node& node(int index) const { return nodes_[static_cast<std::size_t>(index)]; }

  /// The nodes that the roots need, operands first, and the positions that they came from.
  Program finish(int score, int visible, std::vector<Position>& positions) const;

 private:
  /// What has no type yet: a literal, a scalar, or an operation on numbers. (A select's condition has one.)
  struct Number {
    Op op = Op::kConstant;
    double literal = 0;
    int scalar = 0;
    int condition = 0;
    int operands[2] = {-1, -1};
    std::string_view sign;
    Position position;
    int as_int32 = -1, as_float32 = -1;  ///< its nodes, once made
  };

  Value number(const Number& number);
  int typed(int number, Type type);
  int add(Node node, Position position);
  int operation(Op op, Type type, std::initializer_list<int> operands, Position position);
  Type type_of(int node) const { return nodes_[static_cast<std::size_t>(node)].type; }
  [[noreturn]] void fail_type(std::string_view what, Type found, Type expected, Position position) const;

  const ScoreModifier& modifier_;
  std::vector<Node> nodes_;
  std::vector<Position> positions_;
  std::vector<Number> numbers_;
};

}  // namespace tessera::modifier
