// The `cpu` attention backend: fused, tiled attention with memory linear in the sequence length.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "attention/backend.h"
#include "attention/narrow.h"
#include "attention/token_rows.h"
#include "backends/cpu/attention/amx_decode.h"
#include "backends/cpu/attention/amx_prefill.h"
#include "backends/cpu/attention/config.h"
#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/attention/merge.h"
#include "backends/cpu/attention/tuned_plan.h"
#include "backends/cpu/ceilings.h"
#include "backends/factories.h"
#include "core/aligned_memory.h"
#include "core/parallel.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using cpu::CallContext;
using cpu::CallPlan;
using cpu::TileTask;

std::string unsupported_dtype(DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) return "";
  return fmt::format("dtype {} has no cpu kernel; there are f32, f16 and bf16", dtype_name(dtype));
}

std::string unsupported_device(const Device& device) {
  if (device.kind == DeviceKind::kCpu) return "";
  return fmt::format("the tensors are in the memory of {}, not of the cpu", device_name(device));
}

/// One forward call: numbers its tasks and runs them.
class Call {
 public:
  Call(const AttentionProblem& problem, const CallPlan& plan, std::span<std::byte> workspace)
      : problem_(problem),
        plan_(plan),
        kernels_(cpu::kernel_table(plan.target)),
        bf16_(plan.call.shape.bf16_dot ? cpu::bf16_dot_kernels(plan.target) : nullptr),
        widened_(plan.call),
        partials_(plan.num_splits > 1 ? reinterpret_cast<float*>(workspace.data()) : nullptr),
        scratch_(workspace.data() + plan.partial_bytes) {
    if (!meets_as_pairs_of_bf16()) return;
    widened_.shape.bf16_dot = false;
    widened_.layout = cpu::scratch_layout(widened_.shape);
  }

  /// Runs all tasks on up to `threads` threads, each with a part of the scratch memory of its own.
  void run(std::int64_t threads) {
    parallel_for(static_cast<std::size_t>(threads), [this](std::size_t slot) {
      std::byte* scratch = scratch_ + slot * plan_.scratch_bytes;
      for (std::int64_t i = next_task_++; i < plan_.num_tasks; i = next_task_++) attend_task(i, scratch);
    });
    if (plan_.num_splits > 1) {
      const std::int64_t merges = problem_.batch * problem_.num_kv_heads * plan_.tiles;
      parallel_for(static_cast<std::size_t>(merges),
                   [this](std::size_t i) { merge(static_cast<std::int64_t>(i)); });
    }
  }

 private:
  /// Task i without its keys: tiles vary slowest and the last, which see most keys when causal, come first;
  /// the heads of a sequence follow each other.
  TileTask task_at(std::int64_t i, int heads_per_task) const {
    TileTask task;
    const std::int64_t head_tasks = problem_.num_kv_heads / heads_per_task;
    task.kv_head = static_cast<int>(i % head_tasks) * heads_per_task;
    i /= head_tasks;
    task.sequence = i % problem_.batch;
    const std::int64_t tile = plan_.tiles - 1 - i / problem_.batch;
    task.extent = sequence_extent(problem_, task.sequence);
    task.diagonal = resolve_diagonal(problem_.scores, task.extent.len_q, task.extent.len_kv);
    const std::int64_t rows = task.extent.len_q * plan_.call.group;
    task.row_begin = std::min(tile * plan_.call.shape.block_m, rows);
    task.row_end = std::min(task.row_begin + plan_.call.shape.block_m, rows);
    task.keys = {0, task.extent.len_kv};
    return task;
  }

  float* partials_of(const TileTask& task, std::int64_t split) const {
    const std::int64_t head = task.sequence * problem_.num_kv_heads + task.kv_head;
    return partials_ +
           (head * plan_.num_splits + split) * plan_.rows * cpu::partial_stride(problem_.head_dim_v);
  }

  void attend_task(std::int64_t i, std::byte* scratch) const {
    const std::int64_t split = i % plan_.num_splits;
    TileTask task = task_at(i / plan_.num_splits, plan_.heads_per_task);
    if (task.row_begin == task.row_end) return;
    // The first of the heads that the decode kernel takes together stands for all of them.
    if (is_decode(task) && task.kv_head % plan_.call.shape.decode_heads != 0) return;
    task.scratch = scratch;
    if (plan_.segment_keys > 0 && plan_.num_splits == 1) {
      if (is_decode(task)) {
        decode_in_segments(task);
      } else {
        task.segment_keys = plan_.segment_keys;
        attend(task);
      }
      return;
    }
    if (plan_.segment_keys > 0) {
      if (!segments_of(task).contains(split)) return;
      set_segment(task, split);
      set_partial(task, split);
    } else if (plan_.num_splits > 1) {
      const KeyRange seen = cpu::keys_of_rows(plan_.call, task, task.row_begin, task.row_end);
      const std::int64_t block_n = plan_.call.shape.block_n;
      const std::int64_t first = seen.begin / block_n;
      const std::int64_t blocks = seen.empty() ? 0 : (seen.end + block_n - 1) / block_n - first;
      const std::int64_t share = (blocks + plan_.num_splits - 1) / plan_.num_splits;
      task.keys = {std::max(seen.begin, (first + split * share) * block_n),
                   std::min(seen.end, (first + (split + 1) * share) * block_n)};
      set_partial(task, split);
    }
    attend(task);
  }

  /// Where a task that has a split's keys puts its results.
  void set_partial(TileTask& task, std::int64_t split) const {
    task.partial_head_stride = plan_.num_splits * plan_.rows * row_floats();
    task.partial = partials_of(task, split) + task.row_begin * row_floats();
  }

  /// The segments of which a task's rows see keys.
  struct Segments {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool contains(std::int64_t i) const { return begin <= i && i < end; }
  };
  Segments segments_of(const TileTask& task) const {
    const KeyRange seen = cpu::keys_of_rows(plan_.call, task, task.row_begin, task.row_end);
    if (seen.empty()) return {};
    return {seen.begin / plan_.segment_keys, (seen.end - 1) / plan_.segment_keys + 1};
  }

  void set_segment(TileTask& task, std::int64_t segment) const {
    task.keys = {segment * plan_.segment_keys,
                 std::min((segment + 1) * plan_.segment_keys, task.extent.len_kv)};
  }

  /// All segments of a task's few rows, one after the other. The kernels of many rows do it themselves.
  void decode_in_segments(TileTask& task) const {
    const Segments segments = segments_of(task);
    if (segments.end - segments.begin <= 1) {
      attend(task);
      return;
    }
    const int heads = plan_.call.shape.decode_heads;
    const std::int64_t rows = task.row_end - task.row_begin;
    float* merged = reinterpret_cast<float*>(task.scratch + plan_.scratch_bytes) - 2 * plan_.segment_floats;
    float* next = merged + plan_.segment_floats;
    task.partial_head_stride = rows * row_floats();
    for (std::int64_t i = segments.begin; i < segments.end; ++i) {
      set_segment(task, i);
      task.partial = i == segments.begin ? merged : next;
      attend(task);
      if (i > segments.begin) merge_segment(heads * rows, next, merged);
    }
    for (int head = 0; head < heads; ++head) {
      kernels_.finish_segments(plan_.call, task, merged + head * task.partial_head_stride);
      ++task.kv_head;
    }
  }

  std::int64_t row_floats() const { return cpu::partial_stride(problem_.head_dim_v); }

  bool is_decode(const TileTask& task) const {
    return task.extent.len_q * plan_.call.group <= plan_.decode_rows;
  }

  void merge_segment(std::int64_t rows, const float* segment, float* merged) const {
    (plan_.call.shape.amx ? cpu::amx_merge_segment : kernels_.merge_segment)(plan_.call, rows, segment,
                                                                             merged);
  }

  bool meets_as_pairs_of_bf16() const { return plan_.call.shape.bf16_dot && plan_.call.shape.narrow_kv; }

  /// The first key after `key` whose scales may be others.
  std::int64_t next_scale(std::int64_t key, std::int64_t end) const {
    return problem_.paged_kv ? (key / problem_.paged_kv->page_size + 1) * problem_.paged_kv->page_size : end;
  }

  /// Whether no score or weight of a task leaves the range of bf16's products, which flush what is below
  /// 2^-126 to 0, for what scales will make of it, or have made.
  bool scales_suit_pairs(const TileTask& task) const {
    constexpr float kLargest = 0x1p64f;
    const TokenRows tokens(problem_, task.sequence, task.extent);
    const KeyRange keys = cpu::keys_of_rows(plan_.call, task, task.row_begin, task.row_end);
    const int heads = is_decode(task) ? plan_.call.shape.decode_heads : 1;
    for (int head = task.kv_head; head < task.kv_head + heads; ++head) {
      for (std::int64_t key = keys.begin; key < keys.end; key = next_scale(key, keys.end)) {
        const float of_score = std::abs(tokens.q_scale(head) * tokens.k_scale(key, head));
        const float of_value = std::abs(tokens.v_scale(key, head));
        const bool holds_value = of_value == 0 || (of_value >= 1 / kLargest && of_value <= kLargest);
        if (!(of_score <= kLargest) || !holds_value) return false;
      }
    }
    return true;
  }

  void attend(const TileTask& task) const {
    if (meets_as_pairs_of_bf16() && !scales_suit_pairs(task)) {
      (is_decode(task) ? kernels_.decode_tile : kernels_.prefill_tile)(widened_, task, nullptr);
    } else if (is_decode(task) && problem_.batch_invariant && plan_.call.shape.amx) {
      cpu::amx_decode_tile(plan_.call, task);
    } else if (is_decode(task)) {
      kernels_.decode_tile(plan_.call, task, bf16_);
    } else if (plan_.call.shape.amx) {
      cpu::amx_prefill_tile(plan_.call, task);
    } else {
      kernels_.prefill_tile(plan_.call, task, bf16_);
    }
  }

  void merge(std::int64_t i) const {
    const TileTask task = task_at(i, 1);
    if (plan_.segment_keys > 0) {
      merge_segments(task);
      return;
    }
    cpu::merge_splits(plan_.call, task, partials_of(task, 0), plan_.num_splits, plan_.rows);
  }

  /// What decode_in_segments and the kernels do where each segment was a task.
  void merge_segments(const TileTask& task) const {
    if (task.row_begin == task.row_end) return;
    const Segments segments = segments_of(task);
    const auto rows_of = [&](std::int64_t i) { return partials_of(task, i) + task.row_begin * row_floats(); };
    const std::int64_t rows = task.row_end - task.row_begin;
    float* merged = rows_of(segments.begin);
    if (segments.begin == segments.end) mark_empty(rows, merged);
    for (std::int64_t i = segments.begin + 1; i < segments.end; ++i) merge_segment(rows, rows_of(i), merged);
    kernels_.finish_segments(plan_.call, task, merged);
  }

  /// Results of rows that see no key.
  void mark_empty(std::int64_t rows, float* partials) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = partials + r * row_floats();
      std::fill_n(row, row_floats(), 0.0f);
      row[problem_.head_dim_v] = -std::numeric_limits<float>::infinity();
    }
  }

  const AttentionProblem& problem_;
  const CallPlan& plan_;
  const cpu::KernelTable& kernels_;
  const cpu::Bf16DotKernels* bf16_;
  CallContext widened_;  // without pairs of bf16, for e4m3 whose scales they don't hold
  float* partials_;
  std::byte* scratch_;
  std::atomic<std::int64_t> next_task_{0};
};

class CpuAttention final : public AttentionBackend, private AttentionTuner {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string_view description() const override {
    return "fused, tiled online softmax; memory linear in the sequence length; SIMD chosen at run time";
  }
  std::string unavailable_reason() const override { return ""; }

  bool runs_modifiers() const override { return true; }

  std::string unsupported_reason(const AttentionProblem& problem) const override {
    std::string reason = unsupported_device(problem.device);
    if (reason.empty()) reason = unsupported_dtype(wide_dtype(problem));
    if (reason.empty() && problem.scores.additive_mask &&
        problem.scores.additive_mask->dtype == DType::kF64) {
      reason = "an additive mask of dtype f64 has no cpu kernel; there are f32, f16 and bf16";
    }
    return reason;
  }

  AttentionPlan plan(const AttentionProblem& problem, const AttentionConfig& config) const override {
    return with_call(problem, cpu::plan_tuned(problem, config, cpu::tunings().get().tables()).plan);
  }

  std::vector<std::string> explain_plan(const AttentionProblem& problem,
                                        const AttentionConfig& config) const override {
    const std::string why = cpu::plan_tuned(problem, config, cpu::tunings().get().tables()).why;
    return why.empty() ? std::vector<std::string>() : std::vector{why};
  }

  const AttentionTuner* tuner() const override { return this; }

  std::shared_ptr<std::byte> allocate_workspace(const Device&, std::size_t size_bytes,
                                                Stream) const override {
    return allocate_aligned(std::max<std::size_t>(size_bytes, 1), "attention's workspace");
  }

  std::string unsupported_reason(const MergeStatesProblem& problem) const override {
    std::string reason = unsupported_device(problem.device);
    return reason.empty() ? unsupported_dtype(problem.o.dtype) : reason;
  }

  void merge_states(const MergeStatesProblem& problem, Stream) const override {
    parallel_for(static_cast<std::size_t>(problem.batch), [&problem](std::size_t sequence) {
      cpu::merge_states_of_sequence(problem, static_cast<std::int64_t>(sequence));
    });
  }

  Ceilings ceilings(DType dtype) const override { return cpu_ceilings(dtype); }

 private:
  std::vector<AttentionCandidate> candidates(const AttentionProblem& problem) const override {
    return cpu::attention_candidates(problem);
  }

  AttentionPlan plan_candidate(const AttentionProblem& problem,
                               const AttentionCandidate& candidate) const override {
    return with_call(problem, cpu::plan_candidate(problem, candidate));
  }

  void prepare(const AttentionProblem&, std::span<const AttentionCandidate>) const override {}

  TuningTable tuned(const Device&) const override { return cpu::tunings().get().own; }

  void remember(const Device&, const TuningTable& measured) const override {
    cpu::tunings().remember(measured);
  }

  static AttentionPlan with_call(const AttentionProblem& problem, AttentionPlan plan) {
    CallPlan made = cpu::make_call(problem, plan);
    // The number of threads, which some of it depends on, may have changed since the plan was made.
    cpu::set_workspace(made, plan);
    plan.call = std::make_shared<AttentionCall>(
        problem, plan.workspace_bytes,
        [call = std::move(made)](const AttentionProblem& p, std::span<std::byte> workspace, Stream) {
          run(p, call, workspace);
        });
    return plan;
  }

  static void run(const AttentionProblem& problem, CallPlan call, std::span<std::byte> workspace) {
    if (call.num_tasks == 0) return;
    call.call.problem = &problem;
    std::optional<cpu::ModifierCall> modifier;
    if (call.modifier) call.call.modifier = &modifier.emplace(*call.modifier, problem);
    // Fewer threads, if there are more now than when the plan was made.
    const auto slots =
        static_cast<std::int64_t>((workspace.size() - call.partial_bytes) / call.scratch_bytes);
    Call(problem, call, workspace).run(std::min({std::int64_t{num_threads()}, call.num_tasks, slots}));
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_cpu_attention() { return std::make_unique<CpuAttention>(); }

}  // namespace tessera
