#pragma once

#include "attention/backend.h"

namespace tessera::unfused {

/// Classic attention, one kernel a step: q k^T, scale, softcap and masks, row softmax, product with v. The
/// whole score matrix (heads, queries, keys) lies in memory in fp32 between them, so memory grows with
/// seq_len_q * seq_len_kv: the baseline that fused attention is measured against. f32, f16, bf16, k and v
/// also f8e4m3, with fp32 arithmetic; CPU memory.
class Attention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "unfused"; }
  std::string_view description() const override {
    return "the classic pipeline of separate kernels, which materialises the scores";
  }
  std::string unavailable_reason() const override { return {}; }
  std::string unsupported_reason(const AttentionProblem& problem) const override;
  bool runs_modifiers() const override { return true; }
  /// Throws Error{kOutOfMemory} if the scores' size does not fit in 64 bits.
  AttentionPlan plan(const AttentionProblem& problem, const AttentionConfig& config) const override;
  std::shared_ptr<std::byte> allocate_workspace(const Device& device, std::size_t size_bytes,
                                                Stream stream) const override;
  std::string unsupported_reason(const MergeStatesProblem& problem) const override;
  void merge_states(const MergeStatesProblem& problem, Stream stream) const override;
  Ceilings ceilings(DType dtype) const override;
};

}  // namespace tessera::unfused
