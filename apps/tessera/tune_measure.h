#pragma once

#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/tuning.h"
#include "backends/gpu/runtime/gpu.h"
#include "problem_options.h"

namespace tessera::cli {

/// A way to compute a problem and how long it took.
struct MeasuredCandidate {
  AttentionCandidate candidate;
  AttentionConfig config;  ///< every value filled in
  double us = 0;           ///< the median; 0: not measured
  int rounds = 0;
  std::string failure;  ///< not empty: why it is out of the question
};

struct MeasuredProblem {
  std::string description;
  std::string shapes;  ///< its class
  TunedEntry entry;
  std::vector<MeasuredCandidate> candidates;  ///< the first is the untuned choice
};

/// Measures all that a backend with a tuner has for a problem, in rounds of one sample of each in turn, those
/// that are far behind the first few rounds only. Each candidate's result is compared with the untuned
/// choice's, and that one's and the quickest's with the fp64 reference. Throws Error{kDevice} if the untuned
/// choice is wrong.
MeasuredProblem measure_candidates(const AttentionBackend& backend, gpu::Gpu* device,
                                   const ProblemOptions& options, std::uint64_t seed);

}  // namespace tessera::cli
