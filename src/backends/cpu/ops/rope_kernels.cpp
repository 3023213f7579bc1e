// Rotary position embedding. A token's angles are the same for all its heads, so their cosines and sines are
// computed once a token.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/ops/rope_kernels.cpp"
#include "backends/cpu/highway_targets.h"
// After the list of targets.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <numbers>

#include "backends/cpu/ops/row_kernels.h"
#include "backends/cpu/ops/select_kernels.h"
#include "backends/cpu/ops/vector_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace {

/// Scratch of one task: padded rows of num_pairs elements, two of them for a head with interleaved pairs.
struct RopeScratch {
  RopeScratch(float* memory, int num_pairs)
      : frequencies(memory),
        cosines(frequencies + padded_row(num_pairs)),
        sines(cosines + padded_row(num_pairs)),
        in(sines + padded_row(num_pairs)),
        out(in + 2 * padded_row(num_pairs)) {}
  float *frequencies, *cosines, *sines;
  float *in, *out;
};

/// cos and sin of position * frequency, times factor. The angle is reduced to [-pi/4, pi/4] in fp64, since at
/// a position of 100000 the fp32 product alone is off by 1/256; then Taylor series whose first term left out
/// is below 2^-29.
inline void fill_angles(const RopeScratch& scratch, int num_pairs, std::int32_t position, float factor) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const auto p = hn::Set(d, static_cast<double>(position));
  const auto scale = hn::Set(df, factor);
  const auto one = hn::Set(df, 1.0f);
  const std::size_t padded = padded_row(num_pairs);
  for (std::size_t i = 0; i < padded; i += hn::Lanes(d)) {
    const auto angle = hn::Mul(p, hn::PromoteTo(d, hn::LoadU(df, scratch.frequencies + i)));
    const auto turns = hn::Round(hn::Mul(angle, hn::Set(d, 2 / std::numbers::pi)));
    const auto r = hn::DemoteTo(df, hn::NegMulAdd(turns, hn::Set(d, std::numbers::pi / 2), angle));
    const auto quadrant =
        hn::DemoteTo(df, hn::NegMulAdd(hn::Set(d, 4.0), hn::Floor(hn::Mul(turns, hn::Set(d, 0.25))), turns));

    const auto r2 = hn::Mul(r, r);
    auto s = hn::MulAdd(r2, hn::Set(df, 1.0f / 362880), hn::Set(df, -1.0f / 5040));
    s = hn::MulAdd(r2, s, hn::Set(df, 1.0f / 120));
    s = hn::MulAdd(r2, s, hn::Set(df, -1.0f / 6));
    s = hn::MulAdd(hn::Mul(r2, r), s, r);
    auto c = hn::MulAdd(r2, hn::Set(df, -1.0f / 3628800), hn::Set(df, 1.0f / 40320));
    c = hn::MulAdd(r2, c, hn::Set(df, -1.0f / 720));
    c = hn::MulAdd(r2, c, hn::Set(df, 1.0f / 24));
    c = hn::MulAdd(r2, c, hn::Set(df, -0.5f));
    c = hn::MulAdd(r2, c, one);

    // Quarter turns: (cos, sin) -> (-sin, cos).
    const auto odd = hn::Or(hn::Eq(quadrant, one), hn::Eq(quadrant, hn::Set(df, 3.0f)));
    const auto cos_negative = hn::Or(hn::Eq(quadrant, one), hn::Eq(quadrant, hn::Set(df, 2.0f)));
    const auto sin_negative = hn::Ge(quadrant, hn::Set(df, 2.0f));
    const auto cosine = hn::IfThenElse(odd, s, c);
    const auto sine = hn::IfThenElse(odd, c, s);
    hn::StoreU(hn::Mul(scale, hn::IfThenElse(cos_negative, hn::Neg(cosine), cosine)), df,
               scratch.cosines + i);
    hn::StoreU(hn::Mul(scale, hn::IfThenElse(sin_negative, hn::Neg(sine), sine)), df, scratch.sines + i);
  }
}

/// Writes n numbers into rows of activations or of the cache, which may be of 8 bits.
inline void store_numbers(const float* values, std::size_t n, void* data, DType dtype, std::int64_t offset) {
  if (dtype != DType::kF8E4M3) return store_from_f32(values, n, data, dtype, offset);
  Float8E4M3* to = static_cast<Float8E4M3*>(data) + offset;
  for (std::size_t i = 0; i < n; ++i) to[i] = Float8E4M3(values[i]);
}

/// Rotates the head at `offset` of `data` and writes it at `out_offset` of `out`, which may be the same.
/// Elements past the pairs are not written.
inline void rotate_head(const RopeScratch& scratch, int num_pairs, RopePairing pairing, const void* data,
                        DType dtype, std::int64_t offset, void* out, DType out_dtype,
                        std::int64_t out_offset) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t n = static_cast<std::size_t>(num_pairs);
  const std::size_t padded = padded_row(num_pairs);
  if (pairing == RopePairing::kHalves) {
    load_as_f32(data, dtype, offset, n, scratch.in);
    load_as_f32(data, dtype, offset + num_pairs, n, scratch.in + padded);
    for (std::size_t i = 0; i < n; i += lanes) {
      const VecF32 a = hn::LoadU(d, scratch.in + i);
      const VecF32 b = hn::LoadU(d, scratch.in + padded + i);
      const VecF32 c = hn::LoadU(d, scratch.cosines + i);
      const VecF32 s = hn::LoadU(d, scratch.sines + i);
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, scratch.out + i);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, scratch.out + padded + i);
    }
    store_numbers(scratch.out, n, out, out_dtype, out_offset);
    store_numbers(scratch.out + padded, n, out, out_dtype, out_offset + num_pairs);
  } else {
    load_as_f32(data, dtype, offset, 2 * n, scratch.in);
    for (std::size_t i = 0; i < n; i += lanes) {
      VecF32 a, b;
      hn::LoadInterleaved2(d, scratch.in + 2 * i, a, b);
      const VecF32 c = hn::LoadU(d, scratch.cosines + i);
      const VecF32 s = hn::LoadU(d, scratch.sines + i);
      hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(a, s, hn::Mul(b, c)), d,
                            scratch.out + 2 * i);
    }
    store_numbers(scratch.out, 2 * n, out, out_dtype, out_offset);
  }
}

/// Copies n elements between arrays, converting where the dtypes differ.
inline void copy_elements(const void* data, DType dtype, std::int64_t offset, std::size_t n, void* out,
                          DType out_dtype, std::int64_t out_offset) {
  if (dtype == out_dtype) {
    const std::size_t bytes = dtype_bytes(dtype, 1);
    std::memcpy(static_cast<std::byte*>(out) + static_cast<std::size_t>(out_offset) * bytes,
                static_cast<const std::byte*>(data) + static_cast<std::size_t>(offset) * bytes, n * bytes);
    return;
  }
  constexpr std::size_t kPiece = 256;
  alignas(64) float piece[kPiece];
  for (std::size_t i = 0; i < n; i += kPiece) {
    const std::size_t count = std::min(kPiece, n - i);
    load_as_f32(data, dtype, offset + static_cast<std::int64_t>(i), count, piece);
    store_numbers(piece, count, out, out_dtype, out_offset + static_cast<std::int64_t>(i));
  }
}

inline void load_frequencies(const RopeScratch& scratch, const float* frequencies, int num_pairs) {
  if (num_pairs > 0)
    load_as_f32(frequencies, DType::kF32, 0, static_cast<std::size_t>(num_pairs), scratch.frequencies);
}

void rope(const RopeArguments& a, std::int64_t begin, std::int64_t end, float* memory) {
  const RopeScratch scratch(memory, a.num_pairs);
  load_frequencies(scratch, a.inverse_frequencies, a.num_pairs);
  for (std::int64_t t = begin; t < end; ++t) {
    fill_angles(scratch, a.num_pairs, a.positions[t], a.attention_factor);
    for (int h = 0; h < a.heads; ++h) {
      const std::int64_t head = t * a.x.row_stride + std::int64_t{h} * a.head_dim;
      rotate_head(scratch, a.num_pairs, a.pairing, a.x.data, a.x.dtype, head, a.x.data, a.x.dtype, head);
    }
  }
}

void rope_append(const RopeAppendArguments& a, std::int64_t begin, std::int64_t end, float* memory) {
  const RopeScratch scratch(memory, a.num_pairs);
  const KvCacheView& cache = a.cache;
  load_frequencies(scratch, a.inverse_frequencies, a.num_pairs);
  const std::int64_t rotated = 2 * std::int64_t{a.num_pairs};
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int32_t position = a.positions[t];
    fill_angles(scratch, a.num_pairs, position, a.attention_factor);
    for (int h = 0; h < a.num_heads; ++h) {
      const std::int64_t head = t * a.q.row_stride + std::int64_t{h} * a.head_dim;
      rotate_head(scratch, a.num_pairs, a.pairing, a.q.data, a.q.dtype, head, a.q.data, a.q.dtype, head);
    }
    const std::int64_t page =
        cache.block_table == nullptr
            ? a.sequences[t]
            : cache.block_table[a.sequences[t] * cache.block_table_stride + position / cache.page_size];
    const std::int64_t slot = page * cache.page_stride + position % cache.page_size * cache.token_stride;
    for (int h = 0; h < a.num_kv_heads; ++h) {
      const std::int64_t k = t * a.k.row_stride + std::int64_t{h} * a.head_dim;
      const std::int64_t v = t * a.v.row_stride + std::int64_t{h} * a.head_dim;
      const std::int64_t destination = slot + h * cache.head_stride;
      rotate_head(scratch, a.num_pairs, a.pairing, a.k.data, a.k.dtype, k, cache.k, cache.dtype, destination);
      copy_elements(a.k.data, a.k.dtype, k + rotated, static_cast<std::size_t>(a.head_dim - rotated), cache.k,
                    cache.dtype, destination + rotated);
      copy_elements(a.v.data, a.v.dtype, v, static_cast<std::size_t>(a.head_dim), cache.v, cache.dtype,
                    destination);
    }
  }
}

}  // namespace

extern const RopeKernels kRopeKernels;
const RopeKernels kRopeKernels = {rope, rope_append};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

const RopeKernels& rope_kernels() { return TESSERA_SELECT_KERNELS(kRopeKernels); }

}  // namespace tessera::cpu
#endif
