#pragma once

#include <memory>
#include <span>
#include <string>

#include "attention/backend.h"

namespace tessera {

/// The reference under another name: tests override what they change.
class ForwardingBackend : public AttentionBackend {
 public:
  std::string_view description() const override { return "the reference, for a test"; }
  std::string unavailable_reason() const override { return {}; }
  std::string unsupported_reason(const AttentionProblem& p) const override {
    return right_.unsupported_reason(p);
  }
  bool runs_modifiers() const override { return true; }
  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    return right_.plan(p, config);
  }
  std::shared_ptr<std::byte> allocate_workspace(const Device& device, std::size_t size_bytes,
                                                Stream stream) const override {
    return right_.allocate_workspace(device, size_bytes, stream);
  }
  std::string unsupported_reason(const MergeStatesProblem& p) const override {
    return right_.unsupported_reason(p);
  }
  void merge_states(const MergeStatesProblem& p, Stream stream) const override {
    right_.merge_states(p, stream);
  }
  Ceilings ceilings(DType) const override { return {}; }

 private:
  const AttentionBackend& right_ = find_attention_backend("reference");
};

}  // namespace tessera
