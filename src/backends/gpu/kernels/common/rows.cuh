#pragma once

#include "common/ops_params.h"
#include "common/types.cuh"
#include "core/formats/all.h"

// Access to rows of any element type in groups of 8 elements, and reductions over a block.

namespace tessera::kernels {

constexpr int kAnyType = -1;  // the type is read from the argument when the kernel runs
constexpr int kMaxWarps = 1024 / kWarpSize;

template <class A, class B>
constexpr bool is_same = false;
template <class A>
constexpr bool is_same<A, A> = true;

/// Element i of elements packed in words.
TESSERA_DEVICE float packed_element(const unsigned* words, int i, float) { return float_of_bits(words[i]); }
TESSERA_DEVICE float packed_element(const unsigned* words, int i, bf16) {
  return float_of_bits(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
}
TESSERA_DEVICE float packed_element(const unsigned* words, int i, f16) {
  f16 x;
  x.bits = static_cast<unsigned short>(i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16);
  return to_float(x);
}

TESSERA_DEVICE void pack_elements(unsigned* words, int i, float a, float b, float) {
  words[i] = bits_of_float(a);
  words[i + 1] = bits_of_float(b);
}
#if defined(__CUDA_ARCH__)
TESSERA_DEVICE void pack_elements(unsigned* words, int i, float a, float b, bf16) {
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[i / 2]) : "f"(b), "f"(a));
}
TESSERA_DEVICE void pack_elements(unsigned* words, int i, float a, float b, f16) {
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words[i / 2]) : "f"(b), "f"(a));
}
#else
template <class T>
TESSERA_DEVICE void pack_elements(unsigned* words, int i, float a, float b, T) {
  words[i / 2] = from_float<T>(a).bits | static_cast<unsigned>(from_float<T>(b).bits) << 16;
}
#endif

/// One access; the compiler splits some assignments into four.
TESSERA_DEVICE void store_words(Vector<unsigned, 4>* to, const Vector<unsigned, 4>& words) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.element[0]),
               "r"(words.element[1]), "r"(words.element[2]), "r"(words.element[3])
               : "memory");
#else
  *to = words;
#endif
}

/// A group of 8 elements as stored, at a multiple of 16 bytes. Words, since elements of 16 bits would take a
/// register each.
template <class T>
struct PackedGroup {
  static constexpr int kParts = kGroupSize * sizeof(T) / 16;
  Vector<unsigned, 4> part[kParts];

  /// Group `group` of the row at `row`.
  TESSERA_DEVICE void load(const void* row, int64 group) {
    TESSERA_UNROLL
    for (int n = 0; n < kParts; ++n)
      part[n] = static_cast<const Vector<unsigned, 4>*>(row)[group * kParts + n];
  }
  TESSERA_DEVICE void get(float (&v)[kGroupSize]) const {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      constexpr int kLanes = 16 / sizeof(T);
      v[i] = packed_element(part[i / kLanes].element, i % kLanes, T());
    }
  }
  TESSERA_DEVICE void set(const float (&v)[kGroupSize]) {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; i += 2) {
      constexpr int kLanes = 16 / sizeof(T);
      pack_elements(part[i / kLanes].element, i % kLanes, v[i], v[i + 1], T());
    }
  }
  TESSERA_DEVICE void store(void* row, int64 group) const {
    TESSERA_UNROLL
    for (int n = 0; n < kParts; ++n)
      store_words(static_cast<Vector<unsigned, 4>*>(row) + group * kParts + n, part[n]);
  }
};

template <class T>
TESSERA_DEVICE void load_typed(const void* data, int64 offset, int count, bool vector,
                               float (&v)[kGroupSize]) {
  const T* source = static_cast<const T*>(data) + offset;
  if (vector && count >= kGroupSize) {
    PackedGroup<T> group;
    group.load(source, 0);
    group.get(v);
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
    PackedGroup<T> group;
    group.set(v);
    group.store(destination, 0);
  } else {
    TESSERA_UNROLL
    for (int i = 0; i < kGroupSize; ++i) {
      if (i < count) destination[i] = from_float<T>(v[i]);
    }
  }
}

/// Elements [index, index + kCount) of blocks; index is a multiple of kCount.
template <int kCount, class Format>
TESSERA_DEVICE void decode_blocks(const void* data, int64 index, float (&v)[kCount], Format) {
  const unsigned char* block =
      static_cast<const unsigned char*>(data) + index / Format::kElements * Format::kBytes;
  Format::decode_part(block, static_cast<int>(index % Format::kElements), v);
}

/// The same of any format of blocks.
template <int kCount>
TESSERA_DEVICE void decode_blocks(const RowsArgument& w, int64 index, float (&v)[kCount]) {
  switch (w.type) {
#define TESSERA_CASE(Format) \
  case kElement##Format:     \
    return decode_blocks(w.data, index, v, formats::Format());
    TESSERA_BLOCK_FORMATS(TESSERA_CASE)
#undef TESSERA_CASE
  }
  __builtin_unreachable();  // the host refuses other types
}

TESSERA_DEVICE bool is_blocks(const RowsArgument& x) { return x.type > kElementBF16; }

/// Group `group` of a Q8_0 block's four, read by two bytes.
TESSERA_DEVICE void load_q8_group(const unsigned short* block, int64 group, float (&v)[kGroupSize]) {
  f16 scale;
  scale.bits = block[0];
  const float step = to_float(scale);
  TESSERA_UNROLL
  for (int n = 0; n < kGroupSize / 2; ++n) {
    const unsigned short pair = block[1 + group * 4 + n];
    v[2 * n] = step * static_cast<float>(static_cast<signed char>(pair & 0xff));
    v[2 * n + 1] = step * static_cast<float>(static_cast<signed char>(pair >> 8));
  }
}

/// Elements [offset, offset + min(count, 8)) of numbers as floats; zeros beyond count.
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
    __builtin_unreachable();  // the host refuses other types
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
  } else if (type == kElementBF16) {
    store_typed<bf16>(x.data, offset, count, vector, v);
  } else {
    __builtin_unreachable();  // the host refuses other types
  }
}

/// A number of activations, or of a vector of weights.
TESSERA_DEVICE float load_scalar(const RowsArgument& x, int64 offset) {
  switch (x.type) {
    case kElementF32:
      return static_cast<const float*>(x.data)[offset];
    case kElementF16:
      return to_float(static_cast<const f16*>(x.data)[offset]);
    case kElementBF16:
      return to_float(static_cast<const bf16*>(x.data)[offset]);
  }
  __builtin_unreachable();  // the host refuses other types
}

/// Group [offset, offset + 8) of a matrix of weights as load_group has it; blocks hold whole groups.
TESSERA_DEVICE void load_weight_group(const RowsArgument& w, int64 offset, int count,
                                      float (&v)[kGroupSize]) {
  if (is_blocks(w)) return decode_blocks(w, offset, v);
  load_group<kAnyType>(w, offset, count, v);
}

TESSERA_DEVICE void store_scalar(const RowsArgument& x, int64 offset, float value) {
  switch (x.type) {
    case kElementF32:
      static_cast<float*>(x.data)[offset] = value;
      return;
    case kElementF16:
      static_cast<f16*>(x.data)[offset] = from_float<f16>(value);
      return;
    case kElementBF16:
      static_cast<bf16*>(x.data)[offset] = from_float<bf16>(value);
      return;
    case kElementF8E4M3:
      static_cast<f8e4m3*>(x.data)[offset] = from_float<f8e4m3>(value);
      return;
  }
  __builtin_unreachable();  // the host refuses other types
}

/// `value` as x's type stores it.
TESSERA_DEVICE float rounded_as(const RowsArgument& x, float value) {
  if (x.type == kElementF16) return to_float(from_float<f16>(value));
  if (x.type == kElementBF16) return to_float(from_float<bf16>(value));
  return value;
}

/// x times the normal distribution's integral up to x. Beyond |x| it is exp(-x^2 / 2) / 2 times t q(t), t = 1
/// / (1 + 0.3 |x| / sqrt(2)), where q is fitted to 2e-8 of the scaled complementary error function up to |x|
/// = 14; the library's erfcf takes three times the instructions and would bound the kernel.
TESSERA_DEVICE float gelu(float x) {
  constexpr float kCoefficients[] = {-0.129523139f, 0.485564416f, -0.512280742f, 0.547723276f, -0.0946531394f,
                                     0.214927172f,  0.14833886f,  0.170715275f,  0.169188002f};
  const float t = divide_approximately(1.0f, fmaf(fabsf(x), 0.3f * 0.70710678118654752f, 1.0f));
  float q = kCoefficients[0];
  TESSERA_UNROLL
  for (int i = 1; i < 9; ++i) q = fmaf(q, t, kCoefficients[i]);
  const float beyond = 0.5f * q * t * exp_approximately(-0.5f * x * x);
  return x * (x < 0.0f ? beyond : 1.0f - beyond);
}

/// 0 SwiGLU, 1 GeGLU, 2 GeGLU with tanh, before the product.
TESSERA_DEVICE float gate_activation(int kind, float x) {
  if (kind == 0) return divide_approximately(x, 1.0f + expf(-x));
  if (kind == 1) return gelu(x);
  const float u = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return divide_approximately(x, 1.0f + expf(-2.0f * u));  // 0.5 x (1 + tanh u) without cancellation
}

/// The activation of gate times up; 3: gpt-oss's clamped SwiGLU, 4: squared ReLU, of a NaN one, 5: sigmoid.
TESSERA_DEVICE float gated(int kind, float gate, float up) {
  if (kind == 5) return divide_approximately(up, 1.0f + expf(-gate));
  if (kind == 4) return (gate < 0.0f ? 0.0f : gate) * gate * up;
  if (kind != 3) return gate_activation(kind, gate) * up;
  constexpr float kLimit = 7.0f, kAlpha = 1.702f;
  // Comparisons that leave a NaN one.
  const float g = gate > kLimit ? kLimit : gate;
  const float u = up > kLimit ? kLimit : up < -kLimit ? -kLimit : up;
  const float weight = divide_approximately(g, 1.0f + expf(-kAlpha * g));
  return fmaf(weight, u, weight);
}

/// Where RMSNorm's sum of squares overflows it is taken again of numbers made smaller; the division undoes
/// it.
constexpr float kNormShrink = 0x1p-70f;

/// Elements of a row's group `group` that exist.
TESSERA_DEVICE int group_count(int64 columns, int64 group) {
  const int64 left = columns - group * kGroupSize;
  return left < kGroupSize ? static_cast<int>(left) : kGroupSize;
}

/// Reduces N values of each lane over the warp, N a power of two up to the warp's size: each lane gets the
/// whole sum of value `index`. The order of additions does not depend on N.
template <int N>
TESSERA_DEVICE float reduce_values(float (&v)[N], int& index) {
  const int lane = thread_x() % kWarpSize;
  int mask = kWarpSize / 2;
  index = 0;
  TESSERA_UNROLL
  for (int n = N / 2; n > 0; n /= 2) {
    const bool is_upper = (lane & mask) != 0;
    TESSERA_UNROLL
    for (int i = 0; i < n; ++i) {
      // Values, since of places clang would choose one and then search for its register.
      const float lower = v[i], upper = v[i + n];
      const float sent = is_upper ? lower : upper;
      const float kept = is_upper ? upper : lower;
      v[i] = kept + shuffle_xor(sent, mask);
    }
    if (is_upper) index += n;
    mask /= 2;
  }
  for (; mask > 0; mask /= 2) v[0] += shuffle_xor(v[0], mask);
  return v[0];
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
