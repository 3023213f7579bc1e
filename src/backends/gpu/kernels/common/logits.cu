// What surrounds a draw: logits with biases and without the tokens that may not come, and logarithms of
// probabilities.
//
//   adjust_logits   out = logits + bias, -inf where a mask has no bit. Grid: (batch * blocks_per_row), a tile
//   of
//                   a row each. A tile's biases are added by the block that wrote it, so that nothing is
//                   added twice or too early.
//   logprobs        x - max - log(sum of exp(x - max)) of one token and of the likeliest. Grid: (batch). A
//                   thread knows the likeliest of its own elements; the one whose element was taken looks for
//                   its next, so that a row is read twice and not once a token.

#include "common/rows.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

constexpr int kNoToken = 0x7fffffff;

/// A token and its logit. Of two that are equal the lower id comes first.
struct RankedToken {
  float logit;
  int id;

  TESSERA_DEVICE bool comes_before(const RankedToken& other) const {
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

/// The first of all threads' tokens; every thread gets it.
TESSERA_DEVICE RankedToken block_first(RankedToken mine, RankedToken* scratch) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const RankedToken other{shuffle_xor(mine.logit, mask), shuffle_xor(mine.id, mask)};
    if (other.comes_before(mine)) mine = other;
  }
  if (thread_x() % kWarpSize == 0) scratch[thread_x() / kWarpSize] = mine;
  sync_threads();
  mine = scratch[0];
  for (int w = 1; w < kLogprobThreads / kWarpSize; ++w) {
    if (scratch[w].comes_before(mine)) mine = scratch[w];
  }
  sync_threads();  // scratch may be used again
  return mine;
}

/// Calls body(first id, elements, values) for the groups of a row that are this thread's.
template <class Body>
TESSERA_DEVICE void for_each_own_group(const LogprobsParams& p, int64 row, Body body) {
  const int64 groups = (p.columns + kGroupSize - 1) / kGroupSize;
  for (int64 group = thread_x(); group < groups; group += kLogprobThreads) {
    const int count = minimum(group_count(p.columns, group), kGroupSize);
    float v[kGroupSize];
    load_group<kAnyType>(p.logits, row + group * kGroupSize, count, v);
    body(static_cast<int>(group * kGroupSize), count, v);
  }
}

/// The first of the thread's tokens that come after `last`.
TESSERA_DEVICE RankedToken next_own(const LogprobsParams& p, int64 row, const RankedToken& last) {
  RankedToken next{-infinity(), kNoToken};
  for_each_own_group(p, row, [&](int first, int count, const float(&v)[kGroupSize]) {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      const RankedToken token{v[i], first + i};
      if (i < count && last.comes_before(token) && token.comes_before(next)) next = token;
    }
  });
  return next;
}

}  // namespace tessera::kernels

TESSERA_KERNEL(adjust_logits, kElementwiseThreads)(const AdjustLogitsParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x() / p.blocks_per_row;
  const int64 tile = block_x() % p.blocks_per_row * static_cast<int64>(kAdjustTile);
  const int64 column = tile + thread_x() * kGroupSize;
  float* out = static_cast<float*>(p.out.data) + row * p.out.row_stride;
  const int mask_row = p.mask_rows == nullptr ? -1 : p.mask_rows[row];
  if (column < p.columns) {
    const int count = static_cast<int>(minimum<int64>(kGroupSize, p.columns - column));
    float v[kGroupSize];
    load_group<kAnyType>(p.logits, row * p.logits.row_stride + column, count, v);
    if (mask_row >= 0) {
      const unsigned bits = p.masks[mask_row * p.mask_stride + column / 32] >> (column % 32);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) {
        if ((bits >> i & 1u) == 0) v[i] = -infinity();
      }
    }
    store_group<kElementF32>(p.out, row * p.out.row_stride + column, count, v);
  }
  if (p.bias_offsets == nullptr) return;
  sync_threads();
  for (int i = p.bias_offsets[row] + thread_x(); i < p.bias_offsets[row + 1]; i += kElementwiseThreads) {
    const LogitBiasEntry entry = p.biases[i];
    if (entry.token >= tile && entry.token < minimum(tile + kAdjustTile, p.columns))
      out[entry.token] += entry.bias;
  }
}

TESSERA_KERNEL(logprobs, kLogprobThreads)(const LogprobsParams p) {
  TESSERA_SHARED(ranked, RankedToken[kMaxWarps]);
  TESSERA_SHARED(sums, float[kMaxWarps]);
  allow_next_kernel();
  wait_for_prior_kernels();
  const int64 row = block_x() * p.logits.row_stride;
  RankedToken own{-infinity(), kNoToken};
  float is_number = 1.0f;  // a NaN or +inf makes it less
  for_each_own_group(p, row, [&](int first, int count, const float(&v)[kGroupSize]) {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      const RankedToken token{v[i], first + i};
      if (i < count && !(v[i] < infinity())) is_number = 0.0f;
      if (i < count && token.comes_before(own)) own = token;
    }
  });
  const RankedToken likeliest = block_first(own, ranked);
  const bool is_distribution =
      block_reduce(1.0f - is_number, 0.0f, sums, Largest()) == 0.0f && likeliest.logit > -infinity();
  if (!is_distribution) {
    const float not_a_number = float_of_bits(0x7fc00000u);
    if (thread_x() == 0) p.logprobs[block_x()] = not_a_number;
    for (int n = thread_x(); n < p.num_top; n += kLogprobThreads) {
      p.top_tokens[block_x() * static_cast<int64>(p.num_top) + n] = -1;
      p.top_logprobs[block_x() * static_cast<int64>(p.num_top) + n] = not_a_number;
    }
    return;
  }
  float sum = 0.0f;
  for_each_own_group(p, row, [&](int, int count, const float(&v)[kGroupSize]) {
    float part = 0.0f;  // of a group: rounding errors grow with the number of groups, not of elements
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (i < count) part += expf(v[i] - likeliest.logit);
    }
    sum += part;
  });
  const float log_sum = logf(block_reduce(sum, 0.0f, sums, Add()));
  if (thread_x() == 0) {
    const int token = p.tokens[block_x()];
    p.logprobs[block_x()] = token >= 0 && token < p.columns
                                ? load_scalar(p.logits, row + token) - likeliest.logit - log_sum
                                : float_of_bits(0x7fc00000u);
  }
  RankedToken taken = likeliest;
  for (int n = 0; n < p.num_top; ++n) {
    if (n > 0) taken = block_first(own, ranked);
    if (thread_x() == 0) {
      p.top_tokens[block_x() * static_cast<int64>(p.num_top) + n] = taken.id;
      p.top_logprobs[block_x() * static_cast<int64>(p.num_top) + n] = taken.logit - likeliest.logit - log_sum;
    }
    if (own.id == taken.id) own = next_own(p, row, taken);
  }
}
