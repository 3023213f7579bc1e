#include "modifier/kernel_text.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "modifier/tile_text.h"

namespace tessera::modifier {
namespace {

/// The functions' parts of a program: each holds what the later ones need.
enum Stage { kUniformStage, kRowStage, kKeyStage, kPairStage };

Stage stage_of(Rank rank) {
  switch (rank) {
    case Rank::kUniform:
      return kUniformStage;
    case Rank::kQuery:
      return kRowStage;
    case Rank::kKey:
      return kKeyStage;
    default:
      return kPairStage;
  }
}

std::string real_text(float value) {
  if (!std::isfinite(value)) return fmt::format("float_of_bits({:#x}u)", std::bit_cast<std::uint32_t>(value));
  return fmt::format("({:a}f)", value);
}

std::string integer_text(std::int32_t value) {
  return value == INT32_MIN ? "kLeastInt32" : fmt::format("({})", value);
}

const char* type_text(Type type) {
  return type == Type::kBool ? "bool" : type == Type::kInt32 ? "int" : "float";
}

class Printer {
 public:
  Printer(const Program& program, const KernelTextOptions& options)
      : program_(program), options_(options), nodes_(program.nodes.size()) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i] = analysed(program.nodes[i]);
    for (const int root : {program.score, program.visible}) {
      if (root != Program::kNone) need(root, false);
    }
  }

  std::string print() {
    std::string text = "namespace tessera::kernels {\n\n";
    text += part("ModifierUniform", "modifier_uniform", kUniformStage, "const ModifierPlace& place");
    text +=
        part("ModifierRow", "modifier_row", kRowStage, "const ModifierUniform& u, [[maybe_unused]] int i");
    text += part("ModifierKey", "modifier_key", kKeyStage,
                 "const ModifierUniform& u, [[maybe_unused]] int first, [[maybe_unused]] int offset");
    text += root("bool", "modifier_visible", "", program_.visible, "true");
    text += root("float", "modifier_score", ", [[maybe_unused]] float score", program_.score, "score");
    text += tile_text(program_);
    return text + "}  // namespace tessera::kernels\n";
  }

 private:
  struct NodeInfo {
    bool is_data = false;  ///< int32 that depends on a tensor's contents or on fp32: it may wrap around
    int leaves = 0;  ///< of an int32 that fp32 can have exactly: how many indices it is made of; 0: it can't
    bool needed = false, needed_as_real = false, needed_inverse = false;
  };

  const Node& node(int i) const { return program_.nodes[static_cast<std::size_t>(i)]; }
  NodeInfo& info(int i) { return nodes_[static_cast<std::size_t>(i)]; }
  const NodeInfo& info(int i) const { return nodes_[static_cast<std::size_t>(i)]; }
  static int operand(const Node& n, int k) { return n.operands[static_cast<std::size_t>(k)]; }

  NodeInfo analysed(const Node& n) const {
    NodeInfo result;
    if (n.type != Type::kInt32) return result;
    result.is_data = n.op == Op::kLoad || n.op == Op::kToInt;
    int leaves = 0;
    bool is_exact = true;
    for (int k = 0; k < n.num_operands; ++k) {
      const NodeInfo& of = info(operand(n, k));
      result.is_data |= of.is_data;
      is_exact &= of.leaves > 0;
      leaves += of.leaves;
    }
    switch (n.op) {
      case Op::kVariable:
        result.leaves = 1;
        break;
      case Op::kConstant:
        result.leaves = std::abs(static_cast<std::int64_t>(n.integer)) <= kMostExactIndex ? 1 : 0;
        break;
      case Op::kAdd:
      case Op::kSubtract:
      case Op::kNegate:
      case Op::kAbs:
      case Op::kMin:
      case Op::kMax:
        result.leaves = is_exact && leaves <= 8 ? leaves : 0;
        break;
      default:
        break;
    }
    return result;
  }

  /// Whether a conversion takes its operand as fp32 from the beginning.
  bool converts_early(const Node& n) const {
    return n.op == Op::kToFloat && options_.has_small_indices && info(operand(n, 0)).leaves > 0 &&
           node(operand(n, 0)).rank >= Rank::kQuery;
  }

  /// Whether a quotient or rest is of so small a dividend (2^21) that fp32 finds it. Of lower rank it is
  /// computed seldom.
  bool divides_small(const Node& n) const {
    const int leaves = info(operand(n, 0)).leaves;
    return options_.has_small_indices && leaves > 0 && leaves <= 2 && n.rank > Rank::kQuery;
  }

  /// Whether a division multiplies by what its divisor's own stage has made of it.
  bool divides_by_inverse(const Node& n) const {
    return n.op == Op::kDivide && n.type == Type::kFloat32 &&
           stage_of(n.rank) != stage_of(node(operand(n, 1)).rank) && node(operand(n, 1)).rank < Rank::kPair;
  }

  void need(int i, bool as_real) {
    NodeInfo& present = info(i);
    bool& flag = as_real ? present.needed_as_real : present.needed;
    if (flag) return;
    flag = true;
    const Node& n = node(i);
    const bool operands_as_real = as_real || converts_early(n);
    for (int k = 0; k < n.num_operands; ++k) {
      if (k == 1 && divides_by_inverse(n)) info(operand(n, 1)).needed_inverse = true;
      need(operand(n, k), operands_as_real);
    }
  }

  /// How a function of `stage` names node i's value.
  std::string name(int i, Stage stage, const char* letter = "v") const {
    const Stage own = stage_of(node(i).rank);
    static constexpr const char* kPrefixes[] = {"u.", "r.", "k."};
    return fmt::format("{}{}{}", own == stage ? "" : kPrefixes[own], letter, i);
  }

  std::string expression(const Node& n, Stage stage) const {
    const auto v = [&](int k) { return name(operand(n, k), stage); };
    const auto call = [&](const char* function) {
      std::string text = fmt::format("{}({}", function, v(0));
      for (int k = 1; k < n.num_operands; ++k) text += ", " + v(k);
      return text + ")";
    };
    const auto infix = [&](const char* sign) { return fmt::format("{} {} {}", v(0), sign, v(1)); };
    const bool is_real = n.type == Type::kFloat32;
    // Indices are checked not to overflow; what comes from tensors wraps around.
    const bool wraps = n.type == Type::kInt32 && wraps_around(n);
    switch (n.op) {
      case Op::kConstant:
        return is_real ? real_text(n.real) : integer_text(n.integer);
      case Op::kScalar:
        return fmt::format("m.{}[{}]", is_real ? "reals" : "integers", n.index);
      case Op::kVariable:
        return variable(static_cast<Variable>(n.index));
      case Op::kScore:
        return "score";
      case Op::kLoad:
        return load(n, stage);
      case Op::kAdd:
        return wraps ? call("wrapped_add") : infix("+");
      case Op::kSubtract:
        return wraps ? call("wrapped_subtract") : infix("-");
      case Op::kMultiply:
        return wraps ? call("wrapped_multiply") : infix("*");
      case Op::kDivide:
        if (!is_real) return call(divides_small(n) ? "small_divide" : "floored_divide");
        if (divides_by_inverse(n))
          return fmt::format("{}.times({})", name(operand(n, 1), stage, "inverse"), v(0));
        return infix("/");
      case Op::kModulo:
        return call(divides_small(n) ? "small_modulo" : "floored_modulo");
      case Op::kNegate:
        return wraps ? fmt::format("wrapped_subtract(0, {})", v(0)) : fmt::format("-{}", v(0));
      case Op::kAbs:
        if (is_real) return call("fabsf");
        return wraps ? call("wrapped_abs") : fmt::format("{0} < 0 ? -{0} : {0}", v(0));
      case Op::kMin:
        return call("lesser_of");
      case Op::kMax:
        return call("greater_of");
      case Op::kExp:
        return call("expf");
      case Op::kExp2:
        return call("exp2f");
      case Op::kLog:
        return call("logf");
      case Op::kLog2:
        return call("log2f");
      case Op::kTanh:
        return call("tanh_without_branches");
      case Op::kSqrt:
        return call("sqrtf");
      case Op::kFloor:
        return call("floorf");
      case Op::kToFloat:
        if (converts_early(n)) return name(operand(n, 0), stage, "x");
        return fmt::format("static_cast<float>({})", v(0));
      case Op::kToInt:
        return node(operand(n, 0)).type == Type::kBool ? fmt::format("static_cast<int>({})", v(0))
                                                       : call("saturated_int");
      case Op::kBit:
        return call("bit_of");
      case Op::kLess:
        return infix("<");
      case Op::kLessEqual:
        return infix("<=");
      case Op::kEqual:
        return infix("==");
      case Op::kNotEqual:
        return infix("!=");
      // Both sides are computed anyway: no branches.
      case Op::kAnd:
        return infix("&&");
      case Op::kOr:
        return infix("||");
      case Op::kNot:
        return "!" + v(0);
      case Op::kSelect:
        return fmt::format("{} ? {} : {}", v(0), v(1), v(2));
    }
    return {};
  }

  bool wraps_around(const Node& n) const {
    for (int k = 0; k < n.num_operands; ++k) {
      if (info(operand(n, k)).is_data) return true;
    }
    return false;
  }

  /// An exact int32 as fp32.
  std::string expression_as_real(const Node& n, Stage stage) const {
    const auto x = [&](int k) { return name(operand(n, k), stage, "x"); };
    switch (n.op) {
      case Op::kConstant:
        return real_text(static_cast<float>(n.integer));
      case Op::kVariable:
        // What a thread's keys have in common is converted once.
        if (static_cast<Variable>(n.index) == Variable::kKey)
          return "static_cast<float>(first) + static_cast<float>(offset)";
        return fmt::format("static_cast<float>({})", variable(static_cast<Variable>(n.index)));
      case Op::kAdd:
        return fmt::format("{} + {}", x(0), x(1));
      case Op::kSubtract:
        return fmt::format("{} - {}", x(0), x(1));
      case Op::kNegate:
        return fmt::format("-{}", x(0));
      case Op::kAbs:
        return fmt::format("fabsf({})", x(0));
      case Op::kMin:
        return fmt::format("lesser_of({}, {})", x(0), x(1));
      default:  // kMax
        return fmt::format("greater_of({}, {})", x(0), x(1));
    }
  }

  static std::string variable(Variable variable) {
    switch (variable) {
      case Variable::kBatch:
        return "place.b";
      case Variable::kHead:
        return "place.h";
      case Variable::kKvHead:
        return "place.kv_h";
      case Variable::kQuery:
        return "i";
      case Variable::kKey:
        return "first + offset";
      case Variable::kLenQ:
        return "place.len_q";
      case Variable::kLenKv:
        return "place.len_kv";
      case Variable::kShift:
        return "place.shift";
      case Variable::kNumHeads:
        return "place.num_heads";
    }
    return {};
  }

  std::string load(const Node& n, Stage stage) const {
    const char* dtype = "f32";
    switch (program_.tensors[static_cast<std::size_t>(n.index)].dtype) {
      case DType::kF16:
        dtype = "f16";
        break;
      case DType::kBF16:
        dtype = "bf16";
        break;
      case DType::kI32:
        dtype = "i32";
        break;
      case DType::kU8:
        dtype = "u8";
        break;
      case DType::kBool:
        dtype = "bool";
        break;
      default:
        break;
    }
    std::string text = fmt::format("load_{0}(m.tensors[{1}], 0", dtype, n.index);
    for (int d = 0; d < n.num_operands; ++d)
      text += fmt::format(" + index_at(m.tensors[{}], {}, {})", n.index, d, name(operand(n, d), stage));
    return text + ")";
  }

  /// Lines that compute node i where it is needed. target: "const int " of a local, or what a member starts
  /// with.
  template <class Declare>
  std::string lines_of(int i, Stage stage, Declare declare) const {
    const NodeInfo& present = info(i);
    std::string text;
    if (present.needed)
      text += fmt::format("  {} = {};\n", declare(type_text(node(i).type), "v"), expression(node(i), stage));
    if (present.needed_as_real)
      text += fmt::format("  {} = {};\n", declare("float", "x"), expression_as_real(node(i), stage));
    if (present.needed_inverse)
      text += fmt::format("  {} = reciprocal_of({});\n", declare("ModifierReciprocal", "inverse"),
                          name(i, stage));
    return text;
  }

  /// A struct of a stage's values and the function that computes them.
  std::string part(const char* structure, const char* function, Stage stage, const char* parameters) const {
    std::string members, lines, results;
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
      if (stage_of(node(i).rank) != stage) continue;
      lines += lines_of(i, stage, [&](const char* type, const char* letter) {
        members += fmt::format("  {} {}{};\n", type, letter, i);
        results += fmt::format("{}{}{}", results.empty() ? "" : ", ", letter, i);
        return fmt::format("const {} {}{}", type, letter, i);
      });
    }
    return fmt::format(
        "struct {0} {{\n{1}}};\n"
        "TESSERA_DEVICE {0} {2}([[maybe_unused]] const ModifierArguments& m, [[maybe_unused]] {3}) {{\n"
        "{4}  return {{{5}}};\n}}\n\n",
        structure, members, function, parameters, lines, results);
  }

  std::string root(const char* type, const char* function, const char* parameters, int root,
                   const char* without) const {
    std::vector<bool> of_root(nodes_.size(), false);
    if (root != Program::kNone) of_root[static_cast<std::size_t>(root)] = true;
    std::string lines;
    for (int i = static_cast<int>(nodes_.size()); i-- > 0;) {
      if (!of_root[static_cast<std::size_t>(i)]) continue;
      for (int k = 0; k < node(i).num_operands; ++k)
        of_root[static_cast<std::size_t>(operand(node(i), k))] = true;
    }
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
      if (!of_root[static_cast<std::size_t>(i)] || stage_of(node(i).rank) != kPairStage) continue;
      lines += lines_of(i, kPairStage, [&](const char* value_type, const char* letter) {
        return fmt::format("[[maybe_unused]] const {} {}{}", value_type, letter, i);
      });
    }
    return fmt::format(
        "TESSERA_DEVICE {} {}([[maybe_unused]] const ModifierArguments& m, "
        "[[maybe_unused]] const ModifierUniform& u, [[maybe_unused]] const ModifierRow& r, "
        "[[maybe_unused]] const ModifierKey& k{}) {{\n{}  return {};\n}}\n\n",
        type, function, parameters, lines, root == Program::kNone ? without : name(root, kPairStage));
  }

  const Program& program_;
  KernelTextOptions options_;
  std::vector<NodeInfo> nodes_;
};

}  // namespace

std::string kernel_text(const Program& program, const KernelTextOptions& options) {
  return Printer(program, options).print();
}

}  // namespace tessera::modifier
