#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backends/gpu/attention/attention_kernel.h"
#include "backends/gpu/attention/choose_launches.h"
#include "backends/gpu/runtime/gpu.h"

namespace tessera::gpu {

/// A chosen kernel on its device: what launching it takes but the pointers. Safe to use from several threads.
class PreparedLaunch {
 public:
  PreparedLaunch(const AttentionProblem& problem, KernelChoice choice, Gpu& device);

  /// Finds the kernels, once: compiled or loaded if no one has yet.
  void load() const;

  /// Throws Error{kInvalidArgument} if the tensors' addresses are less aligned than the kernel was chosen
  /// for.
  void check_alignment(const AttentionProblem& problem) const;

  /// For a problem of the same description in the GPU's memory. workspace: the choice's workspace_bytes().
  void launch(const AttentionProblem& problem, std::byte* workspace, Stream stream) const;

 private:
  /// Widens the queries; the problem with them.
  AttentionProblem widen(const AttentionProblem& problem, std::byte* workspace, Stream stream) const;
  /// Copies tensors to aligned rows; the problem with them.
  AttentionProblem align(const AttentionProblem& problem, std::byte* workspace, Stream stream) const;
  /// All the others, of the problem that the attention kernel sees.
  void launch_kernels(const AttentionProblem& problem, std::byte* workspace, Stream stream) const;

  KernelChoice choice_;
  Gpu& device_;
  bool is_aligned_;  // q (unless it is widened), k, v and o were multiples of kTensorAlignment
  std::string widen_queries_entry_;
  std::string split_rows_entry_;
  mutable std::once_flag loaded_;
  mutable const Kernel* kernel_ = nullptr;   // set by load()
  mutable const Kernel* widen_ = nullptr;    // likewise; stays null if q is not widened
  mutable const Kernel* align_ = nullptr;    // likewise; stays null if rows are taken as they are
  mutable const Kernel* split_ = nullptr;    // likewise; stays null if q, k and v are taken as they are
  mutable const Kernel* blocks_ = nullptr;   // likewise; stays null without bounds of a modifier's tensors
  mutable const Kernel* combine_ = nullptr;  // likewise; stays null if the keys are not split
};

/// All launches of a call: what running its plan takes but the pointers. Safe to use from several threads.
class PreparedLaunches {
 public:
  PreparedLaunches(const AttentionProblem& problem, const std::vector<LaunchChoice>& choices, Gpu& device);

  /// Of a problem in the GPU's memory.
  std::size_t workspace_bytes() const { return workspace_bytes_; }

  /// Finds the kernels, once.
  void load() const;

  /// Runs a problem of the same description. One in CPU memory is copied to the GPU and back, by way of the
  /// end of `workspace`. Throws Error{kInvalidArgument} as check_alignment() does.
  void run(const AttentionProblem& problem, std::span<std::byte> workspace, Stream stream) const;

 private:
  struct Part {
    std::int64_t seq_len_q;
    std::size_t workspace_begin;
    std::unique_ptr<const PreparedLaunch> launch;
  };

  /// Those of all launches beside one another, once: with a modifier's new text each is compiled for seconds.
  void load_modules() const;
  void launch(const AttentionProblem& problem, std::byte* workspace, Stream stream) const;

  Gpu& device_;
  std::vector<Part> parts_;
  std::vector<ModuleSpec> modules_;
  mutable std::once_flag modules_loaded_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace tessera::gpu
