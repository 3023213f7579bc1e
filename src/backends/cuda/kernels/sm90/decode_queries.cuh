#pragma once

#include "sm90/decode_results.cuh"
#include "sm90/decode_tiles.cuh"

// The queries of sm90/attention_decode.cu, and their products with a tile of keys.

namespace tessera::kernels {

constexpr int kQkSteps = (kHeadDimQk + 15) / 16;

/// Starts scores = q k^T; of_q(step, keys) does so for 16 columns.
template <class OfQ>
TESSERA_DEVICE void start_q_k(unsigned k, float (&scores)[kBlockN / 2], OfQ of_q) {
  pin_registers(scores);
  wgmma_fence();
  const unsigned long long keys = descriptor_of_rows(k);
  TESSERA_UNROLL
  for (int step = 0; step < kQkSteps; ++step)
    of_q(step, further(keys, step / 4 * DecodePanels<kHeadDimQk>::kBytes + step % 4 * 32));
  wgmma_commit_group();
}

/// A piece's rows of q in the registers of the warpgroup, where two blocks share a multiprocessor.
class QueriesInRegisters {
 public:
  TESSERA_DEVICE QueriesInRegisters(SharedStorage&, const AttentionParams& p, const Piece& piece,
                                    const Rows& rows) {
    TESSERA_UNROLL
    for (int r = 0; r < 2; ++r) {
      const T* from = static_cast<const T*>(p.q.data) +
                      query_offset(p, p.q, piece.sequence, piece.b, rows.index[r].h, rows.index[r].i) +
                      thread_x() % 4 * 2;
      TESSERA_UNROLL
      for (int i = 0; i < 2 * kQkSteps; ++i) {
        const bool exists = rows.exists[r] && i < kHeadDimQk / 8;
        q_[i / 2 * 4 + i % 2 * 2 + r] = exists ? *reinterpret_cast<const unsigned*>(from + 8 * i) : 0;
      }
    }
  }
  TESSERA_DEVICE void start_q_k(unsigned k, float (&scores)[kBlockN / 2]) const {
    kernels::start_q_k(k, scores, [&](int step, unsigned long long keys) {
      Wgmma<T, kBlockN>::registers_rows(scores, q_ + 4 * step, keys, step > 0);
    });
  }

 private:
  unsigned q_[4 * kQkSteps];
};

/// In shared memory, where o takes the registers. Storage: a SharedStorage that has room for them.
template <class Storage>
class QueriesInShared {
 public:
  TESSERA_DEVICE QueriesInShared(Storage& smem, const AttentionParams& p, const Piece& piece, const Rows&)
      : q_(shared_address(smem.q)) {
    constexpr int kChunks = 2 * kQkSteps;  // of 16 bytes, of a row
    const int pack = p.num_heads / p.num_kv_heads;
    const int num_rows = piece.sequence.len_q * pack;
    named_barrier_sync(kBarrier, 128);  // all have read the rows of the piece before
    for (int i = thread_x() % 128; i < kDecodeQueryRows * kChunks; i += 128) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      uint4 values = make_uint4(0, 0, 0, 0);
      if (row < num_rows && chunk < kHeadDimQk / 8) {
        const RowIndex index = packed_row_index(row, pack, piece.kv_head * pack);
        values = *reinterpret_cast<const uint4*>(
            static_cast<const T*>(p.q.data) +
            query_offset(p, p.q, piece.sequence, piece.b, index.h, index.i) + chunk * 8);
      }
      *reinterpret_cast<uint4*>(smem.q + chunk / 8 * kPanelBytes + row * 128 + (chunk % 8 ^ row % 8) * 16) =
          values;
    }
    fence_proxy_async();
    named_barrier_sync(kBarrier, 128);
  }
  TESSERA_DEVICE void start_q_k(unsigned k, float (&scores)[kBlockN / 2]) const {
    const unsigned long long rows = descriptor_of_rows(q_);
    kernels::start_q_k(k, scores, [&](int step, unsigned long long keys) {
      Wgmma<T, kBlockN>::rows_rows(scores, further(rows, step / 4 * kPanelBytes + step % 4 * 32), keys,
                                   step > 0);
    });
  }

 private:
  static constexpr int kBarrier = 1;
  static constexpr int kPanelBytes = kDecodeQueryRows * 128;
  unsigned q_;
};

template <bool kInShared>
struct QueriesOf {
  using Type = QueriesInRegisters;
};
template <>
struct QueriesOf<true> {
  using Type = QueriesInShared<SharedStorage>;
};
using Queries = QueriesOf<(kQueryBytes > 0)>::Type;

}  // namespace tessera::kernels
