#include "backends/gpu/attention/modifier_module.h"

#include <algorithm>
#include <limits>

#include "attention/modifier.h"
#include "modifier/kernel_text.h"

namespace tessera::gpu {

static_assert(kernels::kMaxModifierTensors == modifier::kMaxTensors &&
              kernels::kMaxModifierScalars == modifier::kMaxScalars &&
              kernels::kMaxModifierTensorRank == modifier::kMaxTensorRank);

void add_modifier(const AttentionProblem& p, ModuleSpec& module) {
  if (!p.scores.modifier) return;
  const std::int64_t longest = std::max({p.seq_len_q, p.seq_len_kv, p.batch, std::int64_t{p.num_heads}});
  module.defines.emplace_back("TESSERA_MODIFIER=1");
  module.modifier =
      modifier::kernel_text(modifier_program(p), {.has_small_indices = longest <= modifier::kMostExactIndex});
}

kernels::ModifierArguments modifier_arguments(const ScoreModifier& modifier) {
  kernels::ModifierArguments a = {};
  for (std::size_t t = 0; t < modifier.tensors.size(); ++t) {
    const CapturedTensor& tensor = modifier.tensors[t];
    a.tensors[t].data = tensor.data;
    for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
      a.tensors[t].sizes[d] = static_cast<int>(tensor.sizes[d]);
      a.tensors[t].strides[d] = tensor.strides[d];
    }
  }
  constexpr double kLeast = std::numeric_limits<int>::min();
  constexpr double kMost = std::numeric_limits<int>::max();
  for (std::size_t s = 0; s < modifier.scalars.size(); ++s) {
    const double value = modifier.scalars[s].second;
    a.reals[s] = static_cast<float>(value);
    // Of one that is used as fp32 alone anything will do.
    a.integers[s] = value >= kLeast && value <= kMost ? static_cast<int>(value) : 0;
  }
  return a;
}

void add_modifier_arguments(const AttentionProblem& p, KernelArguments& arguments) {
  if (p.scores.modifier) arguments.add_modifier(modifier_arguments(*p.scores.modifier));
}

}  // namespace tessera::gpu
