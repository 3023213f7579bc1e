#pragma once

#include <vector>

#include "verify/attention_data.h"

namespace tessera {

/// A score or a mask's element at least this far down swallows what is added to it in any arithmetic, so that
/// nothing of it is rounded.
inline constexpr double kLeastSwallowing = 0x1p126;

/// Rows of an attention result as AttentionData orders them: o (rows, head_dim_v), lse (rows).
struct AttentionRows {
  std::vector<double> o;
  std::vector<double> lse;
};

/// Sizes that rounding errors grow with, over all rows.
struct AttentionMagnitudes {
  double score = 0;  ///< largest |score| on the way to the softmax, of visible keys
  double o = 0;      ///< largest |o|
  double lse = 0;    ///< largest finite |lse|
  /// Largest root of the sum of squares of (softmax weight * v) over a row's keys: what independent relative
  /// errors of the weights add up to.
  double weighted_v = 0;
  /// The same with each term times (1 + |score| of its key): what independent relative errors of the scores
  /// and of their exponentials add up to.
  double weighted_score_v = 0;
};

enum class NaiveArithmetic {
  kF32,       ///< weights rounded to the case's dtype before the product with v, o rounded to it
  kF64,       ///< o rounded to the case's dtype
  kExtended,  ///< long double; nothing rounded
};

/// Attention as one would first write it: sequential sums, softmax over the whole row with weights that sum
/// to one, then the product with v. Works on the bare numbers, with none of the library's indexing.
/// magnitudes: filled in if not null.
/// every: only rows whose number is a multiple of it; the others are those of `rest`.
AttentionRows naive_attention(const AttentionData& data, NaiveArithmetic arithmetic,
                              AttentionMagnitudes* magnitudes = nullptr);
AttentionRows naive_attention(const AttentionData& data, NaiveArithmetic arithmetic,
                              AttentionMagnitudes& magnitudes, std::int64_t every, const AttentionRows& rest);

}  // namespace tessera
