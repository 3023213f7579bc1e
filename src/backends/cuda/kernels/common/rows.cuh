#pragma once

#include "common/ops_params.h"
#include "common/types.cuh"

// Access to rows of any element type in groups of 8 elements, and reductions over a block.

namespace tessera::kernels {

constexpr int kAnyType = -1;  // the type is read from the argument when the kernel runs
constexpr int kMaxWarps = 1024 / kWarpSize;

template <class T>
TESSERA_DEVICE void load_typed(const void* data, int64 offset, int count, bool vector,
                               float (&v)[kGroupSize]) {
  const T* source = static_cast<const T*>(data) + offset;
  if (vector && count >= kGroupSize) {
    constexpr int kLanes = 16 / sizeof(T);
    TESSERA_UNROLL
    for (int n = 0; n < kGroupSize / kLanes; ++n) {
      const Vector<T, kLanes> part = reinterpret_cast<const Vector<T, kLanes>*>(source)[n];
      TESSERA_UNROLL
      for (int i = 0; i < kLanes; ++i) v[n * kLanes + i] = to_float(part.element[i]);
    }
  } else {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) v[i] = i < count ? to_float(source[i]) : 0.0f;
  }
}

template <class T>
TESSERA_DEVICE void store_typed(void* data, int64 offset, int count, bool vector,
                                const float (&v)[kGroupSize]) {
  T* destination = static_cast<T*>(data) + offset;
  if (vector && count >= kGroupSize) {
    constexpr int kLanes = 16 / sizeof(T);
    TESSERA_UNROLL
    for (int n = 0; n < kGroupSize / kLanes; ++n) {
      Vector<T, kLanes> part;
      TESSERA_UNROLL
      for (int i = 0; i < kLanes; ++i) part.element[i] = from_float<T>(v[n * kLanes + i]);
      reinterpret_cast<Vector<T, kLanes>*>(destination)[n] = part;
    }
  } else {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (i < count) destination[i] = from_float<T>(v[i]);
    }
  }
}

/// Element `index` of Q8_0 blocks: 32 int8 values after one fp16 scale, 34 bytes.
TESSERA_DEVICE float load_q8(const void* data, int64 index) {
  const unsigned char* block = static_cast<const unsigned char*>(data) + index / 32 * 34;
  f16 scale;
  scale.bits = static_cast<unsigned short>(block[0] | (block[1] << 8));
  return to_float(scale) * static_cast<float>(static_cast<signed char>(block[2 + index % 32]));
}

/// Elements [offset, offset + min(count, 8)) as floats; zeros beyond count.
template <int kType>
TESSERA_DEVICE void load_group(const RowsArgument& x, int64 offset, int count, float (&v)[kGroupSize]) {
  const int type = kType == kAnyType ? x.type : kType;
  const bool vector = x.vector != 0;
  if (type == kElementF32) {
    load_typed<float>(x.data, offset, count, vector, v);
  } else if (type == kElementF16) {
    load_typed<f16>(x.data, offset, count, vector, v);
  } else if (type == kElementBF16) {
    load_typed<bf16>(x.data, offset, count, vector, v);
  } else {
    for (int i = 0; i < kGroupSize; ++i) v[i] = i < count ? load_q8(x.data, offset + i) : 0.0f;
  }
}

template <int kType>
TESSERA_DEVICE void store_group(const RowsArgument& x, int64 offset, int count,
                                const float (&v)[kGroupSize]) {
  const int type = kType == kAnyType ? x.type : kType;
  const bool vector = x.vector != 0;
  if (type == kElementF32) {
    store_typed<float>(x.data, offset, count, vector, v);
  } else if (type == kElementF16) {
    store_typed<f16>(x.data, offset, count, vector, v);
  } else {
    store_typed<bf16>(x.data, offset, count, vector, v);
  }
}

TESSERA_DEVICE float load_scalar(const RowsArgument& x, int64 offset) {
  switch (x.type) {
    case kElementF32:
      return static_cast<const float*>(x.data)[offset];
    case kElementF16:
      return to_float(static_cast<const f16*>(x.data)[offset]);
    case kElementBF16:
      return to_float(static_cast<const bf16*>(x.data)[offset]);
    default:
      return load_q8(x.data, offset);
  }
}

TESSERA_DEVICE void store_scalar(const RowsArgument& x, int64 offset, float value) {
  switch (x.type) {
    case kElementF32:
      static_cast<float*>(x.data)[offset] = value;
      break;
    case kElementF16:
      static_cast<f16*>(x.data)[offset] = from_float<f16>(value);
      break;
    default:
      static_cast<bf16*>(x.data)[offset] = from_float<bf16>(value);
      break;
  }
}

/// `value` as x's type stores it.
TESSERA_DEVICE float rounded_as(const RowsArgument& x, float value) {
  if (x.type == kElementF16) return to_float(from_float<f16>(value));
  if (x.type == kElementBF16) return to_float(from_float<bf16>(value));
  return value;
}

/// Elements of a row's group `group` that exist.
TESSERA_DEVICE int group_count(int64 columns, int64 group) {
  const int64 left = columns - group * kGroupSize;
  return left < kGroupSize ? static_cast<int>(left) : kGroupSize;
}

struct Add {
  template <class T>
  TESSERA_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};

/// The larger; a NaN in b does not count.
struct Largest {
  template <class T>
  TESSERA_DEVICE T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

/// Combines the values of a block's threads, in the same order each time; all threads get the result. The
/// block has whole warps, `scratch` a place for each. All threads must call it.
template <class T, class Combine>
TESSERA_DEVICE T block_reduce(T value, T identity, T* scratch, Combine combine) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) value = combine(value, shuffle_xor(value, mask));
  const int lane = thread_x() % kWarpSize;
  if (lane == 0) scratch[thread_x() / kWarpSize] = value;
  sync_threads();
  value = lane < block_size() / kWarpSize ? scratch[lane] : identity;
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) value = combine(value, shuffle_xor(value, mask));
  sync_threads();  // scratch may be used again
  return value;
}

}  // namespace tessera::kernels
