#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <string>

#include "backends/gpu/attention/attention_kernel.h"
#include "backends/gpu/runtime/gpu.h"

namespace tessera::gpu {

/// A chosen kernel on its device: what running a plan takes but the pointers. Safe to use from several
/// threads.
class PreparedLaunch {
 public:
  PreparedLaunch(const AttentionProblem& problem, KernelChoice choice, Gpu& device);

  /// Finds the kernels, once: compiled or loaded if no one has yet.
  void load() const;

  /// Launches for a problem of the same description, which is copied to the GPU and back if it is in CPU
  /// memory. Throws Error{kInvalidArgument} if the tensors' addresses are less aligned than the kernel was
  /// chosen for.
  void run(const AttentionProblem& problem, std::span<std::byte> workspace, Stream stream) const;

 private:
  void launch(const AttentionProblem& problem, std::byte* workspace, Stream stream) const;
  /// Widens the queries; the problem with them.
  AttentionProblem widen(const AttentionProblem& problem, std::byte* workspace, Stream stream) const;
  /// All the others, of the problem that the attention kernel sees.
  void launch_kernels(const AttentionProblem& problem, std::byte* workspace, Stream stream) const;

  KernelChoice choice_;
  Gpu& device_;
  bool is_aligned_;  // q (unless it is widened), k, v and o were multiples of kTensorAlignment
  std::string widen_queries_entry_;
  mutable std::once_flag loaded_;
  mutable const Kernel* kernel_ = nullptr;   // set by load()
  mutable const Kernel* widen_ = nullptr;    // likewise; stays null if q is not widened
  mutable const Kernel* blocks_ = nullptr;   // likewise; stays null without bounds of a modifier's tensors
  mutable const Kernel* combine_ = nullptr;  // likewise; stays null if the keys are not split
};

}  // namespace tessera::gpu
