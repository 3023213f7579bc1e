#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "attention/sequence.h"
#include "backends/cpu/attention/amx_vectors.h"
#include "backends/cpu/attention/tile.h"
#include "backends/cpu/transpose.h"

// What ALiBi and masks add to the scores of amx_prefill.cpp's tiles: the numbers of bias-inl.h's fill_bias,
// added to a tile while it is in registers.

namespace tessera::cpu {

/// For 16 rows, which are the lanes, and a range of keys.
class AmxBias {
 public:
  /// Whether there is a bias that add() adds: of masks whose keys lie next to one another, and no distance
  /// beyond 32 bits. Nobody else may need to know it.
  static bool takes(const CallContext& call) {
    const AttentionProblem& p = *call.problem;
    const auto has_neighbours = [](const std::optional<ScoreMask>& mask) {
      return !mask || mask->kv_stride == 1;
    };
    return call.has_bias && !p.scores.softcap && !p.scores.modifier &&
           has_neighbours(p.scores.additive_mask) && has_neighbours(p.scores.boolean_mask) &&
           p.seq_len_q + p.seq_len_kv <= std::numeric_limits<std::int32_t>::max();
  }

  /// The rows [row_begin, row_end), of which the last stands in for those past it.
  AmxBias(const CallContext& call, const TileTask& task, std::int64_t row_begin, std::int64_t row_end,
          KeyRange keys)
      : terms_(call.problem->scores), first_key_(keys.begin) {
    for (std::int64_t lane = 0; lane < kRows; ++lane) {
      const std::int64_t row = std::min(row_begin + lane, row_end - 1);
      const std::int64_t query = query_of_row(call, row);
      const int head = head_of_row(call, task, row);
      if (terms_.alibi) {
        slopes_[lane] = -terms_.alibi->slopes[task.sequence * terms_.alibi->batch_stride + head];
        distances_[lane] = static_cast<std::int32_t>(query + task.diagonal.shift - keys.begin);
      }
      if (terms_.additive_mask)
        additive_[lane] = mask_row(*terms_.additive_mask, task.sequence, head, query, keys.begin).data;
      if (terms_.boolean_mask)
        boolean_[lane] = mask_row(*terms_.boolean_mask, task.sequence, head, query, keys.begin).data;
    }
  }

  /// s = factor s + bias for up to 16 keys from `key` on, -inf where that is the bias. s: [count][16].
  TESSERA_AMX_TARGET void add(std::int64_t key, int count, float factor, float* s) const {
    const __m512 factors = _mm512_set1_ps(factor);
    if (!terms_.additive_mask && !terms_.boolean_mask) {
      const __m512 slopes = _mm512_load_ps(slopes_);
      const __m512i distances = _mm512_load_si512(distances_);
      for (int i = 0; i < count; ++i) {
        const auto at = static_cast<int>(key - first_key_) + i;
        add_to(factors, alibi(slopes, _mm512_sub_epi32(distances, _mm512_set1_epi32(at))), s + i * kRows);
      }
      return;
    }
    __m512i columns[kRows];
    for (int row = 0; row < kRows; ++row)
      columns[row] = _mm512_castps_si512(bias_of_row(row, key - first_key_, count));
    transpose(columns);
    for (int i = 0; i < count; ++i) add_to(factors, _mm512_castsi512_ps(columns[i]), s + i * kRows);
  }

 private:
  static constexpr int kRows = 16;
  static constexpr float kHidden = -std::numeric_limits<float>::infinity();

  TESSERA_AMX_TARGET static __m512 alibi(__m512 slopes, __m512i distances) {
    return _mm512_mul_ps(slopes, _mm512_cvtepi32_ps(_mm512_abs_epi32(distances)));
  }

  TESSERA_AMX_TARGET static void add_to(__m512 factors, __m512 bias, float* s) {
    const __m512 hidden = _mm512_set1_ps(kHidden);
    const __mmask16 is_hidden = _mm512_cmp_ps_mask(bias, hidden, _CMP_EQ_OQ);
    const __m512 sum = _mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(s), factors), bias);
    _mm512_store_ps(s, _mm512_mask_mov_ps(sum, is_hidden, hidden));
  }

  /// Of up to 16 keys from the range's key `at` on.
  TESSERA_AMX_TARGET __m512 bias_of_row(int row, std::int64_t at, int count) const {
    const auto keys = static_cast<__mmask16>((1u << count) - 1);
    __m512 bias = _mm512_setzero_ps();
    if (terms_.alibi) {
      const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const __m512i first = _mm512_set1_epi32(distances_[row] - static_cast<std::int32_t>(at));
      bias = alibi(_mm512_set1_ps(slopes_[row]), _mm512_sub_epi32(first, lanes));
    }
    if (terms_.additive_mask) {
      const DType dtype = terms_.additive_mask->dtype;
      const std::byte* from = additive_[row] + at * static_cast<std::int64_t>(dtype_bytes(dtype, 1));
      bias = _mm512_add_ps(bias, load_mask(dtype, keys, from));
    }
    if (terms_.boolean_mask) {
      const __m128i visible = _mm_maskz_loadu_epi8(keys, boolean_[row] + at);
      bias = _mm512_mask_mov_ps(bias, _mm_testn_epi8_mask(visible, visible), _mm512_set1_ps(kHidden));
    }
    return bias;
  }

  TESSERA_AMX_TARGET static __m512 load_mask(DType dtype, __mmask16 keys, const std::byte* from) {
    if (dtype == DType::kF32) return _mm512_maskz_loadu_ps(keys, from);
    const __m256i halves = _mm256_maskz_loadu_epi16(keys, from);
    if (dtype == DType::kF16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }

  const ScoreTerms& terms_;
  const std::int64_t first_key_;
  alignas(64) float slopes_[kRows] = {};
  alignas(64) std::int32_t distances_[kRows] = {};  // of each row to the first key
  const std::byte* additive_[kRows] = {};
  const std::byte* boolean_[kRows] = {};
};

}  // namespace tessera::cpu

#endif
