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

#include "common/sample_draw.cuh"
#include "common/sample_row.cuh"

using namespace tessera::kernels;

namespace tessera::kernels {

static_assert(kSampleBins % kSampleThreads == 0);

/// Which row of the batch a block is for, and which of its blocks it is.
struct SampleBlock {
  int row;
  int part;

  TESSERA_DEVICE explicit SampleBlock(const SampleParams& p)
      : row(block_x() / p.blocks_per_row), part(block_x() % p.blocks_per_row) {}
};

/// Goes through the tiles of a block's segments. A tile's logits are on the way while the one before it is
/// looked at.
class BlockTiles {
 public:
  TESSERA_DEVICE BlockTiles(const SampleParams& p, const SampleBlock& block, const SampleRow& row)
      : p_(p), row_(row), segment_(block.part) {
    enter_segment();
    if (!is_done()) next_ = row_.load(tile_);
  }

  TESSERA_DEVICE bool is_done() const { return segment_ >= p_.num_segments; }
  /// Of the tile that take() gives next.
  TESSERA_DEVICE int segment() const { return segment_; }
  TESSERA_DEVICE TokenGroup take() {
    const TokenGroup group = next_;
    tile_ += kSampleTile;
    if (tile_ >= end_) {
      segment_ += p_.blocks_per_row;
      enter_segment();
    }
    if (!is_done()) next_ = row_.load(tile_);
    return group;
  }

 private:
  TESSERA_DEVICE void enter_segment() {
    if (is_done()) return;
    tile_ = segment_ * p_.segment_tokens;
    end_ = minimum(p_.segment_tokens, p_.vocab_size - tile_) + tile_;
  }

  const SampleParams& p_;
  const SampleRow& row_;
  int segment_;
  int tile_, end_;
  TokenGroup next_;
};

// ---- sample_largest

/// Sets the bits of the history's tokens in the block's segments, and clears the others there.
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
  for (BlockTiles tiles(p, block, row); !tiles.is_done();) {
    const TokenGroup group = tiles.take();
    if (row.penalized == nullptr) {
      take_plain(group, largest, id, least);
      continue;
    }
    double logits[kGroupSize];
    row.get_logits(group, logits);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (!(group.v[i] < infinity())) result.key = ~0ull;
      if (logits[i] > -static_cast<double>(infinity()))
        result = larger(result, {key_of(logits[i]), group.first + i, -infinity()});
    }
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
                              BlockTiles& tiles, Histogram& shared) {
  const bool counts = uses_top_k(settings, p);
  const bool masses = settings.top_p < 1.0f;
  shared.masses.clear();
  for (int bin = thread_x(); bin < kSampleBins; bin += kSampleThreads) shared.counts[bin] = 0;
  sync_threads();
  while (!tiles.is_done()) {
    double logits[kGroupSize];
    row.get_logits(tiles.take(), logits);
    int bins[kGroupSize];
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) bins[i] = weights.bin(logits[i]);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (counts && bins[i] < kSampleBins - 1) atomic_add(&shared.counts[bins[i]], 1u);
    }
    if (!masses) continue;
    u64 group_masses[kGroupSize];
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) group_masses[i] = weights.mass(logits[i]);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (bins[i] < kSampleBins - 1) shared.masses.add(bins[i], group_masses[i]);
    }
  }
  sync_threads();
  SampleScratch& scratch = p.scratch[block.row];
  for (int bin = thread_x(); bin < kSampleBins; bin += kSampleThreads) {
    if (shared.counts[bin] != 0) atomic_add(&scratch.counts[bin], shared.counts[bin]);
    const u64 mass = shared.masses.get(bin);
    if (mass != 0) atomic_add(&scratch.masses[bin], mass);
  }
}

// ---- sample_gather

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

/// Tokens of a tile that may stay.
struct TileQueue {
  float v[kSampleTile];
  int ids[kSampleTile];  // ~id where there is a penalty
  int size;
};

/// Most tokens are far below the cuts, as one comparison tells; the others are spread over all threads again.
TESSERA_DEVICE void queue_group(const TokenGroup& group, float least, TileQueue& queue) {
  unsigned chosen = group.penalized;
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) chosen |= group.v[i] >= least ? 1u << i : 0u;
  int count = 0;
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) count += static_cast<int>(chosen >> i & 1u);
  if (count == 0) return;
  int place = atomic_add(&queue.size, count);
  TESSERA_UNROLL
  for (int i = 0; i < kGroupSize; ++i) {
    if (!(chosen >> i & 1u)) continue;
    queue.v[place] = group.v[i];
    queue.ids[place++] = group.penalized >> i & 1u ? ~(group.first + i) : group.first + i;
  }
}

/// Puts the queue's tokens in the cuts' bins into the row's list; gives the mass of those in bins before.
TESSERA_DEVICE u64 list_queue(const TileQueue& queue, const SampleRow& row, const SampleWeights& weights,
                              const SampleCutBins& cut, SampleScratch& scratch) {
  u64 sum = 0;
  for (int n = thread_x(); n < queue.size; n += kSampleThreads) {
    const bool is_penalized = queue.ids[n] < 0;
    const double x = static_cast<double>(queue.v[n]);
    const double logit = is_penalized ? row.penalty.apply(x) : x;
    const int bin = weights.bin(logit);
    if (bin < cut.first) {
      sum += weights.mass_above_min_p(logit);
    } else if (is_listed(cut, bin)) {
      const int place = atomic_add(&scratch.list_size, 1);
      if (place >= kSampleListSize) continue;
      scratch.list_keys[place] = key_of(logit);
      scratch.list_ids[place] = is_penalized ? ~queue.ids[n] : queue.ids[n];
    }
  }
  return sum;
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
  const bool is_greedy = settings.temperature == 0.0f;
  if (is_greedy && block.part != 0) return;
  SampleScratch& scratch = p.scratch[block.row];
  const SampleRow row = row_of(p, block.row, settings);
  BlockTiles tiles(p, block, row);
  const LargestLogit largest = block_largest(
      thread_x() < p.blocks_per_row ? scratch.largest_parts[thread_x()] : no_logit(), warp_largest);
  const bool is_valid = largest.key != 0 && largest.key != ~0ull;
  SampleScale scale = {float_of_bits(0x7fc00000u), 0, 0};
  if (is_valid && !is_greedy) scale = scale_of(settings, largest, p.weight_bits);
  if (block.part == 0 && thread_x() == 0) {
    scratch.scale = scale;
    p.tokens[block.row] = is_valid ? largest.id : -1;
  }
  if (is_greedy || !is_valid) return;
  const SampleWeights weights(scale, settings, p.weight_bits);
  if (has_cut(settings, p)) {
    fill_bins(p, block, row, settings, weights, tiles, histogram);
    return;
  }
  for (u64 sum = 0; !tiles.is_done();) {
    const int segment = tiles.segment();
    double logits[kGroupSize];
    row.get_logits(tiles.take(), logits);
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) sum += weights.mass_above_min_p(logits[i]);
    if (tiles.segment() == segment) continue;
    sum = block_reduce(sum, static_cast<u64>(0), warp_sums, Add());
    if (thread_x() == 0) scratch.sums[segment] = sum;
    sum = 0;
  }
}

TESSERA_KERNEL(sample_gather, kSampleThreads)(const SampleParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(shared, FindBins);
  TESSERA_SHARED(queue, TileQueue);
  const SampleBlock block(p);
  const SamplerSettings settings = p.settings[block.row];
  if (settings.temperature == 0.0f || !has_cut(settings, p)) return;
  SampleScratch& scratch = p.scratch[block.row];
  const SampleScale scale = scratch.scale;
  if (scale.top != scale.top) return;
  const SampleRow row = row_of(p, block.row, settings);
  BlockTiles tiles(p, block, row);
  const SampleCutBins cut = find_bins(p, scratch, settings, shared);
  if (block.part == 0 && thread_x() == 0) scratch.cut = cut;
  const SampleWeights weights(scale, settings, p.weight_bits);
  const float least =
      weights.least_of_bin(cut.top_k_bin < kSampleBins - 1 ? maximum(cut.last, cut.top_k_bin) : cut.last);
  if (thread_x() == 0) queue.size = 0;
  sync_threads();
  for (u64 sum = 0; !tiles.is_done();) {
    const int segment = tiles.segment();
    queue_group(tiles.take(), least, queue);
    sync_threads();
    sum += list_queue(queue, row, weights, cut, scratch);
    sync_threads();
    if (thread_x() == 0) queue.size = 0;
    if (tiles.segment() == segment) {
      sync_threads();
      continue;
    }
    sum = block_reduce(sum, static_cast<u64>(0), shared.warp_sums, Add());
    if (thread_x() == 0) scratch.sums[segment] = sum;
    sum = 0;
  }
}

TESSERA_KERNEL(sample_draw, kSampleThreads)(const SampleParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(shared, DrawShared);
  const int row = block_x();
  const SamplerSettings settings = p.settings[row];
  const SampleScale scale = p.scratch[row].scale;
  if (settings.temperature == 0.0f || scale.top != scale.top) return;
  const int token = draw(p, row, settings, scale, shared);
  if (thread_x() == 0) p.tokens[row] = token;
}
