// A tile of few queries (the heads of a group, mostly for one query): fused attention with head_dim in the
// lanes of the vectors, so that k and v stream from memory straight into multiply-adds. Included once for
// each target.
//
// Scores and probabilities lie as [keys][kRows]: the softmax works on them as one flat array whose element e
// belongs to row e % kRows.
#if defined(TESSERA_CPU_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_DECODE_INL_H_
#undef TESSERA_CPU_ATTENTION_DECODE_INL_H_
#else
#define TESSERA_CPU_ATTENTION_DECODE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "attention/narrow.h"
#include "attention/token_rows.h"
#include "backends/cpu/attention/bias-inl.h"
#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/attention/math-inl.h"
#include "backends/cpu/attention/modifier.h"
#include "backends/cpu/attention/prefill-inl.h"
#include "backends/cpu/attention/rows-inl.h"
#include "backends/cpu/attention/softcap-inl.h"
#include "backends/cpu/attention/stream_reader.h"
#include "backends/cpu/unroll.h"
#include "core/block_format.h"
#include "core/rounding.h"

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

/// Keys whose rows the prefill kernel's order takes side by side.
constexpr std::int64_t kKeysInOrder = kLanes;

/// A decode tile at work. kInOrder: with the prefill kernel's arithmetic. The key-value heads of a task lie
/// next to each other in memory, so that all of a token's are read before the next token's.
template <class T, int kRows, bool kInOrder>
class DecodeTile {
  // In the prefill kernel's order many tokens are worked on at a time, as many KiB as the first-level cache
  // has.
  using Reader = BasicStreamReader<kInOrder ? CacheLevel::kSecond : CacheLevel::kFirst>;
  // With bf16_: both products sum pairs in the prefill kernel's order, of rows of any length.
  static constexpr bool kPairsInOrder = kInOrder && std::is_same_v<T, BFloat16>;

 public:
  DecodeTile(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16)
      : call_(call),
        task_(task),
        bf16_(bf16),
        layout_(call.layout),
        heads_(call.shape.decode_heads),
        rows_(task.row_end - task.row_begin),
        chunks_((rows_ + kRows - 1) / kRows),
        q_stride_(std::max<std::int64_t>(Padded(call.shape.head_dim_qk), bf16 != nullptr ? 32 : 0)),
        o_stride_(bf16 == nullptr        ? Padded(call.shape.head_dim_v)
                  : call.shape.narrow_kv ? round_up(call.shape.head_dim_v, 64)
                                         : round_up(call.shape.head_dim_v, 32)),
        s_stride_(decode_keys(call.shape) * kRows),
        narrow_(call.shape.narrow_kv),
        e4m3_(bf16 != nullptr && narrow_ ? e4m3_dot_kernels(call.target) : nullptr),
        k_in_vectors_((!kInOrder && bf16 != nullptr) ||
                      decode_reads_keys(call.shape, kLanes, sizeof(T), kInOrder)),
        v_in_vectors_(bf16 != nullptr || decode_reads_values(call.shape, kLanes, kInOrder)),
        k_rows_(Part<const std::byte*>(layout_.pointers)),
        v_rows_(k_rows_ + call.shape.block_n + kMaxRowsAhead),
        stream_bytes_(RunBytes(std::min(call.shape.head_dim_qk, call.shape.head_dim_v))),
        ahead_(std::min<std::int64_t>(
            std::max<std::int64_t>(kBytesLoadedAhead / stream_bytes_, kInOrder ? kKeysInOrder : 1),
            std::min<std::int64_t>(call.shape.block_n, kMaxRowsAhead))) {}

  void Run() {
    for (std::int64_t i = 0; i < heads_ * chunks_; ++i) Start(i);
    const KeyRange keys = keys_of_rows(call_, task_, task_.row_begin, task_.row_end);
    if (call_.modifier != nullptr) {
      modifier_.emplace(call_, heads_ * chunks_, kRows);
      for (std::int64_t i = 0; i < heads_ * chunks_; ++i)
        modifier_->begin_rows(i, TaskOfHead(i / chunks_), FirstRow(i), LastRow(i));
    }
    // Pairs begin at even keys. One before the first is hidden, and another stands in for it.
    const bool begins_in_pair = sums_pairs_in_order() && !keys.empty() && keys.begin % 2 != 0;
    const std::int64_t first_key = keys.begin - (begins_in_pair ? 1 : 0);
    KeyRange block{first_key, first_key};
    while (block.end < keys.end) {
      // Blocks begin at the first key, or at multiples of block_n.
      const std::int64_t block_n = call_.shape.block_n;
      const std::int64_t size = block_n - (kInOrder ? block.end % block_n : 0);
      block = {block.end, std::min(block.end + size, keys.end)};
      if (modifier_ && !AnySeen(block)) continue;
      const std::int64_t skipped = std::max(keys.begin - block.begin, std::int64_t{0});
      kv_rows(call_, task_, call_.problem->k, block.begin + skipped, block.end, k_rows_ + skipped);
      kv_rows(call_, task_, call_.problem->v, block.begin + skipped, block.end, v_rows_ + skipped);
      if (skipped > 0) {
        k_rows_[0] = k_rows_[1];
        v_rows_[0] = v_rows_[1];
      }
      LookAhead(block, keys.end);
      Score(block);
      Weigh(block);
    }
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t r = 0; r < rows_; ++r) Finish(h, r);
    }
    if constexpr (kPairsInOrder) {
      // These take all of the scratch memory.
      for (const std::int64_t head : spoilt_) {
        TileTask task = TaskOfHead(head);
        if (task.partial != nullptr) task.partial += head * task.partial_head_stride;
        PrefillTile<T>(call_, task, bf16_).Run();
      }
    }
  }

 private:
  bool sums_pairs_in_order() const { return kPairsInOrder && bf16_ != nullptr; }

  static std::int64_t Padded(std::int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

  template <class Element>
  Element* Part(std::size_t offset) const {
    return reinterpret_cast<Element*>(task_.scratch + offset);
  }

  // What belongs to chunk i = head * chunks_ + chunk of rows.
  float* Queries(std::int64_t i) const { return Part<float>(layout_.q) + i * kRows * q_stride_; }
  float* Output(std::int64_t i) const { return Part<float>(layout_.o) + i * kRows * o_stride_; }
  float* BlockOutput(std::int64_t i) const { return Part<float>(layout_.block_o) + i * kRows * o_stride_; }
  /// What a block's values are added to.
  float* Target(std::int64_t i) const { return kInOrder ? BlockOutput(i) : Output(i); }
  float* Rescale(std::int64_t i) const { return Part<float>(layout_.rescale) + i * kRows; }
  float* RowMax(std::int64_t i) const { return Part<float>(layout_.row_max) + i * kRows; }
  float* RowSum(std::int64_t i) const { return Part<float>(layout_.row_sum) + i * kRows; }
  /// Probabilities as pairs of bf16, in the place of the scores: pair n is written after scores 2 n and 2 n +
  /// 1 are read.
  std::uint32_t* Pairs(std::int64_t i) const { return Part<std::uint32_t>(layout_.s) + i * s_stride_; }
  float* Scores(std::int64_t i) const { return Part<float>(layout_.s) + i * s_stride_; }

  TileTask TaskOfHead(std::int64_t head) const {
    TileTask task = task_;
    task.kv_head += static_cast<int>(head);
    return task;
  }

  /// Loads the queries of a chunk; rows past the last are zeros.
  void Start(std::int64_t i) {
    const TileTask task = TaskOfHead(i / chunks_);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t row = task.row_begin + i % chunks_ * kRows + r;
      float* q = Queries(i) + r * q_stride_;
      if (row < task.row_end) {
        const std::byte* source = q_row(call_, task, query_of_row(call_, row), head_of_row(call_, task, row));
        if (bf16_ != nullptr) {
          std::fill_n(q, q_stride_, 0.0f);
          auto* words = reinterpret_cast<std::uint32_t*>(q);
          if (call_.shape.narrow_q) {
            e4m3_->widen_row(source, call_.shape.head_dim_qk, words);
          } else {
            PairRow(source, call_.shape.head_dim_qk, words);
          }
          if (e4m3_ != nullptr) e4m3_->arrange_query(call_.shape.head_dim_qk, words);
        } else if (call_.shape.narrow_q) {
          ConvertNarrowRow(source, token_rows_.q_scale(task.kv_head), call_.shape.head_dim_qk, q_stride_, q);
          if (k_in_vectors_ && !kInOrder) PadFront(call_.shape.head_dim_qk, q);
        } else {
          ConvertRow<T>(source, call_.shape.head_dim_qk, q_stride_, q);
          if (k_in_vectors_ && !kInOrder) PadFront(call_.shape.head_dim_qk, q);
        }
      } else {
        std::fill_n(q, q_stride_, 0.0f);
      }
    }
    std::fill_n(Output(i), kRows * o_stride_, 0.0f);
    std::fill_n(RowMax(i), kRows, -std::numeric_limits<float>::infinity());
    std::fill_n(RowSum(i), kRows, 0.0f);
  }

  /// Completes the rows of a block with those that are read after them: the keys' with its values', the
  /// values' with the next block's keys'.
  void LookAhead(KeyRange block, std::int64_t keys_end) {
    const std::int64_t size = block.size();
    for (std::int64_t n = 0; n < ahead_; ++n) k_rows_[size + n] = v_rows_[std::min(n, size - 1)];
    const std::int64_t next_end = std::min(block.end + ahead_, keys_end);
    kv_rows(call_, task_, call_.problem->k, block.end, next_end, v_rows_ + size);
    for (std::int64_t n = std::max<std::int64_t>(next_end - block.end, 0); n < ahead_; ++n) {
      v_rows_[size + n] = v_rows_[size + n - 1];
    }
  }

  /// Bytes of a token's rows of all heads of the task.
  std::int64_t RunBytes(int head_dim) const {
    return heads_ * head_dim * static_cast<std::int64_t>(narrow_ ? 1 : sizeof(T));
  }

  /// Probabilities of a block of keys. The heads take turns after a few keys: memory comes at its full rate
  /// only in the order of its addresses.
  void Score(KeyRange keys) {
    if (!k_in_vectors_)
      CopyPadded(k_rows_, keys, call_.shape.head_dim_qk, layout_.k,
                 [&](std::int64_t j) { return token_rows_.k_scale(j, task_.kv_head); });
    const std::int64_t head_bytes = RunBytes(call_.shape.head_dim_qk) / heads_;
    const StreamedRows stream(k_rows_ + ahead_, keys.size(), stream_bytes_);
    Reader reader(stream);
    constexpr int kStep = kInOrder ? kKeysInOrder : kKeysAtOnce<T, kRows>;
    for (std::int64_t n = 0; n < keys.size(); n += kStep) {
      Reader again = reader;
      for (std::int64_t i = 0; i < heads_ * chunks_; ++i) {
        Reader& ahead = NextReader(i, reader, again);
        if constexpr (kInOrder) {
          if (sums_pairs_in_order()) {
            DecodeDotArguments dot;
            dot.rows = kRows;
            dot.keys = {k_rows_, keys.size(), k_in_vectors_ ? i / chunks_ * head_bytes : 0};
            dot.q = reinterpret_cast<const std::uint32_t*>(Queries(i));
            dot.q_stride = q_stride_;
            dot.head_dim = round_up(call_.shape.head_dim_qk, 8);
            dot.s = Scores(i);
            bf16_->decode_dot_in_order(dot, n, kScoreChunk, ahead);
          } else if (k_in_vectors_) {
            const HeadRows rows{k_rows_, keys.size(), i / chunks_ * head_bytes};
            DotKeysInOrder<T, kRows>(rows, n, Queries(i), q_stride_, call_.shape.head_dim_qk, ahead,
                                     Scores(i));
          } else {
            const HeadRows rows{k_rows_, keys.size(), 0};
            DotKeysInOrder<float, kRows>(rows, n, Queries(i), q_stride_, call_.shape.head_dim_qk, ahead,
                                         Scores(i));
          }
        } else if (bf16_ != nullptr) {
          DecodeDotArguments dot;
          dot.rows = kRows;
          dot.keys = {k_rows_, keys.size(), i / chunks_ * head_bytes};
          dot.q = reinterpret_cast<const std::uint32_t*>(Queries(i));
          dot.q_stride = q_stride_;
          dot.head_dim = call_.shape.head_dim_qk;
          dot.s = Scores(i);
          if (e4m3_ != nullptr) {
            e4m3_->decode_dot(dot, n, ahead);
          } else {
            bf16_->decode_dot(dot, n, ahead);
          }
        } else if (k_in_vectors_) {
          const HeadRows rows{k_rows_, keys.size(), i / chunks_ * head_bytes};
          const auto dot = narrow_ ? DotKeys<Float8E4M3, kRows, kStep> : DotKeys<T, kRows, kStep>;
          dot(rows, n, Queries(i), q_stride_, call_.shape.head_dim_qk, ahead, Scores(i));
        } else {
          const HeadRows rows{k_rows_, keys.size(), 0};
          DotKeys<float, kRows, kStep>(rows, n, Queries(i), q_stride_, q_stride_, ahead, Scores(i));
        }
      }
    }
    any_hidden_ = false;
    for (std::int64_t i = 0; i < heads_ * chunks_; ++i) {
      if (narrow_ && k_in_vectors_) ScaleScores(i, keys);
      const float* bias = MaskScores(i, keys);
      if (modifier_) Modify(i, keys, bias);
      if constexpr (kInOrder) {
        any_hidden_ |= DecodeSoftmaxInOrder<kRows>(keys.size(), call_.transforms_scores ? 1.0f : call_.scale,
                                                   Scores(i), RowMax(i), RowSum(i), Rescale(i));
        std::fill_n(BlockOutput(i), kRows * o_stride_, 0.0f);
        if (bf16_ != nullptr) bf16_->pair_decode_probabilities(kRows, Scores(i), keys.size(), Pairs(i));
        continue;
      }
      float rescale[kRows];
      DecodeSoftmax<kRows>(keys.size(), call_.transforms_scores ? 1.0f : call_.scale, Scores(i), RowMax(i),
                           RowSum(i), rescale);
      RescaleOutput(i, rescale);
      if (narrow_ && v_in_vectors_) ScaleWeights(i, keys);
      if (bf16_ != nullptr) bf16_->pair_decode_probabilities(kRows, Scores(i), keys.size(), Pairs(i));
    }
  }

  /// The scales of some keys, for the scores of a chunk: kRows of each key.
  template <class ScaleOf>
  const float* ScalesOf(KeyRange keys, const ScaleOf& scale_of) {
    const auto& paged = call_.problem->paged_kv;
    float* scales = Part<float>(layout_.bias);
    std::int64_t end = 0;
    for (std::int64_t key = keys.begin; key < keys.end; key = end) {
      end = paged ? std::min(keys.end, (key / paged->page_size + 1) * paged->page_size) : keys.end;
      std::fill(scales + (key - keys.begin) * kRows, scales + (end - keys.begin) * kRows, scale_of(key));
    }
    std::fill_n(scales + keys.size() * kRows, kLanes, 0.0f);
    return scales;
  }

  /// What the steps on narrow keys and values left out beside their scales.
  float LeftOut() const { return e4m3_ != nullptr ? 1.0f : kLeftOutFactor<Float8E4M3>; }

  /// Multiplies scores with narrow keys by the keys' scales, and by the query's if it isn't multiplied yet.
  void ScaleScores(std::int64_t i, KeyRange keys) {
    const int head = TaskOfHead(i / chunks_).kv_head;
    const float q_scale = e4m3_ != nullptr ? token_rows_.q_scale(head) : 1.0f;
    const float* scales =
        ScalesOf(keys, [&](std::int64_t key) { return q_scale * token_rows_.k_scale(key, head); });
    const Floats d;
    const auto left_out = hn::Set(d, LeftOut());
    for (float* s = Scores(i); s < Scores(i) + keys.size() * kRows; s += kLanes, scales += kLanes) {
      const auto x = hn::Load(d, s);
      // Beyond fp32, where a small scale would bring it back: NaN, which has the row computed anew.
      const auto spoilt = hn::Sub(x, x);
      hn::Store(hn::MulAdd(hn::Mul(x, hn::Load(d, scales)), left_out, spoilt), d, s);
    }
  }

  /// Multiplies weights by the scales of the narrow values that they are for. +0 stays what it says, that a
  /// key is hidden, and nothing becomes it.
  void ScaleWeights(std::int64_t i, KeyRange keys) {
    const int head = TaskOfHead(i / chunks_).kv_head;
    const float* scales = ScalesOf(keys, [&](std::int64_t key) { return token_rows_.v_scale(key, head); });
    const Floats d;
    const hn::RebindToUnsigned<Floats> du;
    const auto left_out = hn::Set(d, LeftOut());
    // Pairs of bf16 take what is below for +0.
    const auto smallest = hn::Set(
        d, e4m3_ != nullptr ? std::numeric_limits<float>::min() : std::numeric_limits<float>::denorm_min());
    for (float* p = Scores(i); p < Scores(i) + keys.size() * kRows; p += kLanes, scales += kLanes) {
      const auto weight = hn::Load(d, p);
      const auto scaled = hn::Mul(hn::Mul(weight, left_out), hn::Load(d, scales));
      const auto nonzero = hn::IfThenElse(hn::Lt(hn::Abs(scaled), smallest), hn::Set(d, -0.0f), scaled);
      const auto is_hidden = hn::RebindMask(d, hn::Eq(hn::BitCast(du, weight), hn::Zero(du)));
      hn::Store(hn::IfThenZeroElse(is_hidden, nonzero), d, p);
    }
  }

  /// Most blocks bring no new largest score, and nothing to do here.
  void RescaleOutput(std::int64_t i, const float* rescale) {
    for (int r = 0; r < kRows; ++r) {
      if (rescale[r] == 1) continue;
      float* o = Output(i) + r * o_stride_;
      for (std::int64_t j = 0; j < o_stride_; ++j) o[j] *= rescale[r];
    }
  }

  /// Of a head's chunks of rows, which read the same, the first takes the reader on.
  Reader& NextReader(std::int64_t i, Reader& reader, Reader& again) const {
    if (i % chunks_ == 0) {
      again = reader;
      return reader;
    }
    return again;
  }

  /// Adds the values of a block of keys to the output; the heads take turns.
  void Weigh(KeyRange keys) {
    if (!v_in_vectors_)
      CopyPadded(v_rows_, keys, call_.shape.head_dim_v, layout_.v,
                 [&](std::int64_t j) { return token_rows_.v_scale(j, task_.kv_head); });
    const std::int64_t head_bytes = RunBytes(call_.shape.head_dim_v) / heads_;
    const StreamedRows stream(v_rows_ + ahead_, keys.size(), stream_bytes_);
    Reader reader(stream);
    bool any_hidden = any_hidden_;
    for (std::int64_t c = 0; c < chunks_ && !kInOrder; ++c) any_hidden |= MayHide(c, keys);
    const std::int64_t fitting = kInOrder ? 0 : kValueBytesAtOnce / stream.row_bytes / 2 * 2;
    const std::int64_t step = std::max(fitting, kLeastValuesAtOnce<T>);
    for (std::int64_t n = 0; n < keys.size(); n += step) {
      const std::int64_t last = std::min(n + step, keys.size());
      Reader again = reader;
      for (std::int64_t i = 0; i < heads_ * chunks_; ++i) {
        Reader& ahead = NextReader(i, reader, again);
        HeadRows rows{v_rows_, keys.size(), 0};
        if (bf16_ != nullptr) {
          DecodeWeighArguments weigh;
          weigh.rows = kRows;
          weigh.values = {v_rows_, keys.size(), i / chunks_ * head_bytes};
          weigh.p = Pairs(i);
          weigh.head_dim = call_.shape.head_dim_v;
          weigh.o = Target(i);
          weigh.o_stride = o_stride_;
          weigh.skips_hidden = any_hidden;
          if constexpr (kInOrder) {
            bf16_->decode_weigh_in_order(weigh, n, last, ahead);
          } else if (e4m3_ != nullptr) {
            e4m3_->decode_weigh(weigh, n, last, ahead);
          } else {
            bf16_->decode_weigh(weigh, n, last, ahead);
          }
        } else if (v_in_vectors_) {
          rows.offset = i / chunks_ * head_bytes;
          const auto weigh = narrow_      ? any_hidden ? DecodeValues<Float8E4M3, kRows, true, Reader>
                                                       : DecodeValues<Float8E4M3, kRows, false, Reader>
                                  : any_hidden ? DecodeValues<T, kRows, true, Reader>
                                          : DecodeValues<T, kRows, false, Reader>;
          weigh(rows, n, last, Scores(i), call_.shape.head_dim_v, ahead, Target(i), o_stride_);
        } else {
          const auto weigh = any_hidden ? DecodeValues<float, kRows, true, Reader>
                                        : DecodeValues<float, kRows, false, Reader>;
          weigh(rows, n, last, Scores(i), o_stride_, ahead, Target(i), o_stride_);
        }
      }
    }
    for (std::int64_t i = 0; i < heads_ * chunks_ && kInOrder; ++i) AddBlock(i);
  }

  /// o = rescale * o + what the block's values came to.
  void AddBlock(std::int64_t i) {
    const Floats d;
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, Rescale(i)[r]);
      float* o = Output(i) + r * o_stride_;
      const float* block = BlockOutput(i) + r * o_stride_;
      for (std::int64_t j = 0; j < o_stride_; j += kLanes)
        hn::Store(hn::MulAdd(hn::Load(d, o + j), factor, hn::Load(d, block + j)), d, o + j);
    }
  }

  /// Replaces pointers to rows by pointers to copies that fill whole vectors, in fp32 or pairs.
  /// scale_of(key): of narrow rows.
  template <class ScaleOf>
  void CopyPadded(const std::byte** rows, KeyRange keys, std::int64_t head_dim, std::size_t part,
                  const ScaleOf& scale_of) {
    const std::int64_t stride = Padded(head_dim);
    float* copies = Part<float>(part);
    for (std::int64_t n = 0; n < keys.size(); ++n) {
      if (narrow_) {
        ConvertNarrowRow(rows[n], scale_of(keys.begin + n), head_dim, stride, copies + n * stride);
      } else if (sums_pairs_in_order()) {
        std::fill_n(copies + n * stride, stride, 0.0f);
        PairRow(rows[n], head_dim, reinterpret_cast<std::uint32_t*>(copies + n * stride));
      } else {
        ConvertRow<T>(rows[n], head_dim, stride, copies + n * stride);
      }
      rows[n] = reinterpret_cast<const std::byte*>(copies + n * stride);
    }
  }

  std::int64_t FirstRow(std::int64_t i) const { return task_.row_begin + i % chunks_ * kRows; }
  std::int64_t LastRow(std::int64_t i) const { return std::min(task_.row_end, FirstRow(i) + kRows); }

  bool PartlyHidden(std::int64_t i, KeyRange keys) const {
    return !all_visible(call_, task_, FirstRow(i), LastRow(i), keys);
  }
  bool MayHide(std::int64_t i, KeyRange keys) const {
    return call_.has_bias || modifier_ || PartlyHidden(i, keys);
  }

  /// Whether the modifier lets some row see some key of a block.
  bool AnySeen(KeyRange keys) {
    modifier_->begin_keys(keys);
    for (std::int64_t head = 0; head < heads_; ++head) {
      if (!modifier_->seen_keys(TaskOfHead(head), task_.row_begin, task_.row_end, keys).keys.empty())
        return true;
    }
    return false;
  }

  void Modify(std::int64_t i, KeyRange keys, const float* bias) {
    const SeenKeys seen = modifier_->seen_keys(TaskOfHead(i / chunks_), FirstRow(i), LastRow(i), keys);
    const bool all = seen.all && seen.keys.begin == keys.begin && seen.keys.end == keys.end;
    modifier_->modify(i, keys, !all, 1, Scores(i), bias);
  }

  /// Scale, softcap, bias and diagonal on the scores of a chunk. Bias and diagonal as they were added, null
  /// if there are none.
  const float* MaskScores(std::int64_t i, KeyRange keys) {
    if (!call_.transforms_scores && !PartlyHidden(i, keys)) return nullptr;
    const Floats d;
    const auto hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
    float* s = Scores(i);
    float* bias = nullptr;
    if (call_.has_bias || PartlyHidden(i, keys)) {
      bias = Part<float>(layout_.bias);
      std::fill_n(bias, keys.size() * kRows + kLanes, 0.0f);
      FillBias(call_, TaskOfHead(i / chunks_), FirstRow(i), LastRow(i), keys, true, bias, kRows);
    }
    const ScoreScaling scaled(d, call_.transforms_scores ? call_.scale : 1.0f, call_.problem->scores.softcap);
    for (std::int64_t e = 0; e < keys.size() * kRows; e += kLanes) {
      auto x = scaled(hn::Load(d, s + e));
      if (bias != nullptr) {
        const auto b = hn::Load(d, bias + e);
        x = hn::IfThenElse(hn::Eq(b, hidden), hidden, hn::Add(x, b));
      }
      hn::Store(x, d, s + e);
    }
    return bias;
  }

  void Finish(std::int64_t head, std::int64_t r) {
    const TileTask task = TaskOfHead(head);
    const std::int64_t row = task.row_begin + r;
    const std::int64_t head_dim = call_.shape.head_dim_v;
    const std::int64_t i = head * chunks_ + r / kRows;
    float* o = Output(i) + r % kRows * o_stride_;
    if (bf16_ != nullptr) {
      float* ordered = Part<float>(layout_.rows);
      (e4m3_ != nullptr ? e4m3_->order_dimensions : bf16_->order_dimensions)(o, head_dim, ordered);
      o = ordered;
    } else if (v_in_vectors_) {
      UnpadFront(head_dim, o);
    }
    // Hidden values were multiplied by 0 without a look at them: if that spoilt something, the prefill
    // kernel, which looks, computes the head.
    if (sums_pairs_in_order() && !stays_in_range(0, 0, o, head_dim)) {
      if (spoilt_.empty() || spoilt_.back() != head) spoilt_.push_back(head);
      return;
    }
    const float row_max = RowMax(i)[r % kRows];
    const float row_sum = RowSum(i)[r % kRows];
    if (task.partial != nullptr) {
      float* partial =
          task.partial + head * task.partial_head_stride + r * partial_stride(call_.shape.head_dim_v);
      std::copy_n(o, head_dim, partial);
      partial[head_dim] = row_max;
      partial[head_dim + 1] = row_sum;
      return;
    }
    const std::int64_t query = query_of_row(call_, row);
    const int query_head = head_of_row(call_, task, row);
    if (!stays_in_range(row_max, row_sum, o, head_dim)) {
      attend_exactly(call_, task, query, query_head);
      return;
    }
    const RowResult result = finish_row(call_, query_head, row_max, row_sum);
    if constexpr (kInOrder) {
      const Floats d;
      const auto factor = hn::Set(d, result.o_factor);
      for (std::int64_t j = 0; j < o_stride_; j += kLanes)
        hn::Store(hn::MulAdd(hn::Load(d, o + j), factor, hn::Zero(d)), d, o + j);
    } else {
      for (std::int64_t j = 0; j < head_dim; ++j) o[j] *= result.o_factor;
    }
    StoreRow<T>(o, head_dim, o_row(call_, task, query, query_head));
    store_lse(call_, task, query, query_head, result.lse);
  }

  const CallContext& call_;
  const TileTask& task_;
  const Bf16DotKernels* bf16_;
  const ScratchLayout& layout_;
  std::int64_t heads_;
  std::int64_t rows_;
  std::int64_t chunks_;
  std::int64_t q_stride_;
  std::int64_t o_stride_;
  std::int64_t s_stride_;
  TokenRows token_rows_{*call_.problem, task_.sequence, task_.extent};
  bool narrow_;                 // k and v of 8 bits, with scales
  const E4m3DotKernels* e4m3_;  // not null: with bf16_, k and v are e4m3
  bool any_hidden_ = false;     // in the present block, from some row
  bool k_in_vectors_;
  bool v_in_vectors_;
  const std::byte** k_rows_;
  const std::byte** v_rows_;
  std::optional<TileModifier> modifier_;
  std::vector<std::int64_t> spoilt_;  // heads
  std::int64_t
      stream_bytes_;  // of a row of either, so that reading the one after the other stays within both
  std::int64_t ahead_;
};

template <class T>
HWY_INLINE void RunDecodeTileOf(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16) {
  const auto run = [&]<bool kInOrder>() {
    const std::int64_t rows = task.row_end - task.row_begin;
    if (rows == 1) {
      DecodeTile<T, 1, kInOrder>(call, task, bf16).Run();
    } else if (rows == 2) {
      DecodeTile<T, 2, kInOrder>(call, task, bf16).Run();
    } else {
      DecodeTile<T, 4, kInOrder>(call, task, bf16).Run();
    }
  };
  if (call.problem->batch_invariant) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

HWY_INLINE void RunDecodeTile(const CallContext& call, const TileTask& task, const Bf16DotKernels* bf16) {
  dispatch_activation(wide_dtype(*call.problem), [&]<class T>() { RunDecodeTileOf<T>(call, task, bf16); });
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
