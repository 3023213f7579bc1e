#include "modifier/ranges.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "modifier/bounds.h"
#include "tessera/error.h"

namespace tessera::modifier {
namespace {

using Range = Interval<std::int64_t>;

constexpr std::int64_t kMostInt32 = std::numeric_limits<std::int32_t>::max();

/// What an int32 node may be.
struct Bound {
  Range range = kAnyInt32;
  bool from_data = false;  ///< it depends on a tensor's contents or on fp32
};

class Checker {
 public:
  Checker(const ScoreModifier& modifier, const Parsed& parsed, const Lengths& lengths)
      : modifier_(modifier), parsed_(parsed), lengths_(lengths), bounds_(parsed.program.nodes.size()) {}

  void run() {
    for (std::size_t i = 0; i < bounds_.size(); ++i) {
      const Node& node = parsed_.program.nodes[i];
      if (node.type != Type::kInt32) continue;
      Bound& bound = bounds_[i];
      for (int k = 0; k < node.num_operands; ++k) bound.from_data |= of(node, k).from_data;
      bound.range = range(node, i, bound.from_data);
      if (bound.range.lo >= kAnyInt32.lo && bound.range.hi <= kAnyInt32.hi) continue;
      if (!bound.from_data) fail_overflow(i);
      bound.range = kAnyInt32;
    }
  }

 private:
  const Bound& of(const Node& node, int operand) const {
    return bounds_[static_cast<std::size_t>(node.operands[static_cast<std::size_t>(operand)])];
  }
  Range range_of(const Node& node, int operand) const { return of(node, operand).range; }

  Range range(const Node& node, std::size_t i, bool& from_data) const {
    const auto a = [&] { return range_of(node, 0); };
    const auto b = [&] { return range_of(node, 1); };
    switch (node.op) {
      case Op::kConstant:
        return {node.integer, node.integer};
      case Op::kScalar: {
        const auto value =
            static_cast<std::int64_t>(modifier_.scalars[static_cast<std::size_t>(node.index)].second);
        return {value, value};
      }
      case Op::kVariable:
        return variable(static_cast<Variable>(node.index));
      case Op::kAdd:
        return add(a(), b());
      case Op::kSubtract:
        return subtract(a(), b());
      case Op::kMultiply:
        return multiply(a(), b());
      case Op::kDivide:
        check_divisor(b(), i);
        return divide(a(), b());
      case Op::kModulo:
        check_divisor(b(), i);
        return modulo(a(), b());
      case Op::kNegate:
        return negate(a());
      case Op::kAbs:
        return absolute(a());
      case Op::kMin:
        return smaller(a(), b());
      case Op::kMax:
        return larger(a(), b());
      case Op::kBit:
        return {0, 1};
      case Op::kSelect:
        return hull(range_of(node, 1), range_of(node, 2));
      case Op::kToInt:
        if (operand_type(node) == Type::kBool) return {0, 1};
        from_data = true;
        return kAnyInt32;
      default:  // kLoad
        from_data = true;
        if (parsed_.program.tensors[static_cast<std::size_t>(node.index)].dtype == DType::kU8)
          return {0, 255};
        return kAnyInt32;
    }
  }

  Type operand_type(const Node& node) const {
    return parsed_.program.nodes[static_cast<std::size_t>(node.operands[0])].type;
  }

  /// Of those that a score is computed with: there is a query and a key then.
  Range variable(Variable variable) const {
    const auto below = [](std::int64_t count) { return Range{0, std::max<std::int64_t>(count - 1, 0)}; };
    const auto length = [](std::int64_t most) { return Range{1, std::max<std::int64_t>(most, 1)}; };
    switch (variable) {
      case Variable::kBatch:
        return below(lengths_.batch);
      case Variable::kHead:
        return below(lengths_.num_heads);
      case Variable::kKvHead:
        return below(lengths_.num_kv_heads);
      case Variable::kQuery:
        return below(lengths_.seq_len_q);
      case Variable::kKey:
        return below(lengths_.seq_len_kv);
      case Variable::kLenQ:
        return length(lengths_.seq_len_q);
      case Variable::kLenKv:
        return length(lengths_.seq_len_kv);
      case Variable::kShift:
        return hull(Range{0, 0}, subtract(length(lengths_.seq_len_kv), length(lengths_.seq_len_q)));
      case Variable::kNumHeads:
        return {lengths_.num_heads, lengths_.num_heads};
    }
    return kAnyInt32;
  }

  void check_divisor(Range divisor, std::size_t i) const {
    if (divisor.lo > 0 || divisor.hi < 0) return;
    const std::string which = divisor.lo == divisor.hi
                                  ? std::string("is 0")
                                  : fmt::format("may be 0: it is from {} to {} here", divisor.lo, divisor.hi);
    fail_at(modifier_, parsed_.positions[i],
            fmt::format("the divisor {}; expected one that can't be 0, such as max(x, 1)", which));
  }

  [[noreturn]] void fail_overflow(std::size_t i) const {
    const Range range = bounds_[i].range;
    const std::int64_t furthest = -range.lo > range.hi ? range.lo : range.hi;
    fail_at(
        modifier_, parsed_.positions[i],
        fmt::format("this reaches {}2^{:.0f} at these lengths (seq_len_q {}, seq_len_kv {}), beyond int32; "
                    "expected numbers below 2^31: divide first, or compute it in fp32 by float(x)",
                    furthest < 0 ? "-" : "", std::log2(std::abs(static_cast<double>(furthest))),
                    lengths_.seq_len_q, lengths_.seq_len_kv));
  }

  const ScoreModifier& modifier_;
  const Parsed& parsed_;
  const Lengths& lengths_;
  std::vector<Bound> bounds_;
};

}  // namespace

void check_ranges(const ScoreModifier& modifier, const Parsed& parsed, const Lengths& lengths) {
  for (const auto& [name, length] :
       {std::pair{"batch", lengths.batch}, std::pair{"seq_len_q", lengths.seq_len_q},
        std::pair{"seq_len_kv", lengths.seq_len_kv}}) {
    if (length <= kMostInt32) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; expected at most {} with scores.modifier, whose indices are int32",
                            name, length, kMostInt32));
  }
  Checker(modifier, parsed, lengths).run();
}

}  // namespace tessera::modifier
