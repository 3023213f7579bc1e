#include "backends/gpu/attention/stage_tensors.h"

#include "attention/call.h"
#include "attention/tensor_extents.h"

namespace tessera::gpu {
namespace {

constexpr std::size_t kStagedAlignment = 256;

/// Hands out staging memory and remembers what goes where.
class Stager {
 public:
  Stager(std::byte* memory, StagedProblem& staged) : memory_(memory), staged_(&staged) {}

  template <class Pointer>
  void add(Pointer& pointer, std::size_t size_bytes, bool is_output = false) {
    if (pointer == nullptr || size_bytes == 0) return;
    // The same place within 256 bytes as on the host, so that what is aligned there is aligned here.
    const std::size_t place = reinterpret_cast<std::uintptr_t>(pointer) % kStagedAlignment;
    const std::size_t offset = staged_->size_bytes + place;
    staged_->copies.push_back({pointer, offset, size_bytes, is_output});
    // As much wherever the array starts: a plan's workspace serves calls with other pointers.
    staged_->size_bytes += (size_bytes + 2 * kStagedAlignment - 1) / kStagedAlignment * kStagedAlignment;
    if (memory_ != nullptr) pointer = reinterpret_cast<Pointer>(memory_ + offset);
  }

 private:
  std::byte* memory_;
  StagedProblem* staged_;
};

std::size_t span_elements(std::int64_t outer, std::int64_t outer_stride, std::int64_t tokens,
                          std::int64_t token_stride, std::int64_t heads, std::int64_t head_stride,
                          std::int64_t row) {
  if (outer == 0 || tokens == 0 || heads == 0) return 0;
  return static_cast<std::size_t>((outer - 1) * outer_stride + (tokens - 1) * token_stride +
                                  (heads - 1) * head_stride + row);
}

template <class Tensor>
std::size_t tensor_bytes(const Tensor& t, const TensorExtents& extents, int head_dim) {
  return dtype_bytes(t.dtype, span_elements(extents.outer, t.batch_stride, extents.tokens, t.seq_stride,
                                            extents.heads, t.head_stride, head_dim));
}

std::size_t mask_bytes(const ScoreMask& m, const AttentionProblem& p) {
  const std::size_t plane =
      span_elements(p.batch, m.batch_stride, p.seq_len_q, m.q_stride, p.num_heads, m.head_stride, 1);
  if (plane == 0 || p.seq_len_kv == 0) return 0;
  return dtype_bytes(m.dtype, plane + static_cast<std::size_t>((p.seq_len_kv - 1) * m.kv_stride));
}

std::size_t captured_bytes(const CapturedTensor& tensor) {
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) elements += (tensor.sizes[d] - 1) * tensor.strides[d];
  return dtype_bytes(tensor.dtype, static_cast<std::size_t>(elements));
}

}  // namespace

StagedProblem stage_problem(const AttentionProblem& host, const Device& device, std::byte* memory) {
  StagedProblem staged;
  staged.problem = host;
  AttentionProblem& p = staged.problem;
  p.device = device;
  Stager stager(memory, staged);
  const TensorExtents queries = query_extents(host);
  const TensorExtents keys = key_extents(host);
  const auto sequences = static_cast<std::size_t>(host.batch);

  stager.add(p.q.data, tensor_bytes(host.q, queries, host.head_dim_qk));
  stager.add(p.k.data, tensor_bytes(host.k, keys, host.head_dim_qk));
  if (has_values_in_keys(host)) {
    p.v.data = p.k.data;
  } else {
    stager.add(p.v.data, tensor_bytes(host.v, keys, host.head_dim_v));
  }
  // Outputs are copied in as well: the bytes between their rows belong to the caller and go back as they
  // were.
  stager.add(p.o.data, tensor_bytes(host.o, queries, host.head_dim_v), true);
  if (p.lse) {
    stager.add(p.lse->data,
               4 * span_elements(queries.outer, p.lse->batch_stride, queries.tokens, p.lse->seq_stride,
                                 queries.heads, p.lse->head_stride, 1),
               true);
  }
  if (p.q_scales) {
    stager.add(p.q_scales->q, 4 * span_elements(host.batch, p.q_scales->batch_stride, 1, 0, host.num_kv_heads,
                                                p.q_scales->head_stride, 1));
  }
  if (p.kv_scales) {
    // Kernels read a scale that all keys share before they know of any key.
    const std::int64_t scales_outer = p.kv_scales->batch_stride == 0 ? 1 : keys.outer;
    const std::size_t size_bytes = 4 * span_elements(scales_outer, p.kv_scales->batch_stride, 1, 0,
                                                     host.num_kv_heads, p.kv_scales->head_stride, 1);
    stager.add(p.kv_scales->k, size_bytes);
    stager.add(p.kv_scales->v, size_bytes);
  }
  if (p.ragged_q) stager.add(p.ragged_q->cu_seqlens, 4 * (sequences + 1));
  if (p.ragged_kv) stager.add(p.ragged_kv->cu_seqlens, 4 * (sequences + 1));
  stager.add(p.seq_lens_kv, 4 * sequences);
  if (p.paged_kv && host.batch > 0) {
    stager.add(p.paged_kv->seq_lens_kv, 4 * sequences);
    stager.add(p.paged_kv->block_table,
               4 * (static_cast<std::size_t>((host.batch - 1) * p.paged_kv->block_table_stride) +
                    static_cast<std::size_t>(p.paged_kv->max_pages_per_seq)));
  }
  ScoreTerms& s = p.scores;
  const auto heads = static_cast<std::size_t>(host.num_heads);
  if (s.alibi && host.batch > 0) {
    stager.add(s.alibi->slopes,
               4 * (static_cast<std::size_t>((host.batch - 1) * s.alibi->batch_stride) + heads));
  }
  if (s.additive_mask) stager.add(s.additive_mask->data, mask_bytes(*host.scores.additive_mask, host));
  if (s.boolean_mask) stager.add(s.boolean_mask->data, mask_bytes(*host.scores.boolean_mask, host));
  if (s.sinks) stager.add(s.sinks->logits, 4 * heads);
  if (s.modifier) {
    for (CapturedTensor& tensor : s.modifier->tensors) stager.add(tensor.data, captured_bytes(tensor));
  }
  return staged;
}

void run_staged(const AttentionProblem& problem, Gpu& device, std::span<std::byte> workspace, Stream stream,
                const std::function<void(const AttentionProblem& staged)>& run) {
  const std::size_t size_bytes = stage_problem(problem, device.device(), nullptr).size_bytes;
  std::byte* memory = workspace.data() + (workspace.size() - size_bytes);
  const StagedProblem staged = stage_problem(problem, device.device(), memory);
  for (const StagedProblem::Copy& copy : staged.copies) {
    device.upload(memory + copy.offset, copy.host, copy.size_bytes, stream);
  }
  run(staged.problem);
  for (const StagedProblem::Copy& copy : staged.copies) {
    if (!copy.is_output) continue;
    device.download(const_cast<void*>(copy.host), memory + copy.offset, copy.size_bytes, stream);
  }
  device.synchronize(stream);
}

}  // namespace tessera::gpu
