#pragma once

// platform.cuh's names for AMD GPUs, by builtins of clang 19 or later alone: no header and no device library
// of ROCm is needed, so that any such clang makes the same code. hipRTC, which brings its own headers along,
// takes the same text.

#if TESSERA_WARP_SIZE != 64 && defined(__GFX9__) || TESSERA_WARP_SIZE != 32 && !defined(__GFX9__)
#error "TESSERA_WARP_SIZE is 64 for gfx9 and 32 for all others"
#endif

#if __clang_major__ < 19 && !defined(__HIPCC_RTC__)
#error \
    "HIP kernels are built ahead of time by clang 19 or later: older ones' exp and log are not exact enough"
#endif

#define TESSERA_DEVICE __attribute__((device)) inline __attribute__((always_inline))
// A call would take its arguments, and what it gives back by reference, through scratch memory.
#define TESSERA_DEVICE_NOINLINE TESSERA_DEVICE
#define TESSERA_KERNEL(name, threads) \
  extern "C" __attribute__((global)) void __attribute__((amdgpu_flat_work_group_size(1, threads))) name
#define TESSERA_GRID_CONSTANT const
#define TESSERA_SHARED(name, ...) __attribute__((shared)) ::tessera::kernels::Identity<__VA_ARGS__> name
#define TESSERA_DYNAMIC_SHARED(name) \
  extern __attribute__((shared)) __attribute__((aligned(128))) unsigned char name[]
#define TESSERA_UNROLL _Pragma("unroll")
#define TESSERA_UNROLL_BY(count) _Pragma(TESSERA_TEXT(unroll count))
#define TESSERA_TEXT(x) #x

namespace tessera::kernels {

TESSERA_DEVICE float float_of_bits(unsigned bits) { return __builtin_bit_cast(float, bits); }
TESSERA_DEVICE unsigned bits_of_float(float value) { return __builtin_bit_cast(unsigned, value); }
TESSERA_DEVICE unsigned join_words(unsigned low, unsigned high, unsigned byte) {
  return __builtin_amdgcn_alignbyte(high, low, byte);
}
TESSERA_DEVICE unsigned pick_bytes(unsigned low, unsigned high, unsigned places) {
  return __builtin_amdgcn_perm(high, low, places);
}

TESSERA_DEVICE int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }
TESSERA_DEVICE int thread_x() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
TESSERA_DEVICE int block_x() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
TESSERA_DEVICE int block_y() { return static_cast<int>(__builtin_amdgcn_workgroup_id_y()); }
TESSERA_DEVICE int block_z() { return static_cast<int>(__builtin_amdgcn_workgroup_id_z()); }
TESSERA_DEVICE int block_size() { return static_cast<int>(__builtin_amdgcn_workgroup_size_x()); }
TESSERA_DEVICE int grid_x() {
  return static_cast<int>(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x());
}
/// x, of which the compiler no longer knows where it comes from. What is computed from it inside of a loop
/// does not wait in registers outside; and x itself is computed before any branch that follows: clang 19
/// moves what is used under a condition there, exchanges between lanes as well, though lanes are missing
/// then.
template <class T>
TESSERA_DEVICE T opaque(T x) {
  asm volatile("" : "+v"(x));
  return x;
}

TESSERA_DEVICE void sync_threads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
TESSERA_DEVICE void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

/// T's 4-byte words, each moved by `move`.
template <class T, class Move>
TESSERA_DEVICE T move_words(T value, Move move) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  struct Words {
    int word[sizeof(T) / 4];
  };
  Words words = __builtin_bit_cast(Words, value);
  TESSERA_UNROLL
  for (int& word : words.word) word = move(word);
  return __builtin_bit_cast(T, words);
}

template <class T>
TESSERA_DEVICE T shuffle(T value, int lane) {
  return move_words(value, [&](int word) { return __builtin_amdgcn_ds_bpermute(lane * 4, word); });
}
/// Masks below 32, which are constants once loops are unrolled, take no address.
template <class T>
TESSERA_DEVICE T shuffle_xor(T value, int lane_mask) {
  return move_words(value, [&](int word) {
    constexpr int kAllLanes = 0x1f;  // of each 32, with the mask in the bits above
    switch (lane_mask) {
      case 1:
        return __builtin_amdgcn_ds_swizzle(word, 1 << 10 | kAllLanes);
      case 2:
        return __builtin_amdgcn_ds_swizzle(word, 2 << 10 | kAllLanes);
      case 4:
        return __builtin_amdgcn_ds_swizzle(word, 4 << 10 | kAllLanes);
      case 8:
        return __builtin_amdgcn_ds_swizzle(word, 8 << 10 | kAllLanes);
      case 16:
        return __builtin_amdgcn_ds_swizzle(word, 16 << 10 | kAllLanes);
      default:
        return __builtin_amdgcn_ds_bpermute((thread_x() % TESSERA_WARP_SIZE ^ lane_mask) * 4, word);
    }
  });
}
#if TESSERA_WARP_SIZE == 64
TESSERA_DEVICE bool warp_any(bool value) { return __builtin_amdgcn_ballot_w64(value) != 0; }
TESSERA_DEVICE unsigned ballot_32(bool value) {
  return static_cast<unsigned>(__builtin_amdgcn_ballot_w64(value));
}
#else
TESSERA_DEVICE bool warp_any(bool value) { return __builtin_amdgcn_ballot_w32(value) != 0; }
TESSERA_DEVICE unsigned ballot_32(bool value) { return __builtin_amdgcn_ballot_w32(value); }
#endif
TESSERA_DEVICE int count_bits(unsigned x) { return __builtin_popcount(x); }
TESSERA_DEVICE int lowest_bit(unsigned x) { return __builtin_ctz(x); }

#if !defined(__HIPCC_RTC__) && !defined(__CLANG_HIP_RUNTIME_WRAPPER_H__)
// What the kernels use of C's mathematics, where no headers bring it.
TESSERA_DEVICE float fabsf(float x) { return __builtin_fabsf(x); }
TESSERA_DEVICE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
TESSERA_DEVICE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TESSERA_DEVICE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
TESSERA_DEVICE float sqrtf(float x) { return __builtin_sqrtf(x); }
TESSERA_DEVICE float expf(float x) { return __builtin_expf(x); }
TESSERA_DEVICE float exp2f(float x) { return __builtin_exp2f(x); }
TESSERA_DEVICE float logf(float x) { return __builtin_logf(x); }
TESSERA_DEVICE float log2f(float x) { return __builtin_log2f(x); }
TESSERA_DEVICE float floorf(float x) { return __builtin_floorf(x); }
TESSERA_DEVICE double rint(double x) { return __builtin_rint(x); }

/// sin(x + quarters * pi / 2) for |x| below a few turns, to 1.5 units in the last place: quarter turns are
/// taken off in two parts, and polynomials fitted at Chebyshev's points of x^2 in [0, (pi / 4)^2] do the
/// rest.
TESSERA_DEVICE float sin_of_turned(float x, int quarters) {
  const float turns = __builtin_rintf(x * 0.636619772f);
  const float rest = fmaf(turns, 4.37113883e-8f, fmaf(turns, -1.57079637f, x));
  const float square = rest * rest;
  quarters += static_cast<int>(turns);
  float sine = fmaf(square, -0.000195874469f, 0.0083327461f);
  sine = fmaf(sine, square, -0.166666642f);
  sine = fmaf(rest * square, sine, rest);
  float cosine = fmaf(square, 2.45474857e-5f, -0.00138883013f);
  cosine = fmaf(cosine, square, 0.0416666642f);
  cosine = fmaf(fmaf(cosine, square, -0.5f), square, 1.0f);
  const float magnitude = (quarters & 1) != 0 ? cosine : sine;
  return (quarters & 2) != 0 ? -magnitude : magnitude;
}
TESSERA_DEVICE float sinf(float x) { return sin_of_turned(x, 0); }
TESSERA_DEVICE float cosf(float x) { return sin_of_turned(x, 1); }
#endif

}  // namespace tessera::kernels
