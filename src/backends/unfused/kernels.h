#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "attention/sequence.h"
#include "tessera/dtype.h"

// The steps of classic attention, each its own pass over a part of the score matrix in memory.
namespace tessera::unfused {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Some queries of one head and all keys of their sequence: scores (rows, cols), later the softmax's weights.
struct ScoreTile {
  float* data = nullptr;
  std::int64_t rows = 0;         ///< queries
  std::int64_t cols = 0;         ///< keys
  std::int64_t stride = 0;       ///< elements between rows, >= cols
  std::int64_t first_query = 0;  ///< index of row 0 within its sequence
};

/// The part of a mask that belongs to a tile: row 0, column 0 at `data`, strides in elements.
struct MaskTile {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t q_stride = 0;
  std::int64_t kv_stride = 1;
};

/// scores = q k^T: q (rows, head_dim) and k (cols, head_dim), both contiguous.
void multiply_q_k(const float* q, const float* k, int head_dim, const ScoreTile& scores);

/// scores *= factor.
void scale(const ScoreTile& scores, float factor);

/// scores = cap * tanh(scores / cap).
void apply_softcap(const ScoreTile& scores, float cap);

/// scores -= slope * |i + shift - j|.
void add_alibi(const ScoreTile& scores, float slope, std::int64_t shift);

/// scores += mask (f32, f16 or bf16); where the mask is -inf the score becomes -inf whatever it was.
void add_mask(const ScoreTile& scores, const MaskTile& mask);

/// scores = -inf where the mask's byte is 0.
void hide_masked(const ScoreTile& scores, const MaskTile& mask);

/// scores = -inf outside the diagonal's band.
void hide_off_diagonal(const ScoreTile& scores, const Diagonal& diagonal);

/// Each row becomes exp(score - lse), or 0 where no score is above -inf; +0 for a hidden score alone: a
/// weight that is too small for a float is -0. sink: one more logit in the denominator of rows that see a
/// key. lse: the first row's log-sum-exp, lse_stride floats to the next one's; null: not wanted.
void softmax_rows(const ScoreTile& scores, std::optional<float> sink, float* lse, std::int64_t lse_stride);

/// o = weights v: v (cols, head_dim) and o (rows, head_dim), both contiguous.
void multiply_p_v(const ScoreTile& weights, const float* v, int head_dim, float* o);

/// The same for a v that holds NaN or infinity, which a matrix product would spread to rows that do not see
/// it: keys with a weight of +0.
void multiply_p_v_of_visible(const ScoreTile& weights, const float* v, int head_dim, float* o);

/// Row of `dtype` elements times `factor` to fp32; false if one of them is NaN or infinite.
bool convert_row_to_f32(const void* source, DType dtype, int elements, float* destination, float factor = 1);

/// Row of fp32 elements to `dtype`, rounded to nearest.
void convert_row_from_f32(const float* source, int elements, DType dtype, void* destination);

}  // namespace tessera::unfused
