// Rotary position embedding, Su et al., "RoFormer" (2021), section 3.2: pair i at position p turns by p *
// inverse_frequencies[i]. rope rotates heads in place; rope_append rotates q in place and writes rotated
// keys, and values, into the paged cache.
//
// Grid: (tokens); one block a token. Its sines and cosines are computed once and shared by all heads; then
// each thread takes 8 pairs of a head at a time.

#include "common/rows.cuh"

using namespace tessera::kernels;

constexpr int kRopeThreads = 512;

namespace tessera::kernels {

/// sin and cos of position * frequency, times factor. Positions go beyond what fp32 holds of the angle: whole
/// turns are taken off in fp64.
TESSERA_DEVICE void turn(int position, float frequency, float factor, float& s, float& c) {
  constexpr double kTurnsPerRadian = 0.15915494309189533577;
  constexpr double kTurnHigh = 6.283185307179586232;   // 2 pi rounded to fp64
  constexpr double kTurnLow = 2.4492935982947064e-16;  // and the rest
  const double angle = static_cast<double>(position) * static_cast<double>(frequency);
  const double turns = rint(angle * kTurnsPerRadian);
  const float rest = static_cast<float>((angle - turns * kTurnHigh) - turns * kTurnLow);
  s = sinf(rest) * factor;
  c = cosf(rest) * factor;
}

/// Fills `table`: num_pairs cosines, then num_pairs sines.
TESSERA_DEVICE void fill_turns(const RopeRotation& r, int64 token, float* table) {
  for (int pair = thread_x(); pair < r.num_pairs; pair += block_size()) {
    turn(r.positions[token], r.inverse_frequencies[pair], r.attention_factor, table[r.num_pairs + pair],
         table[pair]);
  }
  sync_threads();
}

/// Work items of a head: groups of 8 pairs, then groups of 8 elements that stay.
TESSERA_DEVICE int rotated_groups(const RopeRotation& r) {
  return (r.num_pairs + kGroupSize - 1) / kGroupSize;
}
TESSERA_DEVICE int kept_groups(const RopeRotation& r) {
  return (r.head_dim - 2 * r.num_pairs + kGroupSize - 1) / kGroupSize;
}

/// 8 values that need not stand on a boundary of 8.
template <int kType>
TESSERA_DEVICE void load_values(RowsArgument x, int64 offset, int count, float (&v)[kGroupSize],
                                int64 alignment) {
  if (alignment % kGroupSize != 0) x.vector = 0;
  load_group<kType>(x, offset, count, v);
}
template <int kType>
TESSERA_DEVICE void store_values(RowsArgument x, int64 offset, int count, const float (&v)[kGroupSize],
                                 int64 alignment) {
  if (alignment % kGroupSize != 0) x.vector = 0;
  store_group<kType>(x, offset, count, v);
}

/// Rotates group `group` of the head at `from` of x into the head at `to` of out.
template <int kType>
TESSERA_DEVICE void rotate_group(const RopeRotation& r, const float* table, int group, const RowsArgument& x,
                                 int64 from, const RowsArgument& out, int64 to) {
  const int pair = group * kGroupSize;
  const int count = minimum(kGroupSize, r.num_pairs - pair);
  float a[kGroupSize], b[kGroupSize];
  if (r.interleaved) {
    // Elements 2 pair …: 16 in a row, of which even ones turn with the odd one after them.
    load_group<kType>(x, from + 2 * pair, minimum(kGroupSize, 2 * count), a);
    const int rest = 2 * count - kGroupSize;
    if (rest > 0) load_group<kType>(x, from + 2 * pair + kGroupSize, rest, b);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; i += 2) {
      const int n = minimum(pair + i / 2, r.num_pairs - 1);
      const float c = table[n], s = table[r.num_pairs + n];
      const float x0 = a[i], x1 = a[i + 1];
      a[i] = x0 * c - x1 * s;
      a[i + 1] = x0 * s + x1 * c;
    }
    store_group<kType>(out, to + 2 * pair, minimum(kGroupSize, 2 * count), a);
    if (rest <= 0) return;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; i += 2) {
      const int n = minimum(pair + (kGroupSize + i) / 2, r.num_pairs - 1);
      const float c = table[n], s = table[r.num_pairs + n];
      const float x0 = b[i], x1 = b[i + 1];
      b[i] = x0 * c - x1 * s;
      b[i + 1] = x0 * s + x1 * c;
    }
    store_group<kType>(out, to + 2 * pair + kGroupSize, rest, b);
    return;
  }
  load_group<kType>(x, from + pair, count, a);
  load_values<kType>(x, from + r.num_pairs + pair, count, b, r.num_pairs);
  float y[kGroupSize], z[kGroupSize];
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) {
    const int n = minimum(pair + i, r.num_pairs - 1);
    const float c = table[n], s = table[r.num_pairs + n];
    y[i] = a[i] * c - b[i] * s;
    z[i] = a[i] * s + b[i] * c;
  }
  store_group<kType>(out, to + pair, count, y);
  store_values<kType>(out, to + r.num_pairs + pair, count, z, r.num_pairs);
}

/// Copies group `group` of the elements past 2 * num_pairs.
template <int kType>
TESSERA_DEVICE void copy_kept_group(const RopeRotation& r, int group, const RowsArgument& x, int64 from,
                                    const RowsArgument& out, int64 to) {
  const int64 element = 2 * r.num_pairs + static_cast<int64>(group) * kGroupSize;
  const int count = minimum(kGroupSize, r.head_dim - static_cast<int>(element));
  float v[kGroupSize];
  load_values<kType>(x, from + element, count, v, 2 * r.num_pairs);
  store_values<kType>(out, to + element, count, v, 2 * r.num_pairs);
}

template <int kType>
TESSERA_DEVICE void rope_append(const RopeAppendParams& p) {
  TESSERA_DYNAMIC_SHARED(shared);
  float* table = reinterpret_cast<float*>(shared);
  const RopeRotation& r = p.rotation;
  const int64 token = block_x();
  fill_turns(r, token, table);

  const int position = r.positions[token];
  const int64 sequence = p.sequences[token];
  const int64 page = p.block_table == nullptr
                         ? sequence
                         : p.block_table[sequence * p.block_table_stride + position / p.page_size];
  const int64 slot = page * p.cache_k.row_stride + position % p.page_size * p.cache_token_stride;

  const int rotated = rotated_groups(r);
  const int kept = kept_groups(r);
  const int whole = (r.head_dim + kGroupSize - 1) / kGroupSize;
  const int q_items = p.num_heads * rotated;
  const int k_items = p.num_kv_heads * (rotated + kept);
  const int items = q_items + k_items + p.num_kv_heads * whole;
  for (int item = thread_x(); item < items; item += block_size()) {
    if (item < q_items) {
      const int64 head = token * p.q.row_stride + static_cast<int64>(item / rotated) * r.head_dim;
      rotate_group<kType>(r, table, item % rotated, p.q, head, p.q, head);
    } else if (item < q_items + k_items) {
      const int head = (item - q_items) / (rotated + kept);
      const int group = (item - q_items) % (rotated + kept);
      const int64 from = token * p.k.row_stride + static_cast<int64>(head) * r.head_dim;
      const int64 to = slot + head * p.cache_head_stride;
      if (group < rotated) {
        rotate_group<kType>(r, table, group, p.k, from, p.cache_k, to);
      } else {
        copy_kept_group<kType>(r, group - rotated, p.k, from, p.cache_k, to);
      }
    } else {
      const int head = (item - q_items - k_items) / whole;
      const int group = (item - q_items - k_items) % whole;
      const int64 column = static_cast<int64>(group) * kGroupSize;
      const int count = group_count(r.head_dim, group);
      float v[kGroupSize];
      load_group<kType>(p.v, token * p.v.row_stride + static_cast<int64>(head) * r.head_dim + column, count,
                        v);
      store_group<kType>(p.cache_v, slot + head * p.cache_head_stride + column, count, v);
    }
  }
}

}  // namespace tessera::kernels

TESSERA_KERNEL(rope_any, kRopeThreads)(const RopeParams p) {
  TESSERA_DYNAMIC_SHARED(shared);
  float* table = reinterpret_cast<float*>(shared);
  const int64 token = block_x();
  fill_turns(p.rotation, token, table);
  const int rotated = rotated_groups(p.rotation);
  for (int item = thread_x(); item < p.heads * rotated; item += block_size()) {
    const int64 head = token * p.x.row_stride + static_cast<int64>(item / rotated) * p.rotation.head_dim;
    rotate_group<kAnyType>(p.rotation, table, item % rotated, p.x, head, p.x, head);
  }
}

// q, k, v and the cache of one type, and any types.
TESSERA_KERNEL(rope_append_f32, kRopeThreads)(const RopeAppendParams p) { rope_append<kElementF32>(p); }
TESSERA_KERNEL(rope_append_f16, kRopeThreads)(const RopeAppendParams p) { rope_append<kElementF16>(p); }
TESSERA_KERNEL(rope_append_bf16, kRopeThreads)(const RopeAppendParams p) { rope_append<kElementBF16>(p); }
TESSERA_KERNEL(rope_append_any, kRopeThreads)(const RopeAppendParams p) { rope_append<kAnyType>(p); }
