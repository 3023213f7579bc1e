// Reading, converting, transposing and writing rows of q, k, v and o; included once for each target.
#if defined(TESSERA_CPU_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ATTENTION_ROWS_INL_H_
#undef TESSERA_CPU_ATTENTION_ROWS_INL_H_
#else
#define TESSERA_CPU_ATTENTION_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tessera/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
constexpr std::int64_t kLanes = HWY_LANES(float);

/// One element at any address.
template <class T>
HWY_INLINE float LoadElement(const std::byte* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return static_cast<float>(value);
}

/// What LoadFloats leaves out of elements of type T: a factor.
template <class T>
constexpr float kLeftOutFactor = std::is_same_v<T, Float8E4M3> ? 256.0f : 1.0f;

/// A vector of elements of type T at any address, as fp32, but for kLeftOutFactor.
template <class T, class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const std::byte* address) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, reinterpret_cast<const float*>(address));
  } else if constexpr (std::is_same_v<T, Float8E4M3>) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, LoadElement<Float8E4M3>(address) / kLeftOutFactor<T>);
#else
    // A half whose exponent and mantissa begin with an e4m3's is 2^-8 of the number, subnormal ones too. The
    // sign comes along in two bits, of which the exponent's goes, and comes back for NaN, whose bits are all
    // ones and carry into it.
    const hn::Rebind<std::uint8_t, D> d8;
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToSigned<decltype(d16)> di16;
    const auto bits = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(address)));
    const auto shifted = hn::BitCast(d16, hn::ShiftRight<1>(hn::BitCast(di16, hn::ShiftLeft<8>(bits))));
    const auto half = hn::And(shifted, hn::Set(d16, 0xbfff));
    const auto carry = hn::Add(half, hn::Set(d16, 0x80));
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::BitCast(dh, hn::OrAnd(half, carry, hn::Set(d16, 0x4000))));
#endif
  } else {
    const hn::Rebind<std::uint16_t, D> d16;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(address));
    if constexpr (std::is_same_v<T, BFloat16>) {
      const hn::RebindToUnsigned<D> d32;
      return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
    } else {
#if HWY_TARGET == HWY_SCALAR
      // Highway's conversion without F16C makes numbers of infinities and NaN.
      static_cast<void>(bits);
      return hn::Set(d, LoadElement<Half>(address));
#else
      const hn::Rebind<hwy::float16_t, D> dh;
      return hn::PromoteTo(d, hn::BitCast(dh, bits));
#endif
    }
  }
}

/// Calls step(i) for vectors from i on that cover [0, count), the last of which begins within the one before
/// if count is no multiple. Returns how many numbers that are: 0 if a vector holds more than count.
template <class Step>
HWY_INLINE std::int64_t CoverWithVectors(std::int64_t count, const Step& step) {
  if (count < kLanes) return 0;
  for (std::int64_t i = 0; i + kLanes <= count; i += kLanes) step(i);
  if (count % kLanes != 0) step(count - kLanes);
  return count;
}

/// The same for rows shorter than a vector, with step(d, i) for vectors of half as many numbers, or of a
/// quarter, if they hold no more than count.
template <class D, class Step>
HWY_INLINE std::int64_t CoverWithParts(D, [[maybe_unused]] std::int64_t count,
                                       [[maybe_unused]] const Step& step) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    constexpr std::int64_t kPart = hn::MaxLanes(hn::Half<D>());
    if (count < kPart) return CoverWithParts(half, count, step);
    step(half, 0);
    if (count > kPart) step(half, count - kPart);
    return count;
  }
  return 0;
}

/// row[0, count) = source, of Float8E4M3, times `factor`, then zeros up to `padded`.
HWY_INLINE void ConvertNarrowRow(const std::byte* source, float factor, std::int64_t count,
                                 std::int64_t padded, float* row) {
  const auto convert = [&](auto d, std::int64_t at) HWY_ATTR {
    const auto x = hn::Mul(LoadFloats<Float8E4M3>(d, source + at), hn::Set(d, kLeftOutFactor<Float8E4M3>));
    hn::StoreU(hn::Mul(x, hn::Set(d, factor)), d, row + at);
  };
  std::int64_t i = CoverWithVectors(count, [&](std::int64_t at) HWY_ATTR { convert(Floats(), at); });
  if (i == 0) i = CoverWithParts(Floats(), count, convert);
  for (; i < count; ++i) row[i] = LoadElement<Float8E4M3>(source + i) * factor;
  for (; i < padded; ++i) row[i] = 0;
}

/// row[0, count) = source as fp32, then zeros up to `padded`.
template <class T>
void ConvertRow(const std::byte* source, std::int64_t count, std::int64_t padded, float* row) {
  const auto convert = [&](auto d, std::int64_t at) HWY_ATTR {
    hn::StoreU(LoadFloats<T>(d, source + at * static_cast<std::int64_t>(sizeof(T))), d, row + at);
  };
  std::int64_t i = CoverWithVectors(count, [&](std::int64_t at) HWY_ATTR { convert(Floats(), at); });
  if (i == 0) i = CoverWithParts(Floats(), count, convert);
  for (; i < count; ++i) row[i] = LoadElement<T>(source + i * static_cast<std::int64_t>(sizeof(T)));
  for (; i < padded; ++i) row[i] = 0;
}

/// ConvertRow that stores 0 in place of infinities and NaN. Returns true if there were any. `row` may be
/// `source`.
template <class T>
bool ConvertFiniteRow(const std::byte* source, std::int64_t count, std::int64_t padded, float* row) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  // The exponents' bits.
  const auto convert = [&](auto d, std::int64_t at) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const auto exponent = hn::Set(du, kExponent);
    const auto x = LoadFloats<T>(d, source + at * static_cast<std::int64_t>(sizeof(T)));
    const auto bits = hn::And(hn::BitCast(du, x), exponent);
    hn::StoreU(hn::IfThenZeroElse(hn::RebindMask(d, hn::Eq(bits, exponent)), x), d, row + at);
    return bits;
  };
  const hn::RebindToUnsigned<Floats> du;
  auto worst = hn::Zero(du);
  std::int64_t i = CoverWithVectors(
      count, [&](std::int64_t at) HWY_ATTR { worst = hn::Max(worst, convert(Floats(), at)); });
  bool found = !hn::AllFalse(du, hn::Eq(worst, hn::Set(du, kExponent)));
  if (i == 0) {
    i = CoverWithParts(Floats(), count, [&](auto d, std::int64_t at) HWY_ATTR {
      const hn::RebindToUnsigned<decltype(d)> part;
      found |= !hn::AllFalse(part, hn::Eq(convert(d, at), hn::Set(part, kExponent)));
    });
  }
  for (; i < count; ++i) {
    const float x = LoadElement<T>(source + i * static_cast<std::int64_t>(sizeof(T)));
    const bool finite = x - x == 0;
    found |= !finite;
    row[i] = finite ? x : 0;
  }
  for (; i < padded; ++i) row[i] = 0;
  return found;
}

/// words[0, (count + 1) / 2) = pairs of neighbouring bf16 of one row, an odd last one with 0.
HWY_INLINE void PairRow(const std::byte* source, std::int64_t count, std::uint32_t* words) {
  const std::size_t size_bytes = static_cast<std::size_t>(count) * 2;
  std::memcpy(words, source, size_bytes);
  if (count % 2 != 0) std::memset(reinterpret_cast<std::byte*>(words) + size_bytes, 0, 2);
}

/// words[i] = bf16 i of `first` and of `second` (null: zeros) in its lower and upper half, zeros up to
/// `padded`; 0 in place of infinities and NaN. Returns true if there were any.
HWY_INLINE bool PairFiniteRows(const std::byte* first, const std::byte* second, std::int64_t count,
                               std::int64_t padded, std::uint32_t* words) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const auto exponent = hn::Set(d, 0x7f80u);
  auto worst = hn::Zero(d);
  std::int64_t i = CoverWithVectors(count, [&](std::int64_t at) HWY_ATTR {
    auto low = hn::Zero(d);
    auto high = hn::Zero(d);
    if (first != nullptr)
      low = hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(first + 2 * at)));
    if (second != nullptr)
      high = hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(second + 2 * at)));
    const auto low_exponent = hn::And(low, exponent);
    const auto high_exponent = hn::And(high, exponent);
    worst = hn::Max(worst, hn::Max(low_exponent, high_exponent));
    low = hn::IfThenZeroElse(hn::Eq(low_exponent, exponent), low);
    high = hn::IfThenZeroElse(hn::Eq(high_exponent, exponent), high);
    hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), d, words + at);
  });
  bool found = !hn::AllFalse(d, hn::Eq(worst, exponent));
  for (; i < count; ++i) {
    std::uint16_t low = 0;
    std::uint16_t high = 0;
    if (first != nullptr) std::memcpy(&low, first + 2 * i, 2);
    if (second != nullptr) std::memcpy(&high, second + 2 * i, 2);
    if ((low & 0x7f80u) == 0x7f80u) {
      low = 0;
      found = true;
    }
    if ((high & 0x7f80u) == 0x7f80u) {
      high = 0;
      found = true;
    }
    words[i] = low | std::uint32_t{high} << 16;
  }
  for (; i < padded; ++i) words[i] = 0;
  return found;
}

/// Writes row[0, count) as T, rounded to nearest even.
template <class T>
void StoreRow(const float* row, std::int64_t count, std::byte* target) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(target, row, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      const T value(row[i]);
      std::memcpy(target + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
/// Four rows of four numbers become their columns.
HWY_INLINE void TransposeFourByFour(hn::Vec<hn::Full128<float>> (&x)[4]) {
  const hn::Full128<float> d;
  const auto low01 = hn::InterleaveLower(d, x[0], x[1]);
  const auto high01 = hn::InterleaveUpper(d, x[0], x[1]);
  const auto low23 = hn::InterleaveLower(d, x[2], x[3]);
  const auto high23 = hn::InterleaveUpper(d, x[2], x[3]);
  x[0] = hn::ConcatLowerLower(d, low23, low01);
  x[1] = hn::ConcatUpperUpper(d, low23, low01);
  x[2] = hn::ConcatLowerLower(d, high23, high01);
  x[3] = hn::ConcatUpperUpper(d, high23, high01);
}
#endif

/// columns[i][0..3] = rows[0..3][i] for i in [0, count); `columns` has a stride of column_stride.
HWY_INLINE void TransposeFromRows(const float* rows, std::int64_t row_stride, std::int64_t count,
                                  float* columns, std::int64_t column_stride) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<float> d;
  for (; i + 4 <= count; i += 4) {
    hn::Vec<decltype(d)> block[4] = {hn::LoadU(d, rows + i), hn::LoadU(d, rows + row_stride + i),
                                     hn::LoadU(d, rows + 2 * row_stride + i),
                                     hn::LoadU(d, rows + 3 * row_stride + i)};
    TransposeFourByFour(block);
    for (int k = 0; k < 4; ++k) hn::StoreU(block[k], d, columns + (i + k) * column_stride);
  }
#endif
  for (; i < count; ++i) {
    for (int r = 0; r < 4; ++r) columns[i * column_stride + r] = rows[r * row_stride + i];
  }
}

/// rows[0..3][i] = columns[i][0..3] for i in [0, count), count a multiple of 4.
HWY_INLINE void TransposeToRows(const float* columns, std::int64_t column_stride, std::int64_t count,
                                float* rows, std::int64_t row_stride) {
  for (std::int64_t i = 0; i < count; i += 4) {
    const float* block = columns + i * column_stride;
#if HWY_TARGET != HWY_SCALAR
    TransposeFromRows(block, column_stride, 4, rows + i, row_stride);
#else
    for (int r = 0; r < 4; ++r) {
      for (int j = 0; j < 4; ++j) rows[r * row_stride + i + j] = block[j * column_stride + r];
    }
#endif
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
