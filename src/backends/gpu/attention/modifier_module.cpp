#include "backends/gpu/attention/modifier_module.h"

#include <algorithm>
#include <limits>

#include "attention/modifier.h"
#include "core/rounding.h"
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
      modifier::kernel_text(*modifier_program(p), {.has_small_indices = longest <= modifier::kMostExactIndex});
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

namespace {

/// More are left unknown: the mask is then looked at score by score.
constexpr std::int64_t kMostBlocks = 1 << 20;

/// Calls use(tensor's index, its blocks) for the tensors that the bounds are of.
template <class Use>
void for_blocked_tensors(const ScoreModifier& modifier, Use use) {
  if (modifier.visible.empty()) return;
  for (std::size_t t = 0; t < modifier.tensors.size(); ++t) {
    const CapturedTensor& tensor = modifier.tensors[t];
    if (tensor.sizes.empty() || modifier::element_type(tensor.dtype) == modifier::Type::kFloat32) continue;
    std::int64_t rows = 1;
    for (std::size_t d = 0; d + 1 < tensor.sizes.size(); ++d)
      rows = rows <= kMostBlocks ? rows * tensor.sizes[d] : rows;
    const std::int64_t blocks = divide_up(tensor.sizes.back(), kernels::kModifierBlock);
    if (rows <= kMostBlocks && blocks <= kMostBlocks / rows) use(t, rows, blocks);
  }
}

}  // namespace

void add_modifier_arguments(const AttentionProblem& p, KernelArguments& arguments, std::byte* blocks) {
  if (!p.scores.modifier) return;
  kernels::ModifierArguments a = modifier_arguments(*p.scores.modifier);
  if (blocks != nullptr) {
    auto* bounds = reinterpret_cast<const kernels::ModifierBounds*>(blocks);
    for_blocked_tensors(*p.scores.modifier, [&](std::size_t t, std::int64_t rows, std::int64_t of_row) {
      a.blocks[t] = bounds;
      bounds += rows * of_row;
    });
  }
  arguments.add_modifier(a);
}

std::size_t modifier_block_bytes(const AttentionProblem& p) {
  std::int64_t blocks = 0;
  if (p.scores.modifier) {
    for_blocked_tensors(*p.scores.modifier, [&](std::size_t, std::int64_t rows, std::int64_t of_row) {
      blocks += rows * of_row;
    });
  }
  return static_cast<std::size_t>(blocks) * sizeof(kernels::ModifierBounds);
}

ModifierBlocksLaunch modifier_blocks_launch(const AttentionProblem& p, std::byte* blocks, int warp_size) {
  ModifierBlocksLaunch launch = {};
  const kernels::ModifierArguments a = modifier_arguments(*p.scores.modifier);
  auto* bounds = reinterpret_cast<kernels::ModifierBounds*>(blocks);
  std::int64_t most = 0;
  unsigned count = 0;
  for_blocked_tensors(*p.scores.modifier, [&](std::size_t t, std::int64_t rows, std::int64_t of_row) {
    const CapturedTensor& tensor = p.scores.modifier->tensors[t];
    launch.params.tensors[count++] = {a.tensors[t],
                                      bounds,
                                      static_cast<int>(tensor.sizes.size()),
                                      tensor.dtype == DType::kI32  ? kernels::kModifierI32
                                      : tensor.dtype == DType::kU8 ? kernels::kModifierU8
                                                                   : kernels::kModifierBool,
                                      static_cast<int>(rows),
                                      static_cast<int>(of_row)};
    bounds += rows * of_row;
    most = std::max(most, rows * of_row);
  });
  const std::int64_t warps = kernels::kModifierBlockThreads / warp_size;
  launch.shape.grid = {static_cast<unsigned>(divide_up(most, warps)), count, 1};
  launch.shape.block = {kernels::kModifierBlockThreads, 1, 1};
  return launch;
}

ModuleSpec modifier_blocks_module() { return {"common/modifier_blocks.cu", {}}; }

}  // namespace tessera::gpu
