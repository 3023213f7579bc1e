#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "ops/host_backend.h"

namespace tessera {

/// The kernels of a device with arguments in the host's memory: copies what a call refers to there and back,
/// for tests and benchmarks. Ranges that overlap stay one on the device, and addresses keep their alignment.
class StagedOps final : public HostOpsBackend {
 public:
  explicit StagedOps(std::unique_ptr<OpsBackend> device) : device_(std::move(device)) {}

  std::string_view name() const override { return device_->name(); }
  OpsBackend& device_ops() { return *device_; }

  /// From now on, calls work on the copies that calls with the same arguments left on the device, and nothing
  /// comes back: what a benchmark times. The stream of device_ops() takes the work. `false` forgets the
  /// copies.
  void keep_copies(bool keep);

  void embedding(const EmbeddingArguments& arguments, Stream) override;
  void rms_norm(const RmsNormArguments& arguments, Stream) override;
  void layer_norm(const LayerNormArguments& arguments, Stream) override;
  void gemm(const GemmArguments& arguments, Stream) override;
  bool takes_gated_gemm(const GemmArguments& arguments, GatedActivation activation) const override {
    return device_->takes_gated_gemm(arguments, activation);
  }
  void gated_gemm(const GemmArguments& arguments, GatedActivation activation, Stream) override;
  bool takes_normed_gemm(const NormedGemmArguments& arguments) const override {
    return device_->takes_normed_gemm(arguments);  // copies keep their alignment
  }
  void normed_gemm(const NormedGemmArguments& arguments, Stream) override;
  void rope(const RopeArguments& arguments, Stream) override;
  void rope_append(const RopeAppendArguments& arguments, Stream) override;
  void gated_activation(const GatedActivationArguments& arguments, Stream) override;
  void route_experts(const RouteExpertsArguments& arguments, Stream) override;
  bool takes_fused_expert_gemm(const ExpertGemmArguments& arguments) const override {
    return device_->takes_fused_expert_gemm(arguments);
  }
  void expert_gemm(const ExpertGemmArguments& arguments, Stream) override;
  void combine_experts(const CombineExpertsArguments& arguments, Stream) override;
  void causal_conv(const CausalConvArguments& arguments, Stream) override;
  void gated_delta(const GatedDeltaArguments& arguments, Stream) override;
  void softmax(const SoftmaxArguments& arguments, Stream) override;
  void scale(const ScaleArguments& arguments, Stream) override;
  void softcap(const SoftcapArguments& arguments, Stream) override;
  void causal_mask(const CausalMaskArguments& arguments, Stream) override;
  void adjust_logits(const AdjustLogitsArguments& arguments, Stream) override;
  void sample(const SampleArguments& arguments, Stream) override;
  void logprobs(const LogprobsArguments& arguments, Stream) override;

 private:
  /// A range of host memory and its copy.
  struct Range {
    std::uintptr_t end = 0;
    DeviceBuffer memory;
    std::byte* device = nullptr;
  };

  class Adder;
  class Mapper;
  class Forgetter;

  /// Runs a call on copies: `each_range(arguments, each)` calls `each` with all that the arguments refer to,
  /// once to learn the ranges, once to make the pointers those of the copies.
  template <class Arguments, class EachRange, class Run>
  void stage(Arguments arguments, EachRange each_range, Run run);
  void add(const void* data, std::size_t size_bytes);
  void upload_ranges();
  void download_ranges();

  std::unique_ptr<OpsBackend> device_;
  std::mutex mutex_;                        // one call at a time
  std::map<std::uintptr_t, Range> ranges_;  // by first address
  bool keeps_copies_ = false;
};

}  // namespace tessera
