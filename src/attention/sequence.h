#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/attention.h"

namespace tessera {

/// One sequence of a batch: where its queries and keys start and how many there are.
struct SequenceExtent {
  std::int64_t q_begin = 0;  ///< first query: token index if ragged, else 0 (the batch stride leads to it)
  std::int64_t len_q = 0;
  std::int64_t kv_begin = 0;  ///< first key: token index if ragged, else 0
  std::int64_t len_kv = 0;
};

/// Whether sequences have lengths of their own.
inline bool has_length_arrays(const AttentionProblem& p) {
  return p.ragged_q || p.ragged_kv || p.paged_kv || p.seq_lens_kv != nullptr;
}

/// Sequence `b` of a problem whose arrays are in CPU memory.
inline SequenceExtent sequence_extent(const AttentionProblem& p, std::int64_t b) {
  SequenceExtent extent{0, p.seq_len_q, 0, p.seq_len_kv};
  if (p.ragged_q) {
    extent.q_begin = p.ragged_q->cu_seqlens[b];
    extent.len_q = p.ragged_q->cu_seqlens[b + 1] - extent.q_begin;
  }
  if (p.ragged_kv) {
    extent.kv_begin = p.ragged_kv->cu_seqlens[b];
    extent.len_kv = p.ragged_kv->cu_seqlens[b + 1] - extent.kv_begin;
  } else if (p.paged_kv) {
    extent.len_kv = p.paged_kv->seq_lens_kv[b];
  } else if (p.seq_lens_kv != nullptr) {
    extent.len_kv = p.seq_lens_kv[b];
  }
  return extent;
}

/// Half-open range of keys.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool empty() const { return begin >= end; }
  std::int64_t size() const { return empty() ? 0 : end - begin; }
};

/// DiagonalMask resolved for one sequence: query i sees keys [i + shift - left, i + shift + right] within [0,
/// len_kv). Plain numbers, so that a kernel can take it by value.
struct Diagonal {
  /// Stands for "no limit"; far from overflow when sequence lengths are added to it.
  static constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;

  std::int64_t shift = 0;
  std::int64_t left = kUnlimited;
  std::int64_t right = kUnlimited;
  std::int64_t len_kv = 0;

  /// Keys that query i sees.
  KeyRange keys_of_query(std::int64_t i) const {
    return {std::max<std::int64_t>(0, i + shift - left), std::min(len_kv, i + shift + right + 1)};
  }

  /// Keys that any of the queries [q_begin, q_end) sees: what a tile of queries has to load.
  KeyRange keys_of_tile(std::int64_t q_begin, std::int64_t q_end) const {
    return {keys_of_query(q_begin).begin, keys_of_query(q_end - 1).end};
  }

  /// Keys that all of the queries [q_begin, q_end) see: tiles within need no masking.
  KeyRange keys_of_all(std::int64_t q_begin, std::int64_t q_end) const {
    return {keys_of_query(q_end - 1).begin, keys_of_query(q_begin).end};
  }
};

inline Diagonal resolve_diagonal(const ScoreTerms& scores, std::int64_t len_q, std::int64_t len_kv) {
  Diagonal d;
  d.shift = len_kv - len_q;
  d.len_kv = len_kv;
  if (scores.diagonal) {
    if (scores.diagonal->alignment == DiagonalAlignment::kTopLeft) d.shift = 0;
    if (scores.diagonal->window_left) d.left = std::min(*scores.diagonal->window_left, Diagonal::kUnlimited);
    if (scores.diagonal->window_right)
      d.right = std::min(*scores.diagonal->window_right, Diagonal::kUnlimited);
  }
  return d;
}

}  // namespace tessera
