#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ops/arguments.h"
#include "tessera/device.h"
#include "tessera/error.h"

namespace tessera {

/// Memory of a device; freed with the last owner.
struct DeviceBuffer {
  std::shared_ptr<std::byte> data;  ///< in the device's memory; null if size_bytes is 0
  std::size_t size_bytes = 0;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data.get());
  }
};

/// Work recorded once and replayed with the pointers and sizes it was recorded with.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void replay(Stream stream) = 0;
};

/// Brings small results to the host behind the work that is in a stream, while the host goes on.
class Readback {
 public:
  virtual ~Readback() = default;
  /// Asks for what stands at `source` when the stream's work so far has ended. What was asked for before is
  /// forgotten.
  virtual void start(const void* source, std::size_t size_bytes, Stream stream) = 0;
  /// Waits for it. Valid until the next start().
  virtual std::span<const std::byte> wait() = 0;
};

/// Everything but attention that a model needs from a device: memory and kernels. Each kernel validates its
/// arguments (Error{kInvalidArgument} naming argument, value and what was expected) and may be asynchronous
/// on `stream`; kernels never allocate device memory except from a pool. Equations and shapes stand at the
/// arguments' structs.
class OpsBackend {
 public:
  virtual ~OpsBackend() = default;

  virtual std::string_view name() const = 0;
  virtual Device device() const = 0;

  /// The queue of this backend's own, for callers that have none: the model's work goes there. The default
  /// stream where a device has no use for another.
  virtual Stream stream() const { return {}; }

  /// Whether products of bf16 with weights of blocks are made by instructions for bf16, in a fraction of the
  /// time of fp32's.
  virtual bool multiplies_bf16() const { return device().kind != DeviceKind::kCpu; }

  // ---- Memory

  /// Memory aligned to 64 bytes or more, not initialised. `what` says what for. Throws Error{kOutOfMemory}
  /// with the size asked for, what was free and `what`.
  virtual DeviceBuffer allocate(std::size_t size_bytes, std::string_view what) = 0;
  /// Host to device; `source` may be reused when the call returns.
  virtual void upload(void* destination, const void* source, std::size_t size_bytes, Stream stream) = 0;
  /// Device to host; has finished when the call returns.
  virtual void download(void* destination, const void* source, std::size_t size_bytes, Stream stream) = 0;
  /// With room for `most_bytes`. Null where kernels have ended when their calls return: the host then has
  /// nothing else to do meanwhile.
  virtual std::unique_ptr<Readback> make_readback(std::size_t most_bytes) {
    static_cast<void>(most_bytes);
    return nullptr;
  }
  virtual void fill_zero(void* destination, std::size_t size_bytes, Stream stream) = 0;
  virtual void synchronize(Stream stream) = 0;

  /// Makes a weight usable by gemm and the other kernels, from host memory that outlives the result. The CPU
  /// refers to it in place where alignment allows, a GPU uploads it.
  virtual Weight make_weight(const HostWeight& weight) = 0;

  /// Rows of several weights one below the other, so that one gemm takes them all. A null weight where that
  /// would only cost memory, or if their dtypes or columns differ.
  virtual Weight make_stacked_weight(std::span<const HostWeight> parts) {
    static_cast<void>(parts);
    return {};
  }

  /// Runs `work`, which puts kernels into `stream`, and returns it recorded for replay, or null where the
  /// device gains nothing from that (the caller then runs `work` again each time).
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& work, Stream stream) = 0;

  // ---- Kernels

  virtual void embedding(const EmbeddingArguments& arguments, Stream stream) = 0;
  virtual void rms_norm(const RmsNormArguments& arguments, Stream stream) = 0;
  virtual void layer_norm(const LayerNormArguments& arguments, Stream stream) = 0;
  virtual void gemm(const GemmArguments& arguments, Stream stream) = 0;
  /// Whether gated_gemm has a kernel for these arguments, which must not depend on the rows of x if
  /// batch_invariant. Where it has none, callers multiply and activate one after the other.
  virtual bool takes_gated_gemm(const GemmArguments& arguments, GatedActivation activation) const {
    static_cast<void>(arguments), static_cast<void>(activation);
    return false;
  }
  /// out = activation(x w1^T (+ bias)) * (x w2^T (+ bias)) in one kernel: weight is w1's rows above w2's, out
  /// has half as many columns as it has rows. Throws Error{kUnsupported} unless takes_gated_gemm().
  virtual void gated_gemm(const GemmArguments& arguments, GatedActivation activation, Stream stream) {
    static_cast<void>(arguments), static_cast<void>(activation), static_cast<void>(stream);
    throw Error(ErrorCode::kUnsupported,
                "gated_gemm: this device has no such kernel; expected a caller that asks takes_gated_gemm() "
                "first");
  }
  /// Whether normed_gemm has a kernel for these arguments. A device that has none for any, as most, returns
  /// false; callers then norm, multiply and rotate one after the other.
  virtual bool takes_normed_gemm(const NormedGemmArguments& arguments) const {
    static_cast<void>(arguments);
    return false;
  }
  /// Throws Error{kUnsupported} unless takes_normed_gemm().
  virtual void normed_gemm(const NormedGemmArguments& arguments, Stream stream) {
    static_cast<void>(arguments), static_cast<void>(stream);
    throw Error(ErrorCode::kUnsupported,
                "normed_gemm: this device has no such kernel; expected a caller that asks "
                "takes_normed_gemm() first");
  }
  virtual void rope(const RopeArguments& arguments, Stream stream) = 0;
  virtual void rope_append(const RopeAppendArguments& arguments, Stream stream) = 0;
  virtual void gated_activation(const GatedActivationArguments& arguments, Stream stream) = 0;
  virtual void route_experts(const RouteExpertsArguments& arguments, Stream stream) = 0;
  /// Whether expert_gemm has a kernel for arguments with an activation or that combine. Where it has none,
  /// callers do one after the other.
  virtual bool takes_fused_expert_gemm(const ExpertGemmArguments& arguments) const {
    static_cast<void>(arguments);
    return false;
  }
  /// Throws Error{kUnsupported} for arguments with an activation or that combine unless
  /// takes_fused_expert_gemm().
  virtual void expert_gemm(const ExpertGemmArguments& arguments, Stream stream) = 0;
  virtual void combine_experts(const CombineExpertsArguments& arguments, Stream stream) = 0;
  virtual void causal_conv(const CausalConvArguments& arguments, Stream stream) = 0;
  virtual void gated_delta(const GatedDeltaArguments& arguments, Stream stream) = 0;
  virtual void softmax(const SoftmaxArguments& arguments, Stream stream) = 0;
  virtual void scale(const ScaleArguments& arguments, Stream stream) = 0;
  virtual void softcap(const SoftcapArguments& arguments, Stream stream) = 0;
  virtual void causal_mask(const CausalMaskArguments& arguments, Stream stream) = 0;
  virtual void adjust_logits(const AdjustLogitsArguments& arguments, Stream stream) = 0;
  virtual void sample(const SampleArguments& arguments, Stream stream) = 0;
  virtual void logprobs(const LogprobsArguments& arguments, Stream stream) = 0;
};

/// A backend of ops by name ("cpu", "cuda", "reference") on one of its devices. Throws
/// Error{kInvalidArgument} with the known names, or for an index of a device that is not there;
/// Error{kDevice} if there is none at all. Defined in backends/registry.cpp, the one place that lists them.
std::unique_ptr<OpsBackend> make_ops_backend(std::string_view name, int device_index = 0);

/// Their names, the preferred first.
std::span<const std::string_view> ops_backend_names();

/// The first of ops_backend_names() that this machine can run.
std::string_view preferred_ops_backend();

}  // namespace tessera
