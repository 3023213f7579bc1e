#pragma once

#include <string>
#include <vector>

#include "attention/tuning.h"
#include "attention/tuning_store.h"
#include "tessera/attention.h"

namespace tessera::cpu {

/// The tuned shapes of this processor with as many threads as there are now.
const TuningStore& tunings();

struct TunedPlan {
  AttentionPlan plan;
  std::string why;  ///< for explain; empty: nothing was measured of the problem's class of shapes
};

/// The plan that was measured to be the quickest for a problem's class of shapes, else make_plan's. Throws
/// like that.
TunedPlan plan_tuned(const AttentionProblem& problem, const AttentionConfig& config,
                     const AttentionTunings& tunings);

/// Tiles and splits around those of make_plan, each another plan; the first is make_plan's.
std::vector<AttentionCandidate> attention_candidates(const AttentionProblem& problem);

/// Throws Error{kInvalidArgument} if the kernel is not the one that takes the problem, or hasn't the config.
AttentionPlan plan_candidate(const AttentionProblem& problem, const AttentionCandidate& candidate);

}  // namespace tessera::cpu
