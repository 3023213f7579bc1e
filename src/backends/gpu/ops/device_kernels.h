#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ops/arguments.h"
#include "tessera/device.h"

namespace tessera::gpu {

/// A launch of one of the kernels that are plain SIMT code.
struct SimtLaunch {
  std::string source;  ///< "common/rms_norm.cu"
  std::string entry;   ///< "rms_norm_bf16"
  unsigned grid_x = 1, grid_y = 1;
  unsigned threads = 1;
  std::size_t shared_bytes = 0;  ///< dynamic
  void* params = nullptr;        ///< the kernel's only argument
  int only = 0;  ///< value of TESSERA_ONLY that leaves the entry in its source; 0: the source has no parts
  std::optional<DType> blocks = {};  ///< the format that the source is compiled for, if for one at a time
};

/// Where kernels run: a GPU, or an executor for tests.
class SimtLauncher {
 public:
  virtual ~SimtLauncher() = default;
  virtual void launch(const SimtLaunch& launch, Stream stream) = 0;
  virtual unsigned warp_size() const = 0;
  virtual int num_multiprocessors() const = 0;
  /// Device memory, aligned to 16 bytes, that the kernels of one call pass on what they found in. The same
  /// for all calls of a stream, so that calls in different streams do not meet; a recording uses that of the
  /// stream it was recorded in. Lives as long as the launcher.
  virtual std::byte* workspace(std::size_t size_bytes, Stream stream) = 0;
  /// The product, gated if there is an activation (DeviceKernels::gated_gemm), by what is there for this kind
  /// of device alone; false if nothing is for these arguments, or plain kernels are as fast, whatever the
  /// rows of x if batch_invariant. Arguments are valid and have rows.
  virtual bool tuned_gemm(const GemmArguments&, std::optional<GatedActivation>, Stream) { return false; }
  /// Whether tuned_gemm takes a product without an activation that a plain kernel with it would take longer
  /// for.
  virtual bool tunes_gemm(const GemmArguments&) const { return false; }
  /// tuned_gemm of slots of experts.
  virtual bool tuned_expert_gemm(const ExpertGemmArguments&, Stream) { return false; }
  /// Whether tuned_expert_gemm takes a product of slots, of arguments with an activation or that combine that
  /// without either.
  virtual bool tunes_expert_gemm(const ExpertGemmArguments&) const { return false; }
  /// Whether tuned_gemm takes a gated product.
  virtual bool tunes_gated_gemm(const GemmArguments&, GatedActivation) const { return false; }
};

/// The ops of ops/backend.h as launches: validates arguments, picks kernels and grids. The same for every
/// GPU.
class DeviceKernels {
 public:
  explicit DeviceKernels(SimtLauncher& launcher) : launcher_(launcher) {}

  void embedding(const EmbeddingArguments& arguments, Stream stream);
  void rms_norm(const RmsNormArguments& arguments, Stream stream);
  void gemm(const GemmArguments& arguments, Stream stream);
  /// Throws Error{kInvalidArgument} for arguments that are not valid.
  bool takes_gated_gemm(const GemmArguments& arguments, GatedActivation activation) const;
  void gated_gemm(const GemmArguments& arguments, GatedActivation activation, Stream stream);
  void layer_norm(const LayerNormArguments& arguments, Stream stream);
  void rope(const RopeArguments& arguments, Stream stream);
  void rope_append(const RopeAppendArguments& arguments, Stream stream);
  void gated_activation(const GatedActivationArguments& arguments, Stream stream);
  void route_experts(const RouteExpertsArguments& arguments, Stream stream);
  /// As OpsBackend has it. Throws Error{kInvalidArgument} for arguments that are not valid.
  bool takes_fused_expert_gemm(const ExpertGemmArguments& arguments) const;
  void expert_gemm(const ExpertGemmArguments& arguments, Stream stream);
  void combine_experts(const CombineExpertsArguments& arguments, Stream stream);
  void causal_conv(const CausalConvArguments& arguments, Stream stream);
  void gated_delta(const GatedDeltaArguments& arguments, Stream stream);
  void softmax(const SoftmaxArguments& arguments, Stream stream);
  void scale(const ScaleArguments& arguments, Stream stream);
  void softcap(const SoftcapArguments& arguments, Stream stream);
  void causal_mask(const CausalMaskArguments& arguments, Stream stream);
  void adjust_logits(const AdjustLogitsArguments& arguments, Stream stream);
  void sample(const SampleArguments& arguments, Stream stream);
  void logprobs(const LogprobsArguments& arguments, Stream stream);

 private:
  template <class Params>
  void launch(std::string_view source, std::string entry, std::int64_t grid_x, unsigned threads,
              const Params& params, Stream stream, std::size_t shared_bytes = 0, std::int64_t grid_y = 1,
              int only = 0, std::optional<DType> blocks = {}) {
    Params copy = params;
    launch({.source = std::string(source),
            .entry = std::move(entry),
            .threads = threads,
            .shared_bytes = shared_bytes,
            .params = &copy,
            .only = only,
            .blocks = blocks},
           grid_x, grid_y, stream);
  }
  /// Of a grid that may be too large, which is an error, or empty.
  void launch(SimtLaunch launch, std::int64_t grid_x, std::int64_t grid_y, Stream stream);
  /// x = `name`(x, number) of each element, in place.
  void transform(const char* name, const Matrix& x, float number, Stream stream);
  unsigned row_threads(std::int64_t columns, std::int64_t rows, std::int64_t most_groups,
                       unsigned most) const;
  /// Which kernels of few slots take a product: a part of expert_gemv.cu (0: none of one type), else those of
  /// blocks.
  struct ExpertGemvKernel {
    int part_of_types = 0;
    bool is_blocks = false;
  };
  ExpertGemvKernel expert_gemv_kernel(const ExpertGemmArguments& arguments) const;
  void expert_gemv(const ExpertGemmArguments& arguments, Stream stream);
  void gemm_few_rows(const GemmArguments& arguments, int gated, Stream stream);

  SimtLauncher& launcher_;
};

/// The ops of an OpsBackend by DeviceKernels. Base is OpsBackend, or what has its memory functions already.
template <class Base>
class DeviceKernelOps : public Base {
 public:
  void embedding(const EmbeddingArguments& a, Stream stream) override { kernels().embedding(a, stream); }
  void rms_norm(const RmsNormArguments& a, Stream stream) override { kernels().rms_norm(a, stream); }
  void layer_norm(const LayerNormArguments& a, Stream stream) override { kernels().layer_norm(a, stream); }
  void gemm(const GemmArguments& a, Stream stream) override { kernels().gemm(a, stream); }
  bool takes_gated_gemm(const GemmArguments& a, GatedActivation activation) const override {
    return kernels().takes_gated_gemm(a, activation);
  }
  void gated_gemm(const GemmArguments& a, GatedActivation activation, Stream stream) override {
    kernels().gated_gemm(a, activation, stream);
  }
  void rope(const RopeArguments& a, Stream stream) override { kernels().rope(a, stream); }
  void rope_append(const RopeAppendArguments& a, Stream stream) override { kernels().rope_append(a, stream); }
  void gated_activation(const GatedActivationArguments& a, Stream stream) override {
    kernels().gated_activation(a, stream);
  }
  void route_experts(const RouteExpertsArguments& a, Stream stream) override {
    kernels().route_experts(a, stream);
  }
  bool takes_fused_expert_gemm(const ExpertGemmArguments& a) const override {
    return kernels().takes_fused_expert_gemm(a);
  }
  void expert_gemm(const ExpertGemmArguments& a, Stream stream) override { kernels().expert_gemm(a, stream); }
  void combine_experts(const CombineExpertsArguments& a, Stream stream) override {
    kernels().combine_experts(a, stream);
  }
  void causal_conv(const CausalConvArguments& a, Stream stream) override { kernels().causal_conv(a, stream); }
  void gated_delta(const GatedDeltaArguments& a, Stream stream) override { kernels().gated_delta(a, stream); }
  void softmax(const SoftmaxArguments& a, Stream stream) override { kernels().softmax(a, stream); }
  void scale(const ScaleArguments& a, Stream stream) override { kernels().scale(a, stream); }
  void softcap(const SoftcapArguments& a, Stream stream) override { kernels().softcap(a, stream); }
  void causal_mask(const CausalMaskArguments& a, Stream stream) override { kernels().causal_mask(a, stream); }
  void adjust_logits(const AdjustLogitsArguments& a, Stream stream) override {
    kernels().adjust_logits(a, stream);
  }
  void sample(const SampleArguments& a, Stream stream) override { kernels().sample(a, stream); }
  void logprobs(const LogprobsArguments& a, Stream stream) override { kernels().logprobs(a, stream); }

 protected:
  virtual DeviceKernels& kernels() = 0;
  virtual const DeviceKernels& kernels() const = 0;
};

}  // namespace tessera::gpu
