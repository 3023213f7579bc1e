#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/attention/choose_kernel.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "common/attention_params.h"
#include "common/merge_states.h"
#include "tessera/attention.h"

// What attention's kernels are launched with. Nothing here touches a GPU.

namespace tessera::cuda {

/// partials: choice.partial_bytes of memory if the keys are split.
kernels::AttentionParams attention_arguments(const AttentionProblem& problem, const KernelChoice& choice,
                                             std::byte* partials);

kernels::MergeStatesParams merge_states_arguments(const MergeStatesProblem& problem);

/// Sequences that one launch may take: a grid's third dimension is short.
std::int64_t sequences_at_once(const KernelChoice& choice);

/// The launch for `sequences` sequences from AttentionParams::batch_begin on.
LaunchShape attention_shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size = 32);

/// attention_combine after it, if the keys are split.
LaunchShape combine_shape(const AttentionProblem& problem, const KernelChoice& choice,
                          std::int64_t sequences);

LaunchShape merge_states_shape(const MergeStatesProblem& problem);

}  // namespace tessera::cuda
