#pragma once

#include <memory>

#include "backends/cpu/attention/modifier.h"
#include "backends/cpu/attention/tile.h"
#include "backends/cpu/simd_target.h"
#include "tessera/attention.h"

namespace tessera::cpu {

/// What a plan's numbers mean for a call, worked out from the problem and the filled-in plan alone. Who runs
/// it puts the problem with the call's pointers into call.problem.
struct CallPlan {
  std::shared_ptr<const ModifierPlan> modifier;  ///< null: the problem has none
  SimdTarget target = SimdTarget::kBaseline;
  CallContext call;
  bool decode = false;           ///< all sequences run the decode kernel
  std::int64_t decode_rows = 0;  ///< most rows of a sequence that runs it
  std::int64_t rows = 0;         ///< most (query, head of the group) rows of any sequence
  std::int64_t tiles = 0;        ///< tiles of `rows`
  int heads_per_task = 1;        ///< key-value heads that a task covers
  /// batch_invariant: keys of a segment, of which each is a task if there are splits; 0: not cut.
  std::int64_t segment_keys = 0;
  int num_splits = 1;
  std::int64_t num_tasks = 0;  ///< sequences, groups of kv heads, tiles and splits
  /// Floats of one of a thread's two buffers for few rows: those of the segments so far, and of the next one.
  std::int64_t segment_floats = 0;
  std::size_t scratch_bytes = 0;  ///< of one thread: the kernels', then the buffers for segments
  std::size_t partial_bytes = 0;  ///< results of the splits, before the threads' scratch memory
};

/// Fills in what `config` leaves open. Throws Error{kInvalidArgument} for a value no kernel has.
AttentionPlan make_plan(const AttentionProblem& problem, const AttentionConfig& config);

/// Says in `plan` how much memory a call takes.
void set_workspace(const CallPlan& call, AttentionPlan& plan);

/// The call that a plan of make_plan describes.
CallPlan make_call(const AttentionProblem& problem, const AttentionPlan& plan);

}  // namespace tessera::cpu
