#include "attention/cost.h"

#include <algorithm>

#include "attention/call.h"
#include "attention/sequence.h"
#include "tessera/attention.h"

namespace tessera {
namespace {

/// Calls f(extent, count) for each length that is known here and how many sequences have it: the arrays'
/// contents in CPU memory, else the upper bounds of all.
template <class F>
void for_each_extent(const AttentionProblem& p, F&& f) {
  if (p.batch <= 0) return;
  if (p.device.kind != DeviceKind::kCpu || !has_length_arrays(p)) {
    f(SequenceExtent{0, p.seq_len_q, 0, p.seq_len_kv}, static_cast<double>(p.batch));
    return;
  }
  for (std::int64_t b = 0; b < p.batch; ++b) f(sequence_extent(p, b), 1.0);
}

/// sum over i in [0, count) of i + offset, held between 0 and most.
double sum_held_between(std::int64_t offset, std::int64_t most, std::int64_t count) {
  __extension__ using Wide = __int128;
  if (count <= 0) return 0;
  const std::int64_t first = std::clamp<std::int64_t>(-offset, 0, count);          // from here on above 0
  const std::int64_t end = std::clamp<std::int64_t>(most - offset, first, count);  // from here on `most`
  const Wide rising = (Wide{first} + offset + end - 1 + offset) * (end - first) / 2;
  return static_cast<double>(rising + Wide{count - end} * most);
}

double visible_pairs(const Diagonal& diagonal, std::int64_t len_q) {
  if (diagonal.left == Diagonal::kUnlimited && diagonal.right == Diagonal::kUnlimited) {
    return static_cast<double>(len_q) * static_cast<double>(diagonal.len_kv);
  }
  // A query's keys end where its range does, and begin where it does, both within the sequence.
  return sum_held_between(diagonal.shift + diagonal.right + 1, diagonal.len_kv, len_q) -
         sum_held_between(diagonal.shift - diagonal.left, diagonal.len_kv, len_q);
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

double attention_flops(const AttentionProblem& p) { return attention_flops(p, modifier_tiles(p)); }

double attention_flops(const AttentionProblem& p, const ModifierTiles& tiles) {
  double pairs = 0;
  for_each_extent(p, [&](const SequenceExtent& extent, double count) {
    pairs += count * visible_pairs(resolve_diagonal(p.scores, extent.len_q, extent.len_kv), extent.len_q);
  });
  return pairs * tiles.visited_pairs * p.num_heads * 2.0 * (p.head_dim_qk + p.head_dim_v);
}

double attention_bytes(const AttentionProblem& p) { return attention_bytes(p, modifier_tiles(p)); }

double attention_bytes(const AttentionProblem& p, const ModifierTiles& tiles) {
  const int key_elements = has_values_in_keys(p) ? p.head_dim_qk : p.head_dim_qk + p.head_dim_v;
  double bytes = 0;
  for_each_extent(p, [&](const SequenceExtent& extent, double count) {
    if (extent.len_q == 0) return;
    const Diagonal diagonal = resolve_diagonal(p.scores, extent.len_q, extent.len_kv);
    const double keys =
        tiles.visited_keys * static_cast<double>(diagonal.keys_of_tile(0, extent.len_q).size());
    const double queries = static_cast<double>(extent.len_q);
    double of_sequence =
        queries * p.num_heads *
            (p.head_dim_qk * element_bytes(p.q.dtype) + p.head_dim_v * element_bytes(p.o.dtype)) +
        keys * p.num_kv_heads * key_elements * element_bytes(p.k.dtype);
    if (p.lse) of_sequence += queries * p.num_heads * 4;
    if (p.scores.additive_mask) of_sequence += mask_bytes(*p.scores.additive_mask, p, extent.len_q, keys);
    if (p.scores.boolean_mask) of_sequence += mask_bytes(*p.scores.boolean_mask, p, extent.len_q, keys);
    bytes += count * of_sequence;
  });
  return bytes;
}

}  // namespace tessera
