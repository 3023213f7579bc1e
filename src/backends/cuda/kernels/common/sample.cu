// Draws a token from a row of logits in the order repetition penalty, temperature, top-k, top-p, min-p.
// Four kernels, each of which needs what all blocks of the one before found in a row:
//
//   sample_largest   the most likely token, part by part; marks the tokens of the history
//   sample_measure   top-k, top-p: how many tokens each bin of likelihood has, and their mass; the blocks of
//                    other rows sum the mass of each segment. Greedy rows have their token now
//   sample_gather    top-k, top-p: the bins that the cuts go through. Masses of what is more likely, by
//                    segment, and a list of the tokens in those bins
//   sample_draw      sorts the list to find the cuts, then the segment and in it the token that the random
//                    number falls on
//
// Masses are weights exp((logit - top) / temperature) counted in units of 2^-weight_bits, so that sums are
// integers and the same in whatever order and by however many blocks they are taken. Arithmetic on logits is
// fp64, as on the CPU, so that the same logits give the same token unless a cut or the random number falls
// within about 2^-30 of a token's border. A list that does not hold its tokens (thousands that are equal, or
// nearly) is done without, by one block that reads the row several times.
//
// Grid: (batch * blocks_per_row), sample_draw: (batch).

#include "common/sample_row.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

static_assert(kMaxSegments == kSampleThreads && kSampleBins % kSampleThreads == 0);

/// Which row of the batch a block is for, and which of its blocks it is.
struct SampleBlock {
  int row;
  int part;

  TESSERA_DEVICE explicit SampleBlock(const SampleParams& p)
      : row(block_x() / p.blocks_per_row), part(block_x() % p.blocks_per_row) {}
};

TESSERA_DEVICE bool uses_top_k(const SamplerSettings& settings, const SampleParams& p) {
  return settings.top_k > 0 && settings.top_k < p.vocab_size;
}
TESSERA_DEVICE bool has_cut(const SamplerSettings& settings, const SampleParams& p) {
  return uses_top_k(settings, p) || settings.top_p < 1.0f;
}

TESSERA_DEVICE bool is_valid(const LargestLogit& largest) { return largest.key != 0 && largest.key != ~0ull; }

TESSERA_DEVICE SampleRow row_of(const SampleParams& p, int row, const SamplerSettings& settings) {
  const bool penalizes = settings.repetition_penalty != 1.0f && p.history != nullptr;
  return {p.logits, row * p.logits.row_stride, p.vocab_size,
          penalizes ? p.penalized + row * p.penalized_words : nullptr,
          static_cast<double>(settings.repetition_penalty)};
}

/// Calls body(tile_begin) for the tiles of a segment.
template <class Body>
TESSERA_DEVICE void for_each_tile(const SampleParams& p, int segment, Body body) {
  const int begin = segment * p.segment_tokens;
  const int end = minimum(p.segment_tokens, p.vocab_size - begin) + begin;
  for (int tile = begin; tile < end; tile += kSampleTile) body(tile);
}

// ---- sample_largest

/// Marks those of the block's segments.
TESSERA_DEVICE void mark_history(const SampleParams& p, const SampleBlock& block) {
  unsigned* bits = p.penalized + block.row * p.penalized_words;
  const int words = p.segment_tokens / 32;
  for (int segment = block.part; segment < p.num_segments; segment += p.blocks_per_row) {
    for (int word = thread_x(); word < words; word += kSampleThreads)
      bits[static_cast<int64>(segment) * words + word] = 0;
  }
  sync_threads();
  const int* history = p.history + block.row * p.history_stride;
  const int length = p.history_lens[block.row];
  for (int i = thread_x(); i < length; i += kSampleThreads) {
    const int token = history[i];
    if (token < 0 || token >= p.vocab_size) continue;
    if (token / p.segment_tokens % p.blocks_per_row == block.part)
      atomic_or(&bits[token / 32], 1u << (token % 32));
  }
  sync_threads();
}

TESSERA_DEVICE void clear_bins(const SampleParams& p, const SampleBlock& block) {
  SampleScratch& scratch = p.scratch[block.row];
  if (block.part == 0 && thread_x() == 0) scratch.list_size = 0;
  for (int bin = block.part * kSampleThreads + thread_x(); bin < kSampleBins;
       bin += p.blocks_per_row * kSampleThreads) {
    scratch.masses[bin] = 0;
    scratch.counts[bin] = 0;
  }
}

/// Adds a group without penalties to the largest of the thread.
TESSERA_DEVICE void take_plain(const TokenGroup& group, float& largest, int& id, float& least) {
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) {
    const float v = group.v[i];
    if (v > largest || v != v) {  // a NaN stays
      largest = v;
      id = group.first + i;
    }
    if (v > -infinity()) least = minimum(least, v);
  }
}

TESSERA_DEVICE LargestLogit largest_of_part(const SampleParams& p, const SampleBlock& block,
                                            const SampleRow& row) {
  float largest = -infinity(), least = infinity();
  int id = kNoId;
  LargestLogit result = no_logit();
  for (int segment = block.part; segment < p.num_segments; segment += p.blocks_per_row) {
    for_each_tile(p, segment, [&](int tile) {
      const TokenGroup group = row.load(tile);
      if (row.penalized == nullptr) return take_plain(group, largest, id, least);
      for (int i = 0; i < kGroupSize; ++i) {
        const double x = row.logit(group, i);
        if (!(group.v[i] < infinity())) result.key = ~0ull;
        if (x > -static_cast<double>(infinity()))
          result = larger(result, {key_of(x), group.first + i, -infinity()});
      }
    });
  }
  if (row.penalized != nullptr) return result;
  if (id == kNoId) return no_logit();
  return {largest < infinity() ? key_of(static_cast<double>(largest)) : ~0ull, id, least};
}

// ---- sample_measure

struct Histogram {
  SplitSums<kSampleBins> masses;
  unsigned counts[kSampleBins];
};

/// Adds the tokens of the block to the row's bins; only what the row's cuts need. Nothing is cut in the last
/// bin.
TESSERA_DEVICE void fill_bins(const SampleParams& p, const SampleBlock& block, const SampleRow& row,
                              const SamplerSettings& settings, const SampleWeights& weights,
                              Histogram& shared) {
  const bool counts = uses_top_k(settings, p);
  const bool masses = settings.top_p < 1.0f;
  shared.masses.clear();
  for (int bin = thread_x(); bin < kSampleBins; bin += kSampleThreads) shared.counts[bin] = 0;
  sync_threads();
  for (int segment = block.part; segment < p.num_segments; segment += p.blocks_per_row) {
    for_each_tile(p, segment, [&](int tile) {
      const TokenGroup group = row.load(tile);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) {
        const double logit = row.logit(group, i);
        const int bin = weights.bin(logit);
        if (bin == kSampleBins - 1) continue;
        if (counts) atomic_add(&shared.counts[bin], 1u);
        if (masses) shared.masses.add(bin, weights.mass(logit));
      }
    });
  }
  sync_threads();
  SampleScratch& scratch = p.scratch[block.row];
  for (int bin = thread_x(); bin < kSampleBins; bin += kSampleThreads) {
    if (shared.counts[bin] != 0) atomic_add(&scratch.counts[bin], shared.counts[bin]);
    const u64 mass = shared.masses.get(bin);
    if (mass != 0) atomic_add(&scratch.masses[bin], mass);
  }
}

/// Sums measure(token, logit) over a segment; the result is valid in all threads.
template <class Measure>
TESSERA_DEVICE u64 sum_segment(const SampleParams& p, const SampleRow& row, int segment, u64* warp_sums,
                               Measure measure) {
  u64 sum = 0;
  for_each_tile(p, segment, [&](int tile) {
    const TokenGroup group = row.load(tile);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) sum += measure(group.first + i, row.logit(group, i));
  });
  return block_reduce(sum, static_cast<u64>(0), warp_sums, Add());
}

// ---- sample_gather

/// The share of `total` that top-p wants: tokens stay as long as those more likely have less.
TESSERA_DEVICE u64 wanted_mass(float top_p, u64 total) {
  const double exact = static_cast<double>(top_p) * static_cast<double>(total);
  u64 wanted = static_cast<u64>(exact);
  if (static_cast<double>(wanted) < exact) ++wanted;
  return maximum<u64>(wanted, 1);
}

struct FindBins {
  u64 warp_sums[kMaxWarps];
  u64 mass_through_top_k;
  SampleCutBins cut;
};

/// Top-p's share is of what top-k leaves. Where top-k cuts within a bin that is not known yet but within the
/// bin's mass, so top-p's bin is known within a few.
TESSERA_DEVICE SampleCutBins find_bins(const SampleParams& p, const SampleScratch& scratch,
                                       const SamplerSettings& settings, FindBins& shared) {
  constexpr int kBinsAThread = kSampleBins / kSampleThreads;
  const int first = thread_x() * kBinsAThread;
  const bool top_k = uses_top_k(settings, p);
  const bool top_p = settings.top_p < 1.0f;
  if (thread_x() == 0) shared.cut = {0, 0, kSampleBins - 1, kSampleBins - 1, kSampleBins - 1, 0};
  if (top_k) {
    unsigned counts[kBinsAThread];
    u64 mine = 0;
    for (int n = 0; n < kBinsAThread; ++n) {
      counts[n] = scratch.counts[first + n];
      mine += counts[n];
    }
    u64 total;
    u64 before = block_scan(mine, shared.warp_sums, total) - mine;
    const u64 wanted = static_cast<u64>(settings.top_k);
    for (int n = 0; n < kBinsAThread; before += counts[n++]) {
      if (before >= wanted || before + counts[n] < wanted) continue;
      shared.cut.top_k_bin = first + n;
      shared.cut.top_k_rank = static_cast<int>(wanted - before);
    }
  }
  sync_threads();
  const int top_k_bin = shared.cut.top_k_bin;
  if (!top_p) {
    sync_threads();
    if (thread_x() == 0) shared.cut.first = shared.cut.last = top_k_bin;
    sync_threads();
    return shared.cut;
  }
  u64 masses[kBinsAThread];
  u64 mine = 0;
  for (int n = 0; n < kBinsAThread; ++n) {
    masses[n] = scratch.masses[first + n];
    mine += masses[n];
  }
  u64 total;
  const u64 before_thread = block_scan(mine, shared.warp_sums, total) - mine;
  u64 before = before_thread;
  for (int n = 0; n < kBinsAThread; before += masses[n++]) {
    if (first + n != top_k_bin) continue;
    shared.cut.mass_before_top_k = before;
    shared.mass_through_top_k = before + masses[n];
  }
  sync_threads();
  const u64 least = wanted_mass(settings.top_p, shared.cut.mass_before_top_k);
  const u64 most = wanted_mass(settings.top_p, shared.mass_through_top_k);
  before = before_thread;
  for (int n = 0; n < kBinsAThread; before += masses[n++]) {
    if (before < least && before + masses[n] >= least) {
      shared.cut.first = first + n;
      shared.cut.mass_before_first = before;
    }
    if (before < most && before + masses[n] >= most) shared.cut.last = first + n;
  }
  sync_threads();
  return shared.cut;
}

TESSERA_DEVICE bool is_listed(const SampleCutBins& cut, int bin) {
  return bin < kSampleBins - 1 && ((bin >= cut.first && bin <= cut.last) || bin == cut.top_k_bin);
}

TESSERA_DEVICE void list_group(const SampleRow& row, const TokenGroup& group, const SampleWeights& weights,
                               const SampleCutBins& cut, SampleScratch& scratch) {
  int count = 0;
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) count += is_listed(cut, weights.bin(row.logit(group, i))) ? 1 : 0;
  if (count == 0) return;
  int place = atomic_add(&scratch.list_size, count);
  for (int i = 0; i < kGroupSize; ++i) {
    const double logit = row.logit(group, i);
    if (!is_listed(cut, weights.bin(logit)) || place >= kSampleListSize) continue;
    scratch.list_keys[place] = key_of(logit);
    scratch.list_ids[place++] = group.first + i;
  }
}

// ---- sample_draw

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

struct DrawShared {
  union {
    struct {
      u64 keys[kSampleListSize];
      int ids[kSampleListSize];
    } list;
    SplitSums<kDigits> digits;
  };
  u64 sums[kMaxSegments];
  u64 warp_sums[kMaxWarps];
  u64 rest;
  int found;
};

/// Sorts the list's first `count` tokens, the most likely first, by a bitonic network. `count` becomes at
/// most a power of two of places.
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
      for (int pair = thread_x(); pair < size / 2; pair += kSampleThreads) {
        const int a = pair / stride * 2 * stride + pair % stride;
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
      sync_threads();
    }
  }
}

/// How many of the list's tokens satisfy keep(index).
template <class Keep>
TESSERA_DEVICE int count_list(DrawShared& shared, int count, Keep keep) {
  u64 mine = 0;
  for (int i = thread_x(); i < count; i += kSampleThreads) mine += keep(i) ? 1 : 0;
  return static_cast<int>(block_reduce(mine, static_cast<u64>(0), shared.warp_sums, Add()));
}

/// Cuts by the list of `count` tokens, and adds those that stay to the segments' sums.
TESSERA_DEVICE LastKept cut_by_list(const SampleParams& p, const SampleScratch& scratch, int count,
                                    const SamplerSettings& settings, const SampleWeights& weights,
                                    DrawShared& shared) {
  const SampleCutBins cut = scratch.cut;
  for (int i = thread_x(); i < count; i += kSampleThreads) {
    shared.list.keys[i] = scratch.list_keys[i];
    shared.list.ids[i] = scratch.list_ids[i];
  }
  sort_list(shared, count);
  const auto logit = [&](int i) { return number_of_key(shared.list.keys[i]); };

  // Top-k: equals of its last token stay.
  u64 total = cut.mass_before_top_k;
  int kept = count;
  if (cut.top_k_bin < kSampleBins - 1) {
    const int before =
        count_list(shared, count, [&](int i) { return weights.bin(logit(i)) < cut.top_k_bin; });
    const u64 last_key = shared.list.keys[before + cut.top_k_rank - 1];
    kept = count_list(shared, count, [&](int i) { return shared.list.keys[i] >= last_key; });
    u64 mine = 0;
    for (int i = before + thread_x(); i < kept; i += kSampleThreads) mine += weights.mass(logit(i));
    total += block_reduce(mine, static_cast<u64>(0), shared.warp_sums, Add());
  }
  // Top-p.
  if (settings.top_p < 1.0f) {
    const u64 wanted = wanted_mass(settings.top_p, total) - cut.mass_before_first;
    const int places = (kept + kSampleThreads - 1) / kSampleThreads;
    const int begin = minimum(thread_x() * places, kept);
    const int end = minimum(begin + places, kept);
    u64 mine = 0;
    for (int i = begin; i < end; ++i) mine += weights.mass(logit(i));
    u64 unused;
    u64 before = block_scan(mine, shared.warp_sums, unused) - mine;
    for (int i = begin; i < end; ++i) {
      const u64 mass = weights.mass(logit(i));
      if (before < wanted && before + mass >= wanted) shared.found = i;
      before += mass;
    }
    sync_threads();
    kept = shared.found + 1;
  }
  for (int i = thread_x(); i < kept; i += kSampleThreads) {
    const u64 mass = weights.mass_above_min_p(logit(i));
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
  u64 mine = thread_x() < p.num_segments ? shared.sums[thread_x()] : 0;
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
    u64 masses[kGroupSize];
    mine = 0;
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      masses[i] = measure(group.first + i, row.logit(group, i));
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

// Without a list. Slower by far, but for any logits.

/// Calls body(id, logit) for all of the row's tokens.
template <class Body>
TESSERA_DEVICE void for_each_token(const SampleParams& p, const SampleRow& row, Body body) {
  for (int tile = 0; tile < p.vocab_size; tile += kSampleTile) {
    const TokenGroup group = row.load(tile);
    for (int i = 0; i < kGroupSize; ++i) body(group.first + i, row.logit(group, i));
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
TESSERA_DEVICE LastKept cut_by_digits(const SampleParams& p, const SampleRow& row, const SampleCutBins& cut,
                                      const SamplerSettings& settings, const SampleWeights& weights,
                                      DrawShared& shared) {
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
    return last.keeps(key_of(logit), id) ? weights.mass_above_min_p(logit) : static_cast<u64>(0);
  });
  return last;
}

TESSERA_DEVICE int draw(const SampleParams& p, int batch_row, const SamplerSettings& settings,
                        const LargestLogit& largest, DrawShared& shared) {
  const SampleScratch& scratch = p.scratch[batch_row];
  const SampleRow row = row_of(p, batch_row, settings);
  const SampleWeights weights = weights_of(settings, largest, p.weight_bits);
  if (thread_x() < p.num_segments) shared.sums[thread_x()] = scratch.sums[thread_x()];
  sync_threads();
  LastKept last{0, kNoId};
  if (has_cut(settings, p)) {
    const int count = scratch.list_size;
    if (count > kSampleListSize) {
      last = cut_by_digits(p, row, scratch.cut, settings, weights, shared);
    } else if (count > 0) {
      last = cut_by_list(p, scratch, count, settings, weights, shared);
    }
  }
  const u64 mine = thread_x() < p.num_segments ? shared.sums[thread_x()] : 0;
  // Not 0: the most likely token always stays.
  const u64 total = block_reduce(mine, static_cast<u64>(0), shared.warp_sums, Add());
  const double fraction = uniform(settings.seed, static_cast<u64>(p.steps[batch_row]));
  const u64 target = minimum(static_cast<u64>(fraction * static_cast<double>(total)), total - 1);
  return find_crossing(p, row, target, shared, [&](int id, double logit) {
    return last.keeps(key_of(logit), id) ? weights.mass_above_min_p(logit) : static_cast<u64>(0);
  });
}

}  // namespace tessera::kernels

TESSERA_KERNEL(sample_largest, kSampleThreads)(const SampleParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(shared, LargestLogit[kMaxWarps]);
  const SampleBlock block(p);
  const SamplerSettings settings = p.settings[block.row];
  const SampleRow row = row_of(p, block.row, settings);
  if (row.penalized != nullptr) mark_history(p, block);
  if (settings.temperature != 0.0f && has_cut(settings, p)) clear_bins(p, block);
  const LargestLogit largest = block_largest(largest_of_part(p, block, row), shared);
  if (thread_x() == 0) p.scratch[block.row].largest_parts[block.part] = largest;
}

TESSERA_KERNEL(sample_measure, kSampleThreads)(const SampleParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(warp_largest, LargestLogit[kMaxWarps]);
  TESSERA_SHARED(warp_sums, u64[kMaxWarps]);
  TESSERA_SHARED(histogram, Histogram);
  const SampleBlock block(p);
  const SamplerSettings settings = p.settings[block.row];
  if (settings.temperature == 0.0f && block.part != 0) return;
  SampleScratch& scratch = p.scratch[block.row];
  const LargestLogit largest = block_largest(
      thread_x() < p.blocks_per_row ? scratch.largest_parts[thread_x()] : no_logit(), warp_largest);
  if (block.part == 0 && thread_x() == 0) {
    scratch.largest = largest;
    p.tokens[block.row] = is_valid(largest) ? largest.id : -1;
  }
  if (settings.temperature == 0.0f || !is_valid(largest)) return;
  const SampleRow row = row_of(p, block.row, settings);
  const SampleWeights weights = weights_of(settings, largest, p.weight_bits);
  if (has_cut(settings, p)) {
    fill_bins(p, block, row, settings, weights, histogram);
    return;
  }
  for (int segment = block.part; segment < p.num_segments; segment += p.blocks_per_row) {
    const u64 sum = sum_segment(p, row, segment, warp_sums,
                                [&](int, double logit) { return weights.mass_above_min_p(logit); });
    if (thread_x() == 0) scratch.sums[segment] = sum;
  }
}

TESSERA_KERNEL(sample_gather, kSampleThreads)(const SampleParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(shared, FindBins);
  const SampleBlock block(p);
  const SamplerSettings settings = p.settings[block.row];
  SampleScratch& scratch = p.scratch[block.row];
  if (settings.temperature == 0.0f || !has_cut(settings, p) || !is_valid(scratch.largest)) return;
  const SampleRow row = row_of(p, block.row, settings);
  const SampleWeights weights = weights_of(settings, scratch.largest, p.weight_bits);
  const SampleCutBins cut = find_bins(p, scratch, settings, shared);
  if (block.part == 0 && thread_x() == 0) scratch.cut = cut;
  for (int segment = block.part; segment < p.num_segments; segment += p.blocks_per_row) {
    u64 sum = 0;
    for_each_tile(p, segment, [&](int tile) {
      const TokenGroup group = row.load(tile);
      list_group(row, group, weights, cut, scratch);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) {
        const double logit = row.logit(group, i);
        if (weights.bin(logit) < cut.first) sum += weights.mass_above_min_p(logit);
      }
    });
    sum = block_reduce(sum, static_cast<u64>(0), shared.warp_sums, Add());
    if (thread_x() == 0) scratch.sums[segment] = sum;
  }
}

TESSERA_KERNEL(sample_draw, kSampleThreads)(const SampleParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(shared, DrawShared);
  const int row = block_x();
  const SamplerSettings settings = p.settings[row];
  if (settings.temperature == 0.0f) return;
  const LargestLogit largest = p.scratch[row].largest;
  if (!is_valid(largest)) return;
  const int token = draw(p, row, settings, largest, shared);
  if (thread_x() == 0) p.tokens[row] = token;
}
