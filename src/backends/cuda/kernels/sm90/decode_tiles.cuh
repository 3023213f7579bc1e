#pragma once

#include "common/attention_row.cuh"
#include "common/decode_parts.cuh"
#include "sm90/decode_dims.cuh"
#include "sm90/ptx.cuh"
#include "sm90/wgmma.cuh"

// What the decode kernels of Hopper do alike with a tile of kBlockN keys. A thread has the scores of two
// rows, 8 apart: scores[4 i + 2 r + e] is of row r and key 8 i + thread % 4 * 2 + e.

namespace tessera::kernels {

/// Scores to units of log2.
TESSERA_DEVICE float score_scale(const AttentionParams& p) {
  return kHasTerms ? 1.0f : p.softmax_scale * kLog2E;  // with terms it is in the scores already
}

/// Whether softcap is all that happens to the scores.
#ifdef TESSERA_MODIFIER
constexpr bool kOnlyCaps = false;
#else
constexpr bool kOnlyCaps = (TESSERA_TERMS & ~kTermScale) == kTermSoftcap;
#endif

/// The thread's scores that somebody reads, as cap_products() takes them.
struct ReadScores {
  float (&scores)[kBlockN / 2];
  bool has_second_rows;

  template <class F>
  TESSERA_DEVICE void for_each(F f) const {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (r == 1 && !has_second_rows) break;
      TESSERA_UNROLL
      for (int i = 0; i < kBlockN / 4; ++i) f(scores[i / 2 * 4 + 2 * r + i % 2]);
    }
  }
};

/// A tile's products to scores in units of log2 by softcap.
TESSERA_DEVICE void cap_scores(const AttentionParams& p, bool has_second_rows, float (&scores)[kBlockN / 2]) {
  const ReadScores read{scores, has_second_rows};
  const float inner = p.softmax_scale / p.softcap * kPerTanhUnit;
  read.for_each([&](float& score) { score *= inner; });
  cap_products(p, read);
}

/// Applies all terms and the modifier to a tile's scores, one after the other. Rows: the thread's index.
template <class Rows>
TESSERA_DEVICE void modify_scores(const AttentionParams& p, const Piece& piece, const Rows& rows,
                                  int first_key, bool has_second_rows, float (&scores)[kBlockN / 2]) {
  const Sequence& s = piece.sequence;
  if (s.len_kv == 0) return;
  const int thread_key = first_key + thread_x() % 4 * 2;
  TESSERA_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (r == 1 && !has_second_rows) break;
    TESSERA_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) {
      // Not a branch around keys behind the end, which are hidden later: scores would wait for one another.
      const int j = minimum(thread_key + i / 2 * 8 + i % 2, s.len_kv - 1);
      float& score = scores[i / 2 * 4 + 2 * r + i % 2];
      score = modified_score<TESSERA_TERMS, TESSERA_MASK_DTYPE>(p, s, score, piece.b, rows.index[r].h,
                                                                rows.index[r].i, j) *
              kLog2E;
    }
  }
}

/// Hides the keys of a tile that a row doesn't see. Rows: the thread's keys_begin and keys_end.
template <class Rows>
TESSERA_DEVICE void hide_scores(const Rows& rows, int first_key, float (&scores)[kBlockN / 2]) {
  const int thread_key = first_key + thread_x() % 4 * 2;
  TESSERA_UNROLL
  for (int i = 0; i < kBlockN / 2; ++i) {
    const int j = thread_key + i / 4 * 8 + i % 2;
    if (j < rows.keys_begin[i / 2 % 2] || j >= rows.keys_end[i / 2 % 2]) scores[i] = -infinity();
  }
}

/// The largest of a tile's scores in the thread's row r.
TESSERA_DEVICE float top_score(const float (&scores)[kBlockN / 2], int r) {
  float top = -infinity();
  TESSERA_UNROLL
  for (int i = 0; i < kBlockN / 8; ++i)
    top = fmaxf(top, fmaxf(scores[4 * i + 2 * r], scores[4 * i + 2 * r + 1]));
  top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
  return fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
}

/// Turns the scores of the thread's row r into weights 2^(scale score - base), in place, and adds them to
/// sum.
TESSERA_DEVICE void weigh_scores(float scale, float base, int r, float (&scores)[kBlockN / 2], float& sum) {
  TESSERA_UNROLL
  for (int i = 0; i < kBlockN / 8; ++i) {
    TESSERA_UNROLL
    for (int e = 0; e < 2; ++e) {
      float& score = scores[4 * i + 2 * r + e];
      score = ex2(score * scale - base);
      sum += score;
    }
  }
}

/// Starts o += weights v for kColumns of v's columns: panels of 64 of them, panel_bytes apart.
template <int kColumns>
TESSERA_DEVICE void start_weights_values(unsigned (&weights)[kBlockN / 4], unsigned v, int panel_bytes,
                                         float (&o)[kColumns / 2]) {
  pin_registers(o);
  pin_registers(weights);
  wgmma_fence();
  const unsigned long long values = descriptor_of_columns(v, panel_bytes);
  TESSERA_UNROLL
  for (int step = 0; step < kBlockN / 16; ++step)
    Wgmma<T, kColumns>::registers_columns(o, weights + 4 * step, further(values, step * 2048), true);
  wgmma_commit_group();
}

/// Zeros in the place of a tile's values from key `begin` on, which may be anything: by the 128 threads that
/// meet at `barrier`.
TESSERA_DEVICE void clear_values(unsigned char* values, int panel_bytes, int begin, int barrier) {
  constexpr int kChunks = (kHeadDimV + 63) / 64 * 8;  // of whole panels: a row's chunks are swizzled
  for (int i = begin * kChunks + thread_x() % 128; i < kBlockN * kChunks; i += 128) {
    const int chunk = i % kChunks;
    *reinterpret_cast<uint4*>(values + chunk / 8 * panel_bytes + i / kChunks * 128 + chunk % 8 * 16) =
        make_uint4(0, 0, 0, 0);
  }
  fence_proxy_async();
  named_barrier_sync(barrier, 128);
}

}  // namespace tessera::kernels
