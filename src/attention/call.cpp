#include "attention/call.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "attention/modifier.h"
#include "attention/validate.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr std::size_t kWorkspaceAlignment = 64;

[[noreturn]] void fail(std::string_view field, const AttentionProblem& planned,
                       const AttentionProblem& problem) {
  const std::string before = to_string(planned), now = to_string(problem);
  // Words don't have all of a description.
  const std::string difference =
      before == now ? fmt::format("both are for {}, with another dtype, size, stride, name or order", now)
                    : fmt::format("it is for {}, and this problem is {}", before, now);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} is not what the plan was made with: {}; expected a problem that differs in "
                          "pointers (and a modifier's scalars) only, or a plan of its own",
                          field, difference));
}

/// Compares what two problems say, field by field.
class Comparison {
 public:
  Comparison(const AttentionProblem& a, const AttentionProblem& b) : a_(a), b_(b) {}

  template <class Value>
  void same(std::string_view field, const Value& a, const Value& b) const {
    if (a != b) [[unlikely]]
      fail(field, a_, b_);
  }

  /// Whether both are there; fails if only one is.
  template <class Part>
  bool both(std::string_view field, const std::optional<Part>& a, const std::optional<Part>& b) const {
    same(field, a.has_value(), b.has_value());
    return a.has_value();
  }

  template <class Void>
  void tensors(std::string_view name, const BasicAttentionTensor<Void>& a,
               const BasicAttentionTensor<Void>& b) const {
    same(name, a.dtype, b.dtype);
    same(name, a.batch_stride, b.batch_stride);
    same(name, a.seq_stride, b.seq_stride);
    same(name, a.head_stride, b.head_stride);
  }

  void masks(std::string_view name, const std::optional<ScoreMask>& a,
             const std::optional<ScoreMask>& b) const {
    if (!both(name, a, b)) return;
    same(name, a->dtype, b->dtype);
    same(name, a->batch_stride, b->batch_stride);
    same(name, a->head_stride, b->head_stride);
    same(name, a->q_stride, b->q_stride);
    same(name, a->kv_stride, b->kv_stride);
  }

  void ragged(std::string_view name, const std::optional<RaggedTokens>& a,
              const std::optional<RaggedTokens>& b) const {
    if (both(name, a, b)) same(name, a->total_tokens, b->total_tokens);
  }

  void paged(const std::optional<PagedKv>& a, const std::optional<PagedKv>& b) const {
    if (!both("paged_kv", a, b)) return;
    same("paged_kv.block_table_stride", a->block_table_stride, b->block_table_stride);
    same("paged_kv.num_pages", a->num_pages, b->num_pages);
    same("paged_kv.max_pages_per_seq", a->max_pages_per_seq, b->max_pages_per_seq);
    same("paged_kv.page_size", a->page_size, b->page_size);
  }

  void q_scales(const std::optional<QScales>& a, const std::optional<QScales>& b) const {
    if (!both("q_scales", a, b)) return;
    same("q_scales.q", a->q != nullptr, b->q != nullptr);
    same("q_scales.batch_stride", a->batch_stride, b->batch_stride);
    same("q_scales.head_stride", a->head_stride, b->head_stride);
  }

  void kv_scales(const std::optional<KvScales>& a, const std::optional<KvScales>& b) const {
    if (!both("kv_scales", a, b)) return;
    same("kv_scales.k", a->k != nullptr, b->k != nullptr);
    same("kv_scales.v", a->v != nullptr, b->v != nullptr);
    same("kv_scales.batch_stride", a->batch_stride, b->batch_stride);
    same("kv_scales.head_stride", a->head_stride, b->head_stride);
  }

  /// All but pointers and the scalars' values.
  void modifiers(const ScoreModifier& a, const ScoreModifier& b) const {
    same("scores.modifier.score", a.score, b.score);
    same("scores.modifier.visible", a.visible, b.visible);
    same("scores.modifier.tensors", a.tensors.size(), b.tensors.size());
    for (std::size_t i = 0; i < a.tensors.size(); ++i) {
      same("scores.modifier.tensors", a.tensors[i].name, b.tensors[i].name);
      same("scores.modifier.tensors", a.tensors[i].dtype, b.tensors[i].dtype);
      same("scores.modifier.tensors", a.tensors[i].sizes, b.tensors[i].sizes);
      same("scores.modifier.tensors", a.tensors[i].strides, b.tensors[i].strides);
    }
    same("scores.modifier.scalars", a.scalars.size(), b.scalars.size());
    for (std::size_t i = 0; i < a.scalars.size(); ++i)
      same("scores.modifier.scalars", a.scalars[i].first, b.scalars[i].first);
  }

  void scores(const ScoreTerms& a, const ScoreTerms& b) const {
    same("scores.softmax_scale", a.softmax_scale, b.softmax_scale);
    same("scores.softcap", a.softcap, b.softcap);
    if (both("scores.alibi", a.alibi, b.alibi))
      same("scores.alibi.batch_stride", a.alibi->batch_stride, b.alibi->batch_stride);
    masks("scores.additive_mask", a.additive_mask, b.additive_mask);
    masks("scores.boolean_mask", a.boolean_mask, b.boolean_mask);
    if (both("scores.diagonal", a.diagonal, b.diagonal)) {
      same("scores.diagonal.window_left", a.diagonal->window_left, b.diagonal->window_left);
      same("scores.diagonal.window_right", a.diagonal->window_right, b.diagonal->window_right);
      same("scores.diagonal.alignment", a.diagonal->alignment, b.diagonal->alignment);
    }
    both("scores.sinks", a.sinks, b.sinks);
    if (both("scores.modifier", a.modifier, b.modifier)) modifiers(*a.modifier, *b.modifier);
  }

 private:
  const AttentionProblem& a_;
  const AttentionProblem& b_;
};

}  // namespace

bool has_values_in_keys(const AttentionProblem& p) {
  return p.v.data == p.k.data && p.v.batch_stride == p.k.batch_stride && p.v.seq_stride == p.k.seq_stride &&
         p.v.head_stride == p.k.head_stride && p.head_dim_v < p.head_dim_qk;
}

void check_same_description(const AttentionProblem& a, const AttentionProblem& b) {
  const Comparison c(a, b);
  c.same("device", a.device, b.device);
  // Before the lengths, whose bounds follow from it.
  c.ragged("ragged_q", a.ragged_q, b.ragged_q);
  c.ragged("ragged_kv", a.ragged_kv, b.ragged_kv);
  c.paged(a.paged_kv, b.paged_kv);
  c.same("seq_lens_kv", a.seq_lens_kv != nullptr, b.seq_lens_kv != nullptr);
  c.same("batch", a.batch, b.batch);
  c.same("seq_len_q", a.seq_len_q, b.seq_len_q);
  c.same("seq_len_kv", a.seq_len_kv, b.seq_len_kv);
  c.same("num_heads", a.num_heads, b.num_heads);
  c.same("num_kv_heads", a.num_kv_heads, b.num_kv_heads);
  c.same("head_dim_qk", a.head_dim_qk, b.head_dim_qk);
  c.same("head_dim_v", a.head_dim_v, b.head_dim_v);
  c.tensors("q", a.q, b.q);
  c.tensors("k", a.k, b.k);
  c.tensors("v", a.v, b.v);
  // A plan may count on it.
  if (has_values_in_keys(a)) c.same("that v is a part of k", true, has_values_in_keys(b));
  c.tensors("o", a.o, b.o);
  if (c.both("lse", a.lse, b.lse)) {
    c.same("lse", a.lse->batch_stride, b.lse->batch_stride);
    c.same("lse", a.lse->head_stride, b.lse->head_stride);
    c.same("lse", a.lse->seq_stride, b.lse->seq_stride);
  }
  c.q_scales(a.q_scales, b.q_scales);
  c.kv_scales(a.kv_scales, b.kv_scales);
  c.scores(a.scores, b.scores);
  c.same("batch_invariant", a.batch_invariant, b.batch_invariant);
}

AttentionProblem with_tight_bounds(const AttentionProblem& problem) {
  AttentionProblem p = problem;
  if (p.ragged_q) p.seq_len_q = std::min(p.seq_len_q, p.ragged_q->total_tokens);
  if (p.ragged_kv) p.seq_len_kv = std::min(p.seq_len_kv, p.ragged_kv->total_tokens);
  if (p.paged_kv) {
    p.seq_len_kv =
        std::min(p.seq_len_kv, std::int64_t{p.paged_kv->max_pages_per_seq} * p.paged_kv->page_size);
  }
  return p;
}

AttentionCall::AttentionCall(const AttentionProblem& description, std::size_t workspace_bytes, Run run,
                             Load load)
    : description_(with_tight_bounds(description)),
      workspace_bytes_(workspace_bytes),
      run_(std::move(run)),
      load_(std::move(load)) {}

void AttentionCall::load() const {
  if (load_) load_();
}

AttentionProblem AttentionCall::checked(const AttentionProblem& given) const {
  AttentionProblem problem = with_tight_bounds(given);
  check_same_description(description_, problem);
  validate_pointers(problem);
  // Other scalars may divide by 0 or overflow.
  if (problem.scores.modifier && problem.scores.modifier->scalars != description_.scores.modifier->scalars)
    validate_modifier(problem);
  return problem;
}

void AttentionCall::forward(const AttentionProblem& given, std::span<std::byte> workspace,
                            Stream stream) const {
  const AttentionProblem problem = checked(given);
  if (workspace.size() < workspace_bytes_ || (workspace_bytes_ > 0 && workspace.data() == nullptr)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("workspace has {} bytes{}; expected at least the plan's {} for this problem ({})",
                            workspace.size(), workspace.data() == nullptr ? " at null" : "", workspace_bytes_,
                            to_string(problem)));
  }
  if (workspace_bytes_ > 0 && reinterpret_cast<std::uintptr_t>(workspace.data()) % kWorkspaceAlignment != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("workspace is at {}; expected an address that is a multiple of {}",
                            static_cast<const void*>(workspace.data()), kWorkspaceAlignment));
  }
  run_(problem, workspace, stream);
}

}  // namespace tessera
