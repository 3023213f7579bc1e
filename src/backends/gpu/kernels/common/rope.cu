// Rotary position embedding, Su et al., "RoFormer" (2021), section 3.2: pair i at position p turns by p *
// inverse_frequencies[i]. rope rotates heads in place; rope_append rotates q in place and writes rotated
// keys, and values, into the paged cache.
//
// Grid: (tokens); one block a token. Its sines and cosines are computed once and shared by all heads; then
// each thread takes 8 pairs of a head at a time, or one where heads don't stand at multiples of 16 bytes.

#include "common/rope_turns.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

/// What a thread does to a token: 16 elements of a head, 8 pairs, or 8 elements that stay as they are.
template <class T>
struct RopeItem {
  const T* from;
  T* to;
  int pair;    // the first; -1: no rotation
  int second;  // elements between the two groups
  PackedGroup<T> a, b;

  TESSERA_DEVICE void load() {
    a.load(from, 0);
    if (pair >= 0) b.load(from + second, 0);
  }
  TESSERA_DEVICE void finish(const RopeRotation& r, const float* table) {
    if (pair >= 0) {
      float x[kGroupSize], y[kGroupSize];
      a.get(x);
      b.get(y);
      if (r.interleaved) {
        TESSERA_UNROLL
        for (int i = 0; i < kGroupSize; i += 2) {
          rotate(r, table, pair + i / 2, x[i], x[i + 1]);
          rotate(r, table, pair + (kGroupSize + i) / 2, y[i], y[i + 1]);
        }
      } else {
        TESSERA_UNROLL
        for (int i = 0; i < kGroupSize; ++i) rotate(r, table, pair + i, x[i], y[i]);
      }
      a.set(x);
      b.set(y);
      b.store(to + second, 0);
    }
    a.store(to, 0);
  }
};

/// Item `item` of a token: the rotated groups of q's heads, all of k's, all of v's.
template <class T>
TESSERA_DEVICE RopeItem<T> rope_item(const RopeAppendParams& p, int64 token, int64 slot, int item) {
  const RopeRotation& r = p.rotation;
  const int rotated = r.num_pairs / kGroupSize;
  const int whole = r.head_dim / kGroupSize;
  const int in_k = whole - rotated;  // a rotated item is two groups
  const int q_items = p.num_heads * rotated;
  const int k_items = p.num_kv_heads * in_k;
  RopeItem<T> result;
  int group;
  bool is_rotated;
  if (item < q_items) {
    group = item % rotated;
    is_rotated = true;
    result.to = static_cast<T*>(p.q.data) + token * p.q.row_stride + item / rotated * r.head_dim;
    result.from = result.to;
  } else if (item < q_items + k_items) {
    const int64 head = (item - q_items) / in_k;
    group = (item - q_items) % in_k;
    is_rotated = group < rotated;
    if (!is_rotated) group += rotated;
    result.from = static_cast<const T*>(p.k.data) + token * p.k.row_stride + head * r.head_dim;
    result.to = static_cast<T*>(p.cache_k.data) + slot + head * p.cache_head_stride;
  } else {
    const int64 head = (item - q_items - k_items) / whole;
    group = (item - q_items - k_items) % whole;
    is_rotated = false;
    result.from = static_cast<const T*>(p.v.data) + token * p.v.row_stride + head * r.head_dim;
    result.to = static_cast<T*>(p.cache_v.data) + slot + head * p.cache_head_stride;
  }
  const int offset = group * kGroupSize * (is_rotated && r.interleaved ? 2 : 1);
  result.from += offset;
  result.to += offset;
  result.pair = is_rotated ? group * kGroupSize : -1;
  result.second = r.interleaved ? kGroupSize : r.num_pairs;
  return result;
}

template <class T>
TESSERA_DEVICE void rope_append(const RopeAppendParams& p) {
  constexpr int kAtOnce = 2;  // items of a thread on the way together
  TESSERA_DYNAMIC_SHARED(shared);
  float* table = reinterpret_cast<float*>(shared);
  allow_next_kernel();
  // Where tokens are is not what the kernel before computes.
  const RopeRotation& r = p.rotation;
  const int64 token = block_x();
  const int64 slot = cache_slot(p, token);
  const int rotated = r.num_pairs / kGroupSize;
  const int whole = r.head_dim / kGroupSize;
  const int items = p.num_heads * rotated + p.num_kv_heads * (2 * whole - rotated);
  RopeItem<T> item[kAtOnce];
  const auto load_items = [&](int first) {
    TESSERA_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = first + n * block_size();
      if (i >= items) continue;
      item[n] = rope_item<T>(p, token, slot, i);
      item[n].load();
    }
  };
  // Of many tokens the loads come first and other blocks cover the table. A few wait for the kernel before,
  // and fill the table meanwhile.
  const bool table_first = grid_x() < kManyTokens;
  TESSERA_UNROLL_BY(1)  // one copy of the table's code
  for (int step = 0; step < 2; ++step) {
    if (table_first == (step == 0)) {
      fill_turns(r, token, table);
    } else {
      wait_for_prior_kernels();
      load_items(thread_x());
    }
  }
  sync_threads();
  for (int first = thread_x();;) {
    TESSERA_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      if (first + n * block_size() < items) item[n].finish(r, table);
    }
    first += kAtOnce * block_size();
    if (first >= items) return;
    load_items(first);
  }
}

/// Rotates pair `pair` of the head at `from` of x into the head at `to` of out, of any types.
TESSERA_DEVICE void rotate_pair(const RopeRotation& r, const float* table, int pair, const RowsArgument& x,
                                int64 from, const RowsArgument& out, int64 to) {
  const int first = r.interleaved ? 2 * pair : pair;
  const int second = r.interleaved ? 2 * pair + 1 : pair + r.num_pairs;
  float a = load_scalar(x, from + first), b = load_scalar(x, from + second);
  rotate(r, table, pair, a, b);
  store_scalar(out, to + first, a);
  store_scalar(out, to + second, b);
}

}  // namespace tessera::kernels

// q, k, v and the cache of one type, with heads and pairs in groups of 8 at multiples of 16 bytes; and any.
TESSERA_KERNEL(rope_append_f32, kRopeThreads)(const RopeAppendParams p) { rope_append<float>(p); }
TESSERA_KERNEL(rope_append_f16, kRopeThreads)(const RopeAppendParams p) { rope_append<f16>(p); }
TESSERA_KERNEL(rope_append_bf16, kRopeThreads)(const RopeAppendParams p) { rope_append<bf16>(p); }

TESSERA_KERNEL(rope_append_any, kRopeThreads)(const RopeAppendParams p) {
  TESSERA_DYNAMIC_SHARED(shared);
  float* table = reinterpret_cast<float*>(shared);
  allow_next_kernel();
  wait_for_prior_kernels();
  const RopeRotation& r = p.rotation;
  const int64 token = block_x();
  const int64 slot = cache_slot(p, token);
  fill_turns(r, token, table);
  sync_threads();
  for (int i = thread_x(); i < p.num_heads * r.num_pairs; i += block_size()) {
    const int64 head = token * p.q.row_stride + i / r.num_pairs * r.head_dim;
    rotate_pair(r, table, i % r.num_pairs, p.q, head, p.q, head);
  }
  for (int i = thread_x(); i < p.num_kv_heads * r.num_pairs; i += block_size()) {
    const int64 head = i / r.num_pairs;
    rotate_pair(r, table, i % r.num_pairs, p.k, token * p.k.row_stride + head * r.head_dim, p.cache_k,
                slot + head * p.cache_head_stride);
  }
  for (int i = thread_x(); i < p.num_kv_heads * r.head_dim; i += block_size()) {
    const int64 head = i / r.head_dim;
    const int element = i % r.head_dim;
    const int64 from = head * r.head_dim + element;
    const int64 to = slot + head * p.cache_head_stride + element;
    if (element >= 2 * r.num_pairs)
      store_scalar(p.cache_k, to, load_scalar(p.k, token * p.k.row_stride + from));
    store_scalar(p.cache_v, to, load_scalar(p.v, token * p.v.row_stride + from));
  }
}

TESSERA_KERNEL(rope_any, kRopeThreads)(const RopeParams p) {
  TESSERA_DYNAMIC_SHARED(shared);
  float* table = reinterpret_cast<float*>(shared);
  allow_next_kernel();
  wait_for_prior_kernels();
  const RopeRotation& r = p.rotation;
  const int64 token = block_x();
  fill_turns(r, token, table);
  sync_threads();
  for (int i = thread_x(); i < p.heads * r.num_pairs; i += block_size()) {
    const int64 head = token * p.x.row_stride + static_cast<int64>(i / r.num_pairs) * r.head_dim;
    rotate_pair(r, table, i % r.num_pairs, p.x, head, p.x, head);
  }
}
