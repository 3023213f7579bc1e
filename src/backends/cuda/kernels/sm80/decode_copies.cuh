#pragma once

#include "common/attention_constants.cuh"
#include "common/score_terms.cuh"
#include "sm80/attention_decode_traits.h"
#include "sm80/dense_rows.cuh"
#include "sm80/paged_rows.cuh"
#include "sm80/ptx.cuh"
#include "sm80/row_pieces.cuh"

// How attention_decode.cu gets q and a stage's keys and values into shared memory.

namespace tessera::kernels {

/// Copies 16 rows into shared memory by num_threads threads, padded with zeros to kColumns. row_of(r) is the
/// address of row r, or null for zeros.
template <int kColumns, int kStride, class Element, class RowOf>
TESSERA_DEVICE void load_rows(Element* smem, int thread, int num_threads, int head_dim, RowOf row_of) {
  constexpr int kChunkElements = kPieceBytes<Element> / sizeof(Element);
  constexpr int kChunks = kColumns / kChunkElements;
  const unsigned base = shared_address(smem);
  if constexpr (!kVector) {
    copy_pieces<kPieceBytes<Element>, 16 * kChunks>(thread, num_threads, [&](int c) -> PieceCopy {
      const int r = c / kChunks;
      const int column = c % kChunks * kChunkElements;
      const Element* row = row_of(r);
      return {base + static_cast<unsigned>(r * kStride + column) * sizeof(Element),
              row != nullptr && column < head_dim ? row + column : nullptr};
    });
    return;
  }
  TESSERA_UNROLL
  for (int c = thread; c < 16 * kChunks; c += num_threads) {
    const int r = c / kChunks;
    const int column = c % kChunks * kChunkElements;
    const Element* row = row_of(r);
    const bool valid = row != nullptr && column < head_dim;
    cp_async_16_of_line(base + static_cast<unsigned>(r * kStride + column) * sizeof(Element),
                        valid ? row + column : nullptr, valid);
  }
}

/// Key 0 of a sequence's kv head in `x`, k or v; of pages: of page 0.
TESSERA_DEVICE const Kv* head_keys(const AttentionParams& p, const TensorArgument& x, const Sequence& s,
                                   int b, int kv_head) {
  const int64 offset =
      kPaged ? 0 : (p.cu_seqlens_kv != nullptr ? 0 : b * x.batch_stride) + s.kv_begin * x.seq_stride;
  return static_cast<const Kv*>(x.data) + kv_head * x.head_stride + offset;
}

/// The keys of a stage.
struct StageKeys {
  int first;
  int len_kv;  // keys after it are zeros
  // Of this lane's key, if paged, see paged_rows.cuh.
  int page;
  int token;
};

/// Whether the keys of a stage, which start at a multiple of their number, always lie in one page.
TESSERA_DEVICE bool stages_lie_in_a_page(const AttentionParams& p) {
  return kPaged && p.page_size % kDecodeWarpKeys == 0;
}

/// Copies a stage's keys or values, `x`, whose key 0 (in page 0, if paged) is at `base`.
template <int kColumns, int kStride>
TESSERA_DEVICE void load_keys(const AttentionParams& p, Kv* smem, const Kv* base, const TensorArgument& x,
                              int head_dim, const StageKeys& keys) {
  constexpr int kStrideBytes = kStride * int{sizeof(Kv)};
  constexpr bool kRegular = kVector && kHasRegularChunks<Kv, kDecodeWarpKeys, kColumns>;
  if constexpr (kPaged) {
    if constexpr (kRegular) {
      if (stages_lie_in_a_page(p)) {  // the first key's address gives the others'
        const int page = shuffle(keys.page, 0);
        const int token = keys.token - thread_x() % kDecodeWarpKeys;
        load_dense_rows<Kv, kDecodeWarpKeys, kColumns, kStrideBytes, true>(
            smem, head_dim, base + page * x.batch_stride, x.seq_stride, token,
            token + keys.len_kv - keys.first);
        return;
      }
    }
    load_paged_rows<Kv, kDecodeWarpKeys, kColumns, kStrideBytes, kPieceBytes<Kv>, true>(
        shared_address(smem), head_dim, base + keys.page * x.batch_stride + keys.token * x.seq_stride,
        keys.len_kv - keys.first);
  } else if constexpr (kRegular) {
    load_dense_rows<Kv, kDecodeWarpKeys, kColumns, kStrideBytes, true>(smem, head_dim, base, x.seq_stride,
                                                                       keys.first, keys.len_kv);
  } else {
    load_rows<kColumns, kStride>(smem, thread_x() % 32, 32, head_dim, [&](int r) -> const Kv* {
      const int key = keys.first + r;
      return key < keys.len_kv ? base + key * x.seq_stride : nullptr;
    });
  }
}

/// Asks for rows [begin, end) to be brought into the L2 cache.
TESSERA_DEVICE void prefetch_rows(const Kv* base, int64 seq_stride, int head_dim, int begin, int end) {
  for (int key = begin + thread_x(); key < end; key += block_size())
    prefetch_to_l2(base + key * seq_stride, static_cast<unsigned>(head_dim) * sizeof(Kv));
}

}  // namespace tessera::kernels
