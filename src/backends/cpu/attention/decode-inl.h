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

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/attention/math-inl.h"
#include "backends/cpu/attention/rows-inl.h"
#include "backends/cpu/attention/unroll.h"

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

/// s[n * kRows + r] = q_r . k_n for kKeys keys.
template <class T, int kRows, int kKeys>
HWY_INLINE void DotKeys(const std::byte* const* keys, const float* q, std::int64_t q_stride,
                        std::int64_t head_dim, float* s) {
  const Floats d;
  using V = hn::Vec<Floats>;
  V sum[kKeys * kRows];
  TESSERA_UNROLL
  for (int i = 0; i < kKeys * kRows; ++i) sum[i] = hn::Zero(d);
  for (std::int64_t t = 0; t < head_dim; t += kLanes) {
    V row[kRows];
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) row[r] = hn::Load(d, q + r * q_stride + t);
    TESSERA_UNROLL
    for (int n = 0; n < kKeys; ++n) {
      const V key = LoadFloats<T>(d, keys[n] + t * static_cast<std::int64_t>(sizeof(T)));
      TESSERA_UNROLL
      for (int r = 0; r < kRows; ++r) sum[n * kRows + r] = hn::MulAdd(row[r], key, sum[n * kRows + r]);
    }
  }
  const hn::Full128<float> d4;
  TESSERA_UNROLL
  for (int i = 0; i < kKeys * kRows; i += 4) {
    hn::StoreU(SumLanesOfFour(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]), d4, s + i);
  }
}

/// Asks for the cache lines of a row that will be read soon.
HWY_INLINE void PrefetchRow(const std::byte* row, std::int64_t size_bytes) {
  for (std::int64_t i = 0; i < size_bytes; i += 64) hwy::Prefetch(row + i);
}

/// Scores of `count` keys; meanwhile their values are fetched into the cache. `keys` has room for 8 more
/// pointers.
template <class T, int kRows>
HWY_NOINLINE void DecodeScores(const std::byte** keys, const std::byte* const* values, std::int64_t count,
                               const float* q, std::int64_t q_stride, std::int64_t head_dim,
                               std::int64_t value_bytes, float* s) {
  constexpr int kKeys = std::min(4, kDecodeAccumulators / kRows);
  for (int i = 0; i < kKeys; ++i) keys[count + i] = keys[count - 1];
  for (std::int64_t n = 0; n < count; n += kKeys) {
    for (std::int64_t i = n; i < std::min(n + kKeys, count); ++i) PrefetchRow(values[i], value_bytes);
    DotKeys<T, kRows, kKeys>(keys + n, q, q_stride, head_dim, s + n * kRows);
  }
}

/// The online softmax over `count` keys, like SoftmaxStep of the prefill kernel. s has room for a vector
/// more.
template <int kRows>
HWY_NOINLINE void DecodeSoftmax(std::int64_t count, float scale, float* s, float* row_max, float* row_sum,
                                float* rescale) {
  const Floats d;
  const float hidden = -std::numeric_limits<float>::infinity();
  const std::int64_t total = count * kRows;
  for (std::int64_t i = total; i < (total + kLanes - 1) / kLanes * kLanes; ++i) s[i] = hidden;
  auto largest = hn::Set(d, hidden);
  for (std::int64_t i = 0; i < total; i += kLanes) largest = hn::Max(largest, hn::Load(d, s + i));
  alignas(64) float lanes[kLanes];
  hn::Store(largest, d, lanes);
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
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < total; i += kLanes) {
    const auto p = Exp(d, hn::MulSub(hn::Load(d, s + i), factor, offsets));
    sum = hn::Add(sum, p);
    hn::Store(p, d, s + i);
  }
  hn::Store(sum, d, lanes);
  for (int r = 0; r < kRows; ++r) {
    float block_sum = 0;
    for (std::int64_t i = r; i < kLanes; i += kRows) block_sum += lanes[i];
    row_sum[r] = row_sum[r] * rescale[r] + block_sum;
  }
}

/// o_r = rescale_r o_r + sum_n p[n][r] v_n for kVectors vectors of value dimensions from `column` on.
/// kSkipsHidden: where p is 0, v is left out, whatever it holds.
template <class T, int kRows, int kVectors, bool kSkipsHidden>
HWY_INLINE void WeighValues(const std::byte* const* values, std::int64_t count, const float* p,
                            const float* rescale, std::int64_t column, float* o, std::int64_t o_stride) {
  const Floats d;
  using V = hn::Vec<Floats>;
  V sum[kRows][kVectors];
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const V factor = hn::Set(d, rescale[r]);
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      sum[r][i] = hn::Mul(factor, hn::Load(d, o + r * o_stride + column + i * kLanes));
    }
  }
  for (std::int64_t n = 0; n < count; ++n) {
    const std::byte* row = values[n] + column * static_cast<std::int64_t>(sizeof(T));
    V value[kVectors];
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      value[i] = LoadFloats<T>(d, row + i * kLanes * static_cast<std::int64_t>(sizeof(T)));
    }
    TESSERA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float weight = p[n * kRows + r];
      if (kSkipsHidden && weight == 0) continue;
      const V w = hn::Set(d, weight);
      TESSERA_UNROLL
      for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::MulAdd(w, value[i], sum[r][i]);
    }
  }
  TESSERA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TESSERA_UNROLL
    for (int i = 0; i < kVectors; ++i) hn::Store(sum[r][i], d, o + r * o_stride + column + i * kLanes);
  }
}

template <class T, int kRows, bool kSkipsHidden>
HWY_NOINLINE void DecodeValues(const std::byte* const* values, std::int64_t count, const float* p,
                               const float* rescale, std::int64_t head_dim, float* o, std::int64_t o_stride) {
  constexpr int kVectors = kDecodeAccumulators / 4;
  std::int64_t column = 0;
  for (; column + kVectors * kLanes <= head_dim; column += kVectors * kLanes) {
    WeighValues<T, kRows, kVectors, kSkipsHidden>(values, count, p, rescale, column, o, o_stride);
  }
  for (; column < head_dim; column += kLanes) {
    WeighValues<T, kRows, 1, kSkipsHidden>(values, count, p, rescale, column, o, o_stride);
  }
}

/// A decode tile at work.
template <class T, int kRows>
class DecodeTile {
 public:
  DecodeTile(const CallContext& call, const TileTask& task)
      : call_(call),
        task_(task),
        layout_(call.layout),
        rows_(task.row_end - task.row_begin),
        chunks_((rows_ + kRows - 1) / kRows),
        q_stride_(Padded(call.shape.head_dim_qk)),
        o_stride_(Padded(call.shape.head_dim_v)),
        q_(Part<float>(layout_.q)),
        o_(Part<float>(layout_.o)),
        row_max_(Part<float>(layout_.row_max)),
        row_sum_(Part<float>(layout_.row_sum)),
        s_(Part<float>(layout_.s)) {}

  void Run() {
    for (std::int64_t r = 0; r < chunks_ * kRows; ++r) {
      const std::int64_t row = task_.row_begin + r;
      if (r < rows_) {
        ConvertRow<T>(q_row(call_, task_, query_of_row(call_, row), head_of_row(call_, task_, row)),
                      call_.shape.head_dim_qk, q_stride_, q_ + r * q_stride_);
      } else {
        std::fill_n(q_ + r * q_stride_, q_stride_, 0.0f);
      }
      std::fill_n(o_ + r * o_stride_, o_stride_, 0.0f);
      row_max_[r] = -std::numeric_limits<float>::infinity();
      row_sum_[r] = 0;
    }
    const KeyRange keys = keys_of_rows(call_, task_, task_.row_begin, task_.row_end);
    const std::int64_t block_n = call_.shape.block_n;
    for (std::int64_t start = keys.begin; start < keys.end; start += block_n) {
      Accumulate({start, std::min(start + block_n, keys.end)});
    }
    for (std::int64_t r = 0; r < rows_; ++r) Finish(r);
  }

 private:
  static std::int64_t Padded(std::int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

  template <class Element>
  Element* Part(std::size_t offset) const {
    return reinterpret_cast<Element*>(task_.scratch + offset);
  }

  void Accumulate(KeyRange keys) {
    const AttentionProblem& p = *call_.problem;
    const std::byte** k_rows = Part<const std::byte*>(layout_.pointers);
    const std::byte** v_rows = k_rows + call_.shape.block_n + 8;
    kv_rows(call_, task_, p.k, keys.begin, keys.end, k_rows);
    kv_rows(call_, task_, p.v, keys.begin, keys.end, v_rows);
    const bool k_in_vectors = call_.shape.head_dim_qk % kLanes == 0;
    const bool v_in_vectors = call_.shape.head_dim_v % kLanes == 0;
    if (!k_in_vectors) CopyPadded(k_rows, keys.size(), call_.shape.head_dim_qk, layout_.k);
    if (!v_in_vectors) CopyPadded(v_rows, keys.size(), call_.shape.head_dim_v, layout_.v);
    for (std::int64_t c = 0; c < chunks_; ++c) {
      const float* q = q_ + c * kRows * q_stride_;
      const std::int64_t value_bytes =
          c == 0 && v_in_vectors ? call_.shape.head_dim_v * static_cast<std::int64_t>(sizeof(T)) : 0;
      if (k_in_vectors) {
        DecodeScores<T, kRows>(k_rows, v_rows, keys.size(), q, q_stride_, call_.shape.head_dim_qk,
                               value_bytes, s_);
      } else {
        DecodeScores<float, kRows>(k_rows, v_rows, keys.size(), q, q_stride_, q_stride_, value_bytes, s_);
      }
      const bool hides = Mask(c, keys);
      float rescale[kRows];
      DecodeSoftmax<kRows>(keys.size(), call_.transforms_scores ? 1.0f : call_.scale, s_,
                           row_max_ + c * kRows, row_sum_ + c * kRows, rescale);
      Weigh(v_rows, v_in_vectors, hides, keys.size(), rescale, o_ + c * kRows * o_stride_);
    }
  }

  /// Replaces pointers to rows by pointers to copies in fp32 that fill whole vectors.
  void CopyPadded(const std::byte** rows, std::int64_t count, std::int64_t head_dim, std::size_t part) {
    const std::int64_t stride = Padded(head_dim);
    float* copies = Part<float>(part);
    for (std::int64_t n = 0; n < count; ++n) {
      ConvertRow<T>(rows[n], head_dim, stride, copies + n * stride);
      rows[n] = reinterpret_cast<const std::byte*>(copies + n * stride);
    }
  }

  /// Scale, softcap, bias and diagonal on the scores of a chunk. Returns true if a key may be hidden from a
  /// row.
  bool Mask(std::int64_t chunk, KeyRange keys) {
    const std::int64_t row_begin = task_.row_begin + chunk * kRows;
    const std::int64_t row_end = std::min(task_.row_end, row_begin + kRows);
    const bool partly_hidden = !all_visible(call_, task_, row_begin, row_end, keys);
    if (!call_.transforms_scores && !partly_hidden) return false;
    const Floats d;
    const auto hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
    float* bias = nullptr;
    if (call_.has_bias || partly_hidden) {
      bias = Part<float>(layout_.bias);
      std::fill_n(bias, keys.size() * kRows + kLanes, 0.0f);
      fill_bias(call_, task_, row_begin, row_end, keys, partly_hidden, bias, kRows);
    }
    const auto scale = hn::Set(d, call_.transforms_scores ? call_.scale : 1.0f);
    const bool caps = call_.problem->scores.softcap.has_value();
    const auto cap = hn::Set(d, call_.problem->scores.softcap.value_or(1.0f));
    for (std::int64_t i = 0; i < keys.size() * kRows; i += kLanes) {
      auto x = hn::Mul(hn::Load(d, s_ + i), scale);
      if (caps) x = hn::Mul(cap, Tanh(d, hn::Div(x, cap)));
      if (bias != nullptr) {
        const auto b = hn::Load(d, bias + i);
        x = hn::IfThenElse(hn::Eq(b, hidden), hidden, hn::Add(x, b));
      }
      hn::Store(x, d, s_ + i);
    }
    return bias != nullptr;
  }

  void Weigh(const std::byte* const* values, bool in_vectors, bool skips_hidden, std::int64_t count,
             const float* rescale, float* o) {
    if (in_vectors) {
      const auto weigh = skips_hidden ? DecodeValues<T, kRows, true> : DecodeValues<T, kRows, false>;
      weigh(values, count, s_, rescale, call_.shape.head_dim_v, o, o_stride_);
    } else {
      const auto weigh = skips_hidden ? DecodeValues<float, kRows, true> : DecodeValues<float, kRows, false>;
      weigh(values, count, s_, rescale, o_stride_, o, o_stride_);
    }
  }

  void Finish(std::int64_t r) {
    const std::int64_t row = task_.row_begin + r;
    const std::int64_t head_dim = call_.shape.head_dim_v;
    float* o = o_ + r * o_stride_;
    if (task_.partial != nullptr) {
      float* partial = task_.partial + r * partial_stride(call_.shape.head_dim_v);
      std::copy_n(o, head_dim, partial);
      partial[head_dim] = row_max_[r];
      partial[head_dim + 1] = row_sum_[r];
      return;
    }
    const std::int64_t query = query_of_row(call_, row);
    const int head = head_of_row(call_, task_, row);
    const RowResult result = finish_row(call_, head, row_max_[r], row_sum_[r]);
    for (std::int64_t i = 0; i < head_dim; ++i) o[i] *= result.o_factor;
    StoreRow<T>(o, head_dim, o_row(call_, task_, query, head));
    store_lse(call_, task_, query, head, result.lse);
  }

  const CallContext& call_;
  const TileTask& task_;
  const ScratchLayout& layout_;
  std::int64_t rows_;
  std::int64_t chunks_;
  std::int64_t q_stride_;
  std::int64_t o_stride_;
  float* q_;
  float* o_;
  float* row_max_;
  float* row_sum_;
  float* s_;
};

template <class T>
HWY_INLINE void RunDecodeTileOf(const CallContext& call, const TileTask& task) {
  const std::int64_t rows = task.row_end - task.row_begin;
  if (rows == 1) {
    DecodeTile<T, 1>(call, task).Run();
  } else if (rows == 2) {
    DecodeTile<T, 2>(call, task).Run();
  } else {
    DecodeTile<T, 4>(call, task).Run();
  }
}

HWY_INLINE void RunDecodeTile(const CallContext& call, const TileTask& task) {
  switch (call.problem->q.dtype) {
    case DType::kF16:
      RunDecodeTileOf<Half>(call, task);
      break;
    case DType::kBF16:
      RunDecodeTileOf<BFloat16>(call, task);
      break;
    default:
      RunDecodeTileOf<float>(call, task);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
