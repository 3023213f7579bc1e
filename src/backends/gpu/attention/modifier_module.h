#pragma once

#include <cstddef>

#include "backends/gpu/attention/attention_kernel.h"
#include "common/modifier_arguments.h"
#include "tessera/attention.h"

// A score modifier's way into a kernel: as a text that its module is compiled with, and as arguments.

namespace tessera::gpu {

/// Adds the problem's modifier to a module of a kernel that takes them; nothing if it has none.
void add_modifier(const AttentionProblem& problem, ModuleSpec& module);

/// What such a kernel is told of the call's tensors and scalars; blocks are left null.
kernels::ModifierArguments modifier_arguments(const ScoreModifier& modifier);

/// Puts the arguments where a module with a modifier has them, if the problem has one.
void add_modifier_arguments(const AttentionProblem& problem, KernelArguments& arguments);

}  // namespace tessera::gpu
