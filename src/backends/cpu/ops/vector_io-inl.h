// Arrays of f32, f16, bf16 and blocks from and to fp32. Included once a SIMD target.

#if defined(TESSERA_CPU_OPS_VECTOR_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_OPS_VECTOR_IO_INL_H_
#undef TESSERA_CPU_OPS_VECTOR_IO_INL_H_
#else
#define TESSERA_CPU_OPS_VECTOR_IO_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/cpu/ops/blocks-inl.h"
#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/vector_types-inl.h"
#include "core/block_format.h"
#include "tessera/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

/// n elements of blocks; n is a multiple of a block's.
template <class Format>
void load_blocks(const std::byte* data, std::size_t n, float* out, Format) {
  const F32 d;
  const auto* block = reinterpret_cast<const unsigned char*>(data);
  UnpackedBlock<Format> unpacked;
  for (std::size_t i = 0; i < n; i += Format::kElements, block += Format::kBytes) {
    unpacked.unpack_from(block);
    for (std::size_t j = 0; j < std::size_t{Format::kElements}; j += hn::Lanes(d)) {
      hn::StoreU(unpacked.vector(d, unpacked.group(d, j), j), d, out + i + j);
    }
  }
}

inline void load_blocks(const std::byte* data, std::size_t n, float* out, formats::Q8_0) {
  const F32 d;
  for (std::size_t i = 0; i < n; i += formats::Q8_0::kElements, data += formats::Q8_0::kBytes) {
    const VecF32 scale = hn::Set(d, half_at(data));
    for (std::size_t j = 0; j < formats::Q8_0::kElements; j += hn::Lanes(d)) {
      hn::StoreU(hn::Mul(scale, load_vector(d, q8_values(data) + j)), d, out + i + j);
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
