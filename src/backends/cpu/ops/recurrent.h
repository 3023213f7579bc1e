#pragma once

#include <cstdint>

#include "ops/arguments.h"

namespace tessera::cpu {

// Layers that carry a state along, of valid arguments.

void causal_conv(const CausalConvArguments& arguments);
void gated_delta(const GatedDeltaArguments& arguments);

/// Parts of them for one SIMD target.
struct RecurrentKernels {
  /// Channels [begin, end), at most kConvChannels, of one sequence's rows.
  void (*causal_conv)(const CausalConvArguments&, std::int64_t sequence, std::int64_t begin,
                      std::int64_t end);
  /// A head of values over one sequence's rows.
  void (*gated_delta)(const GatedDeltaArguments&, std::int64_t sequence, int head);
};

inline constexpr std::int64_t kConvChannels = 256;

const RecurrentKernels& recurrent_kernels();

}  // namespace tessera::cpu
