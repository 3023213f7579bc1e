#include "model/paged_attention.h"

#include <cstdint>
#include <utility>

namespace tessera {
namespace {

/// Whether all tensors are where vector loads want them: a plan for such is not for others.
bool is_aligned(const PagedAttentionCall& call) {
  const auto address = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  return (address(call.q.data) | address(call.cache.k) | address(call.cache.v) | address(call.o.data)) % 16 ==
         0;
}

PagedAttentionCall decodes_of(PagedAttentionCall call) {
  const std::int64_t count = call.shape.num_decodes;
  call.shape = {count, count, 1, call.shape.decode_len_kv};
  call.q = rows_of(call.q, 0, count);
  call.o = rows_of(call.o, 0, count);
  return call;
}

PagedAttentionCall prompts_of(PagedAttentionCall call) {
  const StepShape all = call.shape;
  const std::int64_t begin = all.num_decodes;
  const std::int64_t count = all.num_tokens - begin;
  call.q = rows_of(call.q, begin, count);
  call.o = rows_of(call.o, begin, count);
  StepDescriptors& d = call.descriptors;
  d.cu_seqlens = d.prompt_cu_seqlens;
  d.seq_lens_kv += begin;
  d.block_table += begin * d.block_table_stride;
  call.shape = {count, all.batch - begin, all.seq_len_q, all.seq_len_kv};
  return call;
}

// Shapes of prefill are many; a map that has grown this far is emptied.
constexpr std::size_t kMaxPlans = 1024;

}  // namespace

PagedAttention::PagedAttention(PagedAttentionOptions options, OpsBackend& ops)
    : options_(std::move(options)), ops_(ops) {}

void PagedAttention::prepare(const PagedAttentionCall& call) { plan_of(call, describe(call)); }

void PagedAttention::run(const PagedAttentionCall& call) {
  if (call.shape.num_decodes == 0) return run_alike(call);
  run_alike(decodes_of(call));
  run_alike(prompts_of(call));
}

void PagedAttention::run_alike(const PagedAttentionCall& call) {
  const AttentionProblem problem = describe(call);
  const AttentionPlan& plan = plan_of(call, problem);
  attention_forward(problem, plan, {workspace_.data.get(), plan.workspace_bytes}, ops_.stream());
}

AttentionProblem PagedAttention::describe(const PagedAttentionCall& call) const {
  AttentionProblem problem;
  problem.device = ops_.device();
  problem.batch = call.shape.batch;
  problem.seq_len_q = call.shape.seq_len_q;
  problem.seq_len_kv = call.shape.seq_len_kv;
  problem.num_heads = options_.num_heads;
  problem.num_kv_heads = options_.num_kv_heads;
  problem.head_dim_qk = options_.head_dim;
  problem.head_dim_v = options_.head_dim_v == 0 ? options_.head_dim : options_.head_dim_v;

  problem.q = {call.q.data, options_.dtype, 0, call.q.row_stride, options_.head_dim};
  problem.o = {call.o.data, options_.dtype, 0, call.o.row_stride, problem.head_dim_v};
  const KvCacheView& cache = call.cache;
  problem.k = {cache.k, cache.dtype, cache.page_stride, cache.token_stride, cache.head_stride};
  problem.v = {cache.v, cache.dtype, cache.page_stride, cache.token_stride, cache.head_stride};

  problem.scores.softmax_scale = options_.softmax_scale;
  problem.scores.softcap = options_.softcap;
  problem.scores.diagonal = DiagonalMask::causal();
  if (call.sinks != nullptr) problem.scores.sinks = AttentionSinks{call.sinks};
  if (call.sliding_window) problem.scores.diagonal->window_left = *call.sliding_window - 1;

  problem.ragged_q = {call.descriptors.cu_seqlens, call.shape.num_tokens};
  PagedKv paged;
  paged.block_table = call.descriptors.block_table;
  paged.seq_lens_kv = call.descriptors.seq_lens_kv;
  paged.block_table_stride = call.descriptors.block_table_stride;
  paged.num_pages = cache.num_pages;
  paged.max_pages_per_seq = static_cast<int>(call.descriptors.block_table_stride);
  paged.page_size = cache.page_size;
  problem.paged_kv = paged;
  problem.batch_invariant = options_.batch_invariant;
  // A step's lengths and tables are copied to the device before its first kernel, and a copy waits for all
  // steps before; of this layer's keys the step writes those of its own tokens.
  problem.settled_kv = true;
  return problem;
}

const AttentionPlan& PagedAttention::plan_of(const PagedAttentionCall& call,
                                             const AttentionProblem& problem) {
  const auto key = std::tuple(call.shape, call.sliding_window, is_aligned(call));
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    if (plans_.size() >= kMaxPlans) plans_.clear();
    AttentionOptions attention_options;
    attention_options.backend = options_.backend;
    found = plans_.emplace(key, prepare_attention(problem, attention_options)).first;
  }
  if (found->second.workspace_bytes > workspace_.size_bytes) {
    workspace_ = ops_.allocate(found->second.workspace_bytes, "attention workspace");
    ++workspace_generation_;
  }
  return found->second;
}

}  // namespace tessera
