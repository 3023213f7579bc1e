#include "attention/modifier.h"

#include <fmt/core.h>

#include <limits>

#include "attention/require.h"
#include "modifier/parse_cache.h"
#include "modifier/ranges.h"

namespace tessera {
namespace {

using modifier::Variable;

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
  const auto parsed = modifier::parse_once(modifier);
  for (std::size_t i = 0; i < modifier.tensors.size(); ++i) check_tensor(i, modifier.tensors[i]);
  modifier::check_ranges(modifier, *parsed,
                         {p.batch, p.seq_len_q, p.seq_len_kv, p.num_heads, p.num_kv_heads});
}

std::shared_ptr<const modifier::Program> modifier_program(const AttentionProblem& p) {
  static const auto none = std::make_shared<const modifier::Program>();
  if (!p.scores.modifier) return none;
  const std::shared_ptr<const modifier::Parsed> parsed = modifier::parse_once(*p.scores.modifier);
  return {parsed, &parsed->program};
}

modifier::Variables modifier_variables(const AttentionProblem& p, std::int64_t b,
                                       const SequenceExtent& extent, std::int64_t i, int h) {
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

std::vector<std::string> explain_modifier(const AttentionProblem& p, const ModifierTiles& tiles) {
  const auto kept = modifier_program(p);
  const modifier::Program& program = *kept;
  std::vector<std::string> lines;
  const std::string text = canonical_text(program);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (tiles.total() == 0) return lines;
  const auto percent = [&](modifier::TileClass c) {
    return 100.0 * static_cast<double>(tiles.count(c)) / static_cast<double>(tiles.total());
  };
  lines.push_back(fmt::format("tiles of {0} x {0}: {1:.1f}% empty, {2:.1f}% full, {3:.1f}% mixed",
                              kCountedTile, percent(modifier::TileClass::kEmpty),
                              percent(modifier::TileClass::kFull), percent(modifier::TileClass::kMixed)));
  return lines;
}

}  // namespace tessera
