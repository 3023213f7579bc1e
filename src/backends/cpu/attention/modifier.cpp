#include "backends/cpu/attention/modifier.h"

#include <algorithm>
#include <bit>

#include "attention/modifier.h"
#include "backends/cpu/attention/kernels.h"

namespace tessera::cpu {
namespace {

using modifier::Node;
using modifier::Op;
using modifier::Rank;
using modifier::TileClass;
using modifier::Type;
using modifier::Variable;

/// Keys that are told apart where a block of them is neither empty nor full.
constexpr std::int64_t kClassifiedKeys = 32;

/// The number as the interpreter's arrays hold it.
float array_element(const modifier::Evaluator<float>& evaluator, std::size_t node, Type type) {
  if (type == Type::kFloat32) return evaluator.real_of(node);
  const std::int32_t integer = evaluator.integer_of(node);
  return std::bit_cast<float>(type == Type::kBool ? -integer : integer);
}

/// `needed` and all that it is computed from.
std::vector<bool> with_operands(const modifier::Program& program, std::vector<bool> needed) {
  for (std::size_t i = program.nodes.size(); i-- > 0;) {
    if (!needed[i]) continue;
    const Node& node = program.nodes[i];
    for (int k = 0; k < node.num_operands; ++k)
      needed[static_cast<std::size_t>(node.operands[static_cast<std::size_t>(k)])] = true;
  }
  return needed;
}

std::vector<bool> needed_for(const modifier::Program& program, int root) {
  std::vector<bool> needed(program.nodes.size(), false);
  if (root != modifier::Program::kNone) needed[static_cast<std::size_t>(root)] = true;
  return with_operands(program, std::move(needed));
}

/// Ranks with the head counted as a row's.
std::vector<Rank> ranks_of_rows(const modifier::Program& program) {
  std::vector<Rank> ranks;
  for (const Node& node : program.nodes) {
    Rank rank = node.op == Op::kVariable || node.op == Op::kScore ? node.rank : Rank::kUniform;
    if (node.op == Op::kVariable && static_cast<Variable>(node.index) == Variable::kHead) rank = Rank::kQuery;
    for (int k = 0; k < node.num_operands; ++k)
      rank = join(rank, ranks[static_cast<std::size_t>(node.operands[static_cast<std::size_t>(k)])]);
    ranks.push_back(rank);
  }
  return ranks;
}

modifier::Interval<std::int64_t> heads_of(const CallContext& call, const TileTask& task,
                                          std::int64_t row_begin, std::int64_t row_end) {
  if (row_end - row_begin == 1) {
    const int head = head_of_row(call, task, row_begin);
    return {head, head};
  }
  return {std::int64_t{task.kv_head} * call.group, std::int64_t{task.kv_head} * call.group + call.group - 1};
}

/// How many steps and roots read each array.
std::vector<int> count_uses(const ModifierPlan& plan) {
  std::vector<int> uses(static_cast<std::size_t>(plan.num_arrays), 0);
  for (const ModifierStep& step : plan.steps) {
    for (int k = 0; k < step.num_operands; ++k)
      ++uses[static_cast<std::size_t>(step.operands[static_cast<std::size_t>(k)])];
  }
  for (const std::int16_t root : {plan.score, plan.visible}) {
    if (root >= 0) ++uses[static_cast<std::size_t>(root)];
  }
  return uses;
}

/// Makes one step of those that often follow one another, where nothing else reads what lies between:
/// float(abs(a - b)) of int32, and a +- b * c of fp32.
void fuse_steps(ModifierPlan& plan) {
  const std::vector<int> uses = count_uses(plan);
  std::vector<ModifierStep> fused;
  const auto step_of = [&](std::int16_t array) {
    const bool is_read_once = uses[static_cast<std::size_t>(array)] == 1;
    const auto found =
        std::find_if(fused.begin(), fused.end(), [&](const ModifierStep& s) { return s.result == array; });
    return is_read_once ? found : fused.end();
  };
  for (ModifierStep step : plan.steps) {
    const bool is_abs = step.op == Op::kAbs && step.type == Type::kInt32;
    if (is_abs || step.op == Op::kToFloat) {
      const auto before = step_of(step.operands[0]);
      const ModifierFinish wanted = is_abs ? ModifierFinish::kNone : ModifierFinish::kAbs;
      if (before != fused.end() && before->op == Op::kSubtract && before->operand_type == Type::kInt32 &&
          before->finish == wanted) {
        before->finish = is_abs ? ModifierFinish::kAbs : ModifierFinish::kAbsToFloat;
        before->result = step.result;
        continue;
      }
    }
    const bool is_sum = (step.op == Op::kAdd || step.op == Op::kSubtract) && step.type == Type::kFloat32;
    if (is_sum && !step.by_key[0] && !step.by_key[1]) {
      const auto before = step_of(step.operands[1]);
      if (before != fused.end() && before->op == Op::kMultiply && !before->by_key[0] && !before->by_key[1]) {
        step.operands[1] = before->operands[0];
        step.operands[2] = before->operands[1];
        step.num_operands = 3;
        step.multiplies = true;
        fused.erase(before);
      }
    }
    fused.push_back(step);
  }
  plan.steps = std::move(fused);
}

/// A node as a step, of operands in `array`.
ModifierStep step_of(const modifier::Program& program, const Node& node,
                     const std::vector<std::int16_t>& array) {
  ModifierStep step;
  step.op = node.op;
  step.type = node.type;
  step.num_operands = node.num_operands;
  for (std::size_t k = 0; k < node.num_operands; ++k)
    step.operands[k] = array[static_cast<std::size_t>(node.operands[k])];
  step.operand_type = program.nodes[static_cast<std::size_t>(node.operands[0])].type;
  step.tensor = static_cast<std::int16_t>(node.index);
  return step;
}

/// The part of a plan that key leaves are computed by.
void plan_keys(const modifier::Program& program, const std::vector<Rank>& ranks, ModifierPlan& plan) {
  const std::size_t count = program.nodes.size();
  std::vector<bool> is_leaf(count, false);
  for (const ModifierPlan::Leaf& leaf : plan.key_leaves) is_leaf[leaf.node] = true;
  const std::vector<bool> needed = with_operands(program, std::move(is_leaf));
  std::vector<std::int16_t> array(count, -1);
  for (std::size_t i = 0; i < count; ++i) {
    const Node& node = program.nodes[i];
    if (!needed[i]) continue;
    array[i] = plan.num_key_arrays++;
    if (ranks[i] == Rank::kUniform) {
      plan.key_nodes.push_back(i);
      plan.key_inputs.push_back({i, array[i]});
      plan.keys_differ_by_head |=
          node.op == Op::kVariable && static_cast<Variable>(node.index) == Variable::kKvHead;
    } else if (node.op == Op::kVariable) {
      plan.key_index = array[i];
    } else {
      ModifierStep step = step_of(program, node, array);
      step.result = array[i];
      step.for_score = true;
      plan.key_steps.push_back(step);
    }
  }
  for (ModifierPlan::Leaf& leaf : plan.key_leaves) leaf.key_array = array[leaf.node];
}

}  // namespace

ModifierPlan plan_modifier(modifier::Program program) {
  ModifierPlan plan;
  const std::vector<Rank> ranks = ranks_of_rows(program);
  const std::vector<bool> for_visible = needed_for(program, program.visible),
                          for_score = needed_for(program, program.score);
  const std::size_t count = program.nodes.size();
  // Nodes of rows and keys that a step reads, or that are roots themselves.
  std::vector<bool> is_leaf(count, false);
  for (std::size_t i = 0; i < count; ++i) {
    if (ranks[i] < Rank::kPair) continue;
    for (int k = 0; k < program.nodes[i].num_operands; ++k)
      is_leaf[static_cast<std::size_t>(program.nodes[i].operands[static_cast<std::size_t>(k)])] = true;
  }
  std::vector<bool> is_root(count, false);
  for (const int root : {program.score, program.visible}) {
    if (root != modifier::Program::kNone)
      is_root[static_cast<std::size_t>(root)] = is_leaf[static_cast<std::size_t>(root)] = true;
  }
  std::vector<std::int16_t> array(count, -1);
  for (std::size_t i = 0; i < count; ++i) {
    const Node& node = program.nodes[i];
    array[i] = plan.num_arrays;
    if (ranks[i] == Rank::kUniform || ranks[i] == Rank::kQuery) {
      plan.row_nodes.push_back(i);
      if (is_leaf[i]) plan.row_leaves.push_back({i, plan.num_arrays++});
    } else if (ranks[i] == Rank::kKey) {
      if (is_leaf[i]) plan.key_leaves.push_back({i, plan.num_arrays++, false, is_root[i]});
    } else if (node.op == Op::kScore) {
      plan.score_input = plan.num_arrays++;
    } else {
      ModifierStep step = step_of(program, node, array);
      step.result = plan.num_arrays++;
      std::array<bool, 2> is_key = {};
      for (std::size_t d = 0; d < 2 && d < node.num_operands; ++d)
        is_key[d] = ranks[static_cast<std::size_t>(node.operands[d])] == Rank::kKey;
      const bool is_integer_quotient =
          node.type == Type::kInt32 && (node.op == Op::kDivide || node.op == Op::kModulo);
      if (node.op == Op::kSelect || node.op == Op::kLoad || is_integer_quotient) {
        for (ModifierPlan::Leaf& leaf : plan.key_leaves) {
          const auto operands = step.operands.begin();
          leaf.needs_array |=
              std::find(operands, operands + node.num_operands, leaf.array) != operands + node.num_operands;
        }
      } else {
        step.by_key = is_key;
      }
      const auto divisor = static_cast<std::size_t>(node.operands[1]);
      if (node.op == Op::kDivide && node.type == Type::kFloat32 && ranks[divisor] <= Rank::kQuery) {
        // Within 2 units in the last place of the quotient, at a fraction of the time.
        step.op = Op::kMultiply;
        step.operands[1] = plan.num_arrays++;
        plan.row_leaves.push_back({divisor, step.operands[1], true});
      }
      step.for_visible = for_visible[i];
      step.for_score = for_score[i];
      plan.steps.push_back(step);
    }
  }
  if (program.score != modifier::Program::kNone) plan.score = array[static_cast<std::size_t>(program.score)];
  if (program.visible != modifier::Program::kNone)
    plan.visible = array[static_cast<std::size_t>(program.visible)];
  fuse_steps(plan);
  plan_keys(program, ranks, plan);
  plan.program = std::move(program);
  return plan;
}

TileModifier::TileModifier(const CallContext& call, std::int64_t num_groups, std::int64_t row_stride)
    : call_(call),
      row_stride_(row_stride),
      keys_at_once_(kModifierChunk / row_stride),
      evaluator_(call.modifier->plan.program, call.modifier->modifier),
      variables_(static_cast<std::size_t>(num_groups)),
      key_stride_(std::int64_t{call.shape.block_n} + 32),
      keys_(static_cast<std::size_t>(call.modifier->plan.num_arrays)),
      reads_by_key_(row_stride % kernel_table(call.target).lanes == 0) {
  const ModifierPlan& plan = call.modifier->plan;
  row_arrays_.resize(static_cast<std::size_t>(num_groups) * plan.row_leaves.size() * kArray);
  key_values_.resize(static_cast<std::size_t>(plan.num_key_arrays * key_stride_));
  for (std::int64_t i = 0; i < plan.num_key_arrays; ++i)
    key_pointers_.push_back(key_values_.data() + i * key_stride_);
  arrays_.resize((plan.key_leaves.size() + plan.steps.size()) * kArray);
  pointers_.resize(static_cast<std::size_t>(plan.num_arrays));
  float* next = arrays_.data();
  for (const ModifierPlan::Leaf& leaf : plan.key_leaves) {
    pointers_[static_cast<std::size_t>(leaf.array)] = next;
    next += kArray;
  }
  for (const ModifierStep& step : plan.steps) {
    pointers_[static_cast<std::size_t>(step.result)] = next;
    if (step.result == plan.score) score_array_ = next;
    next += kArray;
  }
}

void TileModifier::begin_rows(std::int64_t group, const TileTask& task, std::int64_t row_begin,
                              std::int64_t row_end) {
  const ModifierPlan& plan = call_.modifier->plan;
  for (std::int64_t r = 0; r < row_stride_; ++r) {
    // Lanes without a row do as the last one does.
    const std::int64_t row = std::min(row_begin + r, row_end - 1);
    const modifier::Variables variables = modifier_variables(
        *call_.problem, task.sequence, task.extent, query_of_row(call_, row), head_of_row(call_, task, row));
    if (r == 0) variables_[static_cast<std::size_t>(group)] = variables;
    if (row_begin + r < row_end || r == 0) {
      evaluator_.set(variables);
      for (const std::size_t node : plan.row_nodes) evaluator_.compute(node);
    }
    for (std::size_t leaf = 0; leaf < plan.row_leaves.size(); ++leaf) {
      const std::size_t node = plan.row_leaves[leaf].node;
      const float value = array_element(evaluator_, node, plan.program.nodes[node].type);
      row_array(group, leaf)[r] = plan.row_leaves[leaf].is_inverse ? 1 / value : value;
    }
  }
  for (std::size_t leaf = 0; leaf < plan.row_leaves.size(); ++leaf) {
    float* array = row_array(group, leaf);
    for (std::int64_t key = 1; key < keys_at_once_; ++key)
      std::copy_n(array, row_stride_, array + key * row_stride_);
  }
}

void TileModifier::begin_keys(KeyRange block) {
  block_ = block;
  values_kv_head_ = -1;
}

void TileModifier::compute_key_values(const modifier::Variables& variables) {
  const ModifierPlan& plan = call_.modifier->plan;
  evaluator_.set(variables);
  for (const std::size_t node : plan.key_nodes) evaluator_.compute(node);
  for (const ModifierPlan::Leaf& input : plan.key_inputs) {
    const float value = array_element(evaluator_, input.node, plan.program.nodes[input.node].type);
    std::fill_n(key_pointers_[static_cast<std::size_t>(input.array)], block_.size(), value);
  }
  if (plan.key_index >= 0) {
    float* keys = key_pointers_[static_cast<std::size_t>(plan.key_index)];
    for (std::int64_t j = 0; j < block_.size(); ++j)
      keys[j] = std::bit_cast<float>(static_cast<std::int32_t>(block_.begin + j));
  }
  ModifierChunk chunk;
  chunk.steps = &plan.key_steps;
  chunk.modifier = &call_.modifier->modifier;
  chunk.arrays = key_pointers_.data();
  chunk.count = block_.size();
  kernel_table(call_.target).modify(chunk);
}

SeenKeys TileModifier::seen_keys(const TileTask& task, std::int64_t row_begin, std::int64_t row_end,
                                 KeyRange keys) const {
  if (call_.modifier->plan.visible < 0 || keys.empty()) return {keys, true};
  modifier::TileBounds bounds = modifier::tile_bounds(
      modifier_variables(*call_.problem, task.sequence, task.extent, 0, head_of_row(call_, task, row_begin)),
      {query_of_row(call_, row_begin), query_of_row(call_, row_end - 1)}, {0, 0},
      heads_of(call_, task, row_begin, row_end));
  const auto classify = [&](std::int64_t begin, std::int64_t end) {
    bounds[static_cast<std::size_t>(Variable::kKey)] = {begin, end - 1};
    return call_.modifier->tiles.classify(bounds);
  };
  const TileClass whole = classify(keys.begin, keys.end);
  if (whole == TileClass::kFull) return {keys, true};
  if (whole == TileClass::kEmpty) return {{keys.begin, keys.begin}, true};
  // Empty ends are cut off, in steps that begin at the same keys whatever the range.
  SeenKeys seen{{keys.end, keys.end}, true};
  for (std::int64_t begin = keys.begin; begin < keys.end;) {
    const std::int64_t end = std::min(keys.end, (begin / kClassifiedKeys + 1) * kClassifiedKeys);
    const TileClass part = classify(begin, end);
    if (part != TileClass::kEmpty) {
      if (seen.keys.empty()) seen.keys.begin = begin;
      if (seen.keys.end != begin && seen.keys.begin != begin) seen.all = false;  // an empty part between
      seen.keys.end = end;
      if (part == TileClass::kMixed) seen.all = false;
    }
    begin = end;
  }
  return seen;
}

void TileModifier::modify(std::int64_t group, KeyRange keys, bool masks, float scale, float* s,
                          const float* bias) {
  const ModifierPlan& plan = call_.modifier->plan;
  if (plan.score < 0 && !masks) return;
  const modifier::Variables& variables = variables_[static_cast<std::size_t>(group)];
  const std::int32_t kv_head =
      plan.keys_differ_by_head ? variables[static_cast<std::size_t>(Variable::kKvHead)] : 0;
  if (values_kv_head_ != kv_head && !plan.key_leaves.empty()) {
    compute_key_values(variables);
    values_kv_head_ = kv_head;
  }
  for (std::size_t leaf = 0; leaf < plan.row_leaves.size(); ++leaf)
    pointers_[static_cast<std::size_t>(plan.row_leaves[leaf].array)] = row_array(group, leaf);
  const bool writes_in_place = reads_by_key_ && !masks && bias == nullptr && !plan.steps.empty() &&
                               plan.steps.back().result == plan.score;
  if (!writes_in_place && score_array_ != nullptr)
    pointers_[static_cast<std::size_t>(plan.score)] = score_array_;
  const auto modify_chunk = kernel_table(call_.target).modify;
  for (std::int64_t begin = keys.begin; begin < keys.end; begin += keys_at_once_) {
    const std::int64_t count = std::min(keys_at_once_, keys.end - begin);
    for (std::size_t leaf = 0; leaf < plan.key_leaves.size(); ++leaf) {
      const ModifierPlan::Leaf& of = plan.key_leaves[leaf];
      float* values = key_pointers_[static_cast<std::size_t>(of.key_array)] + (begin - block_.begin);
      keys_[static_cast<std::size_t>(of.array)] = values;
      if (reads_by_key_ && !of.needs_array) continue;
      if (row_stride_ == 1) {
        pointers_[static_cast<std::size_t>(of.array)] = values;
        continue;
      }
      float* array = pointers_[static_cast<std::size_t>(of.array)];
      for (std::int64_t j = 0; j < count; ++j) std::fill_n(array + j * row_stride_, row_stride_, values[j]);
    }
    ModifierChunk chunk;
    chunk.plan = &plan;
    chunk.steps = &plan.steps;
    chunk.modifier = &call_.modifier->modifier;
    chunk.arrays = pointers_.data();
    chunk.keys = reads_by_key_ ? keys_.data() : nullptr;
    chunk.row_stride = row_stride_;
    chunk.scale = scale;
    chunk.s = s + (begin - keys.begin) * row_stride_;
    if (plan.score_input >= 0) pointers_[static_cast<std::size_t>(plan.score_input)] = chunk.s;
    chunk.count = count * row_stride_;
    // The last step may write the scores themselves where nothing looks at the old ones after it, and vectors
    // end where they do.
    if (writes_in_place) pointers_[static_cast<std::size_t>(plan.score)] = chunk.s;
    chunk.masks = masks;
    chunk.bias = bias == nullptr ? nullptr : bias + (begin - keys.begin) * row_stride_;
    modify_chunk(chunk);
  }
}

}  // namespace tessera::cpu
