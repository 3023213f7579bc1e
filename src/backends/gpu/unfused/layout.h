#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/attention.h"

namespace tessera::gpu {

/// How the unfused pipeline cuts a call into parts and where a part's matrices lie in the workspace. A pair
/// is a sequence and a kv head; its rows are the queries of all heads that share the kv head, head by head.
struct UnfusedLayout {
  std::int64_t num_pairs = 0;
  std::int64_t rows = 0;  ///< of a pair
  int qk_stride = 0;      ///< head_dim_qk rounded up, so that every row starts at a multiple of 16 bytes
  int v_stride = 0;
  std::int64_t key_stride = 0;  ///< seq_len_kv rounded up; at least one vector, whose weights are then 0
  std::int64_t pairs_at_once = 0;
  std::int64_t rows_at_once = 0;  ///< fewer than `rows` only if pairs_at_once is 1

  // Offsets in bytes.
  std::size_t product = 0;  ///< the library's own workspace
  std::size_t holes = 0;    ///< (pairs) int
  std::size_t q = 0;        ///< (pairs, rows, qk_stride) of unfused_dtype
  std::size_t k = 0;        ///< (pairs, key_stride, qk_stride)
  std::size_t v = 0;        ///< (pairs, key_stride, v_stride)
  std::size_t o = 0;        ///< (pairs, rows, v_stride) fp32
  std::size_t scores = 0;   ///< (pairs, rows, key_stride) fp32
  std::size_t total_bytes = 0;

  /// Pairs of the part that begins with `first_pair`: all parts are of about the same size.
  std::int64_t pairs_from(std::int64_t first_pair) const {
    const std::int64_t left = num_pairs - first_pair;
    const std::int64_t parts = (left + pairs_at_once - 1) / pairs_at_once;
    return (left + parts - 1) / parts;
  }

  /// The whole call's scores, which never lie in memory at once.
  double all_scores_bytes() const {
    return 4.0 * static_cast<double>(num_pairs) * static_cast<double>(rows) * static_cast<double>(key_stride);
  }
};

/// Of the inputs of the products: q's dtype, or fp32 where k and v have another and come with scales.
DType unfused_dtype(const AttentionProblem& problem);

/// Parts of at most about half a gigabyte, unless a single pair's keys and values are more. max_rows > 0: a
/// part has no more rows of a pair. Pure.
UnfusedLayout unfused_layout(const AttentionProblem& problem, std::int64_t max_rows = 0);

}  // namespace tessera::gpu
