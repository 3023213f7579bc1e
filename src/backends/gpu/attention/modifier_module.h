#pragma once

#include <cstddef>

#include "backends/gpu/attention/attention_kernel.h"
#include "common/modifier_arguments.h"
#include "common/modifier_blocks.h"
#include "tessera/attention.h"

// A score modifier's way into a kernel: as a text that its module is compiled with, and as arguments.

namespace tessera::gpu {

/// Adds the problem's modifier to a module of a kernel that takes them; nothing if it has none.
void add_modifier(const AttentionProblem& problem, ModuleSpec& module);

/// What such a kernel is told of the call's tensors and scalars; blocks are left null.
kernels::ModifierArguments modifier_arguments(const ScoreModifier& modifier);

/// Puts the arguments where a module with a modifier has them, if the problem has one. blocks: of
/// modifier_block_bytes(), or null.
void add_modifier_arguments(const AttentionProblem& problem, KernelArguments& arguments,
                            std::byte* blocks = nullptr);

/// Where the bounds are in a choice's workspace; null: it has none.
inline std::byte* modifier_blocks_of(const KernelChoice& choice, std::byte* workspace) {
  return choice.modifier_block_bytes > 0 ? workspace + choice.partial_bytes - choice.modifier_block_bytes
                                         : nullptr;
}

/// Memory for the bounds of the tensors that the modifier's mask reads; 0: there are none.
std::size_t modifier_block_bytes(const AttentionProblem& problem);

/// What fills them in.
struct ModifierBlocksLaunch {
  LaunchShape shape;
  kernels::ModifierBlocksParams params;
};
ModifierBlocksLaunch modifier_blocks_launch(const AttentionProblem& problem, std::byte* blocks,
                                            int warp_size);
ModuleSpec modifier_blocks_module();

}  // namespace tessera::gpu
