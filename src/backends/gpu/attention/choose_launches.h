#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/gpu/attention/choose_kernel.h"

// Which launches a call takes. One, mostly; where ragged sequences of few queries stand among prompts, one
// for each kind: few queries would fill little of a prompt's tiles, and take as long as full ones.

namespace tessera::gpu {

/// A launch's kernel and the problem that it sees, whose bounds may be tighter than the call's.
struct LaunchChoice {
  std::int64_t seq_len_q = 0;  ///< the most queries of a sequence that it is for
  KernelChoice choice;
};

/// `problem` as a launch of that bound sees it.
AttentionProblem problem_of_launch(AttentionProblem problem, std::int64_t seq_len_q);

/// The most queries of the sequences that a launch of their own is worth, beside one for those that have
/// more; 0: one launch is for all. Lengths that live on the device are guessed from their total.
std::int64_t most_few_queries(const AttentionProblem& problem, const DeviceProperties& device);

/// The launches for a supported problem, at least one, that for the longest sequences first. Throws like
/// choose_kernel.
std::vector<LaunchChoice> choose_launches(AttentionKernels kernels, const AttentionProblem& problem,
                                          const DeviceProperties& device, const AttentionConfig& forced,
                                          const AttentionTunings& tunings = {});

/// "sm90/prefill"; of two launches "sm90/prefill + sm90/decode".
std::string kernel_names(const std::vector<LaunchChoice>& launches);

}  // namespace tessera::gpu
