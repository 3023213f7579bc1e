#include <fmt/core.h>

#include <algorithm>

#include "backends/cuda/attention/choose_kernel.h"
#include "backends/cuda/attention/launch_arguments.h"
#include "backends/cuda/attention/prepared_launch.h"
#include "backends/cuda/cuda_platform.h"
#include "backends/cuda/runtime/cuda_gpu.h"
#include "backends/factories.h"
#include "backends/gpu/attention/problem_params.h"
#include "backends/gpu/attention/stage_tensors.h"
#include "backends/gpu/ceilings.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using cuda::KernelChoice;
using gpu::Gpu;

constexpr std::size_t kWorkspaceAlignment = 256;

class CudaAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "cuda"; }
  std::string_view description() const override {
    return "fused, tiled, online softmax on NVIDIA GPUs; tensors in CPU memory are copied there and back";
  }
  DeviceKind device_kind() const override { return DeviceKind::kCuda; }
  std::string unavailable_reason() const override { return cuda::driver_state().unavailable_reason; }

  std::string unsupported_reason(const AttentionProblem& p) const override {
    if (p.device.kind == DeviceKind::kHip)
      return fmt::format("the tensors are in the memory of {}", device_name(p.device));
    return cuda::unsupported_problem(p, cuda::platform().gpu_for(p.device).properties());
  }

  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    Gpu& device = cuda::platform().gpu_for(p.device);
    const KernelChoice choice = cuda::choose_kernel(p, device.properties(), config);
    AttentionPlan plan;
    plan.backend = name();
    plan.kernel = choice.kernel->name;
    plan.config = choice.config;
    plan.num_q_tiles = choice.num_row_tiles * choice.num_head_blocks * p.batch;
    plan.num_kv_tiles = divide_up(p.seq_len_kv, choice.config.block_n);
    plan.shared_bytes = choice.shared_bytes;
    plan.workspace_bytes = round_up(choice.partial_bytes, kWorkspaceAlignment);
    if (p.device.kind == DeviceKind::kCpu) {
      plan.workspace_bytes += gpu::stage_problem(p, device.device(), nullptr).size_bytes;
      plan.notes.push_back("the tensors are in CPU memory: they are copied to the GPU and back");
    }
    if (!choice.kernel->note.empty()) plan.notes.emplace_back(choice.kernel->note);
    const auto prepared = std::make_shared<cuda::PreparedLaunch>(p, choice, device);
    plan.call = std::make_shared<AttentionCall>(
        p, plan.workspace_bytes,
        [prepared, size_bytes = plan.workspace_bytes](const AttentionProblem& problem,
                                                      std::span<std::byte> workspace, Stream stream) {
          prepared->run(problem, workspace.first(size_bytes), stream);
        },
        [prepared] { prepared->load(); });
    return plan;
  }

  std::vector<std::string> explain_plan(const AttentionProblem& p,
                                        const AttentionConfig& config) const override {
    Gpu& device = cuda::platform().gpu_for(p.device);
    const KernelChoice choice = cuda::choose_kernel(p, device.properties(), config);
    gpu::KernelLibrary& library = device.kernels();
    std::vector<std::string> lines;
    for (const cuda::ModuleSpec& module : cuda::modules_of(choice)) {
      lines.push_back(fmt::format("{}: {}", module.source, library.describe_origin(module)));
    }
    const std::vector<std::string> others =
        cuda::reasons_against_other_kernels(p, device.properties(), choice);
    lines.insert(lines.end(), others.begin(), others.end());
    return lines;
  }

  std::shared_ptr<std::byte> allocate_workspace(const Device& device, std::size_t size_bytes,
                                                Stream stream) const override {
    return cuda::platform().gpu_for(device).allocate(size_bytes, "attention workspace", stream);
  }

  std::string unsupported_reason(const MergeStatesProblem& p) const override {
    if (p.device.kind != DeviceKind::kCuda)
      return fmt::format("the tensors are in the memory of {}", device_name(p.device));
    if (p.o_a.dtype == DType::kF64) return "dtype f64 has no GPU kernel; use the reference";
    if (p.num_heads > cuda::kMaxGridYz || p.batch > cuda::kMaxGridYz)
      return "more than 65535 heads or sequences";
    return {};
  }

  void merge_states(const MergeStatesProblem& p, Stream stream) const override {
    if (p.batch == 0 || p.seq_len_q == 0) return;
    Gpu& device = cuda::platform().gpu(p.device.index);
    const gpu::Kernel& kernel = device.kernels().find(
        {"common/merge_states.cu", {}}, fmt::format("merge_states_{}", gpu::dtype_suffix(p.o_a.dtype)));
    gpu::launch_kernel(device, kernel, cuda::merge_states_shape(p), stream, "merge_states",
                       cuda::merge_states_arguments(p));
  }

  Ceilings ceilings(DType dtype) const override { return gpu::measured_ceilings(cuda::platform(), 0, dtype); }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_cuda_attention() { return std::make_unique<CudaAttention>(); }

}  // namespace tessera
