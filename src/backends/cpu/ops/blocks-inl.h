// Blocks of weights as integers and steps, by the block. Included once a SIMD target.

#if defined(TESSERA_CPU_OPS_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_OPS_BLOCKS_INL_H_
#undef TESSERA_CPU_OPS_BLOCKS_INL_H_
#else
#define TESSERA_CPU_OPS_BLOCKS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/cpu/ops/codebooks-inl.h"
#include "backends/cpu/ops/vector_types-inl.h"
#include "core/block_format.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The half at two bytes, by the target's instruction.
HWY_INLINE float half_at(const void* bytes) {
  if constexpr (kEmulated) {
    Half half;
    std::memcpy(&half, bytes, sizeof half);
    return static_cast<float>(half);
  } else {
    const hn::CappedTag<float, 4> d;
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    const hn::Rebind<hwy::float16_t, decltype(d)> df16;
    std::uint16_t bits;
    std::memcpy(&bits, bytes, sizeof bits);
    return hn::GetLane(hn::PromoteTo(d, hn::BitCast(df16, hn::Set(d16, bits))));
  }
}

/// The half at two bytes in all lanes.
HWY_INLINE VecF32 half_in_lanes(F32 d, const void* bytes) {
  if constexpr (kEmulated) {
    return hn::Set(d, half_at(bytes));
  } else {
    const hn::Rebind<std::uint16_t, F32> d16;
    const hn::Rebind<hwy::float16_t, F32> df16;
    std::uint16_t bits;
    std::memcpy(&bits, bytes, sizeof bits);
    return hn::PromoteTo(d, hn::BitCast(df16, hn::Set(d16, bits)));
  }
}

// Bytes that a format reads together lie in runs of 16 or 32.
using Bytes16 = hn::CappedTag<std::uint8_t, 16>;
using Bytes32 = hn::CappedTag<std::uint8_t, 32>;

/// Stores a vector of integers, less `less`.
template <class D>
HWY_INLINE void store_integers(D d, hn::Vec<D> integers, int less, std::int8_t* out) {
  const auto result = less == 0 ? integers : hn::Sub(integers, hn::Set(d, static_cast<std::uint8_t>(less)));
  hn::StoreU(result, d, reinterpret_cast<std::uint8_t*>(out));
}

/// The lower and the upper halves of a run of bytes.
template <class D>
HWY_INLINE void unpack_nibbles(D d, std::size_t count, const unsigned char* bytes, int less,
                               std::int8_t* out) {
  for (std::size_t l = 0; l < count; l += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, bytes + l);
    store_integers(d, hn::And(v, hn::Set(d, std::uint8_t{0xf})), less, out + l);
    store_integers(d, hn::ShiftRight<4>(v), less, out + count + l);
  }
}

/// As unpack_nibbles of 16 bytes, through a table.
HWY_INLINE void look_up_nibbles(const std::int8_t (&table)[16], const unsigned char* bytes,
                                std::int8_t* out) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 32; ++i) out[i] = table[formats::nibble_of_32(bytes, i)];
#else
  const hn::FixedTag<std::int8_t, 16> d;
  const hn::RebindToUnsigned<decltype(d)> d8;
  const auto entries = hn::LoadU(d, table);
  const auto v = hn::LoadU(d8, bytes);
  const auto lower = hn::BitCast(d, hn::And(v, hn::Set(d8, std::uint8_t{0xf})));
  hn::StoreU(hn::TableLookupBytes(entries, lower), d, out);
  hn::StoreU(hn::TableLookupBytes(entries, hn::BitCast(d, hn::ShiftRight<4>(v))), d, out + 16);
#endif
}

/// Bits kShift and kShift + 1 of a run of 32 bytes, less `less`.
template <int kShift>
HWY_INLINE void unpack_two_bits(const unsigned char* bytes, int less, std::int8_t* out) {
  const Bytes32 d;
  for (std::size_t l = 0; l < 32; l += hn::Lanes(d)) {
    const auto bits = hn::And(hn::ShiftRight<kShift>(hn::LoadU(d, bytes + l)), hn::Set(d, std::uint8_t{3}));
    store_integers(d, bits, less, out + l);
  }
}

/// 16 in the integers of 32 elements whose bit is set, else 0.
HWY_INLINE void spread_fifth_bits(const unsigned char* bits, std::uint8_t (&out)[32]) {
  for (int byte = 0; byte < 4; ++byte) {
    // Bit n of the byte to bit 4 of byte 7 - n, then in order.
    const std::uint64_t spread = (bits[byte] * 0x8040201008040201u >> 7) & 0x0101010101010101u;
    const std::uint64_t in_order = __builtin_bswap64(spread) << 4;
    std::memcpy(out + 8 * byte, &in_order, sizeof in_order);
  }
}

HWY_INLINE void unpack_five_bits(const unsigned char* fifths, const unsigned char* bytes, int less,
                                 std::int8_t* out) {
#if HWY_TARGET == HWY_AVX3
  const Bytes32 d;
  const hn::Half<Bytes32> dh;
  const auto v = hn::LoadU(dh, bytes);
  const auto nibbles = hn::Combine(d, hn::ShiftRight<4>(v), hn::And(v, hn::Set(dh, std::uint8_t{0xf})));
  const auto spread = hn::IfThenElseZero(hn::LoadMaskBits(d, fifths), hn::Set(d, std::uint8_t{16}));
  store_integers(d, hn::Or(nibbles, spread), less, out);
#else
  std::uint8_t spread[32];
  spread_fifth_bits(fifths, spread);
  const Bytes16 d;
  for (std::size_t l = 0; l < 16; l += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, bytes + l);
    const auto lower = hn::And(v, hn::Set(d, std::uint8_t{0xf}));
    store_integers(d, hn::Or(lower, hn::LoadU(d, spread + l)), less, out + l);
    store_integers(d, hn::Or(hn::ShiftRight<4>(v), hn::LoadU(d, spread + 16 + l)), less, out + 16 + l);
  }
#endif
}

/// The integers of a block of any format.
template <class Format>
HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, Format) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (Format::kHasCodebook) return unpack_codebook<Format>(block, out);
#endif
  if constexpr (Format::kHasCodebook) {
    for (int part = 0; part < Format::kElements / 8; ++part) {
      const formats::Eight integers = Format::integers(block, part);
      std::memcpy(out + 8 * part, &integers, sizeof integers);
    }
  } else {
    for (int i = 0; i < Format::kElements; ++i) out[i] = static_cast<std::int8_t>(Format::integer(block, i));
  }
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q8_0) {
  std::memcpy(out, block + 2, 32);
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q4_0) {
  unpack_nibbles(Bytes16(), 16, block + 2, 8, out);
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q4_1) {
  unpack_nibbles(Bytes16(), 16, block + 4, 0, out);
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q5_0) {
  unpack_five_bits(block + 2, block + 6, 16, out);
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q5_1) {
  unpack_five_bits(block + 4, block + 8, 0, out);
}

inline constexpr auto kIq4Table = [] {
  struct Table {
    std::int8_t at[16];
  } table{};
  for (int bits = 0; bits < 16; ++bits) table.at[bits] = static_cast<std::int8_t>(formats::iq4_integer(bits));
  return table;
}();

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::IQ4_NL) {
  look_up_nibbles(kIq4Table.at, block + 2, out);
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::IQ4_XS) {
  for (int part = 0; part < 8; ++part) look_up_nibbles(kIq4Table.at, block + 8 + 16 * part, out + 32 * part);
}

inline constexpr std::int8_t kMxfp4Table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::MXFP4) {
  look_up_nibbles(kMxfp4Table, block + 1, out);
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q2_K) {
  for (int half = 0; half < 2; ++half, out += 128) {
    const unsigned char* bytes = block + 16 + 32 * half;
    unpack_two_bits<0>(bytes, 0, out);
    unpack_two_bits<2>(bytes, 0, out + 32);
    unpack_two_bits<4>(bytes, 0, out + 64);
    unpack_two_bits<6>(bytes, 0, out + 96);
  }
}

/// A run of 32 elements of Q3_K.
template <int kPart>
HWY_INLINE void unpack_q3_part(const unsigned char* block, std::int8_t* out) {
  const Bytes32 d;
  for (std::size_t l = 0; l < 32; l += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, block + 32 + kPart / 4 * 32 + l);
    const auto lower = hn::And(hn::ShiftRight<kPart % 4 * 2>(v), hn::Set(d, std::uint8_t{3}));
    const auto third = hn::And(hn::ShiftRight<kPart>(hn::LoadU(d, block + l)), hn::Set(d, std::uint8_t{1}));
    store_integers(d, hn::Or(lower, hn::ShiftLeft<2>(third)), 4, out + 32 * kPart + l);
  }
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q3_K) {
  unpack_q3_part<0>(block, out);
  unpack_q3_part<1>(block, out);
  unpack_q3_part<2>(block, out);
  unpack_q3_part<3>(block, out);
  unpack_q3_part<4>(block, out);
  unpack_q3_part<5>(block, out);
  unpack_q3_part<6>(block, out);
  unpack_q3_part<7>(block, out);
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::TQ2_0) {
  for (int half = 0; half < 2; ++half, out += 128) {
    const unsigned char* bytes = block + 32 * half;
    unpack_two_bits<0>(bytes, 1, out);
    unpack_two_bits<2>(bytes, 1, out + 32);
    unpack_two_bits<4>(bytes, 1, out + 64);
    unpack_two_bits<6>(bytes, 1, out + 96);
  }
}

/// kDigits digits of each of kCount bytes, from -1 to 1, the first ones of all bytes first: a byte is a
/// fraction in base 3, of which times 3 gives the digit before the point and the rest behind it.
template <std::size_t kCount, int kDigits>
HWY_INLINE void unpack_trits(const unsigned char* bytes, std::int8_t* out) {
  const hn::CappedTag<std::uint8_t, kCount> d;
  const auto one = hn::Set(d, std::uint8_t{86});  // 256 / 3 and 512 / 3, rounded up
  const auto two = hn::Set(d, std::uint8_t{171});
  const auto at_least = [&](auto x, auto least) HWY_ATTR {
    return hn::VecFromMask(d, hn::Eq(hn::Max(x, least), x));  // -1 where it is
  };
  for (std::size_t l = 0; l < kCount; l += hn::Lanes(d)) {
    auto rest = hn::LoadU(d, bytes + l);
    for (std::size_t digit = 0; digit < kDigits; ++digit) {
      const auto less = hn::Add(at_least(rest, one), at_least(rest, two));
      store_integers(d, hn::Sub(hn::Zero(d), less), 1, out + kCount * digit + l);
      rest = hn::Add(rest, hn::Add(rest, rest));
    }
  }
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::TQ1_0) {
  unpack_trits<32, 5>(block, out);
  unpack_trits<16, 5>(block + 32, out + 160);
  unpack_trits<4, 4>(block + 48, out + 240);
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q4_K) {
  for (int part = 0; part < 4; ++part)
    unpack_nibbles(Bytes32(), 32, block + 16 + 32 * part, 0, out + 64 * part);
}

#if HWY_TARGET == HWY_AVX3
/// The lower 32 bytes shifted right by kLower bits, the upper ones by kUpper. Bits move between bytes, so
/// that only the lowest 8 - kLower and 8 - kUpper of a byte are its own.
template <int kLower, int kUpper>
HWY_INLINE auto shifted_halves(hn::FixedTag<std::uint8_t, 64> d, hn::Vec<hn::FixedTag<std::uint8_t, 64>> v) {
  const hn::Repartition<std::uint16_t, decltype(d)> d16;
  const auto counts = hn::IfThenElse(hn::FirstN(d16, 16), hn::Set(d16, std::uint16_t{kLower}),
                                     hn::Set(d16, std::uint16_t{kUpper}));
  return hn::BitCast(d, hn::Shr(hn::BitCast(d16, v), counts));
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q6_K) {
  const hn::FixedTag<std::uint8_t, 64> d;
  const hn::Repartition<std::uint16_t, decltype(d)> d16;
  const auto nibble = hn::Set(d, std::uint8_t{0xf});
  const auto two_bits = hn::Set(d, std::uint8_t{0x30});
  const auto upper = hn::LoadU(d, block + 128);
  const auto half = [&](const unsigned char* bytes, auto bits, std::int8_t* to) HWY_ATTR {
    const auto v = hn::LoadU(d, bytes);
    const auto u = shifted_halves<0, 2>(d, bits);
    const auto left = hn::BitCast(d, hn::ShiftLeft<4>(hn::BitCast(d16, u)));
    const auto right = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, v)));
    store_integers(d, hn::OrAnd(hn::And(v, nibble), left, two_bits), 32, to);
    store_integers(d, hn::OrAnd(hn::And(right, nibble), u, two_bits), 32, to + 64);
  };
  half(block, hn::ConcatLowerLower(d, upper, upper), out);
  half(block + 64, hn::ConcatUpperUpper(d, upper, upper), out + 128);
}

/// Elements [128 kHalf, 128 kHalf + 128) of Q5_K.
template <int kHalf>
HWY_INLINE void unpack_q5_half(const unsigned char* block, std::int8_t* out) {
  const hn::FixedTag<std::uint8_t, 64> d;
  const hn::Half<decltype(d)> dh;
  const hn::Repartition<std::uint16_t, decltype(d)> d16;
  const auto nibble = hn::Set(d, std::uint8_t{0xf});
  const auto fifth = hn::Set(d, std::uint8_t{0x10});
  const auto v = hn::LoadU(d, block + 48 + 64 * kHalf);
  const auto right = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, v)));
  const auto bits = hn::LoadU(dh, block + 16);
  const auto u = shifted_halves<4 * kHalf, 4 * kHalf + 2>(d, hn::Combine(d, bits, bits));
  const auto lower =
      hn::OrAnd(hn::And(v, nibble), hn::BitCast(d, hn::ShiftLeft<4>(hn::BitCast(d16, u))), fifth);
  const auto upper =
      hn::OrAnd(hn::And(right, nibble), hn::BitCast(d, hn::ShiftLeft<3>(hn::BitCast(d16, u))), fifth);
  store_integers(dh, hn::LowerHalf(dh, lower), 0, out);
  store_integers(dh, hn::LowerHalf(dh, upper), 0, out + 32);
  store_integers(dh, hn::UpperHalf(dh, lower), 0, out + 64);
  store_integers(dh, hn::UpperHalf(dh, upper), 0, out + 96);
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q5_K) {
  unpack_q5_half<0>(block, out);
  unpack_q5_half<1>(block, out + 128);
}
#else
HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q6_K) {
  const Bytes32 d;
  const auto nibble = hn::Set(d, std::uint8_t{0xf});
  const auto two_bits = hn::Set(d, std::uint8_t{0x30});
  for (int half = 0; half < 2; ++half, out += 128) {
    for (std::size_t l = 0; l < 32; l += hn::Lanes(d)) {
      const auto first = hn::LoadU(d, block + 64 * half + l);
      const auto second = hn::LoadU(d, block + 64 * half + 32 + l);
      const auto upper = hn::LoadU(d, block + 128 + 32 * half + l);
      const auto at = [&](auto lower, auto bits) HWY_ATTR { return hn::Or(lower, hn::And(bits, two_bits)); };
      store_integers(d, at(hn::And(first, nibble), hn::ShiftLeft<4>(upper)), 32, out + l);
      store_integers(d, at(hn::And(second, nibble), hn::ShiftLeft<2>(upper)), 32, out + 32 + l);
      store_integers(d, at(hn::ShiftRight<4>(first), upper), 32, out + 64 + l);
      store_integers(d, at(hn::ShiftRight<4>(second), hn::ShiftRight<2>(upper)), 32, out + 96 + l);
    }
  }
}

/// The 64 elements of Q5_K's part: its bytes' halves with two bits of the fifths.
template <int kPart>
HWY_INLINE void unpack_q5_part(const unsigned char* block, std::int8_t* out) {
  const Bytes32 d;
  const auto one = hn::Set(d, std::uint8_t{1});
  for (std::size_t l = 0; l < 32; l += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, block + 48 + 32 * kPart + l);
    const auto bits = hn::ShiftRight<2 * kPart>(hn::LoadU(d, block + 16 + l));
    const auto lower = hn::ShiftLeft<4>(hn::And(bits, one));
    const auto upper = hn::ShiftLeft<4>(hn::And(hn::ShiftRight<1>(bits), one));
    store_integers(d, hn::Or(hn::And(v, hn::Set(d, std::uint8_t{0xf})), lower), 0, out + 64 * kPart + l);
    store_integers(d, hn::Or(hn::ShiftRight<4>(v), upper), 0, out + 64 * kPart + 32 + l);
  }
}

HWY_INLINE void unpack(const unsigned char* block, std::int8_t* out, formats::Q5_K) {
  unpack_q5_part<0>(block, out);
  unpack_q5_part<1>(block, out);
  unpack_q5_part<2>(block, out);
  unpack_q5_part<3>(block, out);
}
#endif

/// unit * integers, `count` of them.
template <class Integer>
HWY_INLINE void scale_integers(float unit, const Integer* integers, std::size_t count, float* out) {
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<std::int32_t, decltype(d)> d32;
  const hn::Rebind<Integer, decltype(d)> d8;
  for (std::size_t g = 0; g < count; g += hn::Lanes(d)) {
    const auto values = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, integers + g)));
    hn::StoreU(hn::Mul(hn::Set(d, unit), values), d, out + g);
  }
}

/// The steps (and offsets) of a block's groups: any format.
template <class Format>
HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float* offset, Format) {
  constexpr int kGroups = Format::kElements / Format::kGroup;
  if constexpr (Format::kHasCodebook) {
    using Book = Codebook<Format>;
    std::int8_t steps[kGroups];
    for (int eight = 0; eight < kGroups / 8; ++eight) {
      const formats::Eight of_eight = Book::steps(block, eight);
      std::memcpy(steps + 8 * eight, &of_eight, sizeof of_eight);
    }
    return scale_integers(Book::half(block) / Book::kStepParts, steps, kGroups, step);
  }
  for (int g = 0; g < kGroups; ++g) {
    const auto s = Format::template step<float>(block, g);
    step[g] = s.step;
    if (Format::kHasOffset) offset[g] = s.offset;
  }
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float*, formats::Q8_0) {
  *step = half_at(block);
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float*, formats::Q4_0) {
  *step = half_at(block);
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float*, formats::Q5_0) {
  *step = half_at(block);
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float*, formats::IQ4_NL) {
  *step = half_at(block);
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float* offset, formats::Q4_1) {
  *step = half_at(block);
  *offset = half_at(block + 2);
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float* offset, formats::Q5_1) {
  *step = half_at(block);
  *offset = half_at(block + 2);
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float* offset, formats::Q2_K) {
  std::int8_t integers[32];
  unpack_nibbles(Bytes16(), 16, block, 0, integers);
  scale_integers(half_at(block + 80), integers, 16, step);
  scale_integers(-half_at(block + 82), integers + 16, 16, offset);
}

/// Eight bytes of 0 to 63, less 32.
HWY_INLINE std::uint64_t less_32(std::uint64_t bytes) {
  constexpr std::uint64_t kSigns = 0x8080808080808080u;
  return ((bytes | kSigns) - 0x2020202020202020u) ^ kSigns;
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float*, formats::Q3_K) {
  // The lower four bits of groups g and g + 8 in byte g of eight; the upper two of groups g, g + 4, g + 8 and
  // g + 12 in byte g of four.
  std::uint64_t lower;
  std::uint32_t upper;
  std::memcpy(&lower, block + 96, sizeof lower);
  std::memcpy(&upper, block + 104, sizeof upper);
  const auto upper_bits = [&](int shift) {
    return std::uint64_t{upper >> shift & 0x03030303u} << 4 |
           std::uint64_t{upper >> (shift + 2) & 0x03030303u} << 36;
  };
  const std::uint64_t bytes[2] = {less_32((lower & 0x0f0f0f0f0f0f0f0fu) | upper_bits(0)),
                                  less_32((lower >> 4 & 0x0f0f0f0f0f0f0f0fu) | upper_bits(4))};
  std::int8_t integers[16];
  std::memcpy(integers, bytes, sizeof bytes);
  scale_integers(half_at(block + 108), integers, 16, step);
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float*, formats::IQ4_XS) {
  std::uint16_t upper;
  std::uint32_t lower;
  std::memcpy(&upper, block + 2, sizeof upper);
  std::memcpy(&lower, block + 4, sizeof lower);
  // Halves of the bits move apart, then halves of these, until each group has a byte.
  std::uint64_t low = lower;
  low = (low | low << 16) & 0x0000ffff0000ffffu;
  low = (low | low << 8) & 0x00ff00ff00ff00ffu;
  low = (low | low << 4) & 0x0f0f0f0f0f0f0f0fu;
  std::uint64_t high = upper;
  high = (high | high << 24) & 0x000000ff000000ffu;
  high = (high | high << 12) & 0x000f000f000f000fu;
  high = (high | high << 6) & 0x0303030303030303u;
  const std::uint64_t bytes = less_32(low | high << 4);
  std::int8_t integers[8];
  std::memcpy(integers, &bytes, sizeof bytes);
  scale_integers(half_at(block), integers, 8, step);
}

#if HWY_TARGET == HWY_AVX3
HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float* offset, formats::Q4_K) {
  // The words of the halves, of steps, of offsets, and of the lower bits of the last four of both: in
  // vectors, since going from one kind of register to the other takes longer than all of this.
  const hn::FixedTag<std::uint8_t, 16> d8;
  const hn::Repartition<std::uint32_t, decltype(d8)> d;
  alignas(16) static constexpr std::uint8_t kLower[16] = {4, 5, 6,  7,  12, 13, 14, 15,
                                                          8, 9, 10, 11, 12, 13, 14, 15};
  alignas(16) static constexpr std::uint8_t kUpper[16] = {0, 0, 0, 0, 4, 5, 6, 7, 0, 0, 0, 0, 8, 9, 10, 11};
  alignas(16) static constexpr std::uint32_t kShifts[4] = {0, 0, 0, 4};
  alignas(16) static constexpr std::uint32_t kLowerBits[4] = {0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f};
  alignas(16) static constexpr std::uint32_t kUpperBits[4] = {0, 0x30303030, 0, 0x30303030};
  const auto words = hn::LoadU(d8, block);
  const auto lower = hn::BitCast(d, hn::TableLookupBytes(words, hn::Load(d8, kLower)));
  const auto upper = hn::BitCast(d, hn::TableLookupBytes(words, hn::Load(d8, kUpper)));
  const auto bits = hn::OrAnd(hn::And(hn::Shr(lower, hn::Load(d, kShifts)), hn::Load(d, kLowerBits)),
                              hn::ShiftRight<2>(upper), hn::Load(d, kUpperBits));
  const F32 df;
  const hn::Half<F32> half;
  const hn::RebindToSigned<F32> d32;
  const VecF32 integers = hn::ConvertTo(df, hn::PromoteTo(d32, hn::BitCast(d8, bits)));
  const auto unit =
      hn::IfThenElse(hn::FirstN(df, 8), half_in_lanes(df, block), hn::Neg(half_in_lanes(df, block + 2)));
  const VecF32 both = hn::Mul(unit, integers);
  hn::StoreU(hn::LowerHalf(half, both), half, step);
  hn::StoreU(hn::UpperHalf(half, both), half, offset);
}
#else
HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float* offset, formats::Q4_K) {
  // Four groups' bits a word: bytes of steps, of offsets, and of the lower bits of the last four of both.
  std::uint32_t words[3];
  std::memcpy(words, block + 4, sizeof words);
  // Eight at once, so that vectors can read what was written.
  const std::uint64_t steps = (words[0] & 0x3f3f3f3fu) |
                              std::uint64_t{(words[2] & 0x0f0f0f0fu) | (words[0] >> 2 & 0x30303030u)} << 32;
  const std::uint64_t offsets =
      (words[1] & 0x3f3f3f3fu) | std::uint64_t{(words[2] >> 4 & 0x0f0f0f0fu) | (words[1] >> 2 & 0x30303030u)}
                                     << 32;
  std::int8_t integers[2][8];
  std::memcpy(integers[0], &steps, sizeof steps);
  std::memcpy(integers[1], &offsets, sizeof offsets);
  scale_integers(half_at(block), integers[0], 8, step);
  scale_integers(-half_at(block + 2), integers[1], 8, offset);
}
#endif

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float* offset, formats::Q5_K) {
  unpack_steps(block, step, offset, formats::Q4_K());
}

HWY_INLINE void unpack_steps(const unsigned char* block, float* step, float*, formats::Q6_K) {
  scale_integers(half_at(block + 208), reinterpret_cast<const std::int8_t*>(block + 192), 16, step);
}

/// A block of any format, taken apart.
template <class Format>
struct UnpackedBlock {
  static constexpr int kGroups = Format::kElements / Format::kGroup;
  alignas(64) std::int8_t integers[Format::kElements];
  alignas(64) float step[kGroups];
  alignas(64) float offset[Format::kHasOffset ? kGroups : 1];

  HWY_INLINE void unpack_from(const unsigned char* block) {
    if constexpr (Format::kElements < 256) {
      unpack(block, integers, Format());
      unpack_steps(block, step, offset, Format());
    } else {
      unpack_large(block);
    }
  }
  /// A call: its code is long and would stand in hundreds of places, and beside 256 elements a call is
  /// nothing.
  HWY_NOINLINE void unpack_large(const unsigned char* block) {
    unpack(block, integers, Format());
    unpack_steps(block, step, offset, Format());
  }
  struct Group {
    VecF32 step, offset;
  };
  /// What elements of the group of `element` share.
  HWY_INLINE Group group(F32 d, std::size_t element) const {
    const std::size_t g = element / static_cast<std::size_t>(Format::kGroup);
    const VecF32 s = hn::Set(d, step[g]);
    if constexpr (Format::kHasOffset) return {s, hn::Set(d, offset[g])};
    return {s, s};
  }
  /// Elements from `element` on.
  HWY_INLINE VecF32 vector(F32 d, const Group& group, std::size_t element) const {
    const VecF32 integer = load_vector(d, integers + element);
    if constexpr (Format::kHasOffset) return hn::MulAdd(integer, group.step, group.offset);
    return hn::Mul(integer, group.step);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#endif
