// Blocks of four bits an element, from memory into vectors of weights. Included once a SIMD target.

#if defined(TESSERA_CPU_OPS_NIBBLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_OPS_NIBBLES_INL_H_
#undef TESSERA_CPU_OPS_NIBBLES_INL_H_
#else
#define TESSERA_CPU_OPS_NIBBLES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backends/cpu/ops/blocks-inl.h"
#include "backends/cpu/ops/vector_types-inl.h"
#include "core/block_format.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Where a format has its halves of bytes: in runs of kRun bytes from byte kFirst on, whose lower halves are
/// kRun elements and whose upper halves the next kRun; and what a half stands for: `integers`, or itself less
/// kLess where kIsLinear.
template <class Format>
struct NibbleLayout {
  static constexpr bool kExists = false;
};

template <int kFirst_, int kRun_, int kLess_>
struct LinearNibbles {
  static constexpr bool kExists = true;
  static constexpr bool kIsLinear = true;
  static constexpr int kFirst = kFirst_, kRun = kRun_, kLess = kLess_;
  static constexpr float integer(int bits) { return static_cast<float>(bits - kLess); }
};
template <>
struct NibbleLayout<formats::Q4_0> : LinearNibbles<2, 16, 8> {};
template <>
struct NibbleLayout<formats::Q4_1> : LinearNibbles<4, 16, 0> {};
template <>
struct NibbleLayout<formats::Q4_K> : LinearNibbles<16, 32, 0> {};

template <int kFirst_>
struct TableNibbles {
  static constexpr bool kExists = true;
  static constexpr bool kIsLinear = false;
  static constexpr int kFirst = kFirst_, kRun = 16, kLess = 0;
  static constexpr float integer(int bits) { return kIq4Table.at[bits]; }
};
template <>
struct NibbleLayout<formats::IQ4_NL> : TableNibbles<2> {};
template <>
struct NibbleLayout<formats::IQ4_XS> : TableNibbles<8> {};
template <>
struct NibbleLayout<formats::MXFP4> : TableNibbles<1> {
  static constexpr float integer(int bits) { return kMxfp4Table[bits]; }
};

/// Vectors of 16 lanes hold the 16 weights that a group's halves of bytes can stand for: one multiply-add
/// makes them, and a permutation is the way from bits to weights.
inline constexpr bool kTablesOfWeights = hn::MaxLanes(F32()) == 16;

/// Formats whose halves of bytes become vectors without a detour through memory.
template <class Format>
inline constexpr bool kHasNibbles = [] {
  using Layout = NibbleLayout<Format>;
  if constexpr (kEmulated || !Layout::kExists) {
    return false;
  } else {
    return Layout::kIsLinear || kTablesOfWeights;
  }
}();

using I32 = hn::RebindToSigned<F32>;
using VecI32 = hn::Vec<I32>;

template <class Layout>
inline constexpr auto kNibbleIntegers = [] {
  struct Table {
    alignas(64) float at[16];
  } table{};
  for (int bits = 0; bits < 16; ++bits) table.at[bits] = Layout::integer(bits);
  return table;
}();

/// A group's weights by their bits.
template <class Format>
class NibbleGroup {
  using Layout = NibbleLayout<Format>;

 public:
  HWY_INLINE NibbleGroup(F32 d, VecF32 step, VecF32 offset) {
    if constexpr (kTablesOfWeights) {
      const VecF32 integers = hn::Load(d, kNibbleIntegers<Layout>.at);
      first_ = Format::kHasOffset ? hn::MulAdd(integers, step, offset) : hn::Mul(integers, step);
    } else {
      first_ = step;
      second_ = Format::kHasOffset ? offset : hn::Mul(step, hn::Set(d, static_cast<float>(-Layout::kLess)));
    }
  }
  /// bits: 0 to 15.
  HWY_INLINE VecF32 weights(F32 d, VecI32 bits) const {
    if constexpr (kTablesOfWeights) {
      return hn::TableLookupLanes(first_, hn::IndicesFromVec(d, bits));
    } else {
      return hn::MulAdd(hn::ConvertTo(d, bits), first_, second_);
    }
  }

 private:
  VecF32 first_, second_;  // the 16 weights; or step and offset
};

/// The steps (and offsets) of a block of several groups, in memory: a vector of one of them costs the units
/// that permute nothing from there.
template <class Format, int kGroups = Format::kElements / Format::kGroup>
struct BlockSteps {
  alignas(64) float step[kGroups];
  alignas(64) float offset[Format::kHasOffset ? kGroups : 1];

  HWY_INLINE void unpack_from(const unsigned char* block) { unpack_steps(block, step, offset, Format()); }
  HWY_INLINE NibbleGroup<Format> group(F32 d, const unsigned char*, int g) const {
    const VecF32 s = hn::Set(d, step[g]);
    if constexpr (Format::kHasOffset) return {d, s, hn::Set(d, offset[g])};
    return {d, s, s};
  }
};

/// Those of a block of one group need no preparation.
template <class Format>
struct BlockSteps<Format, 1> {
  HWY_INLINE void unpack_from(const unsigned char*) {}
  HWY_INLINE NibbleGroup<Format> group(F32 d, const unsigned char* block, int) const {
    if constexpr (std::is_same_v<Format, formats::MXFP4>) {
      const VecF32 s = hn::Set(d, Format::template step<float>(block, 0).step);
      return {d, s, s};
    } else {
      const VecF32 s = half_in_lanes(d, block);
      if constexpr (Format::kHasOffset) return {d, s, half_in_lanes(d, block + 2)};
      return {d, s, s};
    }
  }
};

/// Calls use(vector, element, weights) for all vectors of a block: element is the first one's place in it,
/// vector a number that the compiler knows, which counts those of 64 elements or of a block.
template <class Format, class Use>
HWY_INLINE void each_nibble_vector(F32 d, const unsigned char* block, const BlockSteps<Format>& steps,
                                   Use use) {
  using Layout = NibbleLayout<Format>;
  constexpr int kRun = Layout::kRun;
  const hn::Rebind<std::uint8_t, F32> d8;
  const I32 d32;
  constexpr int kPart = std::min(Format::kElements, 64);
  for (int part = 0; part < Format::kElements; part += kPart) {
    for (int first = 0; first < kPart; first += 2 * kRun) {
      const auto lower = steps.group(d, block, (part + first) / Format::kGroup);
      const auto upper =
          kRun < Format::kGroup ? lower : steps.group(d, block, (part + first + kRun) / Format::kGroup);
      for (int l = first; l < first + kRun; l += static_cast<int>(hn::Lanes(d))) {
        const int byte = Layout::kFirst + (part + first) / 2 + (l - first);
        const VecI32 bytes = hn::PromoteTo(d32, hn::LoadU(d8, block + byte));
        const auto at = [&](int element, VecF32 weights) HWY_ATTR __attribute__((always_inline)) {
          use(static_cast<std::size_t>(element) / hn::Lanes(d), static_cast<std::size_t>(part + element),
              weights);
        };
        at(l, lower.weights(d, hn::And(bytes, hn::Set(d32, 0xf))));
        at(l + kRun, upper.weights(d, hn::ShiftRight<4>(bytes)));
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#endif
