#pragma once

#include <vector>

#include "verify/attention_data.h"
#include "verify/naive_attention.h"

namespace tessera {

/// What attention over some data has to give, and how far off each number may be.
struct BoundedRows {
  AttentionRows rows;
  /// Of o: largest |error|. Infinite: anything goes (fp32 overflows on the way). NaN: o is infinite, and NaN
  /// will do as well (the weight of the infinite value may round to 0).
  std::vector<double> o_bound;
  std::vector<double> lse_bound;
};

/// Evaluates attention in fp64 (extended precision to judge fp64), row by row, and derives the bounds from
/// the row's own sums: see attention_bounds.cpp. `dtype` of the data says what weights and results are kept
/// in; with narrow_weights (AttentionPlan's) the weights are of 8 bits.
BoundedRows bounded_attention(const AttentionData& data, bool narrow_weights = false);

}  // namespace tessera
