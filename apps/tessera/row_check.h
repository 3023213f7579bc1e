#pragma once

#include "tessera/attention.h"

namespace tessera::cli {

/// How far some rows of an attention result are from the exact ones.
struct RowCheck {
  int rows = 0;      ///< (sequence, head, query) triples that were looked at
  double error = 0;  ///< largest absolute error of o; infinite for a NaN or infinity that has no place there
  double bound =
      0;  ///< twice the error of the naive computation in the same precision, and what rounding may cost
  bool passed() const { return error <= bound; }
};

/// Compares rows spread over `problem.o`, the result of a call, with fp64 evaluations of the definition. The
/// problem is valid and in CPU memory. narrow_weights: of the plan that made it.
RowCheck check_rows(const AttentionProblem& problem, bool narrow_weights);

}  // namespace tessera::cli
