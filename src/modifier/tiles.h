#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "modifier/evaluate.h"
#include "modifier/interval.h"
#include "modifier/ir.h"
#include "tessera/attention.h"

namespace tessera::modifier {

/// Which of a tile's pairs of query and key a mask lets through.
enum class TileClass : std::uint8_t { kEmpty, kMixed, kFull };

/// What the variables are within a tile.
using TileBounds = std::array<Interval<std::int64_t>, kNumVariables>;

/// Bounds of the queries, keys and heads from the first of each to the last; the other variables are one
/// number each.
inline TileBounds tile_bounds(const Variables& variables, Interval<std::int64_t> queries,
                              Interval<std::int64_t> keys, Interval<std::int64_t> heads) {
  TileBounds bounds = {};
  for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = {variables[i], variables[i]};
  bounds[static_cast<std::size_t>(Variable::kQuery)] = queries;
  bounds[static_cast<std::size_t>(Variable::kKey)] = keys;
  bounds[static_cast<std::size_t>(Variable::kHead)] = heads;
  return bounds;
}

/// Says which tiles the mask of a program leaves empty and which it leaves as they are, by interval
/// arithmetic: every int32 gets bounds, every condition is no, yes or maybe. Never wrong, at worst kMixed.
///
/// Sums are collected into `constant + sum factor * term` before they are bounded, comparisons as the
/// difference of their sides, so that what both have in common goes away. int32 that may wrap around, and
/// all of fp32, is bounded by nothing. Of tensors it reads what the tile's indices reach: in CPU memory, and
/// if it is too much, bounded by nothing.
///
/// Moore, "Interval Analysis" (1966).
class TileClassifier {
 public:
  /// The modifier must outlive it.
  TileClassifier(const Program& program, const ScoreModifier& modifier);

  /// Safe to call from several threads.
  TileClass classify(const TileBounds& bounds) const;

 private:
  using Range = Interval<std::int64_t>;

  struct Term {
    int node;
    std::int64_t factor;
  };
  struct Sum {
    std::int64_t constant = 0;
    std::vector<Term> terms;  ///< ascending nodes
  };
  /// What is known of a node: bounds of an int32, {0, 0}, {1, 1} or {0, 1} of a bool.
  struct Step {
    Node node;
    int index = 0;      ///< of the node
    bool sums = false;  ///< it is bounded by `sum`; a comparison by that and its operands' bounds
    Sum sum;
  };

  const Sum* sum_of(int node) const;
  bool collect(const Node& node, Sum& sum) const;
  Range bound(const Step& step, const TileBounds& bounds, const Range* facts) const;
  Range bound_condition(const Step& step, const Range* facts) const;
  Range bound_load(const Node& node, const Range* facts) const;

  const ScoreModifier& modifier_;
  std::vector<Type> types_;  ///< of the nodes
  std::vector<Step> steps_;
  std::vector<int> step_of_;  ///< node to step; -1: none
  int root_;
};

}  // namespace tessera::modifier
