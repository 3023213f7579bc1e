// What ALiBi and masks add to scores; included once for each target.
#if defined(TESSERA_CPU_ATTENTION_BIAS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_BIAS_INL_H_
#undef TESSERA_CPU_ATTENTION_BIAS_INL_H_
#else
#define TESSERA_CPU_ATTENTION_BIAS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "backends/cpu/attention/rows-inl.h"
#include "backends/cpu/attention/tile.h"
#include "core/block_format.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// What kernel_table's fill_bias does, for one call. Rows lie next to one another and so are a vector's
/// lanes; a mask's keys mostly do, too, and are transposed in blocks of four by four.
class BiasFiller {
 public:
  BiasFiller(const CallContext& call, const TileTask& task, std::int64_t row_begin, std::int64_t row_end,
             KeyRange keys, float* bias, std::int64_t key_stride)
      : call_(call),
        task_(task),
        row_begin_(row_begin),
        rows_(row_end - row_begin),
        keys_(keys),
        bias_(bias),
        key_stride_(key_stride) {}

  void Fill(bool with_diagonal) {
    const ScoreTerms& terms = call_.problem->scores;
    if (terms.alibi) {
      FillAlibi(*terms.alibi);
    } else {
      for (std::int64_t j = 0; j < keys_.size(); ++j) std::fill_n(bias_ + j * key_stride_, rows_, 0.0f);
    }
    if (terms.additive_mask) {
      dispatch_activation(terms.additive_mask->dtype,
                          [&]<class T>() { ApplyMask<T, AddMask<T>>(*terms.additive_mask); });
    }
    if (terms.boolean_mask) ApplyMask<std::uint8_t, HideMasked>(*terms.boolean_mask);
    if (with_diagonal) HideOutside();
  }

 private:
  static constexpr float kHiddenScore = -std::numeric_limits<float>::infinity();
  static constexpr std::int64_t kMostRows = 64;  // of a block of rows

  std::int64_t QueryOf(std::int64_t r) const { return query_of_row(call_, row_begin_ + r); }
  int HeadOf(std::int64_t r) const { return head_of_row(call_, task_, row_begin_ + r); }

  void FillAlibi(const AlibiBias& alibi) {
    alignas(64) float factors[kMostRows] = {};
    alignas(64) std::int32_t distances[kMostRows] = {};  // of each row to the first key
    const std::int64_t padded = (rows_ + kLanes - 1) / kLanes * kLanes;
    bool fits = padded <= std::min(key_stride_, kMostRows);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const float slope = alibi.slopes[task_.sequence * alibi.batch_stride + HeadOf(r)];
      const std::int64_t distance = QueryOf(r) + task_.diagonal.shift - keys_.begin;
      fits = fits && std::abs(distance) + keys_.size() <= std::numeric_limits<std::int32_t>::max();
      if (!fits) break;
      factors[r] = -slope;
      distances[r] = static_cast<std::int32_t>(distance);
    }
    if (!fits) return FillAlibiByOne(alibi);
    const Floats d;
    const hn::RebindToSigned<Floats> di;
    for (std::int64_t j = 0; j < keys_.size(); ++j) {
      const auto key = hn::Set(di, static_cast<std::int32_t>(j));
      for (std::int64_t r = 0; r < padded; r += kLanes) {
        const auto distance = hn::Abs(hn::Sub(hn::Load(di, distances + r), key));
        hn::StoreU(hn::Mul(hn::Load(d, factors + r), hn::ConvertTo(d, distance)), d,
                   bias_ + j * key_stride_ + r);
      }
    }
  }

  void FillAlibiByOne(const AlibiBias& alibi) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const float slope = alibi.slopes[task_.sequence * alibi.batch_stride + HeadOf(r)];
      const std::int64_t distance = QueryOf(r) + task_.diagonal.shift - keys_.begin;
      for (std::int64_t j = 0; j < keys_.size(); ++j)
        bias_[j * key_stride_ + r] = -slope * static_cast<float>(std::abs(distance - j));
    }
  }

  /// What an additive mask does to biases: one, and those of four rows.
  template <class T>
  struct AddMask {
    static void One(const std::byte* mask, float* bias) { *bias += LoadElement<T>(mask); }
#if HWY_TARGET != HWY_SCALAR
    using D = hn::Full128<float>;
    static hn::Vec<D> Load(const std::byte* mask) { return LoadFloats<T>(D(), mask); }
    static hn::Vec<D> Apply(hn::Vec<D> mask, hn::Vec<D> bias) { return hn::Add(bias, mask); }
#endif
  };

  /// A boolean one: where it is 0 the key is hidden.
  struct HideMasked {
    static void One(const std::byte* mask, float* bias) {
      if (*mask == std::byte{0}) *bias = kHiddenScore;
    }
#if HWY_TARGET != HWY_SCALAR
    using D = hn::Full128<float>;
    static hn::Vec<D> Load(const std::byte* mask) {
      const D d;
      const hn::RebindToUnsigned<D> d32;
      const hn::Rebind<std::uint8_t, D> d8;
      const auto bytes = hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(mask)));
      return hn::IfThenElseZero(hn::RebindMask(d, hn::Eq(bytes, hn::Zero(d32))), hn::Set(d, kHiddenScore));
    }
    static hn::Vec<D> Apply(hn::Vec<D> mask, hn::Vec<D> bias) {
      const auto hidden = hn::Set(D(), kHiddenScore);
      return hn::IfThenElse(hn::Eq(mask, hidden), hidden, bias);
    }
#endif
  };

  /// Whether four rows of a mask lie next to one another, as a transposed one's do.
  template <class T>
  static bool AreAdjacent(const MaskRow (&rows)[4]) {
    const auto bytes = static_cast<std::int64_t>(sizeof(T));
    return rows[1].data - rows[0].data == bytes && rows[2].data - rows[1].data == bytes &&
           rows[3].data - rows[2].data == bytes;
  }

  template <class T, class Use>
  void ApplyMask(const ScoreMask& mask) {
    for (std::int64_t r = 0; r < rows_; r += 4) {
      const std::int64_t count = std::min<std::int64_t>(4, rows_ - r);
      MaskRow rows[4];
      // The last row stands in for those past it.
      for (std::int64_t i = 0; i < 4; ++i) {
        const std::int64_t row = r + std::min(i, count - 1);
        rows[i] = mask_row(mask, task_.sequence, HeadOf(row), QueryOf(row), keys_.begin);
      }
      std::int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
      if (rows[0].step_bytes == static_cast<std::int64_t>(sizeof(T)) && r + 4 <= key_stride_) {
        const hn::Full128<float> d;
        for (; j + 4 <= keys_.size(); j += 4) {
          const std::int64_t at = j * static_cast<std::int64_t>(sizeof(T));
          hn::Vec<decltype(d)> columns[4] = {Use::Load(rows[0].data + at), Use::Load(rows[1].data + at),
                                             Use::Load(rows[2].data + at), Use::Load(rows[3].data + at)};
          TransposeFourByFour(columns);
          for (std::int64_t k = 0; k < 4; ++k) {
            float* bias = bias_ + (j + k) * key_stride_ + r;
            hn::StoreU(Use::Apply(columns[k], hn::LoadU(d, bias)), d, bias);
          }
        }
      } else if (AreAdjacent<T>(rows) && r + 4 <= key_stride_) {
        const hn::Full128<float> d;
        for (; j < keys_.size(); ++j) {
          float* bias = bias_ + j * key_stride_ + r;
          hn::StoreU(Use::Apply(Use::Load(rows[0].data + j * rows[0].step_bytes), hn::LoadU(d, bias)), d,
                     bias);
        }
      }
#endif
      for (; j < keys_.size(); ++j) {
        for (std::int64_t i = 0; i < count; ++i)
          Use::One(rows[i].data + j * rows[i].step_bytes, bias_ + j * key_stride_ + r + i);
      }
    }
  }

  void HideOutside() {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const KeyRange seen = task_.diagonal.keys_of_query(QueryOf(r));
      for (std::int64_t key = keys_.begin; key < std::min(seen.begin, keys_.end); ++key)
        bias_[(key - keys_.begin) * key_stride_ + r] = kHiddenScore;
      for (std::int64_t key = std::max(seen.end, keys_.begin); key < keys_.end; ++key)
        bias_[(key - keys_.begin) * key_stride_ + r] = kHiddenScore;
    }
  }

  const CallContext& call_;
  const TileTask& task_;
  const std::int64_t row_begin_;
  const std::int64_t rows_;
  const KeyRange keys_;
  float* const bias_;
  const std::int64_t key_stride_;
};

inline void FillBias(const CallContext& call, const TileTask& task, std::int64_t row_begin,
                     std::int64_t row_end, KeyRange keys, bool with_diagonal, float* bias,
                     std::int64_t key_stride) {
  BiasFiller(call, task, row_begin, row_end, keys, bias, key_stride).Fill(with_diagonal);
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
