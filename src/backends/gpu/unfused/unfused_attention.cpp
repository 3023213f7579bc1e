#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "backends/cuda/attention/choose_kernel.h"
#include "backends/cuda/attention/stage_tensors.h"
#include "backends/gpu/ceilings.h"
#include "backends/cuda/runtime/cublaslt.h"
#include "backends/cuda/runtime/device.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "backends/gpu/unfused/layout.h"
#include "backends/gpu/unfused/pipeline.h"
#include "backends/factories.h"
#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using cuda::CublasLt;
using cuda::GpuDevice;
using cuda::handle_of;
using cuda::StreamHandle;
using cuda::UnfusedLayout;

cuda::ModuleSpec module() { return {"common/attention_unfused.cu", {}}; }

/// The products of one GPU, shared by all calls: each brings its own workspace.
CublasLt& products_of(GpuDevice& device) {
  static std::mutex mutex;
  // Never destroyed: when the process ends the library may be gone before static objects are.
  static auto& products = *new std::map<int, std::unique_ptr<CublasLt>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<CublasLt>& entry = products[device.index()];
  if (!entry) entry = std::make_unique<CublasLt>(device, CublasLt::Workspace::kOfEachProduct);
  return *entry;
}

/// Puts the steps into a stream.
class Gpu final : public cuda::UnfusedMachine {
 public:
  Gpu(GpuDevice& device, StreamHandle stream, std::string problem)
      : device_(device),
        library_(cuda::kernel_library(device.index())),
        products_(products_of(device)),
        stream_(stream),
        problem_(std::move(problem)) {}

  int warp_size() const override { return 32; }

  void clear(void* memory, std::size_t size_bytes) override { device_.fill(memory, 0, size_bytes, stream_); }

  void launch(const std::string& entry, unsigned blocks_x, unsigned blocks_y, unsigned threads,
              const kernels::UnfusedParams& params) override {
    const cuda::LaunchShape shape{{blocks_x, blocks_y, 1}, {threads, 1, 1}, 0};
    cuda::launch_kernel(library_, library_.find(module(), entry), shape, stream_, problem_, params);
  }

  void multiply(const cuda::LibraryProduct& product) override {
    if (products_.multiply(product, stream_)) return;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("cuBLASLt has no algorithm for {} products of {} x {} x {} ({}); choose another backend",
                    product.batch, product.m, product.n, product.k, problem_));
  }

 private:
  GpuDevice& device_;
  cuda::KernelLibrary& library_;
  CublasLt& products_;
  StreamHandle stream_;
  std::string problem_;
};

void require_config(const char* field, std::int64_t value, std::int64_t only) {
  if (value == 0 || value == only) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("config.{} is {}; the cuda_unfused backend has only {} for this problem (or 0, automatic)",
                  field, value, only));
}

int as_int(std::int64_t value) {
  return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
}

/// Classic attention on a GPU: matrix products by cuBLASLt, and between them separate kernels over fp32
/// scores in memory. The baseline of the fused kernels and, sharing nothing with their loops, a second judge
/// of them.
class CudaUnfusedAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "cuda_unfused"; }
  std::string_view description() const override {
    return "the classic pipeline on NVIDIA GPUs: cuBLASLt's products and separate kernels over scores in "
           "memory";
  }

  DeviceKind device_kind() const override { return DeviceKind::kCuda; }

  std::string unavailable_reason() const override {
    if (!cuda::driver_state().unavailable_reason.empty()) return cuda::driver_state().unavailable_reason;
    return cuda::cublaslt_state().unavailable_reason;
  }

  std::string unsupported_reason(const AttentionProblem& p) const override {
    if (p.device.kind == DeviceKind::kHip)
      return fmt::format("the tensors are in the memory of {}", device_name(p.device));
    if (p.batch_invariant) {
      return "it can't promise batch-invariant bits: cuBLASLt chooses its tiles, and with them the rounding, "
             "by "
             "the number of queries and keys";
    }
    return cuda::unsupported_problem(p, cuda::gpu_for(p.device).properties());
  }

  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    const UnfusedLayout layout = cuda::unfused_layout(p, config.block_m);
    AttentionPlan plan;
    plan.backend = name();
    plan.kernel = "pipeline/cublaslt";
    plan.config = {as_int(layout.rows_at_once), as_int(layout.key_stride), 0, 0, 1};
    require_config("block_n", config.block_n, plan.config.block_n);
    require_config("num_splits", config.num_splits, 1);
    plan.num_q_tiles = layout.num_pairs * divide_up(layout.rows, layout.rows_at_once);
    plan.num_kv_tiles = p.seq_len_kv > 0 ? 1 : 0;
    plan.workspace_bytes = layout.total_bytes;
    plan.notes.push_back(fmt::format("materialises {:.1f} MB of scores, {} heads of keys at a time",
                                     layout.all_scores_bytes() / 1e6, layout.pairs_at_once));
    if (p.device.kind == DeviceKind::kCpu) {
      plan.workspace_bytes += cuda::stage_problem(p, {DeviceKind::kCuda, 0}, nullptr).size_bytes;
      plan.notes.push_back("the tensors are in CPU memory: they are copied to the GPU and back");
    }
    return plan;
  }

  std::vector<std::string> explain_plan(const AttentionProblem& p, const AttentionPlan&) const override {
    const std::string origin =
        cuda::kernel_library(cuda::gpu_for(p.device).index()).describe_origin(module());
    return {fmt::format("{}: {}", module().source, origin),
            fmt::format("products: {}", cuda::cublaslt_state().library)};
  }

  std::shared_ptr<std::byte> allocate_workspace(const Device& device, std::size_t size_bytes,
                                                Stream stream) const override {
    return cuda::gpu_for(device).allocate(size_bytes, "workspace of unfused attention", handle_of(stream));
  }

  void forward(const AttentionProblem& p, const AttentionPlan& plan, std::span<std::byte> workspace,
               Stream stream) const override {
    GpuDevice& device = cuda::gpu_for(p.device);
    const auto run = [&](const AttentionProblem& problem) {
      const std::int64_t tokens_q = problem.ragged_q ? problem.ragged_q->total_tokens : problem.seq_len_q;
      if (problem.batch == 0 || problem.seq_len_q == 0 || tokens_q == 0) return;
      Gpu gpu(device, handle_of(stream), to_string(problem));
      cuda::run_unfused(problem, plan.config.block_m, workspace.data(), gpu);
    };
    if (p.device.kind == DeviceKind::kCpu) {
      cuda::run_staged(p, device, workspace.first(plan.workspace_bytes), handle_of(stream), run);
    } else {
      run(p);
    }
  }

  std::string unsupported_reason(const MergeStatesProblem&) const override {
    return "merging partial results is no step of the unfused pipeline";
  }
  void merge_states(const MergeStatesProblem& problem, Stream) const override {
    throw Error(ErrorCode::kUnsupported, unsupported_reason(problem));
  }

  Ceilings ceilings(DType dtype) const override { return cuda::measured_ceilings(0, dtype); }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_cuda_unfused_attention() {
  return std::make_unique<CudaUnfusedAttention>();
}

}  // namespace tessera
