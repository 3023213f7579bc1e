#pragma once

#include "sm80/ptx.cuh"

// Copies of rows that are not aligned to 16 bytes: by the largest pieces, of a power of two of bytes, that
// all of them are aligned to (TESSERA_PIECE_BYTES, TESSERA_VECTOR=1: 16).

namespace tessera::kernels {

/// A piece's place in shared memory, and where it comes from; null: zeros.
struct PieceCopy {
  unsigned to;
  const void* from;
};

template <int kBytes>
TESSERA_DEVICE void copy_piece_async(unsigned to, const void* from) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "what cp.async takes");
  if constexpr (kBytes == 16) {
    cp_async_16(to, from, from != nullptr);
  } else if constexpr (kBytes == 8) {
    cp_async_8(to, from, from != nullptr);
  } else {
    cp_async_4(to, from, from != nullptr);
  }
}

/// Copies kCount pieces by num_threads threads, piece c by thread c % num_threads. copy_of(c) is a PieceCopy,
/// asked for by all lanes of a warp at once. cp.async has no pieces of one and two bytes: these are loaded,
/// several at once, and stored.
template <int kBytes, int kCount, class CopyOf>
TESSERA_DEVICE void copy_pieces(int thread, int num_threads, CopyOf copy_of) {
  constexpr int kAtOnce = 8;
  TESSERA_UNROLL_BY(1)
  for (int first = 0; first < kCount; first += kAtOnce * num_threads) {
    if constexpr (kBytes >= 4) {
      TESSERA_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        const int c = first + n * num_threads + thread;
        const PieceCopy copy = copy_of(minimum(c, kCount - 1));
        if (c < kCount) copy_piece_async<kBytes>(copy.to, copy.from);
      }
    } else {
      unsigned to[kAtOnce];
      unsigned short bits[kAtOnce];
      TESSERA_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        const PieceCopy copy = copy_of(minimum(first + n * num_threads + thread, kCount - 1));
        to[n] = copy.to;
        bits[n] = 0;
        if (copy.from == nullptr) continue;
        bits[n] = kBytes == 2 ? *static_cast<const unsigned short*>(copy.from)
                              : *static_cast<const unsigned char*>(copy.from);
      }
      TESSERA_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        if (first + n * num_threads + thread >= kCount) continue;
        if constexpr (kBytes == 2) {
          store_shared_16(to[n], bits[n]);
        } else {
          store_shared_byte(to[n], bits[n]);
        }
      }
    }
  }
}

#if defined(TESSERA_VECTOR)
#ifndef TESSERA_PIECE_BYTES
#define TESSERA_PIECE_BYTES 1
#endif
/// Bytes of a piece of rows of elements of type E, none of which is split.
template <class E>
constexpr int kPieceBytes = TESSERA_VECTOR != 0                    ? 16
                            : TESSERA_PIECE_BYTES > int{sizeof(E)} ? TESSERA_PIECE_BYTES
                                                                   : int{sizeof(E)};
#endif

}  // namespace tessera::kernels
