#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backends/gpu/attention/attention_kernel.h"
#include "common/attention_params.h"
#include "common/merge_states.h"
#include "tessera/attention.h"

// What attention's kernels are launched with. Nothing here touches a GPU.

namespace tessera::gpu {

/// What every attention kernel is told. partials: choice.partial_bytes of memory if the keys are split.
kernels::AttentionParams attention_params(const AttentionProblem& problem, const KernelChoice& choice,
                                          std::byte* partials);

/// What the choice's kernel is launched with. workspace: choice.partial_bytes.
KernelArguments kernel_arguments(const kernels::AttentionParams& params, const AttentionProblem& problem,
                                 const KernelChoice& choice, std::byte* workspace);

kernels::MergeStatesParams merge_states_arguments(const MergeStatesProblem& problem);

/// Grids of (row tiles * heads_at_once, groups of heads_at_once heads through all sequences, splits).
LaunchShape tiled_shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size);
std::int64_t tiled_sequences_at_once(const KernelChoice& choice);

/// Grids of (row tiles, head blocks, sequences * splits).
LaunchShape row_shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size);
/// The same, of kernels that wait for those before themselves.
LaunchShape early_row_shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size);
std::int64_t row_sequences_at_once(const KernelChoice& choice);

/// attention_combine, which comes after a kernel whose keys are split.
ModuleSpec combine_module();
std::string combine_entry(const AttentionProblem& problem, int num_splits);
/// attention_join, which takes its place where the keys are segments.
ModuleSpec join_module();
std::string join_entry(const AttentionProblem& problem);
/// Whether the choice's combine_module has the problem's modifier compiled in: it may look at keys.
bool combines_with_modifier(const KernelChoice& choice);
LaunchShape combine_shape(const AttentionProblem& problem, const KernelChoice& choice, std::int64_t sequences,
                          unsigned warp_size);

/// How the splits of `sequences` sequences from params.batch_begin on are merged, if they have to be.
CombineLaunch combine_launch(const kernels::AttentionParams& params, const AttentionProblem& problem,
                             const KernelChoice& choice, std::byte* workspace, std::int64_t sequences,
                             unsigned warp_size);

LaunchShape merge_states_shape(const MergeStatesProblem& problem);

}  // namespace tessera::gpu
