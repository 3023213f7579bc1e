#include "modifier/node_uses.h"

#include <cstdint>
#include <cstdlib>

namespace tessera::modifier {
namespace {

constexpr int kMostLeaves = 8;

/// Operations of many instructions, or that wait for memory.
bool is_long(const Node& n) {
  switch (n.op) {
    case Op::kLoad:
    case Op::kModulo:
    case Op::kExp:
    case Op::kExp2:
    case Op::kLog:
    case Op::kLog2:
    case Op::kTanh:
    case Op::kSqrt:
      return true;
    case Op::kDivide:
      return true;
    default:
      return false;
  }
}

}  // namespace

NodeUses::NodeUses(const Program& program, const KernelTextOptions& options)
    : program_(program), options_(options), uses_(program.nodes.size()) {
  const int count = static_cast<int>(uses_.size());
  for (int i = 0; i < count; ++i) use(i) = analysed(node(i));
  find_signed_distance();
  for (const int root : {program.score, program.visible}) {
    if (root != Program::kNone) need(root, false);
  }
  for (int i = 0; i < count; ++i) store(i);
  for (int i = 0; i < count; ++i) {
    const Node& n = node(i);
    if (!uses_[static_cast<std::size_t>(i)].needed) continue;
    for (int k = 0; k < n.num_operands; ++k) {
      const bool is_in_stored_part =
          use(i).is_stored && stage_of(n.rank) == stage_of(node(operand(n, k)).rank);
      if (use(operand(n, k)).is_stored && !is_in_stored_part) use(operand(n, k)).is_member = true;
    }
  }
  for (const int root : {program.score, program.visible}) {
    if (root != Program::kNone && use(root).is_stored) use(root).is_member = true;
  }
}

NodeUse NodeUses::analysed(const Node& n) const {
  NodeUse result;
  result.has_score_tanh = n.op == Op::kTanh && n.rank == Rank::kScore;
  for (int k = 0; k < n.num_operands; ++k) result.has_score_tanh |= (*this)[operand(n, k)].has_score_tanh;
  if (n.type != Type::kInt32) return result;
  result.is_data = n.op == Op::kLoad || n.op == Op::kToInt;
  int leaves = 0;
  bool is_exact = true;
  bool is_linear = true;
  for (int k = 0; k < n.num_operands; ++k) {
    const NodeUse& of = (*this)[operand(n, k)];
    result.is_data |= of.is_data;
    is_exact &= of.leaves > 0;
    is_linear &= of.is_linear;
    leaves += of.leaves;
  }
  const auto step = [&](int k) { return (*this)[operand(n, k)].step; };
  const auto set = [&](int step_of_sum) {
    result.leaves = is_exact && leaves <= kMostLeaves ? leaves : 0;
    result.step = step_of_sum;
    result.is_linear = is_linear && result.leaves > 0;
  };
  switch (n.op) {
    case Op::kVariable:
      result.leaves = 1;
      result.is_linear = true;
      result.step = static_cast<Variable>(n.index) == Variable::kKey ? 1 : 0;
      break;
    case Op::kConstant:
      result.leaves = std::abs(static_cast<std::int64_t>(n.integer)) <= kMostExactIndex ? 1 : 0;
      result.is_linear = result.leaves > 0;
      break;
    case Op::kAdd:
      set(step(0) + step(1));
      break;
    case Op::kSubtract:
      set(step(0) - step(1));
      break;
    case Op::kNegate:
      set(-step(0));
      break;
    case Op::kAbs:
      is_linear = is_linear && step(0) == 0;
      set(0);
      break;
    case Op::kMin:
    case Op::kMax:
      is_linear = is_linear && step(0) == 0 && step(1) == 0;
      set(0);
      break;
    default:
      break;
  }
  return result;
}

bool NodeUses::converts_early(const Node& n) const {
  return n.op == Op::kToFloat && options_.has_small_indices && (*this)[operand(n, 0)].leaves > 0 &&
         node(operand(n, 0)).rank >= Rank::kQuery;
}

bool NodeUses::divides_small(const Node& n) const {
  const int leaves = (*this)[operand(n, 0)].leaves;
  return options_.has_small_indices && leaves > 0 && leaves <= 2 && n.rank > Rank::kQuery;
}

bool NodeUses::divides_by_inverse(const Node& n) const {
  return n.op == Op::kDivide && n.type == Type::kFloat32 &&
         stage_of(n.rank) != stage_of(node(operand(n, 1)).rank) && node(operand(n, 1)).rank < Rank::kPair;
}

bool NodeUses::wraps_around(const Node& n) const {
  for (int k = 0; k < n.num_operands; ++k) {
    if ((*this)[operand(n, k)].is_data) return true;
  }
  return false;
}

bool NodeUses::is_score_tanh(int i) const {
  const Node& n = node(i);
  return n.op == Op::kTanh && n.rank == Rank::kScore && !(*this)[operand(n, 0)].has_score_tanh;
}

int NodeUses::tanh_unit_of(const Node& tanh) const {
  const Node& argument = node(operand(tanh, 0));
  if (argument.op != Op::kMultiply && argument.op != Op::kDivide) return Program::kNone;
  const auto is_uniform = [&](int k) { return node(operand(argument, k)).rank == Rank::kUniform; };
  if (is_uniform(1)) return 0;
  return argument.op == Op::kMultiply && is_uniform(0) ? 1 : Program::kNone;
}

template <class IsDistance>
int NodeUses::factor_of(const Node& n, IsDistance is_distance) const {
  if (n.op != Op::kMultiply || n.type != Type::kFloat32 || n.rank != Rank::kPair) return Program::kNone;
  for (int k = 0; k < 2; ++k) {
    const Node& conversion = node(operand(n, k));
    if (!converts_early(conversion) || node(operand(n, 1 - k)).rank > Rank::kQuery) continue;
    if (is_distance(operand(conversion, 0))) return k;
  }
  return Program::kNone;
}

int NodeUses::linear_factor_of(const Node& n) const {
  return factor_of(n, [&](int i) { return (*this)[i].is_linear && (*this)[i].step != 0; });
}

int NodeUses::magnitude_factor_of(const Node& n) const {
  return factor_of(n, [&](int i) {
    return signed_distance_ != Program::kNone && node(i).op == Op::kAbs &&
           operand(node(i), 0) == signed_distance_;
  });
}

void NodeUses::find_signed_distance() {
  if (program_.score == Program::kNone) return;
  std::vector<bool> of_score(uses_.size(), false);
  of_score[static_cast<std::size_t>(program_.score)] = true;
  int found = Program::kNone;
  for (int i = program_.score; i >= 0; --i) {
    if (!of_score[static_cast<std::size_t>(i)]) continue;
    const Node& n = node(i);
    for (int k = 0; k < n.num_operands; ++k) of_score[static_cast<std::size_t>(operand(n, k))] = true;
    const int factor = factor_of(n, [&](int a) {
      return node(a).op == Op::kAbs && (*this)[operand(node(a), 0)].is_linear &&
             (*this)[operand(node(a), 0)].step != 0;
    });
    if (factor == Program::kNone) continue;
    const int distance = operand(node(operand(node(operand(n, factor)), 0)), 0);
    if (found != Program::kNone && found != distance) return;
    found = distance;
  }
  if (!(*this)[program_.score].has_score_tanh) signed_distance_ = found;
}

void NodeUses::need(int i, bool as_real) {
  NodeUse& present = use(i);
  bool& flag = as_real ? present.needed_as_real : present.needed;
  if (flag) return;
  flag = true;
  const Node& n = node(i);
  const bool operands_as_real = as_real || converts_early(n);
  if (is_score_tanh(i)) {
    if (const int of_score = tanh_unit_of(n); of_score != Program::kNone)
      use(operand(node(operand(n, 0)), 1 - of_score)).needed_tanh_unit = true;
  }
  for (int k = 0; k < n.num_operands; ++k) {
    if (k == 1 && divides_by_inverse(n)) use(operand(n, 1)).needed_inverse = true;
    need(operand(n, k), operands_as_real);
  }
}

void NodeUses::store(int i) {
  const Node& n = node(i);
  NodeUse& present = use(i);
  if (!present.needed || stage_of(n.rank) == kPairStage) return;
  // Products by a reciprocal are short.
  present.is_stored = is_long(n) && !divides_by_inverse(n);
  for (int k = 0; k < n.num_operands; ++k) {
    if (stage_of(node(operand(n, k)).rank) == stage_of(n.rank))
      present.is_stored |= use(operand(n, k)).is_stored;
  }
}

}  // namespace tessera::modifier
