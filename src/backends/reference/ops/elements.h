#pragma once

#include <cstddef>
#include <cstdint>

#include "core/block_format.h"
#include "core/element.h"
#include "ops/arguments.h"

namespace tessera::reference {

inline double load(const Matrix& m, std::int64_t row, std::int64_t column) {
  return load_element(m.data, m.dtype, row * m.row_stride + column);
}

/// Rounds once to the matrix's dtype.
inline void store(const Matrix& m, std::int64_t row, std::int64_t column, double value) {
  store_element(m.data, m.dtype, row * m.row_stride + column, value);
}

inline double load(const Weight& w, std::int64_t row, std::int64_t column) {
  const std::int64_t index = row * w.columns + column;
  return dispatch_weight(w.dtype, [&]<class T>() {
    if constexpr (is_block_format<T>) {
      double element[1];
      T::decode(static_cast<const unsigned char*>(w.data) + index / T::kElements * T::kBytes,
                static_cast<int>(index % T::kElements), element);
      return element[0];
    } else {
      return static_cast<double>(static_cast<const T*>(w.data)[index]);
    }
  });
}

void route_experts(const RouteExpertsArguments& arguments);
void expert_gemm(const ExpertGemmArguments& arguments);
void combine_experts(const CombineExpertsArguments& arguments);

void causal_conv(const CausalConvArguments& arguments);
void gated_delta(const GatedDeltaArguments& arguments);

void adjust_logits(const AdjustLogitsArguments& arguments);
void logprobs(const LogprobsArguments& arguments);

/// Draws every sequence's token with a full sort of the vocabulary.
void sample(const SampleArguments& arguments);

}  // namespace tessera::reference
