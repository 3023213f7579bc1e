// Draws a token from a row of logits in the order repetition penalty, temperature, top-k, top-p, min-p.
// Nothing is sorted: top-k and top-p are cuts at a key. A coarse histogram leaves few tokens that the cut may
// be at; among those it is found digit by digit of the keys. Weights are counted in units of 2^-weight_bits,
// so that sums are integers and the same in whatever order threads add. Arithmetic on logits is fp64, as on
// the CPU, so that the same logits give the same token unless a cut or the random number falls within about
// 2^-30 of a token's border.
//
// Grid: (batch); one block a row.

#include "common/integers.cuh"
#include "common/rows.cuh"

using namespace tessera::kernels;

constexpr int kSampleThreads = 1024;

namespace tessera::kernels {

using u64 = unsigned long long;

constexpr int kDigitBits = 11;
constexpr int kNumBins = 1 << kDigitBits;
constexpr int kMaxCandidates = 4096;  // that a list in shared memory holds

/// Unsigned integers in the order of the numbers.
TESSERA_DEVICE u64 key_of(double x) {
  x += 0.0;  // -0 becomes 0
  const u64 bits = bits_of(x);
  return bits >> 63 ? ~bits : bits | (1ull << 63);
}

struct SampleShared {
  u64 histogram[kNumBins];
  u64 sums[kMaxWarps];
  int counts[kMaxWarps];
  int candidates[kMaxCandidates];
  u64 bin_above;
  int bin;
};

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

/// A row of logits, and what became of its tokens so far.
struct SampleRow {
  const RowsArgument& logits;
  int64 offset;
  const unsigned* penalized;  // a bit a token; null: none is
  double penalty;
  double temperature;
  double top;       // the largest logit over temperature
  u64 least_key;    // of the penalised logit: candidates have at least this
  double unit;      // 2^weight_bits
  const int* list;  // candidates by rising id; null: all tokens
  int count;        // of them

  TESSERA_DEVICE int id(int index) const { return list == nullptr ? index : list[index]; }
  TESSERA_DEVICE double logit(int token) const {
    const double x = static_cast<double>(load_scalar(logits, offset + token));
    if (penalized == nullptr || !(penalized[token / 32] >> (token % 32) & 1u)) return x;
    return x < 0 ? x * penalty : x / penalty;
  }
  TESSERA_DEVICE double scaled(int token) const { return logit(token) / temperature; }
  TESSERA_DEVICE bool is_candidate(int token) const { return key_of(logit(token)) >= least_key; }
  /// exp(scaled - top); 0 for what is no candidate.
  TESSERA_DEVICE double weight(int token) const {
    const double x = logit(token);
    return key_of(x) >= least_key ? exp(x / temperature - top) : 0.0;
  }
  TESSERA_DEVICE u64 units(int token) const { return static_cast<u64>(weight(token) * unit); }
};

struct Largest64 {
  u64 key;
  int id;
};

TESSERA_DEVICE Largest64 larger(const Largest64& a, const Largest64& b) {
  return b.key > a.key || (b.key == a.key && b.id < a.id) ? b : a;
}

/// The largest logit and its lowest id; id -1 if there is none, or a NaN or +inf.
TESSERA_DEVICE Largest64 find_largest(const SampleRow& row, SampleShared& shared) {
  Largest64 best{0, 0x7fffffff};
  int invalid = 0;
  if (row.penalized == nullptr) {
    float value = -infinity();
    int id = 0x7fffffff;
    for (int first = thread_x() * kGroupSize; first < row.count; first += block_size() * kGroupSize) {
      float v[kGroupSize];
      const int count = minimum(kGroupSize, row.count - first);
      load_group<kAnyType>(row.logits, row.offset + first, count, v);
      TESSERA_UNROLL
      for (int i = 0; i < kGroupSize; ++i) {
        if (i >= count) continue;
        if (!(v[i] < infinity())) invalid = 1;
        if (v[i] > value) {
          value = v[i];
          id = first + i;
        }
      }
    }
    if (id != 0x7fffffff) best = {key_of(static_cast<double>(value)), id};
  } else {
    for (int token = thread_x(); token < row.count; token += block_size()) {
      const double x = row.logit(token);
      if (!(x < static_cast<double>(infinity()))) invalid = 1;
      if (x > -static_cast<double>(infinity())) best = larger(best, {key_of(x), token});
    }
  }
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    best = larger(best, {shuffle_xor(best.key, mask), shuffle_xor(best.id, mask)});
    invalid |= shuffle_xor(invalid, mask);
  }
  const int warp = thread_x() / kWarpSize;
  if (thread_x() % kWarpSize == 0) {
    shared.sums[warp] = best.key;
    shared.counts[warp] = invalid ? -1 : best.id;
  }
  sync_threads();
  for (int w = 0; w < block_size() / kWarpSize; ++w) {
    if (shared.counts[w] < 0) invalid = 1;
    best = larger(best, {shared.sums[w], shared.counts[w]});
  }
  sync_threads();
  if (invalid || best.id == 0x7fffffff) best.id = -1;
  return best;
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
  for (int w = 0; w < block_size() / kWarpSize; ++w) {
    if (w < warp) before_warp += scratch[w];
    total += scratch[w];
  }
  sync_threads();
  return before_warp + value;
}

/// Where a token that is `distance` below the most likely one counts, coarsely: rising with the distance.
TESSERA_DEVICE int coarse_bin(double distance) {
  const double bin = distance * 64.0;
  return bin < kNumBins - 1 ? static_cast<int>(bin) : kNumBins - 1;
}

/// Measures tokens by coarse bin. The last bin, where most tokens may be, is left out: nothing is cut there.
template <class Distance, class Measure>
TESSERA_DEVICE void fill_coarse_histogram(const SampleRow& row, SampleShared& shared, Distance distance,
                                          Measure measure) {
  for (int bin = thread_x(); bin < kNumBins; bin += block_size()) shared.histogram[bin] = 0;
  sync_threads();
  for (int index = thread_x(); index < row.count; index += block_size()) {
    const int token = row.id(index);
    const int bin = coarse_bin(distance(token));
    if (bin == kNumBins - 1) continue;
    const u64 amount = measure(token);
    if (amount != 0) atomic_add(&shared.histogram[bin], amount);
  }
  sync_threads();
}

/// The coarse bin in which the sum of all up to it reaches `wanted`; the last bin if none does. `total`: the
/// sum of all.
TESSERA_DEVICE int find_coarse_bin(u64 wanted, SampleShared& shared, u64& total) {
  const int per_thread = kNumBins / block_size();
  const int first = thread_x() * per_thread;
  u64 mine = 0;
  for (int n = 0; n < per_thread; ++n) mine += shared.histogram[first + n];
  if (thread_x() == 0) shared.bin = kNumBins - 1;
  const u64 through = block_scan(mine, shared.sums, total);
  u64 before = through - mine;
  if (before < wanted && through >= wanted) {
    int bin = first;
    while (before + shared.histogram[bin] < wanted) before += shared.histogram[bin++];
    shared.bin = bin;
  }
  sync_threads();
  const int bin = shared.bin;
  sync_threads();
  return bin;
}

/// The cut: keys of at least `least` together measure at least what is wanted, those of later bins less.
struct Cut {
  u64 least;   // lower edge of the last bin looked at
  u64 above;   // measure of the keys above that bin
  bool exact;  // the bin is a single key
};

/// Finds the largest key at which the measure of all keys from there on reaches `wanted`, 1 to the measure of
/// all. Stops early if a bin's edge measures exactly `wanted`.
template <class Key, class Measure>
TESSERA_DEVICE Cut find_cut(const SampleRow& row, u64 wanted, SampleShared& shared, Key key,
                            Measure measure) {
  Cut cut{0, 0, false};
  int shift = 64;
  while (shift > 0) {
    const int bits = shift < kDigitBits ? shift : kDigitBits;
    const int next = shift - bits;
    for (int bin = thread_x(); bin < kNumBins; bin += block_size()) shared.histogram[bin] = 0;
    sync_threads();
    for (int index = thread_x(); index < row.count; index += block_size()) {
      const int token = row.id(index);
      const u64 k = key(token);
      if (shift < 64 && (k >> shift) != (cut.least >> shift)) continue;
      const u64 amount = measure(token);
      if (amount != 0) atomic_add(&shared.histogram[(k >> next) & ((1u << bits) - 1)], amount);
    }
    sync_threads();
    // Bins from the top: each thread takes some that lie together.
    const int per_thread = kNumBins / block_size();
    const int first = kNumBins - 1 - thread_x() * per_thread;
    u64 mine = 0;
    for (int n = 0; n < per_thread; ++n) mine += shared.histogram[first - n];
    u64 total;
    const u64 through = block_scan(mine, shared.sums, total);
    u64 above = cut.above + through - mine;
    if (above < wanted && above + mine >= wanted) {
      int bin = first;
      while (above + shared.histogram[bin] < wanted) above += shared.histogram[bin--];
      shared.bin = bin;
      shared.bin_above = above;
    }
    sync_threads();
    cut.above = shared.bin_above;
    cut.least |= static_cast<u64>(shared.bin) << next;
    const bool reached = cut.above + shared.histogram[shared.bin] == wanted;
    sync_threads();
    shift = next;
    if (reached && shift > 0) return cut;
  }
  cut.exact = true;
  return cut;
}

/// The lowest index at which the running sum of `measure` over row's tokens passes `target`; target < the sum
/// of all.
template <class Measure>
TESSERA_DEVICE int find_crossing(const SampleRow& row, u64 target, SampleShared& shared, Measure measure) {
  const int warps = block_size() / kWarpSize;
  const int warp = thread_x() / kWarpSize;
  int begin = 0;
  int end = row.count;
  u64 before = 0;
  while (end - begin > 1) {
    const int per_warp = (end - begin + warps - 1) / warps;
    u64 sum = 0;
    const int warp_end = minimum(begin + (warp + 1) * per_warp, end);
    for (int index = begin + warp * per_warp + thread_x() % kWarpSize; index < warp_end; index += kWarpSize) {
      sum += measure(row.id(index));
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (thread_x() % kWarpSize == 0) shared.sums[warp] = sum;
    sync_threads();
    int chosen = 0;
    while (chosen < warps - 1 && before + shared.sums[chosen] <= target) before += shared.sums[chosen++];
    sync_threads();
    begin = begin + chosen * per_warp;
    end = minimum(begin + per_warp, end);
  }
  return begin;
}

template <class Measure>
TESSERA_DEVICE u64 total_of(const SampleRow& row, SampleShared& shared, Measure measure) {
  u64 sum = 0;
  for (int index = thread_x(); index < row.count; index += block_size()) sum += measure(row.id(index));
  return block_reduce(sum, static_cast<u64>(0), shared.sums, Add());
}

/// Puts the tokens for which keep(token) holds into a list, by rising id, if the list can hold them.
template <class Keep>
TESSERA_DEVICE void compact(SampleRow& row, SampleShared& shared, Keep keep) {
  if (row.list != nullptr) return;
  int kept = 0;
  for (int first = 0; first < row.count; first += block_size()) {
    const int token = first + thread_x();
    const int flag = token < row.count && keep(token) ? 1 : 0;
    int total;
    const int place = kept + block_scan(flag, shared.counts, total) - 1;
    if (flag && place < kMaxCandidates) shared.candidates[place] = token;
    kept += total;
    if (kept > kMaxCandidates) return;
  }
  sync_threads();
  row.list = shared.candidates;
  row.count = kept;
}

TESSERA_DEVICE void mark_history(const SampleParams& p, unsigned* bits) {
  const int words = (p.vocab_size + 31) / 32;
  for (int word = thread_x(); word < words; word += block_size()) bits[word] = 0;
  sync_threads();
  const int* history = p.history + block_x() * p.history_stride;
  for (int i = thread_x(); i < p.history_lens[block_x()]; i += block_size()) {
    const int token = history[i];
    if (token >= 0 && token < p.vocab_size) atomic_or(&bits[token / 32], 1u << (token % 32));
  }
  sync_threads();
}

TESSERA_DEVICE int draw(const SampleParams& p, SampleShared& shared, unsigned* bits) {
  const SamplerSettings settings = p.settings[block_x()];
  SampleRow row{p.logits,
                block_x() * p.logits.row_stride,
                nullptr,
                static_cast<double>(settings.repetition_penalty),
                static_cast<double>(settings.temperature),
                0.0,
                0,
                static_cast<double>(1ull << p.weight_bits),
                nullptr,
                p.vocab_size};
  if (settings.repetition_penalty != 1.0f && p.history != nullptr) {
    mark_history(p, bits);
    row.penalized = bits;
  }
  const Largest64 largest = find_largest(row, shared);
  if (largest.id < 0 || settings.temperature == 0.0f) return largest.id;
  row.top = row.scaled(largest.id);

  const auto raw_key = [&](int token) { return key_of(row.logit(token)); };
  if (settings.top_k > 0 && settings.top_k < p.vocab_size) {
    const u64 wanted = static_cast<u64>(settings.top_k);
    const double top_logit = row.logit(largest.id);
    const auto one = [](int) { return static_cast<u64>(1); };
    const auto distance = [&](int token) { return top_logit - row.logit(token); };
    fill_coarse_histogram(row, shared, distance, one);
    u64 total;
    const int bin = find_coarse_bin(wanted, shared, total);
    if (bin < kNumBins - 1)
      compact(row, shared, [&](int token) { return coarse_bin(distance(token)) <= bin; });
    row.least_key = find_cut(row, wanted, shared, raw_key, one).least;
  }

  const double min_p = static_cast<double>(settings.min_p);
  u64 least_scaled = 0;       // tokens below this key of logit / temperature are out
  int last_tie = 0x7fffffff;  // of those at it, tokens above this id
  const auto units = [&](int token) { return row.units(token); };
  const auto scaled_key = [&](int token) { return key_of(row.scaled(token)); };
  if (settings.top_p < 1.0f) {
    const auto distance = [&](int token) { return row.top - row.scaled(token); };
    fill_coarse_histogram(row, shared, distance, units);
    u64 total;
    find_coarse_bin(0, shared, total);
    // Keep a token if those more likely have less than this.
    const double exact = static_cast<double>(settings.top_p) * static_cast<double>(total);
    u64 wanted = static_cast<u64>(exact);
    if (static_cast<double>(wanted) < exact) ++wanted;
    wanted = minimum(maximum<u64>(wanted, 1), total);
    const int bin = find_coarse_bin(wanted, shared, total);
    if (bin < kNumBins - 1)
      compact(row, shared, [&](int token) { return coarse_bin(distance(token)) <= bin; });
    const Cut cut = find_cut(row, wanted, shared, scaled_key, units);
    least_scaled = cut.least;
    if (cut.exact) {
      // Of the tokens at the cut, all equally likely, the lower ids count as more likely.
      const auto tied_units = [&](int token) {
        return scaled_key(token) == cut.least ? row.units(token) : static_cast<u64>(0);
      };
      last_tie = row.id(find_crossing(row, wanted - cut.above - 1, shared, tied_units));
    }
  }

  const auto kept_units = [&](int token) {
    const double weight = row.weight(token);
    if (weight < min_p) return static_cast<u64>(0);
    if (least_scaled != 0) {
      const u64 key = scaled_key(token);
      if (key < least_scaled || (key == least_scaled && token > last_tie)) return static_cast<u64>(0);
    }
    return static_cast<u64>(weight * row.unit);
  };
  const u64 total = total_of(row, shared, kept_units);  // not 0: the most likely token always stays
  const double fraction = uniform(settings.seed, static_cast<u64>(p.steps[block_x()]));
  const u64 target = minimum(static_cast<u64>(fraction * static_cast<double>(total)), total - 1);
  return row.id(find_crossing(row, target, shared, kept_units));
}

}  // namespace tessera::kernels

TESSERA_KERNEL(sample_any, kSampleThreads)(const SampleParams p) {
  allow_next_kernel();
  wait_for_prior_kernels();
  TESSERA_SHARED(shared, SampleShared);
  TESSERA_DYNAMIC_SHARED(bits);
  const int token = draw(p, shared, reinterpret_cast<unsigned*>(bits));
  if (thread_x() == 0) p.tokens[block_x()] = token;
}
