#include "modifier/kernel_text.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "modifier/node_uses.h"
#include "modifier/tile_text.h"

namespace tessera::modifier {
namespace {

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
      : program_(program), uses_(program, options) {}

  std::string print() {
    std::string text = "namespace tessera::kernels {\n\n";
    const char* uniform = ", [[maybe_unused]] const ModifierUniform& u";
    text += part({"Uniform", "uniform", kUniformStage, "", ", [[maybe_unused]] const ModifierPlace& place"});
    text += part({"Row", "row", kRowStage, uniform, ", [[maybe_unused]] int i"});
    text +=
        part({"Key", "key", kKeyStage, uniform, ", [[maybe_unused]] int first, [[maybe_unused]] int offset"});
    text += function("bool modifier_visible", "", roots_of(program_.visible),
                     program_.visible == Program::kNone ? "true" : name(program_.visible, kPairStage));
    text += scores();
    text += tile_text(program_);
    return text + "}  // namespace tessera::kernels\n";
  }

 private:
  const Node& node(int i) const { return program_.nodes[static_cast<std::size_t>(i)]; }
  int num_nodes() const { return static_cast<int>(program_.nodes.size()); }
  static std::vector<int> roots_of(int root) {
    return root == Program::kNone ? std::vector<int>{} : std::vector<int>{root};
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
    const bool wraps = n.type == Type::kInt32 && uses_.wraps_around(n);
    switch (n.op) {
      case Op::kConstant:
        return is_real ? real_text(n.real) : integer_text(n.integer);
      case Op::kScalar:
        return fmt::format("m.{}[{}]", is_real ? "reals" : "integers", n.index);
      case Op::kVariable:
        return variable(static_cast<Variable>(n.index));
      case Op::kScore:
        return "product * scale";
      case Op::kLoad:
        return load(n, stage);
      case Op::kAdd:
        return wraps ? call("wrapped_add") : infix("+");
      case Op::kSubtract:
        return wraps ? call("wrapped_subtract") : infix("-");
      case Op::kMultiply:
        // One fused operation a key: the rest is a row's.
        if (const int linear = uses_.linear_factor_of(n); linear != Program::kNone)
          return linear_product(v(1 - linear), operand(node(operand(n, linear)), 0), stage, "");
        if (const int magnitude = uses_.magnitude_factor_of(n); magnitude != Program::kNone)
          return fmt::format("kSide == 0 ? {} : {}", infix("*"),
                             linear_product(v(1 - magnitude), uses_.signed_distance(), stage, "kSide * "));
        return wraps ? call("wrapped_multiply") : infix("*");
      case Op::kDivide:
        if (!is_real) return call(uses_.divides_small(n) ? "small_divide" : "floored_divide");
        if (uses_.divides_by_inverse(n))
          return fmt::format("{}.times({})", name(operand(n, 1), stage, "inverse"), v(0));
        return infix("/");
      case Op::kModulo:
        return call(uses_.divides_small(n) ? "small_modulo" : "floored_modulo");
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
        if (uses_.converts_early(n)) return name(operand(n, 0), stage, "x");
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

  /// factor sign distance.
  std::string linear_product(const std::string& factor, int distance, Stage stage, const char* sign) const {
    return fmt::format("fmaf({0} * ({3}{1}.0f), k.o, {0} * ({3}{2}))", factor, uses_[distance].step,
                       name(distance, stage, "b"), sign);
  }

  /// An exact int32 as fp32, of the key `first + offset`.
  std::string expression_as_real(int i, Stage stage) const {
    const NodeUse& use = uses_[i];
    if (!use.is_linear || use.step == 0) return sum_as_real(node(i), stage, "x");
    const std::string offset = stage == kKeyStage ? "o" : "k.o";
    return fmt::format("{} + {}.0f * {}", name(i, stage, "b"), use.step, offset);
  }

  /// The same of other values of its operands: "x", or "b" of the key `first`.
  std::string sum_as_real(const Node& n, Stage stage, const char* letter) const {
    const auto x = [&](int k) {
      const NodeUse& of = uses_[operand(n, k)];
      return name(operand(n, k), stage, of.is_linear && of.step != 0 ? letter : "x");
    };
    switch (n.op) {
      case Op::kConstant:
        return real_text(static_cast<float>(n.integer));
      case Op::kVariable:
        if (static_cast<Variable>(n.index) == Variable::kKey) return "static_cast<float>(first)";
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

  /// A tanh's argument in the units that small_tanh() takes.
  std::string tanh_argument(const Node& tanh) const {
    const int argument = operand(tanh, 0);
    const int of_score = uses_.tanh_unit_of(tanh);
    const auto is_score = [&](int i) { return node(i).op == Op::kScore; };
    if (of_score == Program::kNone) {
      return is_score(argument) ? "product * (scale * kPerTanhUnit)"
                                : fmt::format("{} * kPerTanhUnit", name(argument, kPairStage));
    }
    const int x = operand(node(argument), of_score);
    const std::string unit = name(operand(node(argument), 1 - of_score), kPairStage,
                                  node(argument).op == Op::kDivide ? "quotient" : "factor");
    return is_score(x) ? fmt::format("product * (scale * {})", unit)
                       : fmt::format("{} * {}", name(x, kPairStage), unit);
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

  /// Lines that compute node i where it is needed. declare(type, letter): what a value's line starts with.
  template <class Declare>
  std::string lines_of(int i, Stage stage, Declare declare) const {
    const NodeUse& use = uses_[i];
    const Node& n = node(i);
    std::string text;
    const auto add = [&](const char* type, const char* letter, const std::string& value) {
      text += fmt::format("  {} = {};\n", declare(type, letter), value);
    };
    if (use.needed && uses_.is_score_tanh(i)) {
      add("float", "y", tanh_argument(n));
      add("float", "v",
          fmt::format("kTanhIsSmall ? small_tanh(y{0}) : tanh_without_branches(y{0} * kTanhUnit)", i));
    } else if (use.needed) {
      add(type_text(n.type), "v", expression(n, stage));
    }
    if (use.needed_as_real && use.is_linear && use.step != 0) add("float", "b", sum_as_real(n, stage, "b"));
    if (use.needed_as_real) add("float", "x", expression_as_real(i, stage));
    return text;
  }

  /// The same of what only stored values are made of.
  template <class Declare>
  std::string lines_of_divisor(int i, Stage stage, Declare declare) const {
    const std::string v = name(i, stage);
    std::string text;
    const auto add = [&](const char* type, const char* letter, const std::string& value) {
      text += fmt::format("  {} = {};\n", declare(type, letter), value);
    };
    if (uses_[i].needed_inverse) add("ModifierReciprocal", "inverse", fmt::format("reciprocal_of({})", v));
    if (uses_[i].needed_tanh_unit) add("float", "factor", fmt::format("{} * kPerTanhUnit", v));
    if (uses_[i].needed_tanh_unit) add("float", "quotient", fmt::format("kPerTanhUnit / {}", v));
    return text;
  }

  struct Part {
    const char *structure, *function;
    Stage stage;
    const char* before;  // what it takes of the parts before it
    const char* parameters;
  };

  /// Two structs of a stage's values and the functions that compute them: of those that take long, and of
  /// all, which reads these from the first.
  std::string part(const Part& p) const {
    std::string members, lines, results, stored_members, stored_lines, stored_results;
    const auto add_to = [](std::string& members_of, std::string& results_of, const char* type,
                           const char* letter, int i) {
      members_of += fmt::format("  {} {}{};\n", type, letter, i);
      results_of += fmt::format("{}{}{}", results_of.empty() ? "" : ", ", letter, i);
    };
    if (p.stage == kKeyStage) {
      members = "  float o;\n";
      lines = stored_lines = "  [[maybe_unused]] const float o = static_cast<float>(offset);\n";
      results = "o";
    }
    for (int i = 0; i < num_nodes(); ++i) {
      if (stage_of(node(i).rank) != p.stage) continue;
      const NodeUse& use = uses_[i];
      stored_lines += lines_of(i, p.stage, [&](const char* type, const char* letter) {
        return fmt::format("[[maybe_unused]] const {} {}{}", type, letter, i);
      });
      const auto declare_stored = [&](const char* type, const char* letter) {
        add_to(stored_members, stored_results, type, letter, i);
        add_to(members, results, type, letter, i);
        lines += fmt::format("  const {0} {1}{2} = stored.{1}{2};\n", type, letter, i);
        return fmt::format("const {} {}{}", type, letter, i);
      };
      if (!use.is_stored) {
        lines += lines_of(i, p.stage, [&](const char* type, const char* letter) {
          add_to(members, results, type, letter, i);
          return fmt::format("const {} {}{}", type, letter, i);
        });
      } else if (use.is_member) {
        declare_stored(type_text(node(i).type), "v");
      }
      stored_lines += lines_of_divisor(i, p.stage, declare_stored);
    }
    return fmt::format(
        "struct ModifierStored{0} {{\n{1}}};\n"
        "TESSERA_DEVICE ModifierStored{0} modifier_stored_{2}([[maybe_unused]] const ModifierArguments& m"
        "{3}{4}) {{\n{5}  return {{{6}}};\n}}\n"
        "struct Modifier{0} {{\n{7}}};\n"
        "TESSERA_DEVICE Modifier{0} modifier_{2}([[maybe_unused]] const ModifierArguments& m{3}{4}, "
        "[[maybe_unused]] const ModifierStored{0}& stored) {{\n{8}  return {{{9}}};\n}}\n\n",
        p.structure, stored_members, p.function, p.before, p.parameters, stored_lines, stored_results,
        members, lines, results);
  }

  /// Whether the nodes that some roots are made of have a value that takes long and is a row's or a key's.
  bool reads_stored(const std::vector<bool>& of_roots) const {
    for (int i = 0; i < num_nodes(); ++i) {
      const bool is_stored = uses_[i].is_member || uses_[i].needed_inverse;
      if (of_roots[static_cast<std::size_t>(i)] && is_stored && stage_of(node(i).rank) != kUniformStage)
        return true;
    }
    return false;
  }

  std::vector<bool> nodes_of(const std::vector<int>& roots) const {
    std::vector<bool> of_roots(program_.nodes.size(), false);
    for (const int root : roots) of_roots[static_cast<std::size_t>(root)] = true;
    for (int i = num_nodes(); i-- > 0;) {
      if (!of_roots[static_cast<std::size_t>(i)]) continue;
      for (int k = 0; k < node(i).num_operands; ++k)
        of_roots[static_cast<std::size_t>(operand(node(i), k))] = true;
    }
    return of_roots;
  }

  /// A function of a pair, or of its score, that computes some roots.
  std::string function(const char* name, const char* parameters, const std::vector<int>& roots,
                       const std::string& result) const {
    const std::vector<bool> of_roots = nodes_of(roots);
    std::string lines;
    for (int i = 0; i < num_nodes(); ++i) {
      if (!of_roots[static_cast<std::size_t>(i)] || stage_of(node(i).rank) != kPairStage) continue;
      lines += lines_of(i, kPairStage, [&](const char* type, const char* letter) {
        return fmt::format("[[maybe_unused]] const {} {}{}", type, letter, i);
      });
    }
    return fmt::format(
        "TESSERA_DEVICE {}([[maybe_unused]] const ModifierArguments& m, "
        "[[maybe_unused]] const ModifierUniform& u, [[maybe_unused]] const ModifierRow& r, "
        "[[maybe_unused]] const ModifierKey& k{}) {{\n{}{}  return {};\n}}\n\n",
        name, parameters, *parameters == '\0' ? "  [[maybe_unused]] constexpr int kSide = 0;\n" : "", lines,
        result);
  }

  /// The functions of scores, and what callers know of them.
  std::string scores() const {
    constexpr const char* kParameters = ", [[maybe_unused]] float product, [[maybe_unused]] float scale";
    const std::vector<int> roots = roots_of(program_.score);
    const std::vector<bool> of_score = nodes_of(roots);
    std::vector<int> tanhs;
    std::string bits = "0u";
    for (int i = 0; i < num_nodes(); ++i) {
      if (!of_score[static_cast<std::size_t>(i)] || !uses_.is_score_tanh(i)) continue;
      tanhs.push_back(i);
      bits += fmt::format(" | bits_of_float(y{})", i);
    }
    std::string text = fmt::format(
        "constexpr bool kModifierHasTanh = {};\nconstexpr bool kModifierScoreReadsStored = {};\n"
        "constexpr bool kModifierMaskReadsStored = {};\n\n",
        !tanhs.empty(), reads_stored(of_score), reads_stored(nodes_of(roots_of(program_.visible))));
    const int distance = uses_.signed_distance();
    text += fmt::format("constexpr bool kModifierHasDistance = {};\n", distance != Program::kNone);
    text += function("float modifier_distance", "", roots_of(distance),
                     distance == Program::kNone ? "0.0f" : name(distance, kPairStage, "x"));
    text += "template <bool kTanhIsSmall, int kSide>\n" +
            function("unsigned modifier_tanh_bits", kParameters, tanhs, bits);
    text += "template <bool kTanhIsSmall, int kSide>\n" +
            function("float modifier_scaled_score", kParameters, roots,
                     program_.score == Program::kNone ? "product * scale" : name(program_.score, kPairStage));
    return text +
           "TESSERA_DEVICE float modifier_score(const ModifierArguments& m, const ModifierUniform& u, "
           "const ModifierRow& r, const ModifierKey& k, float score) {\n"
           "  return modifier_scaled_score<false, 0>(m, u, r, k, score, 1.0f);\n}\n\n";
  }

  const Program& program_;
  NodeUses uses_;
};

}  // namespace

std::string kernel_text(const Program& program, const KernelTextOptions& options) {
  return Printer(program, options).print();
}

}  // namespace tessera::modifier
