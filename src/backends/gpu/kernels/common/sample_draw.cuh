#pragma once

#include "common/sample_row.cuh"

// The end of a draw, by one block a row: where exactly top-k and top-p cut, and the token that the random
// number falls on.

namespace tessera::kernels {

static_assert(kMaxSegments == kSampleThreads);

/// The least likely token that stays in the order of falling logits and, among equals, rising ids.
struct LastKept {
  u64 key;
  int id;

  TESSERA_DEVICE bool keeps(u64 other_key, int other_id) const {
    return other_key > key || (other_key == key && other_id <= id);
  }
};

constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;

struct SampleList {
  u64 keys[kSampleListSize];
  u64 masses[kSampleListSize];
  int ids[kSampleListSize];
};

struct DrawShared {
  union {
    SampleList list;
    SplitSums<kDigits> digits;
  };
  u64 sums[kMaxSegments];  // 0 where the row has no segment
  u64 warp_sums[kMaxWarps];
  u64 rest;
  int found;
};

/// Sorts the list's first `count` tokens, the most likely first, by a bitonic network. What is behind them up
/// to a power of two is written to.
TESSERA_DEVICE void sort_list(DrawShared& shared, int count) {
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + thread_x(); i < size; i += kSampleThreads) {
    shared.list.keys[i] = 0;
    shared.list.ids[i] = kNoId;
  }
  sync_threads();
  for (int sorted = 2; sorted <= size; sorted *= 2) {
    for (int stride = sorted / 2; stride > 0; stride /= 2) {
      // A warp's pairs are in the same 2 kWarpSize places in all stages but those of wide strides.
      const bool is_wide = stride > kWarpSize;
      if (is_wide) sync_threads();
      TESSERA_UNROLL_BY(1)
      for (int pair = thread_x(); pair < size / 2; pair += kSampleThreads) {
        const int a = 2 * pair - (pair & (stride - 1));
        const int b = a + stride;
        const LastKept first{shared.list.keys[a], shared.list.ids[a]};
        const LastKept second{shared.list.keys[b], shared.list.ids[b]};
        const bool in_order = second.keeps(first.key, first.id);
        if (in_order == ((a & sorted) == 0)) continue;
        shared.list.keys[a] = second.key;
        shared.list.ids[a] = second.id;
        shared.list.keys[b] = first.key;
        shared.list.ids[b] = first.id;
      }
      if (is_wide) {
        sync_threads();
      } else {
        sync_warp();
      }
    }
  }
  sync_threads();
}

/// Sums measure(index) over the list's first `count` tokens.
template <class Measure>
TESSERA_DEVICE u64 sum_list(DrawShared& shared, int count, Measure measure) {
  u64 sum = 0;
  TESSERA_UNROLL_BY(1)
  for (int i = thread_x(); i < count; i += kSampleThreads) sum += measure(i);
  return block_reduce(sum, static_cast<u64>(0), shared.warp_sums, Add());
}

/// Cuts by the list of `count` tokens, and adds those that stay to the segments' sums.
TESSERA_DEVICE LastKept cut_by_list(const SampleParams& p, const SampleScratch& scratch, int count,
                                    const SamplerSettings& settings, const SampleWeights& weights,
                                    DrawShared& shared) {
  const SampleCutBins cut = scratch.cut;
  TESSERA_UNROLL_BY(1)
  for (int i = thread_x(); i < count; i += kSampleThreads) {
    shared.list.keys[i] = scratch.list_keys[i];
    shared.list.ids[i] = scratch.list_ids[i];
  }
  sort_list(shared, count);
  u64 mine = 0;
  const int places = (count + kSampleThreads - 1) / kSampleThreads;
  const int begin = minimum(thread_x() * places, count);
  const int end = minimum(begin + places, count);
  TESSERA_UNROLL_BY(1)
  for (int i = begin; i < end; ++i) {
    shared.list.masses[i] = weights.mass(number_of_key(shared.list.keys[i]));
    mine += shared.list.masses[i];
  }

  // Top-k: equals of its last token stay.
  u64 total = cut.mass_before_top_k;
  int kept = count;
  sync_threads();
  if (cut.top_k_bin < kSampleBins - 1) {
    const int before = static_cast<int>(sum_list(shared, count, [&](int i) {
      return static_cast<u64>(weights.bin(number_of_key(shared.list.keys[i])) < cut.top_k_bin ? 1 : 0);
    }));
    const u64 last_key = shared.list.keys[before + cut.top_k_rank - 1];
    kept = static_cast<int>(sum_list(
        shared, count, [&](int i) { return static_cast<u64>(shared.list.keys[i] >= last_key ? 1 : 0); }));
    total += sum_list(shared, kept,
                      [&](int i) { return i < before ? static_cast<u64>(0) : shared.list.masses[i]; });
  }
  // Top-p: it wants no more than what top-k leaves.
  if (settings.top_p < 1.0f) {
    const u64 wanted = wanted_mass(settings.top_p, total) - cut.mass_before_first;
    u64 unused;
    u64 before = block_scan(mine, shared.warp_sums, unused) - mine;
    TESSERA_UNROLL_BY(1)
    for (int i = begin; i < end; ++i) {
      const u64 mass = shared.list.masses[i];
      if (before < wanted && before + mass >= wanted) shared.found = i;
      before += mass;
    }
    sync_threads();
    kept = shared.found + 1;
  }
  TESSERA_UNROLL_BY(1)
  for (int i = thread_x(); i < kept; i += kSampleThreads) {
    const u64 mass = weights.mass_above_min_p(number_of_key(shared.list.keys[i]));
    if (mass != 0) atomic_add(&shared.sums[shared.list.ids[i] / p.segment_tokens], mass);
  }
  sync_threads();
  return {shared.list.keys[kept - 1], shared.list.ids[kept - 1]};
}

/// The lowest id at which the running sum of measure(id, logit) over the row passes `target`, which is less
/// than the sum of all; shared.sums has those of the segments.
template <class Measure>
TESSERA_DEVICE int find_crossing(const SampleParams& p, const SampleRow& row, u64 target, DrawShared& shared,
                                 Measure measure) {
  u64 mine = shared.sums[thread_x()];
  u64 total;
  u64 through = block_scan(mine, shared.warp_sums, total);
  if (through - mine <= target && target < through) {
    shared.found = thread_x();
    shared.rest = target - (through - mine);
  }
  sync_threads();
  const int segment = shared.found;
  target = shared.rest;
  bool is_found = false;
  for_each_tile(p, segment, [&](int tile) {
    if (is_found) return;
    const TokenGroup group = row.load(tile);
    double logits[kGroupSize];
    row.get_logits(group, logits);
    u64 masses[kGroupSize];
    mine = 0;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      masses[i] = measure(group.first + i, logits[i]);
      mine += masses[i];
    }
    through = block_scan(mine, shared.warp_sums, total);
    if (through - mine <= target && target < through) {
      u64 sum = through - mine;
      int i = 0;
      TESSERA_UNROLL
      for (int n = 0; n < kGroupSize; ++n) {
        sum += masses[n];
        if (sum <= target) i = n + 1;
      }
      shared.found = group.first + i;
    }
    is_found = target < total;
    target -= total;
  });
  sync_threads();
  const int id = shared.found;
  sync_threads();
  return id;
}

// ---- Without a list: slower by far, but for any logits

/// Sums measure(id, logit) over a segment; all threads get the result.
template <class Measure>
TESSERA_DEVICE u64 sum_segment(const SampleParams& p, const SampleRow& row, int segment, u64* warp_sums,
                               Measure measure) {
  u64 sum = 0;
  for_each_tile(p, segment, [&](int tile) {
    const TokenGroup group = row.load(tile);
    double logits[kGroupSize];
    row.get_logits(group, logits);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) sum += measure(group.first + i, logits[i]);
  });
  return block_reduce(sum, static_cast<u64>(0), warp_sums, Add());
}

/// Calls body(id, logit) for all of the row's tokens.
template <class Body>
TESSERA_DEVICE void for_each_token(const SampleParams& p, const SampleRow& row, Body body) {
  for (int tile = 0; tile < p.vocab_size; tile += kSampleTile) {
    const TokenGroup group = row.load(tile);
    double logits[kGroupSize];
    row.get_logits(group, logits);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) body(group.first + i, logits[i]);
  }
}

/// The largest key from which on measure(logit) of all tokens reaches `wanted`, 1 to the measure of all;
/// `above`: the measure of larger keys. Digit by digit of the keys.
template <class Measure>
TESSERA_DEVICE u64 find_key(const SampleParams& p, const SampleRow& row, u64 wanted, DrawShared& shared,
                            u64& above, Measure measure) {
  constexpr int kDigitsAThread = kDigits / kSampleThreads;
  u64 key = 0;
  above = 0;
  for (int shift = 64; shift > 0;) {
    const int bits = minimum(shift, kDigitBits);
    const int next = shift - bits;
    shared.digits.clear();
    sync_threads();
    // Tokens that follow one another often have the same digit here.
    int pending = 0;
    u64 amount = 0;
    for_each_token(p, row, [&](int, double logit) {
      const u64 k = key_of(logit);
      if (shift < 64 && (k >> shift) != (key >> shift)) return;
      const u64 mass = measure(logit);
      if (mass == 0) return;
      const int digit = static_cast<int>((k >> next) & ((1u << bits) - 1));
      if (digit != pending && amount != 0) {
        shared.digits.add(pending, amount);
        amount = 0;
      }
      pending = digit;
      amount += mass;
    });
    if (amount != 0) shared.digits.add(pending, amount);
    sync_threads();
    const int first = kDigits - 1 - thread_x() * kDigitsAThread;
    u64 mine = 0;
    for (int n = 0; n < kDigitsAThread; ++n) mine += shared.digits.get(first - n);
    u64 total;
    u64 before = above + block_scan(mine, shared.warp_sums, total) - mine;
    for (int n = 0; n < kDigitsAThread; ++n) {
      const u64 mass = shared.digits.get(first - n);
      if (before < wanted && before + mass >= wanted) {
        shared.found = first - n;
        shared.rest = before;
      }
      before += mass;
    }
    sync_threads();
    key |= static_cast<u64>(shared.found) << next;
    above = shared.rest;
    sync_threads();
    shift = next;
  }
  return key;
}

/// Sums measure(id, logit) by segment.
template <class Measure>
TESSERA_DEVICE void sum_segments(const SampleParams& p, const SampleRow& row, DrawShared& shared,
                                 Measure measure) {
  for (int segment = 0; segment < p.num_segments; ++segment) {
    const u64 sum = sum_segment(p, row, segment, shared.warp_sums, measure);
    if (thread_x() == 0) shared.sums[segment] = sum;
  }
  sync_threads();
}

/// As cut_by_list.
TESSERA_DEVICE_NOINLINE LastKept cut_by_digits(const SampleParams& p, const SampleRow& row,
                                               const SampleCutBins& cut, const SamplerSettings& settings,
                                               const SampleWeights& weights, DrawShared& shared) {
  u64 total = cut.mass_before_top_k;
  LastKept last{0, kNoId};
  u64 above;
  if (cut.top_k_bin < kSampleBins - 1) {
    const auto is_in_bin = [&](double logit) { return weights.bin(logit) == cut.top_k_bin; };
    last.key = find_key(p, row, static_cast<u64>(cut.top_k_rank), shared, above,
                        [&](double logit) { return static_cast<u64>(is_in_bin(logit) ? 1 : 0); });
    u64 mine = 0;
    for_each_token(p, row, [&](int, double logit) {
      if (is_in_bin(logit) && key_of(logit) >= last.key) mine += weights.mass(logit);
    });
    total += block_reduce(mine, static_cast<u64>(0), shared.warp_sums, Add());
  }
  if (settings.top_p < 1.0f) {
    const u64 wanted = wanted_mass(settings.top_p, total) - cut.mass_before_first;
    const u64 least = last.key;
    last.key = find_key(p, row, wanted, shared, above, [&](double logit) {
      const int bin = weights.bin(logit);
      return bin >= cut.first && bin <= cut.last && key_of(logit) >= least ? weights.mass(logit)
                                                                           : static_cast<u64>(0);
    });
    // Of the tokens at the cut, all equally likely, the lower ids count as more likely.
    const u64 rank = (wanted - above - 1) / weights.mass(number_of_key(last.key));
    const auto is_tied = [&](int, double logit) {
      return static_cast<u64>(key_of(logit) == last.key ? 1 : 0);
    };
    sum_segments(p, row, shared, is_tied);
    last.id = find_crossing(p, row, rank, shared, is_tied);
  }
  sum_segments(p, row, shared, [&](int id, double logit) {
    const u64 mass = weights.mass_above_min_p(logit);
    return last.keeps(key_of(logit), id) ? mass : 0;
  });
  return last;
}

TESSERA_DEVICE int draw(const SampleParams& p, int batch_row, const SamplerSettings& settings,
                        const SampleScale& scale, DrawShared& shared) {
  const SampleScratch& scratch = p.scratch[batch_row];
  const int list_size = has_cut(settings, p) ? scratch.list_size : 0;
  const int64 step = p.steps[batch_row];
  shared.sums[thread_x()] = thread_x() < p.num_segments ? scratch.sums[thread_x()] : 0;
  const SampleRow row = row_of(p, batch_row, settings);
  const SampleWeights weights(scale, settings, p.weight_bits);
  LastKept last{0, kNoId};
  sync_threads();
  if (list_size > kSampleListSize) {
    last = cut_by_digits(p, row, scratch.cut, settings, weights, shared);
  } else if (list_size > 0) {
    last = cut_by_list(p, scratch, list_size, settings, weights, shared);
  }
  // Not 0: the most likely token always stays.
  const u64 total = block_reduce(shared.sums[thread_x()], static_cast<u64>(0), shared.warp_sums, Add());
  const double fraction = uniform(settings.seed, static_cast<u64>(step));
  const u64 target = minimum(static_cast<u64>(fraction * static_cast<double>(total)), total - 1);
  return find_crossing(p, row, target, shared, [&](int id, double logit) {
    const u64 mass = weights.mass_above_min_p(logit);
    return last.keeps(key_of(logit), id) ? mass : 0;
  });
}

}  // namespace tessera::kernels
