#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "ops/backend.h"

namespace tessera {

/// Runs another backend's kernels and records like a device that gains from it. Attention does not come
/// through here, so that a recording is the work itself: it must hold copies of all that it needs, as if its
/// kernels' arguments were fixed.
class RecordingOps : public OpsBackend {
 public:
  explicit RecordingOps(std::unique_ptr<OpsBackend> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return "recording"; }
  Device device() const override { return inner_->device(); }
  DeviceBuffer allocate(std::size_t size_bytes, std::string_view what) override {
    EXPECT_FALSE(is_recording_) << "memory is allocated while a step is recorded";
    return inner_->allocate(size_bytes, what);
  }
  void upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) override {
    EXPECT_FALSE(is_recording_) << "data is uploaded while a step is recorded";
    uploads_.insert(destination);
    inner_->upload(destination, source, size_bytes, stream);
  }
  void download(void* destination, const void* source, std::size_t size_bytes, Stream stream) override {
    EXPECT_FALSE(is_recording_) << "data is downloaded while a step is recorded";
    inner_->download(destination, source, size_bytes, stream);
  }
  void fill_zero(void* destination, std::size_t size_bytes, Stream stream) override {
    inner_->fill_zero(destination, size_bytes, stream);
  }
  void synchronize(Stream stream) override { inner_->synchronize(stream); }
  Weight make_weight(const HostWeight& weight) override { return inner_->make_weight(weight); }

  std::unique_ptr<RecordedWork> record(const std::function<void()>& work, Stream) override;

  void embedding(const EmbeddingArguments& a, Stream s) override { inner_->embedding(a, s); }
  void rms_norm(const RmsNormArguments& a, Stream s) override { inner_->rms_norm(a, s); }
  void layer_norm(const LayerNormArguments& a, Stream s) override { inner_->layer_norm(a, s); }
  void gemm(const GemmArguments& a, Stream s) override { inner_->gemm(a, s); }
  void rope(const RopeArguments& a, Stream s) override { inner_->rope(a, s); }
  void rope_append(const RopeAppendArguments& a, Stream s) override { inner_->rope_append(a, s); }
  void gated_activation(const GatedActivationArguments& a, Stream s) override {
    inner_->gated_activation(a, s);
  }
  void route_experts(const RouteExpertsArguments& a, Stream s) override { inner_->route_experts(a, s); }
  void expert_gemm(const ExpertGemmArguments& a, Stream s) override { inner_->expert_gemm(a, s); }
  void combine_experts(const CombineExpertsArguments& a, Stream s) override { inner_->combine_experts(a, s); }
  void causal_conv(const CausalConvArguments& a, Stream s) override { inner_->causal_conv(a, s); }
  void gated_delta(const GatedDeltaArguments& a, Stream s) override { inner_->gated_delta(a, s); }
  void softmax(const SoftmaxArguments& a, Stream s) override { inner_->softmax(a, s); }
  void scale(const ScaleArguments& a, Stream s) override { inner_->scale(a, s); }
  void softcap(const SoftcapArguments& a, Stream s) override { inner_->softcap(a, s); }
  void causal_mask(const CausalMaskArguments& a, Stream s) override { inner_->causal_mask(a, s); }
  void adjust_logits(const AdjustLogitsArguments& a, Stream s) override { inner_->adjust_logits(a, s); }
  void sample(const SampleArguments& a, Stream s) override { inner_->sample(a, s); }
  void logprobs(const LogprobsArguments& a, Stream s) override { inner_->logprobs(a, s); }

  int num_recorded() const { return num_recorded_; }
  int num_replayed() const { return num_replayed_; }
  std::multiset<const void*>& uploads() { return uploads_; }

 private:
  class Recording;

  std::unique_ptr<OpsBackend> inner_;
  std::multiset<const void*> uploads_;
  bool is_recording_ = false;
  int num_recorded_ = 0;
  int num_replayed_ = 0;
};

class RecordingOps::Recording : public RecordedWork {
 public:
  Recording(RecordingOps& ops, std::function<void()> work) : ops_(ops), work_(std::move(work)) {}
  void replay(Stream) override {
    ++ops_.num_replayed_;
    ops_.is_recording_ = true;
    try {
      work_();
    } catch (...) {
      ops_.is_recording_ = false;
      throw;
    }
    ops_.is_recording_ = false;
  }

 private:
  RecordingOps& ops_;
  std::function<void()> work_;
};

inline std::unique_ptr<RecordedWork> RecordingOps::record(const std::function<void()>& work, Stream) {
  ++num_recorded_;
  return std::make_unique<Recording>(*this, work);
}

}  // namespace tessera
