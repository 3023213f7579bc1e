#pragma once

#include "attention/backend.h"

namespace tessera::reference {

/// Attention as its equations stand, in fp64: the judge of the other backends, not meant to be quick. Each
/// row is computed alone, keys in order, in two passes (the largest score, then weights and sums); o is
/// rounded once. A hidden key contributes nothing, whatever its k and v hold. f64, f32, f16, bf16, and
/// beside any of them k and v of f8e4m3; CPU memory.
class Attention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "reference"; }
  std::string_view description() const override { return "plain loops in fp64, the judge of the others"; }
  std::string unavailable_reason() const override { return {}; }
  std::string unsupported_reason(const AttentionProblem& problem) const override;
  bool runs_modifiers() const override { return true; }
  AttentionPlan plan(const AttentionProblem& problem, const AttentionConfig& config) const override;
  std::shared_ptr<std::byte> allocate_workspace(const Device& device, std::size_t size_bytes,
                                                Stream stream) const override;
  std::string unsupported_reason(const MergeStatesProblem& problem) const override;
  void merge_states(const MergeStatesProblem& problem, Stream stream) const override;
  Ceilings ceilings(DType dtype) const override;
};

}  // namespace tessera::reference
