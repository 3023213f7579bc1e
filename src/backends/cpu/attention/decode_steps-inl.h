// What a decode tile does with some of its keys and values: products with the queries, the online softmax,
// sums of weighted values. Included once for each target.
//
// Scores and probabilities lie as [keys][kRows]: the softmax works on them as one flat array whose element e
// belongs to row e % kRows.
#if defined(TESSERA_CPU_ATTENTION_DECODE_STEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_DECODE_STEPS_INL_H_
#undef TESSERA_CPU_ATTENTION_DECODE_STEPS_INL_H_
#else
#define TESSERA_CPU_ATTENTION_DECODE_STEPS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/attention/math-inl.h"
#include "backends/cpu/attention/prefill-inl.h"
#include "backends/cpu/attention/rows-inl.h"
#include "backends/cpu/attention/stream_reader.h"
#include "backends/cpu/unroll.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

// Vectors of accumulators: 16 of AVX-512's and NEON's 32 registers, 8 of AVX2's 16.
constexpr int kDecodeAccumulators = HWY_TARGET == HWY_AVX2 ? 8 : 16;

/// The sum of a vector's 128-bit blocks.
template <class D>
HWY_INLINE hn::Vec<hn::Full128<float>> SumBlocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    static_cast<void>(d);
    return SumBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// The sums of the lanes of four vectors.
HWY_INLINE hn::Vec<hn::Full128<float>> SumLanesOfFour(hn::Vec<Floats> a, hn::Vec<Floats> b, hn::Vec<Floats> c,
                                                      hn::Vec<Floats> e) {
  const Floats d;
  const hn::Repartition<std::uint64_t, Floats> d64;
  // Within each 128-bit block: (a, b, a, b) and (c, e, c, e), then (a, b, c, e).
  const auto ab = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const auto sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab, ce)),
                            hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce)));
  return SumBlocks(d, sums);
}

/// Cache lines that kRows rows of a vector of T span.
template <class T, int kRows>
constexpr int kLinesOf = std::max<int>(1, kRows* static_cast<int>(kLanes * sizeof(T)) / 64);

// Rows of a head_dim that is no multiple of kLanes are read by a last vector that begins within the one
// before. Its place in q holds zeros for the numbers that were read already; in o they come out twice.

/// Moves the numbers after the last whole vector of a row to the end of the vector that they begin.
HWY_INLINE void PadFront(std::int64_t head_dim, float* row) {
  const std::int64_t rest = head_dim % kLanes;
  if (rest == 0) return;
  float* last = row + head_dim - rest;
  std::copy_backward(last, last + rest, last + kLanes);
  std::fill_n(last, kLanes - rest, 0.0f);
}

/// Moves them back.
HWY_INLINE void UnpadFront(std::int64_t head_dim, float* row) {
  const std::int64_t rest = head_dim % kLanes;
  float* last = row + head_dim - rest;
  std::copy_n(last + kLanes - rest, rest, last);
}

/// s[n * kRows + r] = q_r . k_n for kKeys keys from `first` on; the last key stands in for those past it.
template <class T, int kRows, int kKeys>
HWY_INLINE void DotKeys(const HeadRows& keys, std::int64_t first, const float* q, std::int64_t q_stride,
                        std::int64_t head_dim, StreamReader& reader, float* s) {
  const Floats d;
  using V = hn::Vec<Floats>;
  StreamReader ahead = reader;
  const std::byte* key[kKeys];
  TESSERA_UNROLL
  for (int n = 0; n < kKeys; ++n) key[n] = keys[std::min(first + n, keys.count - 1)];
  V sum[kKeys * kRows];
  TESSERA_UNROLL
  for (int i = 0; i < kKeys * kRows; ++i) sum[i] = hn::Zero(d);
  const auto add = [&](std::int64_t t, std::int64_t start) HWY_ATTR {
    V row[kRows];
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) row[r] = hn::Load(d, q + r * q_stride + t);
    ahead.advance<kLinesOf<T, kKeys>>();
    TESSERA_UNROLL
    for (int n = 0; n < kKeys; ++n) {
      const V k = LoadFloats<T>(d, key[n] + start * static_cast<std::int64_t>(sizeof(T)));
      TESSERA_UNROLL
      for (int r = 0; r < kRows; ++r) sum[n * kRows + r] = hn::MulAdd(row[r], k, sum[n * kRows + r]);
    }
  };
  std::int64_t t = 0;
  for (; t + kLanes <= head_dim; t += kLanes) add(t, t);
  if (t < head_dim) add(t, head_dim - kLanes);
  reader = ahead;
  const hn::Full128<float> d4;
  TESSERA_UNROLL
  for (int i = 0; i < kKeys * kRows; i += 4) {
    hn::StoreU(SumLanesOfFour(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]), d4, s + first * kRows + i);
  }
}

/// Keys that DotKeys takes at a time.
template <class T, int kRows>
constexpr int kKeysAtOnce = std::max(std::min(static_cast<int>(8 / sizeof(T)), kDecodeAccumulators / kRows),
                                     4 / kRows);

/// The largest of `total` scores in each lane; s is filled up to whole vectors with hidden ones.
HWY_INLINE hn::Vec<Floats> LargestOfLanes(std::int64_t total, float* s) {
  const Floats d;
  const float hidden = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = total; i < (total + kLanes - 1) / kLanes * kLanes; ++i) s[i] = hidden;
  auto largest = hn::Set(d, hidden);
  for (std::int64_t i = 0; i < total; i += kLanes) largest = hn::Max(largest, hn::Load(d, s + i));
  return largest;
}

/// The online softmax over `count` keys, like SoftmaxStep of the prefill kernel. s has room for a vector
/// more.
template <int kRows>
HWY_NOINLINE void DecodeSoftmax(std::int64_t count, float scale, float* s, float* row_max, float* row_sum,
                                float* rescale) {
  const Floats d;
  const float hidden = -std::numeric_limits<float>::infinity();
  const std::int64_t total = count * kRows;
  alignas(64) float lanes[kLanes];
  hn::Store(LargestOfLanes(total, s), d, lanes);
  alignas(64) float offset[kLanes];
  for (int r = 0; r < kRows; ++r) {
    float block_max = hidden;
    for (std::int64_t i = r; i < kLanes; i += kRows) block_max = std::max(block_max, lanes[i]);
    const float new_max = std::max(row_max[r], block_max * scale);
    const float safe_max = new_max == hidden ? 0.0f : new_max;
    rescale[r] = std::exp(row_max[r] - safe_max);
    row_max[r] = new_max;
    for (std::int64_t i = r; i < kLanes; i += kRows) offset[i] = safe_max;
  }
  const auto factor = hn::Set(d, scale);
  const auto offsets = hn::Load(d, offset);
  const auto hidden_score = hn::Set(d, hidden);
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < total; i += kLanes) {
    const auto score = hn::Load(d, s + i);
    const auto p = Exp(d, hn::MulSub(score, factor, offsets));
    sum = hn::Add(sum, p);
    // +0 for a hidden key alone: a visible one whose weight is too small gets -0.
    const auto vanished = hn::AndNot(hn::Eq(score, hidden_score), hn::Eq(p, hn::Zero(d)));
    hn::Store(hn::IfThenElse(vanished, hn::Set(d, -0.0f), p), d, s + i);
  }
  hn::Store(sum, d, lanes);
  for (int r = 0; r < kRows; ++r) {
    float block_sum = 0;
    for (std::int64_t i = r; i < kLanes; i += kRows) block_sum += lanes[i];
    row_sum[r] = row_sum[r] * rescale[r] + block_sum;
  }
}

// What follows has the prefill kernel's arithmetic, row by row and bit for bit, which batch_invariant asks
// for: a dot product adds up kScoreChunk words in a row, a block's weights and values are added in the order
// of the keys, apart from those of other blocks.

/// kLanes rows wherever they are.
struct ScatteredRows {
  const std::byte* const* rows;

  const std::byte* at(std::int64_t n) const { return rows[n]; }
};

/// kLanes rows at equal distances, which take six registers instead of a load each.
struct SpacedRows {
  SpacedRows(const std::byte* first, std::int64_t step_bytes)
      : step(step_bytes), three_steps(3 * step_bytes) {
    for (std::int64_t i = 0; i < kFours; ++i) fours[i] = first + 4 * i * step_bytes;
  }

  const std::byte* at(std::int64_t n) const {
    return fours[n / 4] + (n % 4 == 0 ? 0 : n % 4 == 3 ? three_steps : n % 4 * step);
  }

  static constexpr std::int64_t kFours = (kLanes + 3) / 4;
  const std::byte* fours[kFours];
  std::int64_t step;
  std::int64_t three_steps;
};

/// A vector whose 128-bit blocks come from the rows kFirst, kFirst + 4, kFirst + 8 ...
template <std::int64_t kFirst, class D, class Rows>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const Rows& rows, std::int64_t offset_bytes) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const float*>(rows.at(kFirst) + offset_bytes));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks<kFirst + hn::MaxLanes(half)>(half, rows, offset_bytes),
                       LoadBlocks<kFirst>(half, rows, offset_bytes));
  }
}

/// words[w] = word w of each of kLanes rows, from a 128-bit block of each.
template <class Rows>
HWY_INLINE void TransposeRowBlocks(const Rows& rows, std::int64_t offset_bytes, hn::Vec<Floats> (&words)[4]) {
  const Floats d;
  const hn::Repartition<std::uint64_t, Floats> d64;
  const auto x0 = LoadBlocks<0>(d, rows, offset_bytes);
  const auto x1 = LoadBlocks<1>(d, rows, offset_bytes);
  const auto x2 = LoadBlocks<2>(d, rows, offset_bytes);
  const auto x3 = LoadBlocks<3>(d, rows, offset_bytes);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, x0, x1));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, x0, x1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, x2, x3));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, x2, x3));
  words[0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
  words[1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
  words[2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
  words[3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
}

/// The numbers of T in the lower (kPart 0) or upper (1) half of each word; the word itself if T is fp32.
template <class T, int kPart>
HWY_INLINE hn::Vec<Floats> NumberOfWord(hn::Vec<Floats> word) {
  const Floats d;
  if constexpr (std::is_same_v<T, float>) {
    return word;
  } else {
    const hn::RebindToUnsigned<Floats> du;
    const auto bits = hn::BitCast(du, word);
    if constexpr (std::is_same_v<T, BFloat16>) {
      return hn::BitCast(d, kPart == 0 ? hn::ShiftLeft<16>(bits) : hn::And(bits, hn::Set(du, 0xffff0000u)));
    } else {
      const hn::Rebind<std::uint16_t, Floats> d16;
      const hn::Rebind<hwy::float16_t, Floats> half;
      const auto low =
          hn::TruncateTo(d16, kPart == 0 ? hn::And(bits, hn::Set(du, 0xffffu)) : hn::ShiftRight<16>(bits));
      return hn::PromoteTo(d, hn::BitCast(half, low));
    }
  }
}

/// s[n * kRows + r] = q_r . key_n for kLanes keys.
template <class T, int kRows, class Rows>
HWY_INLINE void DotRowsInOrder(const Rows& key, const float* q, std::int64_t q_stride, std::int64_t head_dim,
                               BasicStreamReader<CacheLevel::kSecond>& reader, float* s) {
  const Floats d;
  using V = hn::Vec<Floats>;
  constexpr std::int64_t kNumbers = 16 / sizeof(T);  // of a 128-bit block
  constexpr int kPerWord = 4 / sizeof(T);
  BasicStreamReader<CacheLevel::kSecond> ahead = reader;
  V sum[kRows];
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
  for (std::int64_t begin = 0; begin < head_dim; begin += kScoreChunk) {
    const std::int64_t end = std::min(begin + kScoreChunk, head_dim);
    V part[kRows];
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) part[r] = hn::Zero(d);
    const auto add = [&](std::int64_t t, int count) HWY_ATTR {
      ahead.advance<std::max<int>(kLanes / 4, 1)>();
      V words[4];
      TransposeRowBlocks(key, t * static_cast<std::int64_t>(sizeof(T)), words);
      TESSERA_UNROLL
      for (int w = 0; w < 4; ++w) {
        if (w >= count) continue;
        const float* at = q + t + w * kPerWord;
        const V low = NumberOfWord<T, 0>(words[w]);
        TESSERA_UNROLL
        for (int r = 0; r < kRows; ++r) part[r] = hn::MulAdd(low, hn::Set(d, at[r * q_stride]), part[r]);
        if constexpr (kPerWord == 2) {
          const V high = NumberOfWord<T, 1>(words[w]);
          TESSERA_UNROLL
          for (int r = 0; r < kRows; ++r)
            part[r] = hn::MulAdd(high, hn::Set(d, at[r * q_stride + 1]), part[r]);
        }
      }
    };
    std::int64_t t = begin;
    for (; t + kNumbers <= end; t += kNumbers) add(t, 4);
    if (t < end) add(t, static_cast<int>(end - t) / kPerWord);
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) sum[r] = begin == 0 ? part[r] : hn::Add(sum[r], part[r]);
  }
  reader = ahead;
  if constexpr (kRows == 1) {
    hn::StoreU(sum[0], d, s);
  } else if constexpr (kRows == 2) {
    hn::StoreInterleaved2(sum[0], sum[1], d, s);
  } else {
    hn::StoreInterleaved4(sum[0], sum[1], sum[2], sum[3], d, s);
  }
}

/// s[n * kRows + r] = q_r . k_n for kLanes keys from `first` on; the last key stands in for those past it.
template <class T, int kRows>
HWY_INLINE void DotKeysInOrder(const HeadRows& keys, std::int64_t first, const float* q,
                               std::int64_t q_stride, std::int64_t head_dim,
                               BasicStreamReader<CacheLevel::kSecond>& reader, float* s) {
  const std::byte* rows[kLanes];
  for (std::int64_t n = 0; n < kLanes; ++n) rows[n] = keys[std::min(first + n, keys.count - 1)];
  const std::int64_t step = rows[1] - rows[0];
  bool spaced = true;
  for (std::int64_t n = 2; n < kLanes; ++n) spaced &= rows[n] - rows[n - 1] == step;
  if (spaced) {
    DotRowsInOrder<T, kRows>(SpacedRows(rows[0], step), q, q_stride, head_dim, reader, s + first * kRows);
  } else {
    DotRowsInOrder<T, kRows>(ScatteredRows{rows}, q, q_stride, head_dim, reader, s + first * kRows);
  }
}

/// SoftmaxStep of the prefill kernel in the layout of DecodeSoftmax. Returns whether a key is hidden from
/// some row.
template <int kRows>
HWY_NOINLINE bool DecodeSoftmaxInOrder(std::int64_t count, float scale, float* s, float* row_max,
                                       float* row_sum, float* rescale) {
  const Floats d;
  const float hidden = -std::numeric_limits<float>::infinity();
  const std::int64_t total = count * kRows;
  alignas(64) float lanes[kLanes];
  hn::Store(LargestOfLanes(total, s), d, lanes);
  alignas(64) float offset[kLanes];
  alignas(64) float growth[kLanes] = {};
  for (int r = 0; r < kRows; ++r) {
    float block_max = hidden;
    for (std::int64_t i = r; i < kLanes; i += kRows) block_max = std::max(block_max, lanes[i]);
    const float new_max = std::max(row_max[r], block_max * scale);
    const float safe_max = new_max == hidden ? 0.0f : new_max;
    growth[r] = row_max[r] - safe_max;
    row_max[r] = new_max;
    for (std::int64_t i = r; i < kLanes; i += kRows) offset[i] = safe_max;
  }
  hn::Store(Exp(d, hn::Load(d, growth)), d, growth);
  const auto factor = hn::Set(d, scale);
  const auto offsets = hn::Load(d, offset);
  const auto hidden_score = hn::Set(d, hidden);
  std::size_t visible = 0;
  for (std::int64_t i = 0; i < total; i += kLanes) {
    const auto score = hn::Load(d, s + i);
    const auto p = Exp(d, hn::MulSub(score, factor, offsets));
    // +0 for a hidden key alone: a visible one whose weight is too small gets -0.
    const auto is_hidden = hn::Eq(score, hidden_score);
    visible += kLanes - hn::CountTrue(d, is_hidden);
    const auto vanished = hn::AndNot(is_hidden, hn::Eq(p, hn::Zero(d)));
    hn::Store(hn::IfThenElse(vanished, hn::Set(d, -0.0f), p), d, s + i);
  }
  for (int r = 0; r < kRows; ++r) {
    rescale[r] = growth[r];
    row_sum[r] *= growth[r];
  }
  if constexpr (kRows == 4) {
    const hn::Full128<float> d4;
    auto sum = hn::LoadU(d4, row_sum);
    for (std::int64_t i = 0; i < total; i += 4) sum = hn::Add(sum, hn::Load(d4, s + i));
    hn::StoreU(sum, d4, row_sum);
  } else {
    float sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = row_sum[r];
    for (std::int64_t i = 0; i < total; i += kRows) {
      for (int r = 0; r < kRows; ++r) sum[r] += s[i + r];
    }
    for (int r = 0; r < kRows; ++r) row_sum[r] = sum[r];
  }
  return visible != static_cast<std::size_t>(total);
}

/// Fewest keys whose values are added at a time: an even number.
template <class T>
constexpr std::int64_t kLeastValuesAtOnce = 16 / sizeof(T);
/// Bytes of more of them, since each time o is read and written: half of the first-level cache.
constexpr std::int64_t kValueBytesAtOnce = 16 << 10;

/// o_r += sum_n p[n][r] v_n over the keys [first, last), for kVectors vectors at `column` of o and of value
/// dimensions from `dim` on. kSkipsHidden: where p is +0, v is left out, whatever it holds.
template <class T, int kRows, int kVectors, bool kSkipsHidden, class Reader>
HWY_INLINE void WeighValues(const HeadRows& values, std::int64_t first, std::int64_t last, const float* p,
                            std::int64_t column, std::int64_t dim, Reader& reader, float* o,
                            std::int64_t o_stride) {
  const Floats d;
  using V = hn::Vec<Floats>;
  Reader ahead = reader;
  const std::byte* const* rows = values.rows;
  const std::int64_t offset = values.offset + dim * static_cast<std::int64_t>(sizeof(T));
  V sum[kRows][kVectors];
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::Load(d, o + r * o_stride + column + i * kLanes);
  }
  for (std::int64_t n = first; n < last; ++n) {
    ahead.template advance<kLinesOf<T, kVectors>>();
    const std::byte* row = rows[n] + offset;
    V value[kVectors];
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      value[i] = LoadFloats<T>(d, row + i * kLanes * static_cast<std::int64_t>(sizeof(T)));
    }
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float weight = p[n * kRows + r];
      if (kSkipsHidden && std::bit_cast<std::uint32_t>(weight) == 0) continue;
      const V w = hn::Set(d, weight);
      TESSERA_UNROLL
      for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::MulAdd(w, value[i], sum[r][i]);
    }
  }
  reader = ahead;
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) hn::Store(sum[r][i], d, o + r * o_stride + column + i * kLanes);
  }
}

/// Value vectors that WeighValues takes at a time.
constexpr int kValueVectors = kDecodeAccumulators / 4;

template <class T, int kRows, bool kSkipsHidden, class Reader>
HWY_NOINLINE void DecodeValues(const HeadRows& values, std::int64_t first, std::int64_t last, const float* p,
                               std::int64_t head_dim, Reader& reader, float* o, std::int64_t o_stride) {
  std::int64_t column = 0;
  for (; column + kValueVectors * kLanes <= head_dim; column += kValueVectors * kLanes) {
    WeighValues<T, kRows, kValueVectors, kSkipsHidden>(values, first, last, p, column, column, reader, o,
                                                       o_stride);
  }
  for (; column < head_dim; column += kLanes) {
    WeighValues<T, kRows, 1, kSkipsHidden>(values, first, last, p, column,
                                           std::min(column, head_dim - kLanes), reader, o, o_stride);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
