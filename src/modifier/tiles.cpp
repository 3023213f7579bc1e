#include "modifier/tiles.h"

#include <algorithm>

#include "modifier/bounds.h"

namespace tessera::modifier {
namespace {

using Range = Interval<std::int64_t>;

constexpr Range kMaybe = {0, 1}, kNo = {0, 0}, kYes = {1, 1};

/// Elements of a tensor that are looked at for one tile.
constexpr std::int64_t kMostElements = 1 << 14;

bool is_int32(Range range) { return range.lo >= kAnyInt32.lo && range.hi <= kAnyInt32.hi; }

template <class T>
Range range_of_elements(const T* data, std::int64_t count, std::int64_t stride) {
  T lo = data[0], hi = data[0];
  if (stride == 1) {
    for (std::int64_t i = 1; i < count; ++i) {
      lo = std::min(lo, data[i]);
      hi = std::max(hi, data[i]);
    }
  } else {
    for (std::int64_t i = 1; i < count; ++i) {
      lo = std::min(lo, data[i * stride]);
      hi = std::max(hi, data[i * stride]);
    }
  }
  return {lo, hi};
}

}  // namespace

TileClassifier::TileClassifier(const Program& program, const ScoreModifier& modifier)
    : modifier_(modifier), step_of_(program.nodes.size(), -1), root_(program.visible) {
  for (const Node& node : program.nodes) types_.push_back(node.type);
  if (root_ == Program::kNone) return;
  std::vector<bool> needed(program.nodes.size(), false);
  needed[static_cast<std::size_t>(root_)] = true;
  for (std::size_t i = program.nodes.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (int k = 0; k < program.nodes[i].num_operands; ++k)
      needed[static_cast<std::size_t>(program.nodes[i].operands[static_cast<std::size_t>(k)])] = true;
  }
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    // Nothing is known of fp32.
    if (!needed[i] || program.nodes[i].type == Type::kFloat32) continue;
    Step step;
    step.node = program.nodes[i];
    step.index = static_cast<int>(i);
    step.sums = collect(step.node, step.sum);
    step_of_[i] = static_cast<int>(steps_.size());
    steps_.push_back(std::move(step));
  }
}

/// The sum that a node is, if it is one.
const TileClassifier::Sum* TileClassifier::sum_of(int node) const {
  const int step = step_of_[static_cast<std::size_t>(node)];
  if (step < 0 || !steps_[static_cast<std::size_t>(step)].sums) return nullptr;
  return &steps_[static_cast<std::size_t>(step)].sum;
}

/// A node as a sum of earlier ones: of itself alone if it is no sum. A comparison's is left - right. False
/// if there is none, or not within the factors' bounds.
bool TileClassifier::collect(const Node& node, Sum& sum) const {
  bool fits = true;
  const auto add_scaled = [&](int operand, std::int64_t factor) {
    Sum alone;
    alone.terms = {{operand, 1}};
    const int step = step_of_[static_cast<std::size_t>(operand)];
    const bool is_sum = steps_[static_cast<std::size_t>(step)].sums;
    const Sum& other = is_sum ? steps_[static_cast<std::size_t>(step)].sum : alone;
    sum.constant += factor * other.constant;
    fits &= std::abs(sum.constant) <= kLargestConstant / kMaxNodes;
    for (const Term& term : other.terms) {
      const auto place = std::lower_bound(sum.terms.begin(), sum.terms.end(), term.node,
                                          [](const Term& t, int n) { return t.node < n; });
      if (place == sum.terms.end() || place->node != term.node) {
        fits &= std::abs(factor * term.factor) <= kLargestFactor;
        sum.terms.insert(place, {term.node, factor * term.factor});
        continue;
      }
      place->factor += factor * term.factor;
      fits &= std::abs(place->factor) <= kLargestFactor;
      if (place->factor == 0) sum.terms.erase(place);
    }
  };
  const int a = node.operands[0], b = node.operands[1];
  const auto constant_of = [&](int operand) -> const Sum* {
    const Sum* s = sum_of(operand);
    return s != nullptr && s->terms.empty() && std::abs(s->constant) <= kLargestFactor ? s : nullptr;
  };
  switch (node.op) {
    case Op::kConstant:
      if (node.type != Type::kInt32) return false;
      sum.constant = node.integer;
      return true;
    case Op::kScalar:
      sum.constant =
          static_cast<std::int64_t>(modifier_.scalars[static_cast<std::size_t>(node.index)].second);
      return true;
    case Op::kAdd:
    case Op::kSubtract:
      add_scaled(a, 1);
      add_scaled(b, node.op == Op::kAdd ? 1 : -1);
      return fits;
    case Op::kNegate:
      add_scaled(a, -1);
      return fits;
    case Op::kMultiply:
      if (const Sum* constant = constant_of(b)) {
        add_scaled(a, constant->constant);
        return fits;
      }
      if (const Sum* constant = constant_of(a)) {
        add_scaled(b, constant->constant);
        return fits;
      }
      return false;
    case Op::kLess:
    case Op::kLessEqual:
    case Op::kEqual:
    case Op::kNotEqual:
      // Of two conditions it has none: theirs are differences, not what they are.
      if (types_[static_cast<std::size_t>(a)] != Type::kInt32) return false;
      add_scaled(a, 1);
      add_scaled(b, -1);
      return fits;
    default:
      return false;
  }
}

TileClass TileClassifier::classify(const TileBounds& bounds) const {
  if (root_ == Program::kNone) return TileClass::kFull;
  std::array<Range, kMaxNodes> facts;
  for (const Step& step : steps_) {
    Range& fact = facts[static_cast<std::size_t>(step.index)];
    if (step.node.type == Type::kBool) {
      fact = bound_condition(step, facts.data());
    } else {
      fact = bound(step, bounds, facts.data());
      if (!is_int32(fact)) fact = kAnyInt32;  // it may have wrapped around
    }
  }
  const Range visible = facts[static_cast<std::size_t>(root_)];
  if (visible.lo == visible.hi) return visible.lo == 0 ? TileClass::kEmpty : TileClass::kFull;
  return TileClass::kMixed;
}

namespace {

Range bound_sum(std::int64_t constant, const auto& terms, const Range* facts) {
  Range sum = {constant, constant};
  for (const auto& term : terms) {
    const Range fact = facts[static_cast<std::size_t>(term.node)];
    const Range scaled = term.factor < 0 ? Range{term.factor * fact.hi, term.factor * fact.lo}
                                         : Range{term.factor * fact.lo, term.factor * fact.hi};
    sum = add(sum, scaled);
  }
  return sum;
}

}  // namespace

TileClassifier::Range TileClassifier::bound(const Step& step, const TileBounds& bounds,
                                            const Range* facts) const {
  const Node& node = step.node;
  if (step.sums) return bound_sum(step.sum.constant, step.sum.terms, facts);
  const auto fact = [&](int k) {
    return facts[static_cast<std::size_t>(node.operands[static_cast<std::size_t>(k)])];
  };
  switch (node.op) {
    case Op::kVariable:
      return bounds[static_cast<std::size_t>(node.index)];
    case Op::kLoad:
      return bound_load(node, facts);
    case Op::kAdd:
      return add(fact(0), fact(1));
    case Op::kSubtract:
      return subtract(fact(0), fact(1));
    case Op::kMultiply:
      return multiply(fact(0), fact(1));
    case Op::kNegate:
      return negate(fact(0));
    case Op::kDivide:
    case Op::kModulo: {
      // Within the call's lengths it can't be 0; within those that the tile's bounds allow it may.
      const Range divisor = fact(1);
      if (divisor.lo <= 0 && divisor.hi >= 0) return kAnyInt32;
      return node.op == Op::kDivide ? divide(fact(0), divisor) : modulo(fact(0), divisor);
    }
    case Op::kAbs:
      return absolute(fact(0));
    case Op::kMin:
      return smaller(fact(0), fact(1));
    case Op::kMax:
      return larger(fact(0), fact(1));
    case Op::kBit: {
      const Range word = fact(0), bit = fact(1);
      if (bit.hi < 0 || bit.lo > 31) return kNo;
      if (word.lo != word.hi || bit.lo != bit.hi) return kMaybe;
      const std::int64_t value = static_cast<std::uint32_t>(word.lo) >> bit.lo & 1u;
      return {value, value};
    }
    case Op::kSelect: {
      const Range condition = fact(0);
      if (condition.lo == condition.hi) return condition.lo != 0 ? fact(1) : fact(2);
      return hull(fact(1), fact(2));
    }
    case Op::kToInt:
      return types_[static_cast<std::size_t>(node.operands[0])] == Type::kBool ? fact(0) : kAnyInt32;
    default:
      return kAnyInt32;
  }
}

TileClassifier::Range TileClassifier::bound_condition(const Step& step, const Range* facts) const {
  const Node& node = step.node;
  const auto fact = [&](int k) {
    return facts[static_cast<std::size_t>(node.operands[static_cast<std::size_t>(k)])];
  };
  switch (node.op) {
    case Op::kLoad:
      return bound_load(node, facts);
    case Op::kAnd:
      return smaller(fact(0), fact(1));
    case Op::kOr:
      return larger(fact(0), fact(1));
    case Op::kNot:
      return {1 - fact(0).hi, 1 - fact(0).lo};
    case Op::kSelect: {
      const Range condition = fact(0);
      if (condition.lo == condition.hi) return condition.lo != 0 ? fact(1) : fact(2);
      return hull(fact(1), fact(2));
    }
    default:
      break;
  }
  if (types_[static_cast<std::size_t>(node.operands[0])] == Type::kFloat32) return kMaybe;
  // Operands hold what they hold, wrapped around or not, but the collected difference only what they hold if
  // they did not.
  Range difference = subtract(fact(0), fact(1));
  if (step.sums && fact(0).hi - fact(0).lo < kAnyInt32.hi && fact(1).hi - fact(1).lo < kAnyInt32.hi) {
    const Range collected = bound_sum(step.sum.constant, step.sum.terms, facts);
    difference = {greatest(difference.lo, collected.lo), least(difference.hi, collected.hi)};
  }
  switch (node.op) {
    case Op::kLess:
      return difference.hi < 0 ? kYes : difference.lo >= 0 ? kNo : kMaybe;
    case Op::kLessEqual:
      return difference.hi <= 0 ? kYes : difference.lo > 0 ? kNo : kMaybe;
    default:
      break;
  }
  const bool is_equal = node.op == Op::kEqual;
  if (difference.lo > 0 || difference.hi < 0) return is_equal ? kNo : kYes;
  if (difference.lo == 0 && difference.hi == 0) return is_equal ? kYes : kNo;
  return kMaybe;
}

TileClassifier::Range TileClassifier::bound_load(const Node& node, const Range* facts) const {
  const CapturedTensor& tensor = modifier_.tensors[static_cast<std::size_t>(node.index)];
  // One row of elements; that of all others that the indices reach is not looked at.
  std::array<std::int32_t, kMaxTensorRank> first = {};
  std::int64_t count = 1, stride = 0;
  const Range unknown = node.type == Type::kBool     ? kMaybe
                        : tensor.dtype == DType::kU8 ? Range{0, 255}
                                                     : kAnyInt32;
  for (int k = 0; k < node.num_operands; ++k) {
    const auto d = static_cast<std::size_t>(k);
    const Range index = facts[static_cast<std::size_t>(node.operands[d])];
    const std::int64_t last = tensor.sizes[d] - 1;
    const std::int64_t lo = least(greatest(index.lo, std::int64_t{0}), last);
    const std::int64_t hi = least(greatest(index.hi, std::int64_t{0}), last);
    first[d] = static_cast<std::int32_t>(lo);
    if (lo == hi || tensor.strides[d] == 0) continue;
    if (count > 1 || hi - lo >= kMostElements) return unknown;
    count = hi - lo + 1;
    stride = tensor.strides[d];
  }
  const std::int64_t offset = clamped_offset(tensor, first.data());
  if (tensor.dtype == DType::kI32)
    return range_of_elements(static_cast<const std::int32_t*>(tensor.data) + offset, count, stride);
  const auto* bytes = static_cast<const std::uint8_t*>(tensor.data) + offset;
  if (tensor.dtype == DType::kU8) return range_of_elements(bytes, count, stride);
  bool any = false, all = true;
  for (std::int64_t i = 0; i < count; ++i) {
    any |= bytes[i * stride] != 0;
    all &= bytes[i * stride] != 0;
  }
  return {all ? 1 : 0, any ? 1 : 0};
}

}  // namespace tessera::modifier
