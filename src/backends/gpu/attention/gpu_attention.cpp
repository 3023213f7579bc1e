#include "backends/gpu/attention/gpu_attention.h"

#include <fmt/core.h>

#include <cstddef>
#include <string>
#include <vector>

#include "backends/gpu/attention/align_rows.h"
#include "backends/gpu/attention/choose_kernel.h"
#include "backends/gpu/attention/choose_launches.h"
#include "backends/gpu/attention/gpu_tunings.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/prepared_launch.h"
#include "backends/gpu/attention/problem_params.h"
#include "backends/gpu/attention/stage_tensors.h"
#include "backends/gpu/attention/tuned_kernel.h"
#include "backends/gpu/attention/widen_queries.h"
#include "backends/gpu/ceilings.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "core/rounding.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

class GpuAttention final : public AttentionBackend, private AttentionTuner {
 public:
  GpuAttention(std::string_view name, std::string_view description, Platform& platform,
               AttentionKernels kernels, std::span<const std::string_view> shipped_tunings)
      : name_(name),
        description_(description),
        platform_(platform),
        kernels_(kernels),
        tunings_(name, shipped_tunings) {}

  std::string_view name() const override { return name_; }
  std::string_view description() const override { return description_; }
  DeviceKind device_kind() const override { return platform_.kind(); }
  std::string unavailable_reason() const override { return platform_.unavailable_reason(); }

  std::string unsupported_reason(const AttentionProblem& p) const override {
    if (p.device.kind != DeviceKind::kCpu && p.device.kind != platform_.kind())
      return fmt::format("the tensors are in the memory of {}", device_name(p.device));
    const DeviceProperties& device = platform_.gpu_for(p.device).properties();
    const std::string reason = unsupported_problem(p);
    return reason.empty() ? platform_.unsuitable_reason(device) : reason;
  }

  bool runs_modifiers() const override { return true; }

  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    Gpu& device = platform_.gpu_for(p.device);
    const DeviceTuning& tuning = tunings_.of(device).get();
    return plan_launches(p, choose_launches(kernels_, p, device.properties(), config, tuning.tables()),
                         device);
  }

  std::vector<std::string> explain_plan(const AttentionProblem& p,
                                        const AttentionConfig& config) const override {
    Gpu& device = platform_.gpu_for(p.device);
    const DeviceTuning& tuning = tunings_.of(device).get();
    std::vector<std::string> lines;
    for (const LaunchChoice& launch :
         choose_launches(kernels_, p, device.properties(), config, tuning.tables())) {
      const std::vector<std::string> of_launch = explain_launch(p, config, launch, device, tuning);
      lines.insert(lines.end(), of_launch.begin(), of_launch.end());
    }
    return lines;
  }

  const AttentionTuner* tuner() const override { return this; }

  std::shared_ptr<std::byte> allocate_workspace(const Device& device, std::size_t size_bytes,
                                                Stream stream) const override {
    return platform_.gpu_for(device).allocate(size_bytes, "attention workspace", stream);
  }

  std::string unsupported_reason(const MergeStatesProblem& p) const override {
    if (p.device.kind != platform_.kind())
      return fmt::format("the tensors are in the memory of {}", device_name(p.device));
    if (p.o_a.dtype == DType::kF64) return "dtype f64 has no GPU kernel; use the reference";
    if (p.num_heads > kMaxGridYz || p.batch > kMaxGridYz) return "more than 65535 heads or sequences";
    return {};
  }

  void merge_states(const MergeStatesProblem& p, Stream stream) const override {
    if (p.batch == 0 || p.seq_len_q == 0) return;
    Gpu& device = platform_.gpu(p.device.index);
    const Kernel& kernel = device.kernels().find({"common/merge_states.cu", {}},
                                                 fmt::format("merge_states_{}", dtype_suffix(p.o_a.dtype)));
    launch_kernel(device, kernel, merge_states_shape(p), stream, "merge_states", merge_states_arguments(p));
  }

  Ceilings ceilings(DType dtype) const override { return measured_ceilings(platform_, 0, dtype); }

 private:
  std::vector<AttentionCandidate> candidates(const AttentionProblem& p) const override {
    return attention_candidates(kernels_, p, platform_.gpu_for(p.device).properties());
  }

  AttentionPlan plan_candidate(const AttentionProblem& p,
                               const AttentionCandidate& candidate) const override {
    Gpu& device = platform_.gpu_for(p.device);
    return plan_launches(p, {{p.seq_len_q, choose_candidate(kernels_, p, device.properties(), candidate)}},
                         device);
  }

  void prepare(const AttentionProblem& p, std::span<const AttentionCandidate> candidates) const override {
    Gpu& device = platform_.gpu_for(p.device);
    std::vector<ModuleSpec> modules;
    for (const AttentionCandidate& candidate : candidates) {
      const std::vector<ModuleSpec> of_one =
          modules_of(choose_candidate(kernels_, p, device.properties(), candidate));
      modules.insert(modules.end(), of_one.begin(), of_one.end());
    }
    device.kernels().prepare(modules);
  }

  TuningTable tuned(const Device& device) const override {
    return tunings_.of(platform_.gpu_for(device)).get().own;
  }

  void remember(const Device& device, const TuningTable& measured) const override {
    tunings_.of(platform_.gpu_for(device)).remember(measured);
  }

  /// Where a launch's kernels come from, and why not others.
  std::vector<std::string> explain_launch(const AttentionProblem& problem, const AttentionConfig& config,
                                          const LaunchChoice& launch, Gpu& device,
                                          const DeviceTuning& tuning) const {
    const AttentionProblem p = problem_of_launch(problem, launch.seq_len_q);
    const std::string of_few = launch.choice.most_queries > 0
                                   ? fmt::format("sequences of up to {} queries: ", launch.seq_len_q)
                                   : "";
    std::vector<std::string> lines;
    for (const ModuleSpec& module : modules_of(launch.choice)) {
      lines.push_back(
          fmt::format("{}{}: {}", of_few, module.source, device.kernels().describe_origin(module)));
    }
    const TunedKernel tuned = tuned_kernel(kernels_, p, device.properties(), config, tuning.tables());
    if (!tuned.why.empty()) lines.push_back(of_few + tuned.why);
    for (const std::string& line : reasons_against_other_kernels(kernels_, p, device.properties(), config,
                                                                 launch.choice, tuned.choice.has_value()))
      lines.push_back(of_few + line);
    return lines;
  }

  AttentionPlan plan_launches(const AttentionProblem& p, const std::vector<LaunchChoice>& launches,
                              Gpu& device) const {
    const KernelChoice& choice = launches.front().choice;
    AttentionPlan plan;
    plan.backend = name();
    plan.kernel = kernel_names(launches);
    plan.config = choice.config;
    plan.num_kv_tiles = divide_up(p.seq_len_kv, choice.config.block_n);
    plan.shared_bytes = choice.shared_bytes;
    if (p.device.kind == DeviceKind::kCpu)
      plan.notes.push_back("the tensors are in CPU memory: they are copied to the GPU and back");
    for (const LaunchChoice& launch : launches) {
      plan.num_q_tiles += launch.choice.num_row_tiles * launch.choice.num_head_blocks * p.batch;
      plan.narrow_weights |= launch.choice.kernel->narrow_weights;
      add_notes(p, launch, plan);
    }
    const auto prepared = std::make_shared<PreparedLaunches>(p, launches, device);
    plan.workspace_bytes = prepared->workspace_bytes();
    if (p.device.kind == DeviceKind::kCpu)
      plan.workspace_bytes += stage_problem(p, device.device(), nullptr).size_bytes;
    plan.call = std::make_shared<AttentionCall>(
        p, plan.workspace_bytes,
        [prepared, size_bytes = plan.workspace_bytes](const AttentionProblem& problem,
                                                      std::span<std::byte> workspace, Stream stream) {
          prepared->run(problem, workspace.first(size_bytes), stream);
        },
        [prepared] { prepared->load(); });
    return plan;
  }

  static void add_notes(const AttentionProblem& p, const LaunchChoice& launch, AttentionPlan& plan) {
    const AttentionKernel& kernel = *launch.choice.kernel;
    if (launch.choice.most_queries > 0) {
      plan.notes.push_back(fmt::format(
          "sequences of up to {} queries, which would fill little of the tiles, are a launch of "
          "{}, {} rows x {} keys",
          launch.seq_len_q, kernel.name, launch.choice.config.block_m, launch.choice.config.block_n));
    }
    if (widens_queries(kernel, p)) {
      plan.notes.push_back(fmt::format("q of {} is widened to {} by a kernel of its own first",
                                       dtype_name(p.q.dtype), dtype_name(wide_dtype(p))));
    }
    if (const int aligned = launch.choice.aligned_tensors; aligned != 0) {
      plan.notes.push_back(
          fmt::format("a kernel of its own first copies {} to rows aligned to {} bytes ({:.1f} MiB)",
                      names_of_tensors(aligned), kTensorAlignment,
                      static_cast<double>(launch.choice.aligned_rows_bytes) / (1 << 20)));
    }
    if (launch.choice.split_rows_bytes > 0) {
      plan.notes.push_back(
          fmt::format("a kernel of its own first splits q, k and v into two numbers of f16 each ({:.1f} MiB)",
                      static_cast<double>(launch.choice.split_rows_bytes) / (1 << 20)));
    }
    if (kernel.narrow_weights) {
      plan.notes.push_back(
          fmt::format("the softmax's weights are rounded to {} where they meet v", dtype_name(p.q.dtype)));
    }
    if (!kernel.note.empty()) plan.notes.emplace_back(kernel.note);
    if (!launch.choice.note.empty()) plan.notes.push_back(launch.choice.note);
  }

  std::string name_;
  std::string description_;
  Platform& platform_;
  AttentionKernels kernels_;
  GpuTunings tunings_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_gpu_attention(std::string_view name, std::string_view description,
                                                     Platform& platform, AttentionKernels kernels,
                                                     std::span<const std::string_view> shipped_tunings) {
  return std::make_unique<GpuAttention>(name, description, platform, kernels, shipped_tunings);
}

}  // namespace tessera::gpu
