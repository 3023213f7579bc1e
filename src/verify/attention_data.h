#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verify/attention_case.h"

namespace tessera {

/// A mask's numbers without storage: (batches, heads, queries, keys), 1 where it broadcasts.
struct MaskValues {
  std::int64_t batches = 0, heads = 0, queries = 0, keys = 0;
  std::vector<double> values;  ///< additive: the bias; boolean: 1 visible, 0 hidden

  double& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return values[static_cast<std::size_t>(
        ((b % batches * heads + h % heads) * queries + i % queries) * keys + j)];
  }
  double at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return const_cast<MaskValues&>(*this).at(b, h, i, j);
  }
};

/// The numbers of one sequence, exactly representable in the case's dtype, narrow ones as numbers of kv_dtype
/// times their scales: q (len_q, num_heads, head_dim_qk), k (len_kv, num_kv_heads, head_dim_qk), v (len_kv,
/// num_kv_heads, head_dim_v).
struct SequenceData {
  std::int64_t len_q = 0;
  std::int64_t len_kv = 0;
  std::vector<double> q, k, v;
};

/// A case with its numbers, free of any storage.
struct AttentionData {
  AttentionCase description;
  std::vector<SequenceData> sequences;
  std::vector<float> alibi_slopes;  ///< (1 or batch, num_heads)
  std::vector<float> sinks;         ///< (num_heads)
  std::vector<float> q_scales;      ///< (batch, num_kv_heads); empty without scales
  std::vector<float> k_scales;      ///< as kv_scale_index counts; empty without scales
  std::vector<float> v_scales;
  MaskValues additive_mask;  ///< empty if the case has none
  MaskValues boolean_mask;

  /// True if query i of head h of sequence b sees key j, by all masks.
  bool visible(std::int64_t b, int h, std::int64_t i, std::int64_t j) const;
  /// What the case's modifier sees of them.
  ModifierPoint modifier_point(std::int64_t b, int h, std::int64_t i, std::int64_t j) const {
    return {b, i, j, diagonal_key(b, i) - i, h};
  }
  /// Position of query i on the keys' axis.
  std::int64_t diagonal_key(std::int64_t b, std::int64_t i) const;
  /// Which of k_scales and v_scales key j of kv head h of sequence b has.
  std::size_t kv_scale_index(std::int64_t b, std::int64_t j, int h) const;
  /// Of the queries of all heads that read kv head h.
  double q_scale(std::int64_t b, int h) const {
    return q_scales.empty()
               ? 1.0
               : static_cast<double>(q_scales[static_cast<std::size_t>(b * description.num_kv_heads + h)]);
  }
  double k_scale(std::int64_t b, std::int64_t j, int h) const {
    return k_scales.empty() ? 1.0 : static_cast<double>(k_scales[kv_scale_index(b, j, h)]);
  }
  double v_scale(std::int64_t b, std::int64_t j, int h) const {
    return v_scales.empty() ? 1.0 : static_cast<double>(v_scales[kv_scale_index(b, j, h)]);
  }
  /// Queries of all sequences times heads: the rows of an output, in the order sequence, query, head.
  std::int64_t num_rows() const;
  /// First row of a sequence.
  std::int64_t first_row(std::int64_t b) const;
};

/// Random numbers for a case; the same for the same seed.
AttentionData make_attention_data(const AttentionCase& description);

/// The queries [q_begin, q_end) of sequence `b` alone, with the keys up to the last query's own position, as
/// when a prompt comes in pieces. Only for bottom-right diagonals with window_right = 0, where the rows stay
/// the same.
AttentionData slice_attention_data(const AttentionData& data, std::int64_t b, std::int64_t q_begin,
                                   std::int64_t q_end);

/// A tensor or array in host memory with fences around it and all unused bytes set to 0xff, which is NaN in
/// every floating-point type.
struct Blob {
  std::vector<std::byte> bytes;
  std::size_t offset = 0;  ///< of the first element
  bool is_output = false;
  std::vector<bool> written;  ///< outputs: bytes that belong to an element

  std::byte* data() { return bytes.data() + offset; }
};

/// The data laid out in host memory as the case asks, and the problem that points to it.
struct AttentionStorage {
  AttentionProblem problem;
  std::vector<Blob> blobs;
  std::size_t o_blob = 0;
  std::size_t lse_blob = 0;             ///< valid if problem.lse
  std::vector<std::int64_t> o_offsets;  ///< element of o at which each row starts, rows as in AttentionData
  std::vector<std::int64_t> lse_offsets;

  AttentionStorage() = default;
  AttentionStorage(AttentionStorage&&) = default;
  AttentionStorage& operator=(AttentionStorage&&) = default;
};

AttentionStorage store_attention_data(const AttentionData& data);

}  // namespace tessera
