#include "modifier/tile_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "modifier/bounds.h"

namespace tessera::modifier {
namespace {

struct Term {
  int node;
  std::int64_t factor;
};

/// constant + sum factor * term.
struct Sum {
  bool exists = false;
  std::int64_t constant = 0;
  std::vector<Term> terms;
};

class TilePrinter {
 public:
  explicit TilePrinter(const Program& program) : program_(program), sums_(program.nodes.size()) {}

  std::string print() {
    std::string lines;
    std::vector<bool> needed(program_.nodes.size(), false);
    if (program_.visible != Program::kNone) needed[static_cast<std::size_t>(program_.visible)] = true;
    for (int i = static_cast<int>(program_.nodes.size()); i-- > 0;) {
      if (!needed[static_cast<std::size_t>(i)]) continue;
      for (int k = 0; k < node(i).num_operands; ++k)
        needed[static_cast<std::size_t>(operand(node(i), k))] = true;
    }
    for (int i = 0; i < static_cast<int>(program_.nodes.size()); ++i) {
      // Nothing is known of fp32.
      if (!needed[static_cast<std::size_t>(i)] || node(i).type == Type::kFloat32) continue;
      sums_[static_cast<std::size_t>(i)] = collected(node(i));
      const std::string range =
          node(i).type == Type::kBool ? condition(i) : fmt::format("range_of_int32({})", number(i));
      lines += fmt::format("  [[maybe_unused]] const ModifierRange v{} = {};\n", i, range);
    }
    return fmt::format(
        "constexpr bool kModifierHasMask = {};\n\n"
        "TESSERA_DEVICE ModifierRange modifier_tile([[maybe_unused]] const ModifierArguments& m, "
        "[[maybe_unused]] const ModifierPlace& place, [[maybe_unused]] ModifierRange queries, "
        "[[maybe_unused]] ModifierRange keys, [[maybe_unused]] ModifierRange heads) {{\n{}  return "
        "{};\n}}\n\n",
        program_.visible != Program::kNone, lines,
        program_.visible == Program::kNone ? std::string("range_of_number(1)")
                                           : fmt::format("v{}", program_.visible));
  }

 private:
  const Node& node(int i) const { return program_.nodes[static_cast<std::size_t>(i)]; }
  static int operand(const Node& n, int k) { return n.operands[static_cast<std::size_t>(k)]; }

  /// A node as a sum of others; a comparison as that of left - right.
  Sum collected(const Node& n) const {
    Sum sum;
    sum.exists = true;
    const auto add_scaled = [&](int i, std::int64_t factor) {
      const Sum& of = sums_[static_cast<std::size_t>(i)];
      const Sum alone = {true, 0, {{i, 1}}};
      const Sum& other = of.exists ? of : alone;
      sum.constant += other.constant * factor;
      sum.exists &= std::abs(sum.constant) <= kLargestConstant;
      for (const Term& term : other.terms) {
        const auto found = std::ranges::find(sum.terms, term.node, &Term::node);
        if (found == sum.terms.end()) {
          sum.terms.push_back({term.node, term.factor * factor});
        } else {
          found->factor += term.factor * factor;
        }
      }
      for (const Term& term : sum.terms) sum.exists &= std::abs(term.factor) <= kLargestFactor;
      std::erase_if(sum.terms, [](const Term& term) { return term.factor == 0; });
    };
    const auto constant_of = [&](int i) -> const Sum* {
      const Sum& of = sums_[static_cast<std::size_t>(i)];
      return of.exists && of.terms.empty() && std::abs(of.constant) <= kLargestFactor ? &of : nullptr;
    };
    switch (n.op) {
      case Op::kConstant:
        sum.constant = n.integer;
        return sum;
      case Op::kAdd:
      case Op::kSubtract:
        add_scaled(operand(n, 0), 1);
        add_scaled(operand(n, 1), n.op == Op::kAdd ? 1 : -1);
        return sum;
      case Op::kNegate:
        add_scaled(operand(n, 0), -1);
        return sum;
      case Op::kMultiply:
        for (const int k : {1, 0}) {
          const Sum* constant = constant_of(operand(n, k));
          if (constant == nullptr) continue;
          add_scaled(operand(n, 1 - k), constant->constant);
          return sum;
        }
        break;
      case Op::kLess:
      case Op::kLessEqual:
      case Op::kEqual:
      case Op::kNotEqual:
        if (node(operand(n, 0)).type != Type::kInt32) break;
        add_scaled(operand(n, 0), 1);
        add_scaled(operand(n, 1), -1);
        return sum;
      default:
        break;
    }
    sum.exists = false;
    return sum;
  }

  static std::string text_of(const Sum& sum) {
    std::string lo = fmt::format("{}", sum.constant), hi = lo;
    for (const Term& term : sum.terms) {
      const bool is_positive = term.factor > 0;
      lo += fmt::format(" + int64{{{}}} * v{}.{}", term.factor, term.node, is_positive ? "lo" : "hi");
      hi += fmt::format(" + int64{{{}}} * v{}.{}", term.factor, term.node, is_positive ? "hi" : "lo");
    }
    return fmt::format("ModifierRange{{{}, {}}}", lo, hi);
  }

  std::string call(const char* function, const Node& n) const {
    std::string text = fmt::format("{}(v{}", function, operand(n, 0));
    for (int k = 1; k < n.num_operands; ++k) text += fmt::format(", v{}", operand(n, k));
    return text + ")";
  }

  std::string number(int i) const {
    const Node& n = node(i);
    const Sum& sum = sums_[static_cast<std::size_t>(i)];
    if (sum.exists) return text_of(sum);
    switch (n.op) {
      case Op::kScalar:
        return fmt::format("range_of_number(m.integers[{}])", n.index);
      case Op::kVariable:
        return variable(static_cast<Variable>(n.index));
      case Op::kLoad:
        return load(n);
      case Op::kAdd:
        return call("modifier::add", n);
      case Op::kSubtract:
        return call("modifier::subtract", n);
      case Op::kMultiply:
        return call("modifier::multiply", n);
      case Op::kNegate:
        return call("modifier::negate", n);
      case Op::kDivide:
        return call("range_of_quotient", n);
      case Op::kModulo:
        return call("range_of_rest", n);
      case Op::kAbs:
        return call("modifier::absolute", n);
      case Op::kMin:
        return call("modifier::smaller", n);
      case Op::kMax:
        return call("modifier::larger", n);
      case Op::kBit:
        return call("range_of_bit", n);
      case Op::kSelect:
        return call("range_of_choice", n);
      case Op::kToInt:
        if (node(operand(n, 0)).type == Type::kBool) return fmt::format("v{}", operand(n, 0));
        return "any_int32()";
      default:
        return "any_int32()";
    }
  }

  std::string condition(int i) const {
    const Node& n = node(i);
    switch (n.op) {
      case Op::kLoad:
        return load(n);
      case Op::kAnd:
        return call("modifier::smaller", n);
      case Op::kOr:
        return call("modifier::larger", n);
      case Op::kNot:
        return call("range_of_not", n);
      case Op::kSelect:
        return call("range_of_choice", n);
      default:
        break;
    }
    if (node(operand(n, 0)).type == Type::kFloat32) return "ModifierRange{0, 1}";
    const Sum& sum = sums_[static_cast<std::size_t>(i)];
    const std::string difference = sum.exists ? fmt::format("range_of_difference(v{}, v{}, {})",
                                                            operand(n, 0), operand(n, 1), text_of(sum))
                                              : call("modifier::subtract", n);
    if (n.op == Op::kLess) return fmt::format("range_of_less({})", difference);
    if (n.op == Op::kLessEqual) return fmt::format("range_of_less_equal({})", difference);
    if (n.op == Op::kEqual) return fmt::format("range_of_equal({})", difference);
    return fmt::format("range_of_not(range_of_equal({}))", difference);
  }

  std::string load(const Node& n) const {
    const DType dtype = program_.tensors[static_cast<std::size_t>(n.index)].dtype;
    const char* element = dtype == DType::kI32 ? "load_i32" : dtype == DType::kU8 ? "load_u8" : "load_bool";
    const char* unknown = dtype == DType::kI32  ? "any_int32()"
                          : dtype == DType::kU8 ? "ModifierRange{0, 255}"
                                                : "ModifierRange{0, 1}";
    if (n.num_operands == 0) return fmt::format("range_of_number({}(m.tensors[{}], 0))", element, n.index);
    std::string indices;
    for (int k = 0; k < n.num_operands; ++k)
      indices += fmt::format("{}v{}", k == 0 ? "" : ", ", operand(n, k));
    return fmt::format(
        "range_of_elements<{0}>(m.tensors[{1}], m.blocks[{1}], {{{2}}}, {3}, "
        "[&](int64 at) {{ return {4}(m.tensors[{1}], at); }})",
        n.num_operands, n.index, indices, unknown, element);
  }

  static std::string variable(Variable variable) {
    switch (variable) {
      case Variable::kBatch:
        return "range_of_number(place.b)";
      case Variable::kHead:
        return "heads";
      case Variable::kKvHead:
        return "range_of_number(place.kv_h)";
      case Variable::kQuery:
        return "queries";
      case Variable::kKey:
        return "keys";
      case Variable::kLenQ:
        return "range_of_number(place.len_q)";
      case Variable::kLenKv:
        return "range_of_number(place.len_kv)";
      case Variable::kShift:
        return "range_of_number(place.shift)";
      case Variable::kNumHeads:
        return "range_of_number(place.num_heads)";
    }
    return {};
  }

  const Program& program_;
  std::vector<Sum> sums_;
};

}  // namespace

std::string tile_text(const Program& program) { return TilePrinter(program).print(); }

}  // namespace tessera::modifier
