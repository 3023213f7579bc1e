#pragma once

#include "common/integers.cuh"
#include "common/rows.cuh"

// A row of logits as the sampler's kernels see it: keys, weights and bins of tokens, its tiles and segments,
// and sums over a block.

namespace tessera::kernels {

/// Unsigned integers in the order of the numbers.
TESSERA_DEVICE u64 key_of(double x) {
  x += 0.0;  // -0 becomes 0
  const u64 bits = bits_of(x);
  return bits >> 63 ? ~bits : bits | (1ull << 63);
}
TESSERA_DEVICE double number_of_key(u64 key) { return double_of_bits(key >> 63 ? key ^ (1ull << 63) : ~key); }

/// Philox 4x32-10, Salmon et al. (2011), as ops/philox.h has it: uniform in [0, 1) with 53 bits.
TESSERA_DEVICE double uniform(u64 seed, u64 step) {
  unsigned c0 = static_cast<unsigned>(step), c1 = static_cast<unsigned>(step >> 32), c2 = 0, c3 = 0;
  unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 product0 = static_cast<u64>(0xD2511F53u) * c0;
    const u64 product1 = static_cast<u64>(0xCD9E8D57u) * c2;
    c0 = static_cast<unsigned>(product1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<unsigned>(product0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<unsigned>(product1);
    c3 = static_cast<unsigned>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<double>((static_cast<u64>(c0) << 21) | (c1 >> 11)) * 1.1102230246251565e-16;  // 2^-53
}

/// x, 0 <= x < 2^52, rounded to an integer by an addition; conversions are several times as slow.
TESSERA_DEVICE u64 rounded_integer(double x) { return bits_of(x + 0x1p52) & ((1ull << 52) - 1); }

/// 2^x for x <= 0 to about 2^-46 of it, exact at 0; 2^-64 below -64. The Taylor series up to x^11 of what is
/// left beside an integer; exp() of the toolkit takes twice as many instructions for bits that no weight has.
/// Without a branch, so that a thread can have several under way.
TESSERA_DEVICE double exp2_of_negative(double x) {
  x = maximum(x, -64.0);
  constexpr double kShift = 0x1.8p52;  // integers are in the low bits of what has this added
  const double shifted = x + kShift;
  const double f = x - (shifted - kShift);
  double sum = 0x1.e8cac7351bb25p-32;  // ln(2)^11 / 11!
  sum = sum * f + 0x1.e4cf5158b8ecap-28;
  sum = sum * f + 0x1.b5253d395e7c4p-24;
  sum = sum * f + 0x1.62c0223a5c824p-20;
  sum = sum * f + 0x1.ffcbfc588b0c7p-17;
  sum = sum * f + 0x1.430912f86c787p-13;
  sum = sum * f + 0x1.5d87fe78a6731p-10;
  sum = sum * f + 0x1.3b2ab6fba4e77p-7;
  sum = sum * f + 0x1.c6b08d704a0c0p-5;
  sum = sum * f + 0x1.ebfbdff82c58fp-3;
  sum = sum * f + 0x1.62e42fefa39efp-1;
  sum = sum * f + 1.0;
  return double_of_bits(bits_of(sum) + (bits_of(shifted) << 52));
}

struct RepetitionPenalty {
  double factor;
  double inverse;

  TESSERA_DEVICE double apply(double x) const {
    if (x < 0) return x * factor;
    const double quotient = x * inverse;  // and made right to the last bit, without a division's many steps
    return fma(fma(-quotient, factor, x), inverse, quotient);
  }
};

/// A thread's tokens of a tile: ids from `first` on, as many as the row still has; -inf stands for others.
struct TokenGroup {
  int first;
  unsigned penalized;  // a bit a token
  float v[kGroupSize];
};

struct SampleRow {
  const RowsArgument& logits;
  int64 offset;
  int vocab_size;
  const unsigned* penalized;  // a bit a token; null: none is
  RepetitionPenalty penalty;

  TESSERA_DEVICE TokenGroup load(int tile_begin) const {
    TokenGroup group;
    group.first = tile_begin + thread_x() * kGroupSize;
    group.penalized = 0;
    const int count = minimum(kGroupSize, vocab_size - group.first);
    if (count > 0) {
      load_group<kAnyType>(logits, offset + group.first, count, group.v);
      if (penalized != nullptr) group.penalized = penalized[group.first / 32] >> (group.first % 32);
    }
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (i >= count) group.v[i] = -infinity();
    }
    return group;
  }
  /// With penalties.
  TESSERA_DEVICE void get_logits(const TokenGroup& group, double (&logits)[kGroupSize]) const {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) logits[i] = static_cast<double>(group.v[i]);
    if (group.penalized % (1u << kGroupSize) == 0) return;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (group.penalized >> i & 1u) logits[i] = penalty.apply(logits[i]);
    }
  }
};

/// What a token weighs beside the row's most likely one, and in which bin that is.
struct SampleWeights {
  double top;       // the largest logit
  double rate;      // log2(e) / temperature
  double bin_rate;  // bins a unit of logit
  double unit;      // a weight of 1
  double min_p;     // the least weight that stays, beside 1

  TESSERA_DEVICE SampleWeights(const SampleScale& scale, const SamplerSettings& settings, int weight_bits)
      : top(scale.top),
        rate(scale.rate),
        bin_rate(scale.bin_rate),
        unit(static_cast<double>(1ull << weight_bits)),
        min_p(static_cast<double>(settings.min_p)) {}

  /// Bins rise as logits fall. The last one has what weighs nothing.
  TESSERA_DEVICE int bin(double logit) const {
    const double bin = (top - logit) * bin_rate;
    return bin < kSampleBins - 1 ? static_cast<int>(bin) : kSampleBins - 1;
  }
  /// Logits below this are in bins after `bin`.
  TESSERA_DEVICE float least_of_bin(int bin) const {
    const double distance = (bin + 1) / bin_rate;
    // Further off than rounding, of these numbers and to fp32, can take it.
    return static_cast<float>(top - distance - 1e-6 * (distance + (top < 0 ? -top : top)));
  }
  /// exp((logit - top) / temperature) in integers, so that sums do not depend on their order.
  TESSERA_DEVICE u64 mass(double logit) const {
    return rounded_integer(exp2_of_negative((logit - top) * rate) * unit);
  }
  /// The same, 0 for a token that min-p drops. Compared before rounding: weights that differ by less than an
  /// integer's step lie on either side of min_p.
  TESSERA_DEVICE u64 mass_above_min_p(double logit) const {
    const double weight = exp2_of_negative((logit - top) * rate);
    return weight < min_p ? 0 : rounded_integer(weight * unit);
  }
};

TESSERA_DEVICE SampleScale scale_of(const SamplerSettings& settings, const LargestLogit& largest,
                                    int weight_bits) {
  SampleScale scale;
  scale.top = number_of_key(largest.key);
  scale.rate = 1.4426950408889634 / static_cast<double>(settings.temperature);
  // Bins as fine as the distance from the most likely token to the least likely that weighs something lets
  // them be; the last but one is that token's. Equal tokens only: any will do.
  const double farthest =
      minimum(scale.top - static_cast<double>(largest.least), (weight_bits + 1.5) / scale.rate);
  scale.bin_rate = (kSampleBins - 2) / maximum(farthest, 1e-60);
  return scale;
}

/// Of two that are equal the lower id.
TESSERA_DEVICE LargestLogit larger(const LargestLogit& a, const LargestLogit& b) {
  const bool take_b = b.key > a.key || (b.key == a.key && b.id < a.id);
  return {take_b ? b.key : a.key, take_b ? b.id : a.id, minimum(a.least, b.least)};
}

constexpr int kNoId = 0x7fffffff;
TESSERA_DEVICE LargestLogit no_logit() { return {0, kNoId, infinity()}; }

/// Of all threads of the block.
TESSERA_DEVICE LargestLogit block_largest(LargestLogit mine, LargestLogit* scratch) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    mine = larger(mine,
                  {shuffle_xor(mine.key, mask), shuffle_xor(mine.id, mask), shuffle_xor(mine.least, mask)});
  }
  if (thread_x() % kWarpSize == 0) scratch[thread_x() / kWarpSize] = mine;
  sync_threads();
  mine = scratch[0];
  for (int w = 1; w < kSampleThreads / kWarpSize; ++w) mine = larger(mine, scratch[w]);
  sync_threads();
  return mine;
}

/// Inclusive sum over the threads before and including this one; `total` is that of all.
template <class T>
TESSERA_DEVICE T block_scan(T value, T* scratch, T& total) {
  const int lane = thread_x() % kWarpSize;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const T before = shuffle(value, lane >= distance ? lane - distance : lane);
    if (lane >= distance) value += before;
  }
  const int warp = thread_x() / kWarpSize;
  if (lane == kWarpSize - 1) scratch[warp] = value;
  sync_threads();
  total = 0;
  T before_warp = 0;
  for (int w = 0; w < kSampleThreads / kWarpSize; ++w) {
    if (w < warp) before_warp += scratch[w];
    total += scratch[w];
  }
  sync_threads();
  return before_warp + value;
}

/// Sums in shared memory in two words: additions of 64 bits would be loops there.
template <int kCount>
struct SplitSums {
  unsigned low[kCount], high[kCount];

  TESSERA_DEVICE void clear() {
    for (int i = thread_x(); i < kCount; i += kSampleThreads) low[i] = high[i] = 0;
  }
  TESSERA_DEVICE void add(int i, u64 value) {
    const unsigned low_part = static_cast<unsigned>(value);
    const unsigned carry = atomic_add(&low[i], low_part) > ~low_part ? 1u : 0u;
    const unsigned high_part = static_cast<unsigned>(value >> 32) + carry;
    if (high_part != 0) atomic_add(&high[i], high_part);
  }
  TESSERA_DEVICE u64 get(int i) const { return static_cast<u64>(high[i]) << 32 | low[i]; }
};

// ---- What a call asks of a row

TESSERA_DEVICE bool uses_top_k(const SamplerSettings& settings, const SampleParams& p) {
  return settings.top_k > 0 && settings.top_k < p.vocab_size;
}
TESSERA_DEVICE bool has_cut(const SamplerSettings& settings, const SampleParams& p) {
  return uses_top_k(settings, p) || settings.top_p < 1.0f;
}

TESSERA_DEVICE SampleRow row_of(const SampleParams& p, int row, const SamplerSettings& settings) {
  SampleRow result{p.logits, row * p.logits.row_stride, p.vocab_size, nullptr, {1, 1}};
  if (settings.repetition_penalty != 1.0f && p.history != nullptr) {
    result.penalized = p.penalized + row * p.penalized_words;
    result.penalty.factor = static_cast<double>(settings.repetition_penalty);
    result.penalty.inverse = 1.0 / result.penalty.factor;
  }
  return result;
}

/// Calls body(tile_begin) for the tiles of a segment.
template <class Body>
TESSERA_DEVICE void for_each_tile(const SampleParams& p, int segment, Body body) {
  const int begin = segment * p.segment_tokens;
  const int end = minimum(p.segment_tokens, p.vocab_size - begin) + begin;
  for (int tile = begin; tile < end; tile += kSampleTile) body(tile);
}

/// The share of `total` that top-p wants: tokens stay as long as those more likely have less.
TESSERA_DEVICE u64 wanted_mass(float top_p, u64 total) {
  const double exact = static_cast<double>(top_p) * static_cast<double>(total);
  u64 wanted = static_cast<u64>(exact);
  if (static_cast<double>(wanted) < exact) ++wanted;
  return maximum<u64>(wanted, 1);
}

}  // namespace tessera::kernels
