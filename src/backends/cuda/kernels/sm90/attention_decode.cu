// Attention of few queries over many keys on Hopper: what bounds it is reading K and V once, so the copy
// engine always has a ring of tiles to fill, and wgmma takes them as they come. Flash-Decoding (Dao et al.,
// 2023); the queries and heads of a group are packed into up to 64 rows, which share every byte.
//
// Grid: parts of the work (decode_parts.h), two blocks a multiprocessor. A block's first warp asks for
// copies, as far ahead as the ring reaches, also from a piece to the next; its warpgroup multiplies.
//
// Pieces of a head are merged by attention_decode_combine, or, where a head's pieces are the blocks of a
// cluster, by these blocks, which saves a launch.
//
//   copies      k 0, v 0, k 1, v 1, ...                  a slot of the ring for each
//   products    s = q k^T, q in registers; o += w v      w: weights, in registers
//
// Head_dims above 128 leave no registers for q, which then lies in shared memory, and a block has a
// multiprocessor for itself.
//
// Compiled with: TESSERA_DTYPE (f16, bf16), TESSERA_HEAD_DIM_QK, TESSERA_HEAD_DIM_V (multiples of 8 up to
// 256; the copy engine fills panels of 64 up with zeros), TESSERA_STAGES (slots), and TESSERA_TERMS,
// TESSERA_MASK_DTYPE, TESSERA_PAGED as in sm80/attention_mma.cu.

#include "sm90/decode_block.cuh"
#include "sm90/decode_queries.cuh"
#include "sm90/decode_terms.cuh"

namespace tessera::kernels {

constexpr int kOutColumns = (kHeadDimV + 15) / 16 * 16;  // a product's n
constexpr int kPanelBytesV = DecodePanels<kHeadDimV>::kBytes;

/// What the warpgroup does.
TESSERA_DEVICE void compute(const DecodeArguments& arguments, SharedStorage& smem) {
  const AttentionParams& p = arguments.params;
  const int lane = thread_x() % 32;
  const int warp = consumer_warp();
  const int pack = p.num_heads / p.num_kv_heads;
  const float scale = score_scale(p);
  if (cluster_size() == 1) wait_for_prior_kernels();
  int n = 0;
  for_each_visible_piece(p, arguments.parts, smem.part, [&](const Piece& piece) {
    const Sequence& s = piece.sequence;
    const int num_rows = s.len_q * pack;
    const bool has_rows = warp * 16 < num_rows;
    const bool has_second_rows = warp * 16 + kDecodeHalfRows < num_rows;
    Rows rows;
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + lane / 4 + 8 * r;
      rows.exists[r] = row < num_rows;
      const int there = minimum(row, num_rows - 1);
      rows.index[r] = {there / pack, piece.kv_head * pack + there % pack};
      const KeyRange keys = keys_of_query(p, s, rows.index[r].i);
      rows.keys_begin[r] = keys.begin;
      rows.keys_end[r] = keys.end;
    }
    wait_for_prior_kernels();  // of a cluster, whose calls are short; places take no memory
    if (piece.is_first && thread_x() == 128) {
      arguments.parts.pieces[piece.b * p.num_kv_heads + piece.kv_head] = {smem.part.index, piece.num_pieces};
    }
    const Queries queries(smem, p, piece, rows);
    RowTerms terms[2];
    for (int r = 0; r < 2; ++r) terms[r].load(p, piece, rows.index[r]);
    const int full_begin = keys_of_query(p, s, s.len_q - 1).begin;
    const int full_end = keys_of_query(p, s, 0).end;
    float o[kOutColumns / 2];
    TESSERA_UNROLL
    for (int i = 0; i < kOutColumns / 2; ++i) o[i] = 0.0f;
    float max[2] = {-infinity(), -infinity()};
    float sum[2] = {0.0f, 0.0f};
    VisibleTiles visible(p, rows_of_piece(p, piece), kBlockN);
    for (int tile = piece.tile_begin;; ++tile, n += 2) {
      tile = visible.next(tile, piece.tile_end);
      if (tile >= piece.tile_end) break;
      float scores[kBlockN / 2];
      wait_filled(smem, n);
      queries.start_q_k(slot_of(smem, n), scores);
      wgmma_wait_group<0>();
      pin_registers(scores);
      release(smem, n);

      unsigned weights[kBlockN / 4];
      const int first_key = tile * kBlockN;
      const CopiedMasks masks(smem, n / 2);
      if (has_rows) {
        if constexpr (kHasOnlyTerms) {
          add_terms(p, terms, masks, first_key, has_second_rows, scores);
        } else if constexpr (kHasTerms) {
          modify_scores(p, piece, rows, first_key, has_second_rows, scores);
        }
        masks.release();
        if (first_key < full_begin || first_key + kBlockN > full_end) hide_scores(rows, first_key, scores);
        float shrink[2] = {1.0f, 1.0f};
        TESSERA_UNROLL
        for (int r = 0; r < 2; ++r) {
          if (r == 1 && !has_second_rows) break;  // nobody reads what becomes of them
          const float top = fmaxf(max[r], top_score(scores, r) * scale);
          const float base = top == -infinity() ? 0.0f : top;
          shrink[r] = max[r] == top ? 1.0f : ex2(max[r] - top);
          max[r] = top;
          sum[r] *= shrink[r];
          weigh_scores(scale, base, r, scores, sum[r]);
        }
        if (warp_any(shrink[0] != 1.0f || shrink[1] != 1.0f)) {  // seldom after the first keys
          TESSERA_UNROLL
          for (int i = 0; i < kOutColumns / 2; ++i) o[i] *= shrink[i / 2 % 2];
        }
        TESSERA_UNROLL
        for (int i = 0; i < kBlockN / 4; ++i) weights[i] = cvt_x2<T>(scores[2 * i], scores[2 * i + 1]);
      } else {
        masks.release();
        TESSERA_UNROLL
        for (int i = 0; i < kBlockN / 4; ++i) weights[i] = 0;
      }
      wait_filled(smem, n + 1);
      if (first_key + kBlockN > s.len_kv)
        clear_values(smem.slots[(n + 1) % kSlots], kPanelBytesV, maximum(s.len_kv - first_key, 0), 1);
      start_weights_values<kOutColumns>(weights, slot_of(smem, n + 1), kPanelBytesV, o);
      wgmma_wait_group<0>();
      pin_registers(o);
      release(smem, n + 1);
    }
    if (!has_rows) return;
    const int64 first_partial = partial_row_of_piece(p, smem.part.index, piece.b, piece.kv_head);
    const unsigned spoilt = store_rows(p, piece, rows, first_partial, max, sum, o);
    if (warp_any(spoilt != 0)) {
      sync_warp();
      redo_rows(p, piece, first_partial, pack, spoilt);
    }
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
