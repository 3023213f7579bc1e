#include "modifier/ir.h"

#include <fmt/core.h>

namespace tessera::modifier {

const char* name_of(Op op) {
  static constexpr const char* kNames[] = {
      "constant", "scalar",     "variable", "score",     "load",  "add",   "subtract", "multiply",
      "divide",   "modulo",     "negate",   "abs",       "min",   "max",   "exp",      "exp2",
      "log",      "log2",       "tanh",     "sqrt",      "floor", "float", "int",      "bit",
      "less",     "less_equal", "equal",    "not_equal", "and",   "or",    "not",      "select"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Op::kSelect) + 1);
  return kNames[static_cast<std::size_t>(op)];
}

const char* name_of(Variable variable) {
  static constexpr const char* kNames[] = {"b",     "h",      "kv_h",  "q_idx",    "kv_idx",
                                           "len_q", "len_kv", "shift", "num_heads"};
  static_assert(std::size(kNames) == kNumVariables);
  return kNames[static_cast<std::size_t>(variable)];
}

const char* name_of(Type type) {
  switch (type) {
    case Type::kBool:
      return "bool";
    case Type::kInt32:
      return "int32";
    case Type::kFloat32:
      return "fp32";
  }
  return "";
}

const char* name_of(Rank rank) {
  switch (rank) {
    case Rank::kUniform:
      return "uniform";
    case Rank::kQuery:
      return "q";
    case Rank::kKey:
      return "kv";
    case Rank::kPair:
      return "pair";
    case Rank::kScore:
      return "score";
  }
  return "";
}

std::string canonical_text(const Program& program) {
  std::string text;
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    text += fmt::format("%{} = ", i);
    if (node.op == Op::kVariable) {
      text += name_of(static_cast<Variable>(node.index));
    } else if (node.op == Op::kConstant) {
      text += node.type == Type::kFloat32 ? fmt::format("{:a}", node.real) : fmt::format("{}", node.integer);
    } else {
      text += name_of(node.op);
      if (node.op == Op::kScalar) text += fmt::format(" {}", node.index);
      if (node.op == Op::kLoad)
        text += fmt::format(" {} {}", node.index,
                            dtype_name(program.tensors[static_cast<std::size_t>(node.index)].dtype));
      for (int k = 0; k < node.num_operands; ++k)
        text += fmt::format(" %{}", node.operands[static_cast<std::size_t>(k)]);
    }
    text += fmt::format(" : {} {}\n", name_of(node.type), name_of(node.rank));
  }
  if (program.score != Program::kNone) text += fmt::format("score %{}\n", program.score);
  if (program.visible != Program::kNone) text += fmt::format("visible %{}\n", program.visible);
  return text;
}

}  // namespace tessera::modifier
