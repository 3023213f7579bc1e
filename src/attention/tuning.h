#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/attention.h"

// What `tessera tune attention` measures of a backend's ways to compute a problem, and what is remembered of
// it.

namespace tessera {

/// A way to compute a problem: one of a backend's kernels and what is forced of its config (0: as the kernel
/// chooses).
struct AttentionCandidate {
  std::string kernel;
  AttentionConfig config;

  friend bool operator==(const AttentionCandidate&, const AttentionCandidate&) = default;
};

/// "sm80/decode, 8 warps, 4 splits".
std::string to_string(const AttentionCandidate& candidate);

/// The fastest of what was measured for a class of shapes.
struct TunedEntry {
  AttentionCandidate best;  ///< its kernel is empty: nothing beats the untuned choice
  /// batch * num_kv_heads of the problem that was measured: best.config's num_splits and num_parts fit as
  /// many.
  std::int64_t kv_heads = 0;
  double best_us = 0;
  std::string default_kernel;  ///< the untuned choice
  double default_us = 0;
  int num_candidates = 0;
  std::string date;  ///< "2026-11-23"

  friend bool operator==(const TunedEntry&, const TunedEntry&) = default;
};

/// Entries by the shapes' class, of one device.
struct TuningTable {
  std::string device;  ///< its name
  std::map<std::string, TunedEntry, std::less<>> entries;

  friend bool operator==(const TuningTable&, const TuningTable&) = default;
};

/// Which problems share an entry: those of the same types, head_dims, group of heads, kinds of masks, terms
/// and storage, whose seq_len_q, seq_len_kv, window and batch * num_kv_heads are nearest to the same powers
/// of two: "bf16 d128 group4 causal paged16 q1 kv4096 kvheads64". Depends on the problem's description only.
std::string shape_class(const AttentionProblem& problem);

/// Measurements on one device; null: none. The user's own go before those that the library brings.
struct AttentionTunings {
  const TuningTable* own = nullptr;
  const TuningTable* shipped = nullptr;
};

/// What measurements say of a problem.
struct TunedCandidate {
  std::optional<AttentionCandidate> candidate;  ///< none: the backend chooses as it does without
  std::string why;                              ///< for explain; empty: nothing was measured of its class
};

/// What was measured to be the quickest for a problem's class of shapes. It never decides what a problem's
/// bits depend on: not with forced values or batch_invariant. Splits are for as many kv heads as were
/// measured; for others of the class the kernel splits as it does by itself.
TunedCandidate find_tuned(const AttentionProblem& problem, const AttentionConfig& forced,
                          const AttentionTunings& tunings);

/// What is added to TunedCandidate::why where the candidate can't be used after all.
std::string not_used(std::string_view reason);

/// The table as a JSON document.
std::string tuning_to_json(const TuningTable& table);

/// Reads one back, whoever wrote it. Throws Error{kCorruptFile} that names `source` for a text that is no
/// such document, is of another version or larger than a table can be.
TuningTable parse_tuning(std::string_view text, const std::string& source);

/// Which of several candidates is the fastest, by samples that were taken in rounds, one of each a round:
/// samples[i][round] in any unit, candidate 0 the untuned choice. Another wins only if its median is at least
/// 3 % below candidate 0's and it was faster in three of four rounds, so that noise changes nothing.
std::size_t fastest_in_rounds(std::span<const std::vector<double>> samples);

/// There must be at least one.
double median_of(std::vector<double> samples);

/// What a backend lets be measured, and remembers, of problems that it supports. Safe to use from several
/// threads.
class AttentionTuner {
 public:
  virtual ~AttentionTuner() = default;

  /// Ways to compute `problem` that are worth measuring, each another; the first is the untuned choice.
  virtual std::vector<AttentionCandidate> candidates(const AttentionProblem& problem) const = 0;

  /// The plan that runs one of them. Throws Error{kInvalidArgument} for what no kernel has.
  virtual AttentionPlan plan_candidate(const AttentionProblem& problem,
                                       const AttentionCandidate& candidate) const = 0;

  /// Loads what all of them run, side by side. What can't be loaded is left for its plan's call to say.
  virtual void prepare(const AttentionProblem& problem,
                       std::span<const AttentionCandidate> candidates) const = 0;

  /// The user's own measurements on `device`.
  virtual TuningTable tuned(const Device& device) const = 0;

  /// Adds entries to them, from now on and for later processes. Throws Error{kIo} if they can't be written.
  virtual void remember(const Device& device, const TuningTable& measured) const = 0;
};

}  // namespace tessera
