#include "c_api/problem.h"

#include <fmt/core.h>

#include "c_api/dtypes.h"
#include "c_api/structs.h"
#include "modifier/ir.h"

namespace tessera::c_api {
namespace {

constexpr std::uint64_t kProblemFlags =
    TESSERA_HAS_LSE | TESSERA_HAS_SOFTMAX_SCALE | TESSERA_HAS_SOFTCAP | TESSERA_HAS_WINDOW_LEFT |
    TESSERA_HAS_WINDOW_RIGHT | TESSERA_HAS_ALIBI | TESSERA_HAS_ADDITIVE_MASK | TESSERA_HAS_BOOLEAN_MASK |
    TESSERA_HAS_SINKS | TESSERA_HAS_RAGGED_Q | TESSERA_HAS_RAGGED_KV | TESSERA_HAS_PAGED_KV |
    TESSERA_HAS_SEQ_LENS_KV | TESSERA_BATCH_INVARIANT | TESSERA_HAS_KV_SCALES | TESSERA_HAS_MODIFIER |
    TESSERA_HAS_Q_SCALES | TESSERA_SETTLED_KV;

template <class Tensor>
Tensor tensor(const tessera_tensor& t, const char* field) {
  check_reserved(field, t.reserved);
  Tensor out;
  out.data = t.data;
  out.dtype = dtype_of(t.dtype, field, ".dtype");
  out.batch_stride = t.batch_stride;
  out.seq_stride = t.seq_stride;
  out.head_stride = t.head_stride;
  return out;
}

LseOutput lse_of(const tessera_lse& lse) {
  return {lse.data, lse.batch_stride, lse.head_stride, lse.seq_stride};
}

ScoreMask mask_of(const tessera_mask& mask, const char* field) {
  check_reserved(field, mask.reserved);
  return {mask.data,         dtype_of(mask.dtype, field, ".dtype"),
          mask.batch_stride, mask.head_stride,
          mask.q_stride,     mask.kv_stride};
}

DiagonalAlignment alignment_of(std::int32_t alignment) {
  if (alignment != TESSERA_BOTTOM_RIGHT && alignment != TESSERA_TOP_LEFT) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("problem.alignment is {}; expected TESSERA_BOTTOM_RIGHT or TESSERA_TOP_LEFT", alignment));
  }
  return alignment == TESSERA_TOP_LEFT ? DiagonalAlignment::kTopLeft : DiagonalAlignment::kBottomRight;
}

constexpr std::int32_t kMostDimensions = 4;

/// Before anything of an array is read: a wrong count leads beyond it.
void check_count(const char* field, std::size_t count, int most) {
  if (count <= static_cast<std::size_t>(most)) return;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is {}; expected at most {}", field, count, most));
}

ScoreModifier modifier_of(const tessera_score_modifier& c) {
  ScoreModifier modifier;
  if (c.score != nullptr) modifier.score = c.score;
  if (c.visible != nullptr) modifier.visible = c.visible;
  check_count("problem.modifier.num_tensors", c.num_tensors, modifier::kMaxTensors);
  check_count("problem.modifier.num_scalars", c.num_scalars, modifier::kMaxScalars);
  for (const tessera_captured_tensor& t : array(c.tensors, c.num_tensors, "problem.modifier.tensors")) {
    CapturedTensor& tensor = modifier.tensors.emplace_back();
    tensor.name = &required(t.name, "problem.modifier.tensors[].name");
    tensor.data = t.data;
    tensor.dtype = dtype_of(t.dtype, "problem.modifier.tensors[]", ".dtype");
    if (t.rank < 0 || t.rank > kMostDimensions) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("problem.modifier.tensors[] ({}).rank is {}; expected 0 to {}", tensor.name,
                              t.rank, kMostDimensions));
    }
    tensor.sizes.assign(t.sizes, t.sizes + t.rank);
    tensor.strides.assign(t.strides, t.strides + t.rank);
  }
  for (const tessera_scalar& s : array(c.scalars, c.num_scalars, "problem.modifier.scalars")) {
    modifier.scalars.emplace_back(&required(s.name, "problem.modifier.scalars[].name"), s.value);
  }
  return modifier;
}

ScoreTerms score_terms(const tessera_attention_problem& p) {
  ScoreTerms terms;
  const auto has = [&p](std::uint64_t flag) { return (p.flags & flag) != 0; };
  if (has(TESSERA_HAS_SOFTMAX_SCALE)) terms.softmax_scale = p.softmax_scale;
  if (has(TESSERA_HAS_SOFTCAP)) terms.softcap = p.softcap;
  if (has(TESSERA_HAS_ALIBI)) terms.alibi = AlibiBias{p.alibi_slopes, p.alibi_batch_stride};
  if (has(TESSERA_HAS_ADDITIVE_MASK)) {
    terms.additive_mask = mask_of(p.additive_mask, "problem.additive_mask");
  }
  if (has(TESSERA_HAS_BOOLEAN_MASK)) {
    terms.boolean_mask = mask_of(p.boolean_mask, "problem.boolean_mask");
  }
  const DiagonalAlignment alignment = alignment_of(p.alignment);
  const bool has_window = has(TESSERA_HAS_WINDOW_LEFT) || has(TESSERA_HAS_WINDOW_RIGHT);
  // A band without sides hides nothing, but says where the diagonal of ALiBi and of the modifier's shift is.
  const bool needs_diagonal = terms.alibi.has_value() || has(TESSERA_HAS_MODIFIER);
  if (has_window || (needs_diagonal && alignment == DiagonalAlignment::kTopLeft)) {
    DiagonalMask& diagonal = terms.diagonal.emplace();
    if (has(TESSERA_HAS_WINDOW_LEFT)) diagonal.window_left = p.window_left;
    if (has(TESSERA_HAS_WINDOW_RIGHT)) diagonal.window_right = p.window_right;
    diagonal.alignment = alignment;
  }
  if (has(TESSERA_HAS_SINKS)) terms.sinks = AttentionSinks{p.sink_logits};
  if (has(TESSERA_HAS_MODIFIER)) terms.modifier = modifier_of(p.modifier);
  return terms;
}

}  // namespace

AttentionProblem attention_problem(const tessera_attention_problem* given) {
  const tessera_attention_problem c = read_struct(given, "problem");
  check_flags("problem", c.flags, kProblemFlags);
  check_reserved("problem", c.reserved);
  const auto has = [&c](std::uint64_t flag) { return (c.flags & flag) != 0; };
  AttentionProblem p;
  p.device = device_of(c.device);
  p.batch = c.batch;
  p.seq_len_q = c.seq_len_q;
  p.seq_len_kv = c.seq_len_kv;
  p.num_heads = c.num_heads;
  p.num_kv_heads = c.num_kv_heads;
  p.head_dim_qk = c.head_dim_qk;
  p.head_dim_v = c.head_dim_v;
  p.q = tensor<AttentionInput>(c.q, "problem.q");
  p.k = tensor<AttentionInput>(c.k, "problem.k");
  p.v = tensor<AttentionInput>(c.v, "problem.v");
  p.o = tensor<AttentionOutput>(c.o, "problem.o");
  if (has(TESSERA_HAS_LSE)) p.lse = lse_of(c.lse);
  p.scores = score_terms(c);
  if (has(TESSERA_HAS_RAGGED_Q)) p.ragged_q = RaggedTokens{c.ragged_q.cu_seqlens, c.ragged_q.total_tokens};
  if (has(TESSERA_HAS_RAGGED_KV)) {
    p.ragged_kv = RaggedTokens{c.ragged_kv.cu_seqlens, c.ragged_kv.total_tokens};
  }
  if (has(TESSERA_HAS_PAGED_KV)) {
    const tessera_paged_kv& paged = c.paged_kv;
    p.paged_kv = PagedKv{paged.block_table, paged.seq_lens_kv,       paged.block_table_stride,
                         paged.num_pages,   paged.max_pages_per_seq, paged.page_size};
  }
  if (has(TESSERA_HAS_SEQ_LENS_KV)) {
    if (c.seq_lens_kv == nullptr && c.batch > 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  "problem.seq_lens_kv is null with TESSERA_HAS_SEQ_LENS_KV; expected a length a sequence");
    }
    p.seq_lens_kv = c.seq_lens_kv;
  }
  if (has(TESSERA_HAS_KV_SCALES)) {
    p.kv_scales = KvScales{c.kv_scales.k, c.kv_scales.v, c.kv_scales.batch_stride, c.kv_scales.head_stride};
  }
  if (has(TESSERA_HAS_Q_SCALES))
    p.q_scales = QScales{c.q_scales.q, c.q_scales.batch_stride, c.q_scales.head_stride};
  p.batch_invariant = has(TESSERA_BATCH_INVARIANT);
  p.settled_kv = has(TESSERA_SETTLED_KV);
  return p;
}

AttentionOptions attention_options(const tessera_attention_options* given) {
  const tessera_attention_options c = read_optional_struct(given, "options");
  check_reserved("options", c.reserved);
  AttentionOptions options;
  if (c.backend != nullptr) options.backend = c.backend;
  options.allow_fallback = c.allow_fallback != 0;
  options.config = {c.config.block_m,    c.config.block_n,    c.config.num_warps,
                    c.config.num_stages, c.config.num_splits, c.num_parts};
  return options;
}

MergeStatesProblem merge_states_problem(const tessera_merge_states_problem* given) {
  const tessera_merge_states_problem c = read_struct(given, "problem");
  check_flags("problem", c.flags, TESSERA_HAS_LSE);
  MergeStatesProblem p;
  p.device = device_of(c.device);
  p.batch = c.batch;
  p.seq_len_q = c.seq_len_q;
  p.num_heads = c.num_heads;
  p.head_dim = c.head_dim;
  p.o_a = tensor<AttentionInput>(c.o_a, "problem.o_a");
  p.o_b = tensor<AttentionInput>(c.o_b, "problem.o_b");
  p.lse_a = lse_of(c.lse_a);
  p.lse_b = lse_of(c.lse_b);
  p.o = tensor<AttentionOutput>(c.o, "problem.o");
  if ((c.flags & TESSERA_HAS_LSE) != 0) p.lse = lse_of(c.lse);
  return p;
}

}  // namespace tessera::c_api
