#pragma once

#include <string>

#include "verify/attention_data.h"
#include "verify/naive_attention.h"
#include "verify/verify.h"

namespace tessera {

class JudgedCase;

/// How a case is run, beside what the case itself says.
struct AttentionRunStyle {
  /// Not null: memory of the backend's device from which a workspace is taken that is full of NaN and fenced.
  const VerifyMemory* workspace_memory = nullptr;
  const AttentionData* before = nullptr;  ///< a problem that is called before, with the same workspace
  bool is_replayed = false;               ///< as a graph, if the memory can
  int num_splits = 0;                     ///< AttentionConfig's; 0: the backend's choice
};

/// What a backend made of a case.
struct AttentionRun {
  AttentionRows rows;  ///< lse empty if the case has none
  std::string kernel;
  std::string violation;        ///< not empty: it wrote outside its outputs or into an input
  AttentionRows rows_before;    ///< of style.before
  bool narrow_weights = false;  ///< AttentionPlan's
};

/// Uploads the case, runs it through the public interface and reads the result back.
AttentionRun run_attention(const AttentionData& data, const std::string& backend, const VerifyMemory& memory,
                           const AttentionRunStyle& style = {});

/// Most that rounding a row's results, of up to `largest`, and the weights that meet v moves them, in
/// arithmetic with these unit round-offs. weighted_v: AttentionMagnitudes'.
inline double rounding_bound(double largest, double result_roundoff, double weighted_v,
                             double weight_roundoff) {
  return result_roundoff * largest + 3 * weight_roundoff * weighted_v;
}

/// What the result is compared with: the reference in fp64, or extended precision for the reference itself;
/// and how far off it may be.
///
/// The bound is twice the error of the naive computation, plus a floor for cases where that happens to be
/// exact. A rounding of x is off by up to u |x|, u |x| / sqrt(3) in the root mean square; independent ones
/// add up as the root of the sum of their squares, and five times that covers the largest of all elements.
/// With u the unit round-off of the dtype (o), of what the weights are kept in (p), of the arithmetic (s):
///   o:   u_o |o|          o is stored
///      + 3 u_p R          5 / sqrt(3) of R, the root of the sum of squares of weight * v: weights are
///      rounded
///      + 5 u_s R_s        the same with v times 1 + |score|, three roundings: scale, terms, exponential
///   lse: 2 u_32 |lse| + 3 u_s (1 + |s|) + 4 u_s    stored as fp32 here and by the judge; the largest score,
///   off
///                                                  by three roundings; sum and logarithm
struct AttentionExpectation {
  AttentionRows rows;
  double bound = 0;
  double lse_bound = 0;
};
/// narrow_weights: AttentionPlan's, which makes p that of 8 bits. The bounds are then at least the largest of
/// those of bounded_attention, which knows what products of 8 bits lose.
AttentionExpectation expect_attention(const AttentionData& data, const std::string& backend,
                                      bool narrow_weights = false);

/// Compares and fills in error, bound and message. Rows without a visible key must be exactly 0 and -inf, NaN
/// must be where it is expected and nowhere else.
void compare_attention(const AttentionData& data, const AttentionRun& run,
                       const AttentionExpectation& expectation, VerifyResult& result);

/// The whole check of one case.
void check_attention(JudgedCase& judged, const std::string& backend, const VerifyMemory& memory,
                     VerifyResult& result);

/// True if `backend` may refuse: batch-invariant bits and merging are no part of the unfused pipelines.
bool may_refuse(const std::string& backend, bool batch_invariant, bool merge);

/// Whether the backend has no kernels for the case's modifier.
bool may_refuse_modifier(const std::string& backend, const AttentionCase& c);

/// Where the bits of two sets of rows first differ, in words; empty if nowhere. All NaN are one. Rows [a_row,
/// a_row + num_rows) of a are compared with those of b from b_row on.
std::string describe_bit_difference(const AttentionRows& a, std::int64_t a_row, const AttentionRows& b,
                                    std::int64_t b_row, std::int64_t num_rows, int head_dim_v);

}  // namespace tessera
