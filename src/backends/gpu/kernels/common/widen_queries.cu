// Queries of 8 bits as numbers of 16 or 32, which hold each of them exactly: for attention kernels that take
// no narrower ones. Their scales stay where they are.
//
// Grid: (tokens), one block a token of all heads at a time.

#include "common/types.cuh"
#include "common/widen_queries.h"

using namespace tessera::kernels;

namespace tessera::kernels {

/// Widens elements [0, kCount) of `from`.
template <class T, int kCount>
TESSERA_DEVICE void widen_elements(const f8e4m3* from, T* to) {
  using Narrow = Vector<f8e4m3, kCount>;
  constexpr int kAtOnce = kCount * sizeof(T) <= 16 ? kCount : 16 / static_cast<int>(sizeof(T));
  const Narrow narrow = *reinterpret_cast<const Narrow*>(from);
  TESSERA_UNROLL
  for (int first = 0; first < kCount; first += kAtOnce) {
    Vector<T, kAtOnce> wide;
    TESSERA_UNROLL
    for (int i = 0; i < kAtOnce; ++i) wide.element[i] = from_float<T>(to_float(narrow.element[first + i]));
    *reinterpret_cast<Vector<T, kAtOnce>*>(to + first) = wide;
  }
}

template <class T, int kCount>
TESSERA_DEVICE void widen_token(const WidenQueriesParams& p, const f8e4m3* from, T* to) {
  const int parts = p.head_dim / kCount;
  for (int n = thread_x(); n < p.num_heads * parts; n += block_size()) {
    const int head = n / parts;
    const int d = n % parts * kCount;
    widen_elements<T, kCount>(from + head * p.q.head_stride + d,
                              to + static_cast<int64>(head) * p.head_dim + d);
  }
}

template <class T>
TESSERA_DEVICE void widen_queries(const WidenQueriesParams& p) {
  for (int64 token = block_x(); token < p.tokens; token += grid_x()) {
    const f8e4m3* from = static_cast<const f8e4m3*>(p.q.data) + token / p.seq_len * p.q.batch_stride +
                         token % p.seq_len * p.q.seq_stride;
    T* to = static_cast<T*>(p.wide) + token * p.num_heads * p.head_dim;
    if (p.is_aligned) {
      widen_token<T, kWidenedAtOnce>(p, from, to);
    } else {
      widen_token<T, 1>(p, from, to);
    }
  }
}

}  // namespace tessera::kernels

TESSERA_KERNEL(widen_queries_f32, kWidenQueriesThreads)(const WidenQueriesParams p) {
  widen_queries<float>(p);
}
TESSERA_KERNEL(widen_queries_f16, kWidenQueriesThreads)(const WidenQueriesParams p) { widen_queries<f16>(p); }
TESSERA_KERNEL(widen_queries_bf16, kWidenQueriesThreads)(const WidenQueriesParams p) {
  widen_queries<bf16>(p);
}
