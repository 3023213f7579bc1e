// Attention of few queries over many keys of 8 bits (e4m3) on Hopper. As in attention_decode.cu what bounds
// it is reading K and V once, and the copy engine's ring, the parts and the merging of pieces are the same; a
// tile has as many bytes, so twice the keys. But keys have to be widened, and a product that takes them from
// shared memory would have them written there once more. So the products stand the other way round: keys and
// values are what mma.m16n8k16 takes 16 rows of from registers, into which they come by ldmatrix and are
// widened to f16, exactly, and the packed (query, head) rows are its 8 columns.
//
//   s^T = k q^T       16 keys by 8 rows, q in registers all the time
//   o^T += v^T w^T    16 of head_dim by 8 rows; w goes from keys by rows to rows by keys by movmatrix
//
// Each of the four warps has a quarter of a tile's keys, with a running maximum and an o of its own, so that
// none waits for another until a piece ends. Then they are merged.
//
// q is f16, too: of a bf16 q's row the largest element is brought near f16's by a power of two. Weights are
// at most 2^kWeightBits, so that small ones remain.
//
// Compiled with what attention_decode.cu is, with head_dims that 16 divides, TESSERA_KV_DTYPE=f8e4m3, and
// TESSERA_ROW_TILES (of 8 packed rows: 1 or 2).

#include "sm80/narrow_rows.cuh"
#include "sm90/decode_block.cuh"
#include "sm90/decode_narrow_queries.cuh"

namespace tessera::kernels {

constexpr int kWarpKeys = kBlockN / kDecodeWarps;
constexpr int kKeySteps = kWarpKeys / 16;
constexpr int kOutTiles = (kHeadDimV + 31) / 32 * 2;  // as kQkSteps
constexpr int kMostTilesAtOnce = 8;  // that are asked for before the first is used: registers
constexpr int kWeightBits = 14;
static_assert(kHeadDimV % 16 == 0, "16 bytes");

/// What the warps leave one another: of kTileRows rows o, of all rows the running maximum and the sum.
struct MergedResults {
  float o[kDecodeWarps][kTileRows][decode_merged_columns(kHeadDimV)];
  float max[kDecodeWarps][kNarrowDecodeQueryRows];
  float sum[kDecodeWarps][kNarrowDecodeQueryRows];
};
static_assert(sizeof(MergedResults) == decode_merge_bytes(1, kHeadDimV) && sizeof(SharedStorage) % 16 == 0);

/// They stand behind the ring.
TESSERA_DEVICE MergedResults& merged_results(SharedStorage& smem) {
  return *reinterpret_cast<MergedResults*>(&smem + 1);
}

/// Where two elements of a row of MergedResults::o stand: so that neither those who write columns nor those
/// who read rows meet in a bank.
TESSERA_DEVICE int pair_of_merged(int row, int pair) { return pair ^ row / 2 % 4 * 4; }

/// The address of 16 bytes of a row of a tile, as the copy engine has swizzled it.
template <int kHeadDim>
TESSERA_DEVICE unsigned address_of_chunk(unsigned tile, int row, int chunk) {
  using Panels = DecodePanels<kHeadDim>;
  constexpr int kChunks = Panels::kRowBytes / 16;
  const int swizzle = kChunks == 8 ? row % 8 : row / 2 % 4;
  return tile + chunk / kChunks * Panels::kBytes + row * Panels::kRowBytes + (chunk % kChunks ^ swizzle) * 16;
}

/// The two low, and the two high bytes of four, widened.
TESSERA_DEVICE unsigned widen_low(unsigned x) { return cvt_f16x2_e4m3x2(static_cast<unsigned short>(x)); }
TESSERA_DEVICE unsigned widen_high(unsigned x) {
  return cvt_f16x2_e4m3x2(static_cast<unsigned short>(x >> 16));
}

constexpr int kChains = kRowTiles == 1 ? 2 : 1;  // that add up a step's keys

/// parts += k q^T of steps kFirst and the following. All is asked for before the first product, and no
/// product waits for the one before it.
template <int kFirst>
TESSERA_DEVICE void add_k_q(unsigned k, const NarrowRows& rows,
                            float (&parts)[kChains][kKeySteps][kRowTiles][4]) {
  constexpr int kSteps = kQkSteps - kFirst < kMostTilesAtOnce ? kQkSteps - kFirst : kMostTilesAtOnce;
  const int lane = thread_x() % 32;
  unsigned bytes[kSteps / 2][kKeySteps][4];  // keys 0 to 7 and 8 to 15, 16 elements of each, and the next 16
  TESSERA_UNROLL
  for (int pair = 0; pair < kSteps / 2; ++pair) {
    TESSERA_UNROLL
    for (int m = 0; m < kKeySteps; ++m) {
      const int row = consumer_warp() * kWarpKeys + m * 16 + lane % 16;
      ldmatrix_x4(bytes[pair][m], address_of_chunk<kHeadDimQk>(k, row, kFirst + 2 * pair + lane / 16));
    }
  }
  TESSERA_UNROLL
  for (int i = 0; i < kSteps; ++i) {
    TESSERA_UNROLL
    for (int m = 0; m < kKeySteps; ++m) {
      const unsigned first = bytes[i / 2][m][i % 2 * 2];
      const unsigned second = bytes[i / 2][m][i % 2 * 2 + 1];
      const unsigned keys[4] = {widen_low(first), widen_low(second), widen_high(first), widen_high(second)};
      const int step = kFirst + i;
      TESSERA_UNROLL
      for (int n = 0; n < kRowTiles; ++n)
        mma_m16n8k16<f16>(parts[step % kChains][m][n], keys, rows.q[n][step][0], rows.q[n][step][1]);
    }
  }
  if constexpr (kFirst + kSteps < kQkSteps) add_k_q<kFirst + kSteps>(k, rows, parts);
}

/// scores = k q^T of this warp's keys: key lane / 4 and the eighth after it of each step, by two rows.
TESSERA_DEVICE void multiply_k_q(unsigned k, const NarrowRows& rows,
                                 float (&scores)[kKeySteps][kRowTiles][4]) {
  float parts[kChains][kKeySteps][kRowTiles][4] = {};
  add_k_q<0>(k, rows, parts);
  TESSERA_UNROLL
  for (int m = 0; m < kKeySteps; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < kRowTiles; ++n) {
      TESSERA_UNROLL
      for (int e = 0; e < 4; ++e) {
        scores[m][n][e] = parts[0][m][n][e];
        if (kChains > 1) scores[m][n][e] += parts[kChains - 1][m][n][e];
      }
    }
  }
}

/// o += w v of this warp's keys, from tile kFirst of o on: elements 16 tile + lane / 4 * 2 and the next, each
/// of two rows.
template <int kFirst = 0>
TESSERA_DEVICE void multiply_v_w(unsigned v, const unsigned (&weights)[kKeySteps][kRowTiles][2],
                                 float (&o)[kRowTiles][kOutTiles][4]) {
  constexpr int kTiles = kOutTiles - kFirst < kMostTilesAtOnce ? kOutTiles - kFirst : kMostTilesAtOnce;
  const int lane = thread_x() % 32;
  unsigned bytes[kKeySteps][kTiles / 2][4];  // keys 0 to 7 and 8 to 15, 16 elements of each, and the next 16
  TESSERA_UNROLL
  for (int m = 0; m < kKeySteps; ++m) {
    const int row = consumer_warp() * kWarpKeys + m * 16 + lane % 16;
    TESSERA_UNROLL
    for (int pair = 0; pair < kTiles / 2; ++pair)
      ldmatrix_x4_trans(bytes[m][pair], address_of_chunk<kHeadDimV>(v, row, kFirst + 2 * pair + lane / 16));
  }
  TESSERA_UNROLL
  for (int m = 0; m < kKeySteps; ++m) {
    TESSERA_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      // Two elements of a key stand side by side: those of two keys are brought together.
      const unsigned first = byte_permute(bytes[m][i / 2][i % 2 * 2], 0, 0x3120);
      const unsigned second = byte_permute(bytes[m][i / 2][i % 2 * 2 + 1], 0, 0x3120);
      const unsigned values[4] = {widen_low(first), widen_high(first), widen_low(second), widen_high(second)};
      TESSERA_UNROLL
      for (int n = 0; n < kRowTiles; ++n)
        mma_m16n8k16<f16>(o[n][kFirst + i], values, weights[m][n][0], weights[m][n][1]);
    }
  }
  if constexpr (kFirst + kTiles < kOutTiles) multiply_v_w<kFirst + kTiles>(v, weights, o);
}

/// Zeros in the place of this warp's values from `key` of the tile on, which may be anything.
TESSERA_DEVICE void clear_values(unsigned char* slot, int key) {
  using Panels = DecodePanels<kHeadDimV>;
  const int end = (consumer_warp() + 1) * kWarpKeys * Panels::kRowBytes;
  const int begin = maximum(key, consumer_warp() * kWarpKeys) * Panels::kRowBytes;
  TESSERA_UNROLL
  for (int panel = 0; panel < Panels::kCount; ++panel) {
    for (int i = begin + thread_x() % 32 * 16; i < end; i += 32 * 16)
      *reinterpret_cast<uint4*>(slot + panel * Panels::kBytes + i) = make_uint4(0, 0, 0, 0);
  }
  fence_proxy_async();  // before the next copy into the slot
  sync_warp();
}

/// The running softmax of a warp's rows, in base 2; a lane's sums are of its keys.
struct NarrowState {
  float max[kRowTiles][2];
  float sum[kRowTiles][2];
  float o[kRowTiles][kOutTiles][4];
};

/// f(score, n, e, key) for a tile's scores: of row rows.index[n][e] and key `key` of the tile.
template <class F>
TESSERA_DEVICE void for_each_score(float (&scores)[kKeySteps][kRowTiles][4], F f) {
  const int thread_key = consumer_warp() * kWarpKeys + thread_x() % 32 / 4;
  TESSERA_UNROLL
  for (int m = 0; m < kKeySteps; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < kRowTiles; ++n) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) f(scores[m][n][i], n, i % 2, thread_key + m * 16 + i / 2 * 8);
    }
  }
}

/// A tile's scores as cap_products() takes them.
struct TileScores {
  float (&scores)[kKeySteps][kRowTiles][4];

  template <class F>
  TESSERA_DEVICE void for_each(F f) const {
    for_each_score(scores, [&](float& score, int, int, int) { f(score); });
  }
};

/// A tile's products to scores in units of log2, those of keys that a row doesn't see to -inf.
TESSERA_DEVICE void finish_scores(const AttentionParams& p, const Piece& piece, const NarrowRows& rows,
                                  const CopiedMasks& masks, int first_key, bool needs_hiding,
                                  float (&scores)[kKeySteps][kRowTiles][4]) {
  for_each_score(scores, [&](float& score, int n, int e, int) { score *= rows.unit[n][e]; });
  if constexpr (kHasSoftcap) cap_products(p, TileScores{scores});
  for_each_score(scores, [&](float& score, int n, int e, int key) {
    const int j = first_key + key;
    const RowTerms& terms = rows.terms[n][e];
    if (kHasTerms && kHasModifier && piece.sequence.len_kv > 0) {
      const RowIndex& index = rows.index[n][e];
      score =
          modified_score<TESSERA_TERMS, TESSERA_MASK_DTYPE>(p, piece.sequence, score, piece.b, index.h,
                                                            index.i, minimum(j, piece.sequence.len_kv - 1)) *
          kLog2E;
    }
    if constexpr (kHasAlibi) score = add_bias(score, terms.slope, static_cast<float>(terms.position - j));
    if constexpr (kAdditiveBytes > 0) score = add_element(score, masks.additive_at(terms.additive_row, key));
    if constexpr (kBooleanBytes > 0) {
      if (masks.boolean_at(terms.boolean_row, key) == 0) score = -infinity();
    }
    if (needs_hiding && (j < rows.keys_begin[n][e] || j >= rows.keys_end[n][e])) score = -infinity();
  });
  masks.release();
}

/// A tile's weights from its scores; brings sums and o to the new maximum.
TESSERA_DEVICE void softmax_step(float (&scores)[kKeySteps][kRowTiles][4], NarrowState& state,
                                 unsigned (&weights)[kKeySteps][kRowTiles][2]) {
  TESSERA_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    float shrink[2];
    TESSERA_UNROLL
    for (int e = 0; e < 2; ++e) {
      float top = -infinity();
      TESSERA_UNROLL
      for (int m = 0; m < kKeySteps; ++m) top = fmaxf(top, fmaxf(scores[m][n][e], scores[m][n][e + 2]));
      TESSERA_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
      top = fmaxf(state.max[n][e], top);
      const float base = top == -infinity() ? 0.0f : top - kWeightBits;
      shrink[e] = state.max[n][e] == top ? 1.0f : ex2(state.max[n][e] - top);
      state.max[n][e] = top;
      state.sum[n][e] *= shrink[e];
      TESSERA_UNROLL
      for (int m = 0; m < kKeySteps; ++m) {
        TESSERA_UNROLL
        for (int i = e; i < 4; i += 2) {
          scores[m][n][i] = ex2(scores[m][n][i] - base);
          state.sum[n][e] += scores[m][n][i];
        }
      }
    }
    if (warp_any(shrink[0] != 1.0f || shrink[1] != 1.0f)) {  // seldom after the first keys
      TESSERA_UNROLL
      for (int tile = 0; tile < kOutTiles; ++tile) {
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) state.o[n][tile][i] *= shrink[i % 2];
      }
    }
    TESSERA_UNROLL
    for (int m = 0; m < kKeySteps; ++m) {
      weights[m][n][0] = movmatrix_trans(cvt_x2<f16>(scores[m][n][0], scores[m][n][1]));
      weights[m][n][1] = movmatrix_trans(cvt_x2<f16>(scores[m][n][2], scores[m][n][3]));
    }
  }
}

/// Merges a row of all warps and writes it, by a warp. Whether its result is NaN or infinite.
TESSERA_DEVICE bool store_merged_row(const AttentionParams& p, const Piece& piece,
                                     const MergedResults& merged, int64 first_partial, int row,
                                     const RowIndex& index, float v_scale) {
  const int lane = thread_x() % 32;
  float top = -infinity();
  TESSERA_UNROLL
  for (int n = 0; n < kDecodeWarps; ++n) top = fmaxf(top, merged.max[n][row]);
  const bool has_keys = top != -infinity();
  float shares[kDecodeWarps];
  float sum = 0.0f;
  TESSERA_UNROLL
  for (int n = 0; n < kDecodeWarps; ++n) {
    shares[n] = merged.max[n][row] == -infinity() ? 0.0f : ex2(merged.max[n][row] - top);
    sum += shares[n] * merged.sum[n][row];
  }
  const float* sink = p.sinks != nullptr && piece.is_whole ? p.sinks + index.h : nullptr;
  constexpr float kWeightUnit = 1.0f / (1 << kWeightBits);
  const RowNorm norm = row_norm(top * kLn2, sum * kWeightUnit, sink);
  const float factor = norm.factor * kWeightUnit * v_scale;
  float o[kMergedColumns] = {};
  TESSERA_UNROLL
  for (int n = 0; n < kDecodeWarps; ++n) {
    TESSERA_UNROLL
    for (int i = 0; i < kMergedColumns; i += 2) {
      if (!has_merged_column(i)) continue;
      const int pair = pair_of_merged(row, merged_column(i) / 2);
      const float2 values = *reinterpret_cast<const float2*>(&merged.o[n][row % kTileRows][2 * pair]);
      o[i] += shares[n] * values.x;
      o[i + 1] += shares[n] * values.y;
    }
  }
  // A maximum above 2^24 is off by rounding so much that even its own score's weight, else 1, may be as good
  // as 0.
  const bool is_lost = has_keys && sum * kWeightUnit < 0.5f;
  float probe = sum * 0.0f;
  TESSERA_UNROLL
  for (int i = 0; i < kMergedColumns; ++i) {
    o[i] = has_keys ? o[i] * factor : 0.0f;
    probe += o[i] * 0.0f;
  }
  if (piece.is_whole) {
    store_merged(p, piece.sequence, piece.b, index, norm.lse, o);
  } else {
    float* out = p.o_partial + (first_partial + row) * kHeadDimV;
    TESSERA_UNROLL
    for (int i = 0; i < kMergedColumns; i += 2) {
      if (has_merged_column(i))
        *reinterpret_cast<float2*>(out + merged_column(i)) = make_float2(o[i], o[i + 1]);
    }
    if (lane == 0) p.lse_partial[first_partial + row] = norm.lse;
  }
  return is_lost || probe != 0.0f;  // NaN
}

/// Merges what the warps have of a piece, and writes it.
TESSERA_DEVICE void finish_piece(const AttentionParams& p, const Piece& piece, int pack, int64 first_partial,
                                 NarrowState& state, MergedResults& merged) {
  const int lane = thread_x() % 32;
  const int warp = consumer_warp();
  const int num_rows = piece.sequence.len_q * pack;
  const float v_scale = scale_of_head(p, p.kv_scales.v, piece.b, piece.kv_head);
  unsigned spoilt = 0;
  TESSERA_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    if (n > 0 && n * kTileRows >= num_rows) break;
    named_barrier_sync(1, kDecodeWarps * 32);  // what was there has been read
    TESSERA_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int row = lane % 4 * 2 + e;
      float sum = state.sum[n][e];
      TESSERA_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
      if (lane / 4 == 0) {
        merged.max[warp][n * kTileRows + row] = state.max[n][e];
        merged.sum[warp][n * kTileRows + row] = sum;
      }
      TESSERA_UNROLL
      for (int tile = 0; tile < kOutTiles; ++tile) {
        const int pair = pair_of_merged(row, tile * 8 + lane / 4);
        *reinterpret_cast<float2*>(&merged.o[warp][row][2 * pair]) =
            make_float2(state.o[n][tile][e], state.o[n][tile][e + 2]);
      }
    }
    named_barrier_sync(1, kDecodeWarps * 32);
    for (int local = warp; local < kTileRows; local += kDecodeWarps) {
      const int row = n * kTileRows + local;
      if (row >= num_rows) break;
      const RowIndex index = packed_row_index(row, pack, piece.kv_head * pack);
      if (store_merged_row(p, piece, merged, first_partial, row, index, v_scale)) spoilt |= 1u << row;
    }
  }
  for (int row = 0; row < kRowTiles * kTileRows; ++row) {
    if (!warp_any((spoilt >> row & 1u) != 0)) continue;
    sync_warp();
    redo_row_of_piece(p, piece, first_partial, pack, row);
  }
}

/// What the warpgroup does.
TESSERA_DEVICE void compute(const DecodeArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  const int pack = p.num_heads / p.num_kv_heads;
  wait_for_prior_kernels();
  int n = 0;
  for_each_visible_piece(p, arguments.parts, smem.part, [&](const Piece& piece) {
    const Sequence& s = piece.sequence;
    if (piece.is_first && thread_x() == 128) {
      arguments.parts.pieces[piece.b * p.num_kv_heads + piece.kv_head] = {smem.part.index, piece.num_pieces};
    }
    NarrowRows rows;
    load_rows(p, piece, pack, rows);
    const int full_begin = keys_of_query(p, s, s.len_q - 1).begin;
    const int full_end = keys_of_query(p, s, 0).end;
    NarrowState state;
    TESSERA_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      TESSERA_UNROLL
      for (int e = 0; e < 2; ++e) {
        state.max[r][e] = -infinity();
        state.sum[r][e] = 0.0f;
      }
      TESSERA_UNROLL
      for (int tile = 0; tile < kOutTiles; ++tile) {
        TESSERA_UNROLL
        for (int i = 0; i < 4; ++i) state.o[r][tile][i] = 0.0f;
      }
    }
    VisibleTiles visible(p, rows_of_piece(p, piece), kBlockN);
    for (int tile = piece.tile_begin;; ++tile, n += 2) {
      tile = visible.next(tile, piece.tile_end);
      if (tile >= piece.tile_end) break;
      float scores[kKeySteps][kRowTiles][4];
      unsigned weights[kKeySteps][kRowTiles][2];
      const int first_key = tile * kBlockN;
      wait_filled(smem, n);
      multiply_k_q(slot_of(smem, n), rows, scores);
      sync_warp();
      release(smem, n);
      finish_scores(p, piece, rows, CopiedMasks(smem, n / 2), first_key,
                    first_key < full_begin || first_key + kBlockN > full_end, scores);
      softmax_step(scores, state, weights);
      wait_filled(smem, n + 1);
      if (first_key + kBlockN > s.len_kv)
        clear_values(smem.slots[(n + 1) % kSlots], maximum(s.len_kv - first_key, 0));
      multiply_v_w(slot_of(smem, n + 1), weights, state.o);
      sync_warp();
      release(smem, n + 1);
    }
    finish_piece(p, piece, pack, partial_row_of_piece(p, smem.part.index, piece.b, piece.kv_head), state,
                 merged_results(smem));
  });
}

}  // namespace tessera::kernels

using namespace tessera::kernels;

extern "C" __global__ void __launch_bounds__(kDecodeThreads, decode_blocks(kHeadDimQk, kHeadDimV))
    attention_decode(const __grid_constant__ DecodeArguments arguments) {
  run_decode_block(arguments, compute);
}

/// Grid: (groups of rows, kv heads, sequences), 4 warps a block, warps_of_row of them a row.
extern "C" __global__ void __launch_bounds__(128)
    attention_decode_combine(const __grid_constant__ DecodeCombineArguments arguments) {
  allow_next_kernel();
  combine_pieces(arguments);
}
