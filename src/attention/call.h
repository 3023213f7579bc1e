#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "tessera/attention.h"

namespace tessera {

/// What a plan carries and attention_forward runs: the description that it was made for, and what its backend
/// made ready. Whatever is written into the plan's fields changes nothing here. Safe to use from several
/// threads.
class AttentionCall {
 public:
  /// Runs a problem of the description, maybe asynchronously; never allocates device memory, never plans.
  using Run =
      std::function<void(const AttentionProblem& problem, std::span<std::byte> workspace, Stream stream)>;
  /// Loads what running takes. May be called often, from several threads.
  using Load = std::function<void()>;

  /// `load` may be empty: nothing to load.
  AttentionCall(const AttentionProblem& description, std::size_t workspace_bytes, Run run, Load load = {});

  /// Makes the first forward() as quick as the others, and safe where nothing may be loaded (a CUDA graph
  /// that is being captured).
  void load() const;

  /// `problem` with tight bounds. Throws Error{kInvalidArgument} for a problem of another description, a
  /// modifier's scalars that it can't be computed with, pointers that are null or not aligned to their
  /// elements, and contents of arrays in CPU memory that lead out of the tensors.
  AttentionProblem checked(const AttentionProblem& problem) const;

  /// Throws like checked(), and for a workspace that is too small or not aligned to 64 bytes.
  void forward(const AttentionProblem& problem, std::span<std::byte> workspace, Stream stream) const;

 private:
  AttentionProblem description_;  // its pointers are not followed
  std::size_t workspace_bytes_;
  Run run_;
  Load load_;
};

/// `problem` with bounds of the sequences' lengths that its totals allow: no sequence is longer than all
/// together. Work that follows a bound then follows the data. What backends plan and run.
AttentionProblem with_tight_bounds(const AttentionProblem& problem);

/// Whether v is the first head_dim_v elements of k's longer rows, as in multi-head latent attention.
bool has_values_in_keys(const AttentionProblem& problem);

/// Throws Error{kInvalidArgument} that names the first thing in which `problem` is another than the one that
/// a plan is for, pointers (but for values in keys) and a modifier's scalars aside.
void check_same_description(const AttentionProblem& planned, const AttentionProblem& problem);

}  // namespace tessera
