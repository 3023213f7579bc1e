#include "simt/simt_attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>

#include "attention/tensor_extents.h"
#include "backends/gpu/attention/align_rows.h"
#include "backends/gpu/attention/choose_kernel.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/problem_params.h"
#include "backends/gpu/attention/widen_queries.h"
#include "core/aligned_memory.h"
#include "simt/executor.h"
#include "simt/kernel_table.h"

namespace tessera::simt {
namespace {

void launch_attention(const std::string& entry, const gpu::LaunchShape& shape,
                      gpu::KernelArguments&& arguments) {
  Grid grid;
  grid.kernel = entry;
  grid.blocks = {static_cast<int>(shape.grid[0]), static_cast<int>(shape.grid[1]),
                 static_cast<int>(shape.grid[2])};
  grid.threads = static_cast<int>(shape.block[0]);
  grid.shared_bytes = shape.shared_bytes;
  launch(grid, arguments.data());
}

/// Of 16-bit tensors that aren't in pages some or none, by turns, so that problems of all kinds meet copies.
int some_to_align(const AttentionProblem& p) {
  if (p.paged_kv || key_extents(p).tokens == 0 || dtype_bytes(p.q.dtype, 1) != 2 || p.k.dtype != p.q.dtype)
    return 0;
  return static_cast<int>((p.seq_len_q + p.head_dim_v) % 8);
}

class SimtAttention final : public AttentionBackend {
 public:
  SimtAttention(std::string_view name, int num_splits, gpu::AttentionKernels kernels)
      : name_(name), num_splits_(num_splits), kernels_(kernels) {
    device_.name = "the host";
    device_.num_multiprocessors = 1;
    device_.shared_per_block_bytes = 64 * 1024;
    device_.warp_size = kernel_table().begin()->second.warp_size;
  }

  std::string_view name() const override { return name_; }
  std::string_view description() const override { return "a GPU's kernel on the host"; }
  std::string unavailable_reason() const override { return {}; }
  std::string unsupported_reason(const AttentionProblem& p) const override {
    if (p.device.kind != DeviceKind::kCpu) return "the tensors are not in main memory";
    return gpu::unsupported_problem(p);
  }

  AttentionPlan plan(const AttentionProblem& p, const AttentionConfig& config) const override {
    const gpu::KernelChoice choice = choose(p, config);
    AttentionPlan plan;
    plan.backend = name_;
    plan.kernel = choice.kernel->name;
    plan.config = choice.config;
    plan.workspace_bytes = choice.workspace_bytes();
    plan.call = std::make_shared<AttentionCall>(
        p, plan.workspace_bytes,
        [choice](const AttentionProblem& problem, std::span<std::byte> workspace, Stream) {
          run(problem, choice, workspace);
        });
    return plan;
  }

  std::shared_ptr<std::byte> allocate_workspace(const Device&, std::size_t size_bytes,
                                                Stream) const override {
    std::shared_ptr<std::byte> memory = allocate_aligned(size_bytes, "attention workspace");
    std::fill_n(memory.get(), size_bytes, std::byte{0xff});
    return memory;
  }

  std::string unsupported_reason(const MergeStatesProblem& p) const override {
    if (p.device.kind != DeviceKind::kCpu) return "the tensors are not in main memory";
    return p.o_a.dtype == DType::kF64 ? "dtype f64 has no GPU kernel" : "";
  }

  void merge_states(const MergeStatesProblem& p, Stream) const override {
    if (p.batch == 0 || p.seq_len_q == 0) return;
    launch_attention(fmt::format("merge_states_{}", gpu::dtype_suffix(p.o_a.dtype)),
                     gpu::merge_states_shape(p), gpu::KernelArguments(gpu::merge_states_arguments(p)));
  }

  Ceilings ceilings(DType) const override { return {}; }

 private:
  static void run(const AttentionProblem& given, const gpu::KernelChoice& choice,
                  std::span<std::byte> workspace) {
    const std::int64_t tokens_q = given.ragged_q ? given.ragged_q->total_tokens : given.seq_len_q;
    if (given.batch == 0 || given.seq_len_q == 0 || tokens_q == 0) return;
    AttentionProblem p = given;
    if (std::byte* wide = gpu::wide_queries_of(choice, workspace.data())) {
      const gpu::WidenQueriesLaunch widen = gpu::widen_queries_launch(given, wide);
      // Few blocks, where a GPU takes one a token: each takes several.
      gpu::LaunchShape shape = widen.shape;
      shape.grid[0] = std::min(shape.grid[0], 20u);
      launch_attention(gpu::widen_queries_entry(given), shape, gpu::KernelArguments(widen.params));
      p = gpu::with_wide_queries(given, wide);
    }
    if (std::byte* copies = gpu::aligned_rows_of(choice, workspace.data())) {
      const gpu::AlignRowsLaunch align = gpu::align_rows_launch(p, choice.aligned_tensors, copies);
      launch_attention(gpu::kAlignRowsEntry, align.shape, gpu::KernelArguments(align.params));
      p = gpu::with_aligned_rows(p, choice.aligned_tensors, copies);
    }
    kernels::AttentionParams params = gpu::attention_params(p, choice, workspace.data());
    const auto warp_size = static_cast<unsigned>(kernel_table().at(choice.entry).warp_size);
    // Two sequences at once, where a GPU takes thousands: batch_begin counts.
    for (std::int64_t begin = 0; begin < p.batch; begin += 2) {
      const std::int64_t sequences = std::min<std::int64_t>(2, p.batch - begin);
      params.batch_begin = static_cast<int>(begin);
      launch_attention(choice.entry, choice.kernel->shape(choice, sequences, warp_size),
                       gpu::kernel_arguments(params, p, choice, workspace.data()));
      if (choice.config.num_splits > 1)
        launch_attention(choice.combine_entry, gpu::combine_shape(p, choice, sequences, warp_size),
                         gpu::KernelArguments(params));
    }
  }

  gpu::KernelChoice choose(const AttentionProblem& p, AttentionConfig config) const {
    if (config.num_splits == 0) config.num_splits = num_splits_;
    return gpu::choose_kernel(kernels_, p, device_, config);
  }

  std::string_view name_;
  int num_splits_;
  gpu::AttentionKernels kernels_;
  gpu::DeviceProperties device_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_simt_attention(std::string_view name, int num_splits,
                                                      gpu::AttentionKernels kernels) {
  return std::make_unique<SimtAttention>(name, num_splits, kernels);
}

gpu::AttentionKernels generic_kernel() {
  static const gpu::AttentionKernel kernel = [] {
    gpu::AttentionKernel copied = gpu::kGenericAttention;
    copied.tensors_to_align = some_to_align;
    return copied;
  }();
  static const std::array kernels = {&kernel};
  return kernels;
}

}  // namespace tessera::simt
