#include <algorithm>

#include "attention/sequence.h"
#include "tessera/attention.h"

namespace tessera {
namespace {

/// The extent that can be known here: the arrays' contents in CPU memory, else the upper bounds.
SequenceExtent known_extent(const AttentionProblem& p, std::int64_t b) {
  return p.device.kind == DeviceKind::kCpu ? sequence_extent(p, b)
                                           : SequenceExtent{0, p.seq_len_q, 0, p.seq_len_kv};
}

double visible_pairs(const Diagonal& diagonal, std::int64_t len_q) {
  if (diagonal.left == Diagonal::kUnlimited && diagonal.right == Diagonal::kUnlimited) {
    return static_cast<double>(len_q) * static_cast<double>(diagonal.len_kv);
  }
  double pairs = 0;
  for (std::int64_t i = 0; i < len_q; ++i) pairs += static_cast<double>(diagonal.keys_of_query(i).size());
  return pairs;
}

double element_bytes(DType dtype) { return static_cast<double>(dtype_bytes(dtype, 1)); }

/// Bytes of the part of a mask that one sequence needs; broadcast dimensions count once.
double mask_bytes(const ScoreMask& mask, const AttentionProblem& p, std::int64_t len_q, double keys) {
  const double heads = mask.head_stride == 0 ? 1 : p.num_heads;
  const double queries = mask.q_stride == 0 ? 1 : static_cast<double>(len_q);
  const double columns = mask.kv_stride == 0 ? 1 : keys;
  const double share = mask.batch_stride == 0 ? 1.0 / static_cast<double>(p.batch) : 1.0;
  return heads * queries * columns * share * element_bytes(mask.dtype);
}

}  // namespace

double attention_flops(const AttentionProblem& p) {
  double pairs = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const SequenceExtent extent = known_extent(p, b);
    pairs += visible_pairs(resolve_diagonal(p.scores, extent.len_q, extent.len_kv), extent.len_q);
  }
  return pairs * p.num_heads * 2.0 * (p.head_dim_qk + p.head_dim_v);
}

double attention_bytes(const AttentionProblem& p) {
  double bytes = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const SequenceExtent extent = known_extent(p, b);
    if (extent.len_q == 0) continue;
    const Diagonal diagonal = resolve_diagonal(p.scores, extent.len_q, extent.len_kv);
    const double keys = static_cast<double>(diagonal.keys_of_tile(0, extent.len_q).size());
    const double queries = static_cast<double>(extent.len_q);
    bytes += (queries * p.num_heads + keys * p.num_kv_heads) * (p.head_dim_qk + p.head_dim_v) *
             element_bytes(p.q.dtype);
    if (p.lse) bytes += queries * p.num_heads * 4;
    if (p.scores.additive_mask) bytes += mask_bytes(*p.scores.additive_mask, p, extent.len_q, keys);
    if (p.scores.boolean_mask) bytes += mask_bytes(*p.scores.boolean_mask, p, extent.len_q, keys);
  }
  return bytes;
}

}  // namespace tessera
