#include "backends/gpu/unfused/unfused_attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "backends/gpu/attention/modifier_module.h"
#include "backends/gpu/attention/problem_params.h"
#include "backends/gpu/attention/stage_tensors.h"
#include "backends/gpu/ceilings.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "backends/gpu/unfused/layout.h"
#include "backends/gpu/unfused/pipeline.h"
#include "core/rounding.h"
#include "core/text.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

ModuleSpec module() { return {"common/attention_unfused.cu", {}}; }

/// The module that has a step's kernel.
ModuleSpec module_of(const std::string& entry, const AttentionProblem& p) {
  ModuleSpec spec = module();
  if (entry == "unfused_scale") add_modifier(p, spec);
  return spec;
}

/// Puts the steps into a stream.
class GpuMachine final : public UnfusedMachine {
 public:
  GpuMachine(Platform& platform, Gpu& gpu, Stream stream, const AttentionProblem& problem)
      : platform_(platform),
        gpu_(gpu),
        products_(platform.products(gpu)),
        stream_(stream),
        problem_(problem),
        description_(to_string(problem)) {}

  int warp_size() const override { return gpu_.properties().warp_size; }

  void clear(void* memory, std::size_t size_bytes) override { gpu_.fill(memory, 0, size_bytes, stream_); }

  void launch(const std::string& entry, unsigned blocks_x, unsigned blocks_y, unsigned threads,
              const kernels::UnfusedParams& params) override {
    const LaunchShape shape{{blocks_x, blocks_y, 1}, {threads, 1, 1}, 0};
    const ModuleSpec spec = module_of(entry, problem_);
    KernelArguments arguments(params);
    if (!spec.modifier.empty()) add_modifier_arguments(problem_, arguments);
    void* const pointer = arguments.data();
    gpu_.launch(gpu_.kernels().find(spec, entry), shape, {&pointer, 1}, stream_, description_);
  }

  void multiply(const LibraryProduct& product) override {
    if (products_.multiply(product, stream_)) return;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{} has no algorithm for {} products of {} x {} x {} ({}); choose another backend",
                    platform_.products_name(), product.batch, product.m, product.n, product.k, description_));
  }

 private:
  Platform& platform_;
  Gpu& gpu_;
  LibraryProducts& products_;
  Stream stream_;
  const AttentionProblem& problem_;
  std::string description_;
};

void require_config(std::string_view backend, const char* field, std::int64_t value, std::int64_t only) {
  if (value == 0 || value == only) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("config.{} is {}; the {} backend has only {} for this problem (or 0, automatic)",
                          field, value, backend, only));
}

int as_int(std::int64_t value) {
  return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
}

class GpuUnfusedAttention final : public AttentionBackend {
 public:
  GpuUnfusedAttention(std::string_view name, std::string_view description, Platform& platform)
      : name_(name), description_(description), platform_(platform) {}

  std::string_view name() const override { return name_; }
  std::string_view description() const override { return description_; }

  DeviceKind device_kind() const override { return platform_.kind(); }

  std::string unavailable_reason() const override {
    if (std::string reason = platform_.unavailable_reason(); !reason.empty()) return reason;
    return platform_.products_unavailable_reason();
  }

  std::string unsupported_reason(const AttentionProblem& p) const override {
    if (p.device.kind != DeviceKind::kCpu && p.device.kind != platform_.kind())
      return fmt::format("the tensors are in the memory of {}", device_name(p.device));
    if (p.batch_invariant) {
      return fmt::format(
          "it can't promise batch-invariant bits: {} chooses its tiles, and with them the rounding, by the "
          "number of queries and keys",
          platform_.products_name());
    }
    const std::string reason = unsupported_problem(p);
    return reason.empty() ? platform_.unsuitable_reason(platform_.gpu_for(p.device).properties()) : reason;
  }

  bool runs_modifiers() const override { return true; }

  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    const UnfusedLayout layout = unfused_layout(p, config.block_m);
    AttentionPlan plan;
    plan.backend = name();
    plan.kernel = fmt::format("pipeline/{}", lower_case(platform_.products_name()));
    plan.config = {as_int(layout.rows_at_once), as_int(layout.key_stride), 0, 0, 1};
    require_config(name_, "block_n", config.block_n, plan.config.block_n);
    require_config(name_, "num_splits", config.num_splits, 1);
    plan.num_q_tiles = layout.num_pairs * divide_up(layout.rows, layout.rows_at_once);
    plan.num_kv_tiles = p.seq_len_kv > 0 ? 1 : 0;
    plan.workspace_bytes = layout.total_bytes;
    plan.notes.push_back(fmt::format("materialises {:.1f} MB of scores, {} heads of keys at a time",
                                     layout.all_scores_bytes() / 1e6, layout.pairs_at_once));
    if (p.device.kind == DeviceKind::kCpu) {
      plan.workspace_bytes += stage_problem(p, {platform_.kind(), 0}, nullptr).size_bytes;
      plan.notes.push_back("the tensors are in CPU memory: they are copied to the GPU and back");
    }
    plan.call = std::make_shared<AttentionCall>(
        p, plan.workspace_bytes,
        [this, block_m = plan.config.block_m, size_bytes = plan.workspace_bytes](
            const AttentionProblem& problem, std::span<std::byte> workspace, Stream stream) {
          run(problem, block_m, workspace.first(size_bytes), stream);
        },
        [this, device = p.device, entry = fmt::format("unfused_gather_kv_{}", types_suffix(p)),
         scale = module_of("unfused_scale", p)] {
          KernelLibrary& kernels = platform_.gpu_for(device).kernels();
          kernels.find(module(), entry);  // its module has the others
          kernels.find(scale, "unfused_scale");
        });
    return plan;
  }

  std::vector<std::string> explain_plan(const AttentionProblem& p, const AttentionConfig&) const override {
    const std::string origin = platform_.gpu_for(p.device).kernels().describe_origin(module());
    return {fmt::format("{}: {}", module().source, origin),
            fmt::format("products: {}", platform_.products_file())};
  }

  std::shared_ptr<std::byte> allocate_workspace(const Device& device, std::size_t size_bytes,
                                                Stream stream) const override {
    return platform_.gpu_for(device).allocate(size_bytes, "workspace of unfused attention", stream);
  }

  std::string unsupported_reason(const MergeStatesProblem&) const override {
    return "merging partial results is no step of the unfused pipeline";
  }
  void merge_states(const MergeStatesProblem& problem, Stream) const override {
    throw Error(ErrorCode::kUnsupported, unsupported_reason(problem));
  }

  Ceilings ceilings(DType dtype) const override { return measured_ceilings(platform_, 0, dtype); }

 private:
  void run(const AttentionProblem& p, int max_rows, std::span<std::byte> workspace, Stream stream) const {
    Gpu& gpu = platform_.gpu_for(p.device);
    const auto run_on_gpu = [&](const AttentionProblem& problem) {
      const std::int64_t tokens_q = problem.ragged_q ? problem.ragged_q->total_tokens : problem.seq_len_q;
      if (problem.batch == 0 || problem.seq_len_q == 0 || tokens_q == 0) return;
      GpuMachine machine(platform_, gpu, stream, problem);
      run_unfused(problem, max_rows, workspace.data(), machine);
    };
    if (p.device.kind == DeviceKind::kCpu) {
      run_staged(p, gpu, workspace, stream, run_on_gpu);
    } else {
      run_on_gpu(p);
    }
  }

  std::string name_;
  std::string description_;
  Platform& platform_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_unfused_attention(std::string_view name, std::string_view description,
                                                         Platform& platform) {
  return std::make_unique<GpuUnfusedAttention>(name, description, platform);
}

}  // namespace tessera::gpu
