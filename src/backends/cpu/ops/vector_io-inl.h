// Vectors of fp32 from and to arrays of f32, f16, bf16 and Q8_0. Included once a SIMD target.

#if defined(TESSERA_CPU_OPS_VECTOR_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_OPS_VECTOR_IO_INL_H_
#undef TESSERA_CPU_OPS_VECTOR_IO_INL_H_
#else
#define TESSERA_CPU_OPS_VECTOR_IO_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/cpu/ops/row_kernels.h"
#include "core/block_format.h"
#include "tessera/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a block of 32 elements is a whole number of vectors.
using F32 = hn::CappedTag<float, 16>;
using VecF32 = hn::Vec<F32>;

// One lane at a time the types of tessera/dtype.h round; Highway's emulation cuts off.
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
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

/// The scale that a Q8_0 block starts with.
HWY_INLINE float q8_scale(const std::byte* block) {
  if constexpr (kEmulated) {
    Half scale;
    std::memcpy(&scale, block, sizeof scale);
    return static_cast<float>(scale);
  } else {
    const hn::CappedTag<float, 4> d;
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    const hn::Rebind<hwy::float16_t, decltype(d)> df16;
    std::uint16_t bits;
    std::memcpy(&bits, block, sizeof bits);
    return hn::GetLane(hn::PromoteTo(d, hn::BitCast(df16, hn::Set(d16, bits))));
  }
}

HWY_INLINE const std::int8_t* q8_values(const std::byte* block) {
  return reinterpret_cast<const std::int8_t*>(block + sizeof(Half));
}

template <class T>
HWY_INLINE void load_elements(const T* p, std::size_t n, float* HWY_RESTRICT out) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load_vector(d, p + i), d, out + i);
  for (; i < n; ++i) out[i] = static_cast<float>(p[i]);
}

template <class T>
HWY_INLINE void store_elements(const float* HWY_RESTRICT values, std::size_t n, T* p) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) store_vector(d, hn::LoadU(d, values + i), p + i);
  for (; i < n; ++i) p[i] = static_cast<T>(values[i]);
}

/// n elements of blocks; n is a multiple of a block's. Formats that deserve better have an overload.
template <class Format>
void load_blocks(const std::byte* data, std::size_t n, float* out, Format) {
  constexpr int kPiece = 32;
  static_assert(Format::kElements % kPiece == 0);
  const auto* block = reinterpret_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < n; i += Format::kElements, block += Format::kBytes) {
    for (int j = 0; j < Format::kElements; j += kPiece) {
      float piece[kPiece];
      Format::decode(block, j, piece);
      std::memcpy(out + i + static_cast<std::size_t>(j), piece, sizeof piece);
    }
  }
}

inline void load_blocks(const std::byte* block, std::size_t n, float* out, formats::Q8_0) {
  const F32 d;
  for (std::size_t i = 0; i < n; i += formats::Q8_0::kElements, block += formats::Q8_0::kBytes) {
    const VecF32 scale = hn::Set(d, q8_scale(block));
    for (std::size_t j = 0; j < formats::Q8_0::kElements; j += hn::Lanes(d)) {
      hn::StoreU(hn::Mul(scale, load_vector(d, q8_values(block) + j)), d, out + i + j);
    }
  }
}

/// offset and n are multiples of a block.
inline void load_as_f32(const void* data, DType dtype, std::int64_t offset, std::size_t n, float* out) {
  dispatch_weight(dtype, [&]<class T>() {
    if constexpr (is_block_format<T>) {
      load_blocks(static_cast<const std::byte*>(data) + offset / T::kElements * T::kBytes, n, out, T());
    } else {
      load_elements(static_cast<const T*>(data) + offset, n, out);
    }
  });
  const std::size_t padded = padded_row(static_cast<std::int64_t>(n));
  for (std::size_t i = n; i < padded; ++i) out[i] = 0;
}

inline void store_from_f32(const float* values, std::size_t n, void* data, DType dtype, std::int64_t offset) {
  dispatch_activation(dtype, [&]<class T>() { store_elements(values, n, static_cast<T*>(data) + offset); });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#endif
