#include "attention/modifier.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "attention/require.h"
#include "modifier/parse.h"
#include "modifier/ranges.h"
#include "modifier/tiles.h"

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

/// How many of the tiles of a mask are of each class.
struct TileCounts {
  std::array<std::int64_t, 3> of_class = {};  ///< by modifier::TileClass
  std::int64_t total() const { return of_class[0] + of_class[1] + of_class[2]; }
};

constexpr std::int64_t kTile = 128;
constexpr std::int64_t kMostTiles = 1 << 21;  // some tenths of a second

std::int64_t tiles_of(std::int64_t length) { return (length + kTile - 1) / kTile; }

bool uses(const modifier::Program& program, Variable variable) {
  return std::any_of(program.nodes.begin(), program.nodes.end(), [&](const modifier::Node& node) {
    return node.op == modifier::Op::kVariable && node.index == static_cast<int>(variable);
  });
}

/// Every tile, or evenly spread rows of tiles where there are too many.
TileCounts count_tiles(const AttentionProblem& p, const modifier::Program& program) {
  const modifier::TileClassifier classifier(program, *p.scores.modifier);
  const int heads = uses(program, Variable::kHead) || uses(program, Variable::kKvHead) ? p.num_heads : 1;
  double all = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const SequenceExtent extent = sequence_extent(p, b);
    all += static_cast<double>(tiles_of(extent.len_q)) * static_cast<double>(tiles_of(extent.len_kv)) * heads;
  }
  const auto step = static_cast<std::int64_t>(std::ceil(std::max(1.0, all / kMostTiles)));
  TileCounts counts;
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const SequenceExtent extent = sequence_extent(p, b);
    for (int h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < extent.len_q; i += kTile) {
        if (row++ % step != 0) continue;
        const modifier::Variables variables = modifier_variables(p, b, extent, i, h);
        for (std::int64_t j = 0; j < extent.len_kv; j += kTile) {
          const modifier::TileClass found =
              classifier.classify(modifier::tile_bounds(variables, {i, std::min(i + kTile, extent.len_q) - 1},
                                                        {j, std::min(j + kTile, extent.len_kv) - 1}, {h, h}));
          ++counts.of_class[static_cast<std::size_t>(found)];
        }
      }
    }
  }
  return counts;
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

std::vector<std::string> explain_modifier(const AttentionProblem& p) {
  const modifier::Program program = modifier_program(p);
  std::vector<std::string> lines;
  const std::string text = canonical_text(program);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (program.visible == modifier::Program::kNone || p.device.kind != DeviceKind::kCpu) return lines;
  const TileCounts counts = count_tiles(p, program);
  if (counts.total() == 0) return lines;
  const auto percent = [&](modifier::TileClass of) {
    return 100.0 * static_cast<double>(counts.of_class[static_cast<std::size_t>(of)]) /
           static_cast<double>(counts.total());
  };
  lines.push_back(fmt::format("tiles of {0} x {0}: {1:.1f}% empty, {2:.1f}% full, {3:.1f}% mixed", kTile,
                              percent(modifier::TileClass::kEmpty), percent(modifier::TileClass::kFull),
                              percent(modifier::TileClass::kMixed)));
  return lines;
}

}  // namespace tessera
