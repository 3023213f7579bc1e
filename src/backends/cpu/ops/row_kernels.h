#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/arguments.h"

namespace tessera::cpu {

/// Kernels over rows for one SIMD target. Rows are independent of each other and of how they are split.
struct RowKernels {
  /// n elements from `offset` of an array of what weights may consist of, as fp32; zeros up to a multiple of
  /// kRowPadding. Whole blocks.
  void (*load_as_f32)(const void* data, DType dtype, std::int64_t offset, std::size_t n, float* out);
  /// The inverse, for f32, f16 and bf16, rounded to nearest.
  void (*store_from_f32)(const float* values, std::size_t n, void* data, DType dtype, std::int64_t offset);

  /// Rows [begin, end) of x.rows * heads; row: scratch of padded_row(x.columns).
  void (*rms_norm)(const RmsNormArguments&, std::int64_t begin, std::int64_t end, float* row);
  /// Rows [begin, end); row: scratch of padded_row(x.columns).
  void (*layer_norm)(const LayerNormArguments&, std::int64_t begin, std::int64_t end, float* row);
  void (*softmax)(const SoftmaxArguments&, std::int64_t begin, std::int64_t end, float* row);
  void (*gated_activation)(const GatedActivationArguments&, std::int64_t begin, std::int64_t end);
  void (*scale)(const ScaleArguments&, std::int64_t begin, std::int64_t end);
  void (*softcap)(const SoftcapArguments&, std::int64_t begin, std::int64_t end);

  /// The largest of n >= 1 numbers; NaN if one is NaN.
  float (*largest)(const float* row, std::size_t n);
  /// out[i] = exp(row[i] / temperature - top) in fp64; their sum.
  double (*exp_weights)(const float* row, std::size_t n, double temperature, double top, double* out);
};

/// Scratch rows of fp32 hold whole vectors of every target.
inline constexpr std::size_t kRowPadding = 32;
constexpr std::size_t padded_row(std::int64_t columns) {
  return (static_cast<std::size_t>(columns) + kRowPadding - 1) / kRowPadding * kRowPadding;
}

const RowKernels& row_kernels();

/// Kernels that rotate, for one SIMD target.
struct RopeKernels {
  /// Tokens [begin, end). scratch: rope_scratch(num_pairs) floats.
  void (*rope)(const RopeArguments&, std::int64_t begin, std::int64_t end, float* scratch);
  void (*rope_append)(const RopeAppendArguments&, std::int64_t begin, std::int64_t end, float* scratch);
};

/// Frequencies, cosines, sines and the two halves of a head, before and after.
constexpr std::size_t rope_scratch(int num_pairs) { return 7 * padded_row(num_pairs); }

const RopeKernels& rope_kernels();

}  // namespace tessera::cpu
