#include "attention/modifier_tiles.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/modifier.h"
#include "attention/sequence.h"
#include "core/rounding.h"

namespace tessera {
namespace {

using modifier::Program;
using modifier::Variable;

constexpr std::int64_t kMostTiles = 1 << 19;  // about a tenth of a second

std::int64_t tiles_of(std::int64_t length) { return divide_up(length, kCountedTile); }

bool uses(const Program& program, Variable variable) {
  return std::any_of(program.nodes.begin(), program.nodes.end(), [&](const modifier::Node& node) {
    return node.op == modifier::Op::kVariable && node.index == static_cast<int>(variable);
  });
}

/// Whether lengths and tensors are known here.
bool is_readable(const AttentionProblem& p) {
  const std::vector<CapturedTensor>& tensors = p.scores.modifier->tensors;
  if (p.device.kind != DeviceKind::kCpu) return tensors.empty() && !has_length_arrays(p);
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.data != nullptr; });
}

/// Of `count` things one in so many that at most kMostTiles are left.
std::int64_t step_of(double count) {
  return static_cast<std::int64_t>(std::ceil(std::max(1.0, count / kMostTiles)));
}

class Counter {
 public:
  Counter(const AttentionProblem& p, const Program& program)
      : p_(p),
        classifier_(program, *p.scores.modifier),
        sequences_(has_length_arrays(p) || uses(program, Variable::kBatch)
                       ? p.batch
                       : std::min<std::int64_t>(p.batch, 1)),
        heads_(uses(program, Variable::kHead) || uses(program, Variable::kKvHead) ? p.num_heads : 1) {
    double columns = 0, tiles = 0;
    const auto add = [&](const SequenceExtent& extent, double times) {
      columns += times * static_cast<double>(std::max<std::int64_t>(tiles_of(extent.len_kv), 1));
      tiles +=
          times * static_cast<double>(tiles_of(extent.len_q)) * static_cast<double>(tiles_of(extent.len_kv));
    };
    if (has_length_arrays(p)) {
      for (std::int64_t b = 0; b < sequences_; ++b) add(sequence_extent(p, b), 1);
    } else {
      add({0, p.seq_len_q, 0, p.seq_len_kv}, static_cast<double>(sequences_));
    }
    sequence_step_ = step_of(columns);
    row_step_ = step_of(tiles * heads_ / static_cast<double>(sequence_step_));
  }

  ModifierTiles count() {
    for (std::int64_t b = 0; b < sequences_; b += sequence_step_) count_sequence(b);
    if (pairs_ > 0) tiles_.visited_pairs = visited_pairs_ / pairs_;
    if (keys_ > 0) tiles_.visited_keys = visited_keys_ / keys_;
    return tiles_;
  }

 private:
  enum Column : std::uint8_t { kOutside, kHidden, kVisited };

  void count_sequence(std::int64_t b) {
    const SequenceExtent extent = sequence_extent(p_, b);
    const Diagonal diagonal = resolve_diagonal(p_.scores, extent.len_q, extent.len_kv);
    std::vector<Column> columns(static_cast<std::size_t>(tiles_of(extent.len_kv)), kOutside);
    const std::int64_t rows = tiles_of(extent.len_q);
    for (int h = 0; h < heads_; ++h) {
      for (; next_row_ < rows; next_row_ += row_step_) {
        count_row(b, extent, diagonal, h, next_row_ * kCountedTile, columns);
      }
      next_row_ -= rows;
    }
    for (std::size_t column = 0; column < columns.size(); ++column) {
      const std::int64_t j = static_cast<std::int64_t>(column) * kCountedTile;
      const auto width = static_cast<double>(std::min(kCountedTile, extent.len_kv - j));
      if (columns[column] != kOutside) keys_ += width;
      if (columns[column] == kVisited) visited_keys_ += width;
    }
  }

  /// The tiles of kCountedTile queries from i on.
  void count_row(std::int64_t b, const SequenceExtent& extent, const Diagonal& diagonal, int h,
                 std::int64_t i, std::vector<Column>& columns) {
    const std::int64_t end = std::min(i + kCountedTile, extent.len_q);
    const KeyRange range = diagonal.keys_of_tile(i, end);
    if (range.empty()) return;
    const modifier::Variables variables = modifier_variables(p_, b, extent, i, h);
    for (std::int64_t j = range.begin / kCountedTile * kCountedTile; j < range.end; j += kCountedTile) {
      const std::int64_t key_end = std::min(j + kCountedTile, extent.len_kv);
      const modifier::TileClass found =
          classifier_.classify(modifier::tile_bounds(variables, {i, end - 1}, {j, key_end - 1}, {h, h}));
      const auto pairs = static_cast<double>((end - i) * (key_end - j));
      Column& column = columns[static_cast<std::size_t>(j / kCountedTile)];
      ++tiles_.of_class[static_cast<std::size_t>(found)];
      pairs_ += pairs;
      if (found != modifier::TileClass::kEmpty) {
        visited_pairs_ += pairs;
        column = kVisited;
      } else if (column == kOutside) {
        column = kHidden;
      }
    }
  }

  const AttentionProblem& p_;
  const modifier::TileClassifier classifier_;
  const std::int64_t sequences_;
  const int heads_;
  std::int64_t sequence_step_ = 1;
  std::int64_t row_step_ = 1;  ///< of the rows of tiles of those sequences
  std::int64_t next_row_ = 0;  ///< to be counted, from the first of a head's on
  ModifierTiles tiles_;
  double pairs_ = 0, visited_pairs_ = 0;
  double keys_ = 0, visited_keys_ = 0;
};

}  // namespace

ModifierTiles modifier_tiles(const AttentionProblem& p) {
  if (!p.scores.modifier || !is_readable(p)) return {};
  const auto program = modifier_program(p);
  if (program->visible == Program::kNone) return {};
  return Counter(p, *program).count();
}

}  // namespace tessera
