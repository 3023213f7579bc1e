#pragma once

#include <cstdint>

#include "attention/token_rows.h"
#include "modifier/ir.h"
#include "tessera/attention.h"

namespace tessera {

/// Attention for one query of one head as its equations stand, in fp64, into o and lse: keys in order, in two
/// passes (the largest score, then weights and sums), o rounded once. The judge of all backends, and the
/// way out for a row that leaves fp32's range on its way through one of them. Arrays in CPU memory, of all
/// dtypes that validate() lets pass.
///
/// A key whose score is -inf is hidden, whatever its value. The weight of every other key is positive,
/// however small, so that an infinity or NaN in its value counts. A NaN or +inf among the scores makes o and
/// lse NaN.
///
/// program: *modifier_program(problem).
void attend_row_exactly(const AttentionProblem& problem, const modifier::Program& program,
                        const TokenRows& rows, std::int64_t query, int head);

}  // namespace tessera
