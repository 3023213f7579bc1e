#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/call.h"
#include "attention/tuning.h"
#include "tessera/attention.h"

namespace tessera {

/// One way to run attention. Backends hold no state that a call changes (caches guard themselves), so that
/// calls may come from several threads at once.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  virtual std::string_view name() const = 0;
  virtual std::string_view description() const = 0;

  /// What computes: tensors in its memory are used in place.
  virtual DeviceKind device_kind() const { return DeviceKind::kCpu; }

  /// Empty if this machine can run the backend; otherwise what is missing, in words for the user.
  virtual std::string unavailable_reason() const = 0;

  /// Empty if this backend can run the valid `problem`; otherwise why not, in words for the user.
  virtual std::string unsupported_reason(const AttentionProblem& problem) const = 0;

  /// Whether it runs problems with scores.modifier; of one that doesn't nothing else is asked about them.
  virtual bool runs_modifiers() const { return false; }

  /// Kernel, tiles, splits and workspace for a valid, supported problem, and the call that runs them (its
  /// plan is whole: whoever runs it chooses nothing again); `config` holds the values the user forces.
  /// Depends on the problem's description and the device; of pointers, at most on their alignment. Throws
  /// Error{kInvalidArgument} for a forced value that no kernel has.
  virtual AttentionPlan plan(const AttentionProblem& problem, const AttentionConfig& config) const = 0;

  /// What else a user may want to know about a problem's plan, a line each: where its kernels come from, why
  /// not the backend's other kernels. May take longer than plan().
  virtual std::vector<std::string> explain_plan(const AttentionProblem&, const AttentionConfig&) const {
    return {};
  }

  /// What `tessera tune attention` measures of it; null: its choices follow from no measurement.
  virtual const AttentionTuner* tuner() const { return nullptr; }

  /// Takes scratch memory for one call on a problem of `device`, where the kernels need it; released when the
  /// pointer goes.
  virtual std::shared_ptr<std::byte> allocate_workspace(const Device& device, std::size_t size_bytes,
                                                        Stream stream) const = 0;

  /// Empty if this backend can run the valid `problem`.
  virtual std::string unsupported_reason(const MergeStatesProblem& problem) const = 0;
  virtual void merge_states(const MergeStatesProblem& problem, Stream stream) const = 0;

  /// Measured on the first call for a dtype, remembered afterwards.
  virtual Ceilings ceilings(DType dtype) const = 0;
};

/// All backends, the preferred first. Defined in backends/registry.cpp, the one place that lists them.
std::span<const std::unique_ptr<AttentionBackend>> all_attention_backends();

/// Puts a backend behind all others, which is how tests bring their own. Only while nothing else uses the
/// list.
void add_attention_backend(std::unique_ptr<AttentionBackend> backend);

/// The backend called `name`. Throws Error{kInvalidArgument} with the known names.
const AttentionBackend& find_attention_backend(std::string_view name);

struct BackendChoice {
  const AttentionBackend* backend = nullptr;
  std::string fallback_reason;
};

/// Picks the first of `backends` that is available and supports `problem`, or the one that options.backend
/// names. Asks no backend that it need not: asking one about a problem may wake its device. Throws like
/// plan_attention.
BackendChoice choose_backend(const AttentionProblem& problem, const AttentionOptions& options,
                             std::span<const std::unique_ptr<AttentionBackend>> backends);

/// Why each of the other `backends` was passed over. One whose device fails when asked gives that as its
/// reason.
std::vector<RejectedBackend> reasons_against_others(
    const AttentionProblem& problem, const AttentionOptions& options, const BackendChoice& choice,
    std::span<const std::unique_ptr<AttentionBackend>> backends);

}  // namespace tessera
