// Vectors of fp32 from and to f32, f16, bf16 and int8. Included once a SIMD target.

#if defined(TESSERA_CPU_OPS_VECTOR_TYPES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_OPS_VECTOR_TYPES_INL_H_
#undef TESSERA_CPU_OPS_VECTOR_TYPES_INL_H_
#else
#define TESSERA_CPU_OPS_VECTOR_TYPES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "tessera/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a block of 32 elements is a whole number of vectors.
using F32 = hn::CappedTag<float, 16>;
using VecF32 = hn::Vec<F32>;

// One lane at a time the types of tessera/dtype.h round; Highway's emulation cuts off.
#if HWY_TARGET == HWY_SCALAR
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

HWY_INLINE VecF32 load_vector(F32 d, const float* p) { return hn::LoadU(d, p); }

HWY_INLINE VecF32 load_vector(F32 d, const Half* p) {
  if constexpr (kEmulated) {
    alignas(64) float lanes[16];
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = static_cast<float>(p[i]);
    return hn::Load(d, lanes);
  } else {
    const hn::Rebind<std::uint16_t, F32> d16;
    const hn::Rebind<hwy::float16_t, F32> df16;
    return hn::PromoteTo(d, hn::BitCast(df16, hn::LoadU(d16, &p->bits)));
  }
}

HWY_INLINE VecF32 load_vector(F32 d, const BFloat16* p) {
  const hn::Rebind<std::uint16_t, F32> d16;
  const hn::Rebind<std::uint32_t, F32> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, &p->bits))));
}

HWY_INLINE VecF32 load_vector(F32 d, const std::int8_t* p) {
  const hn::Rebind<std::int8_t, F32> d8;
  const hn::Rebind<std::int32_t, F32> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, p)));
}

HWY_INLINE void store_vector(F32 d, VecF32 v, float* p) { hn::StoreU(v, d, p); }

HWY_INLINE void store_vector(F32 d, VecF32 v, Half* p) {
  if constexpr (kEmulated) {
    alignas(64) float lanes[16];
    hn::Store(v, d, lanes);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) p[i] = Half(lanes[i]);
  } else {
    const hn::Rebind<std::uint16_t, F32> d16;
    const hn::Rebind<hwy::float16_t, F32> df16;
    hn::StoreU(hn::BitCast(d16, hn::DemoteTo(df16, v)), d16, &p->bits);
  }
}

/// Rounds to nearest, ties to even; NaN stays NaN.
HWY_INLINE void store_vector([[maybe_unused]] F32 d, VecF32 v, BFloat16* p) {
  const hn::Rebind<std::uint16_t, F32> d16;
  const hn::Rebind<std::uint32_t, F32> d32;
  const hn::Rebind<std::int32_t, F32> di32;
  const auto bits = hn::BitCast(d32, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto round_up = hn::Add(hn::Set(d32, 0x7fffu), hn::And(upper, hn::Set(d32, 1u)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, round_up));
  const auto quiet_nan = hn::Or(upper, hn::Set(d32, 0x40u));
  const auto result = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet_nan, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, result)), d16, &p->bits);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#endif
