#include "backends/cpu/ops/recurrent.h"

#include <algorithm>

#include "core/parallel.h"

namespace tessera::cpu {

void causal_conv(const CausalConvArguments& a) {
  const std::int64_t parts = (a.x.columns + kConvChannels - 1) / kConvChannels;
  parallel_for(static_cast<std::size_t>(a.sequences.batch * parts), [&](std::size_t task) {
    const std::int64_t part = static_cast<std::int64_t>(task) % parts;
    recurrent_kernels().causal_conv(a, static_cast<std::int64_t>(task) / parts, part * kConvChannels,
                                    std::min(a.x.columns, (part + 1) * kConvChannels));
  });
}

void gated_delta(const GatedDeltaArguments& a) {
  const auto heads = static_cast<std::size_t>(a.num_value_heads);
  parallel_for(static_cast<std::size_t>(a.sequences.batch) * heads, [&](std::size_t task) {
    recurrent_kernels().gated_delta(a, static_cast<std::int64_t>(task / heads),
                                    static_cast<int>(task % heads));
  });
}

}  // namespace tessera::cpu
