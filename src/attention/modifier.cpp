#include "attention/modifier.h"

#include <fmt/core.h>

#include <limits>

#include "attention/require.h"
#include "modifier/parse.h"
#include "modifier/ranges.h"

namespace tessera {
namespace {

void check_tensor(std::size_t i, const CapturedTensor& tensor) {
  const auto field = [&](const char* part) {
    return fmt::format("scores.modifier.tensors[{}] ({}).{}", i, tensor.name, part);
  };
  if (tensor.strides.size() != tensor.sizes.size()) {
    fail_argument(field("strides"), fmt::format("a list of {}", tensor.strides.size()),
                  fmt::format("as many as there are sizes, {}", tensor.sizes.size()));
  }
  __extension__ using Wide = __int128;
  Wide last = 0;
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    // Indices are int32, and clamping needs an element to clamp to.
    require_range(field("sizes"), tensor.sizes[d], 1, std::numeric_limits<std::int32_t>::max());
    if (tensor.strides[d] < 0) fail_argument(field("strides"), tensor.strides[d], "0 or more");
    last += Wide{tensor.sizes[d] - 1} * tensor.strides[d];
  }
  if (last > std::numeric_limits<std::int64_t>::max() / 8) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} reach past the end of a 64-bit address space; expected smaller strides",
                            field("strides")));
  }
}

}  // namespace

void validate_modifier(const AttentionProblem& p) {
  if (!p.scores.modifier) return;
  const ScoreModifier& modifier = *p.scores.modifier;
  const modifier::Parsed parsed = modifier::parse(modifier);
  for (std::size_t i = 0; i < modifier.tensors.size(); ++i) check_tensor(i, modifier.tensors[i]);
  modifier::check_ranges(modifier, parsed, {p.batch, p.seq_len_q, p.seq_len_kv, p.num_heads, p.num_kv_heads});
}

modifier::Program modifier_program(const AttentionProblem& p) {
  return p.scores.modifier ? modifier::parse(*p.scores.modifier).program : modifier::Program{};
}

modifier::Variables modifier_variables(const AttentionProblem& p, std::int64_t b,
                                       const SequenceExtent& extent, std::int64_t i, int h) {
  using modifier::Variable;
  modifier::Variables variables = {};
  const auto set = [&](Variable variable, std::int64_t value) {
    variables[static_cast<std::size_t>(variable)] = static_cast<std::int32_t>(value);
  };
  set(Variable::kBatch, b);
  set(Variable::kHead, h);
  set(Variable::kKvHead, h / (p.num_heads / p.num_kv_heads));
  set(Variable::kQuery, i);
  set(Variable::kLenQ, extent.len_q);
  set(Variable::kLenKv, extent.len_kv);
  set(Variable::kShift, resolve_diagonal(p.scores, extent.len_q, extent.len_kv).shift);
  set(Variable::kNumHeads, p.num_heads);
  return variables;
}

}  // namespace tessera
