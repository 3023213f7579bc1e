#pragma once

#include "sm90/ptx.cuh"

// wgmma.mma_async with fp32 accumulators, m64nNk16 of 16-bit elements and m64nNk32 of e4m3, for N of 16 to
// 256 in steps of 16. PTX wants every register written out, so macros write them: eight to a chunk.
//
// d[4 i + e] is row lane / 4 (+ 8 for e >= 2) of the warp's 16 rows and column 8 i + lane % 4 * 2 + e % 2:
// what m16n8k16 calls its accumulator, tile after tile.

namespace tessera::kernels {

/// Where an operand lies in shared memory, as the tensor cores take it: in panels of 64 elements (128 bytes)
/// by any number of rows, each of which the copy engine wrote with its 128-byte swizzle, from multiples of
/// 1024 bytes on.
///
/// Rows are m or n, and the 64 elements k: the next 16 of k are 32 bytes further.
TESSERA_DEVICE unsigned long long descriptor_of_rows(unsigned shared) {
  constexpr unsigned long long kEightRows = 1024 >> 4;
  constexpr unsigned long long kSwizzle128 = 1ull << 62;
  return (shared >> 4 & 0x3fff) | kEightRows << 32 | kSwizzle128;
}

/// Rows are k, and the 64 elements n; `panel_bytes` lie between panels. The next 16 of k are 2048 bytes
/// further.
TESSERA_DEVICE unsigned long long descriptor_of_columns(unsigned shared, int panel_bytes) {
  return descriptor_of_rows(shared) | static_cast<unsigned long long>(panel_bytes >> 4) << 16;
}

/// An operand of 8-bit elements whose rows (n) lie in groups of eight with 16 bytes each (k), unswizzled:
/// such a group is 128 bytes, `rows_bytes` lie between groups of neighbouring rows and `k_bytes` between
/// those of neighbouring k. The next 32 of k are twice as far.
TESSERA_DEVICE unsigned long long descriptor_of_groups(unsigned shared, int k_bytes, int rows_bytes) {
  return (shared >> 4 & 0x3fff) | static_cast<unsigned long long>(k_bytes >> 4) << 16 |
         static_cast<unsigned long long>(rows_bytes >> 4) << 32;
}

/// The operand that lies `bytes` further, a multiple of 16. One addition of 32 bits where bytes is constant:
/// a product waits for its descriptors, made anew of addresses by five instructions one after another.
TESSERA_DEVICE unsigned long long further(unsigned long long descriptor, int bytes) {
  asm volatile("" : "+l"(descriptor));
  const unsigned low = static_cast<unsigned>(descriptor) + static_cast<unsigned>(bytes >> 4);
  return (descriptor & ~0xffffffffull) | low;
}

/// d (64 x N) = a (64 x 16) b (16 x N), added to d if `accumulate`; of e4m3 32 for 16.
template <class T, int kN>
struct Wgmma;

#define TESSERA_TEXT_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TESSERA_TEXT_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define TESSERA_TEXT_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define TESSERA_TEXT_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define TESSERA_TEXT_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define TESSERA_TEXT_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define TESSERA_TEXT_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define TESSERA_TEXT_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define TESSERA_TEXT_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define TESSERA_TEXT_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define TESSERA_TEXT_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define TESSERA_TEXT_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define TESSERA_TEXT_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define TESSERA_TEXT_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define TESSERA_TEXT_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define TESSERA_TEXT_15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define TESSERA_TEXTS_1 TESSERA_TEXT_0
#define TESSERA_TEXTS_2 TESSERA_TEXTS_1 ", " TESSERA_TEXT_1
#define TESSERA_TEXTS_3 TESSERA_TEXTS_2 ", " TESSERA_TEXT_2
#define TESSERA_TEXTS_4 TESSERA_TEXTS_3 ", " TESSERA_TEXT_3
#define TESSERA_TEXTS_5 TESSERA_TEXTS_4 ", " TESSERA_TEXT_4
#define TESSERA_TEXTS_6 TESSERA_TEXTS_5 ", " TESSERA_TEXT_5
#define TESSERA_TEXTS_7 TESSERA_TEXTS_6 ", " TESSERA_TEXT_6
#define TESSERA_TEXTS_8 TESSERA_TEXTS_7 ", " TESSERA_TEXT_7
#define TESSERA_TEXTS_9 TESSERA_TEXTS_8 ", " TESSERA_TEXT_8
#define TESSERA_TEXTS_10 TESSERA_TEXTS_9 ", " TESSERA_TEXT_9
#define TESSERA_TEXTS_11 TESSERA_TEXTS_10 ", " TESSERA_TEXT_10
#define TESSERA_TEXTS_12 TESSERA_TEXTS_11 ", " TESSERA_TEXT_11
#define TESSERA_TEXTS_13 TESSERA_TEXTS_12 ", " TESSERA_TEXT_12
#define TESSERA_TEXTS_14 TESSERA_TEXTS_13 ", " TESSERA_TEXT_13
#define TESSERA_TEXTS_15 TESSERA_TEXTS_14 ", " TESSERA_TEXT_14
#define TESSERA_TEXTS_16 TESSERA_TEXTS_15 ", " TESSERA_TEXT_15
#define TESSERA_CHUNK(i)                                                                          \
  "+f"(d[8 * i]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]), "+f"(d[8 * i + 3]), "+f"(d[8 * i + 4]), \
      "+f"(d[8 * i + 5]), "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])
#define TESSERA_CHUNKS_1 TESSERA_CHUNK(0)
#define TESSERA_CHUNKS_2 TESSERA_CHUNKS_1, TESSERA_CHUNK(1)
#define TESSERA_CHUNKS_3 TESSERA_CHUNKS_2, TESSERA_CHUNK(2)
#define TESSERA_CHUNKS_4 TESSERA_CHUNKS_3, TESSERA_CHUNK(3)
#define TESSERA_CHUNKS_5 TESSERA_CHUNKS_4, TESSERA_CHUNK(4)
#define TESSERA_CHUNKS_6 TESSERA_CHUNKS_5, TESSERA_CHUNK(5)
#define TESSERA_CHUNKS_7 TESSERA_CHUNKS_6, TESSERA_CHUNK(6)
#define TESSERA_CHUNKS_8 TESSERA_CHUNKS_7, TESSERA_CHUNK(7)
#define TESSERA_CHUNKS_9 TESSERA_CHUNKS_8, TESSERA_CHUNK(8)
#define TESSERA_CHUNKS_10 TESSERA_CHUNKS_9, TESSERA_CHUNK(9)
#define TESSERA_CHUNKS_11 TESSERA_CHUNKS_10, TESSERA_CHUNK(10)
#define TESSERA_CHUNKS_12 TESSERA_CHUNKS_11, TESSERA_CHUNK(11)
#define TESSERA_CHUNKS_13 TESSERA_CHUNKS_12, TESSERA_CHUNK(12)
#define TESSERA_CHUNKS_14 TESSERA_CHUNKS_13, TESSERA_CHUNK(13)
#define TESSERA_CHUNKS_15 TESSERA_CHUNKS_14, TESSERA_CHUNK(14)
#define TESSERA_CHUNKS_16 TESSERA_CHUNKS_15, TESSERA_CHUNK(15)

// n0 to n5: the numbers of the operands behind d's.
#define TESSERA_WGMMA(T, name, N, chunks, n0, n1, n2, n3, n4, n5)                                            \
  template <>                                                                                                \
  struct Wgmma<T, N> {                                                                                       \
    /* Both in shared memory, k along the rows of each. */                                                   \
    TESSERA_DEVICE static void rows_rows(float (&d)[N / 2], unsigned long long a, unsigned long long b,      \
                                         bool accumulate) {                                                  \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #n2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N        \
                   "k16.f32." name "." name " {" TESSERA_TEXTS_##chunks "}, %" #n0 ", %" #n1                 \
                                                                        ", p, 1, 1, 0, 0; }"                 \
                   : TESSERA_CHUNKS_##chunks                                                                 \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                     \
    }                                                                                                        \
    /* Both in shared memory, k along the rows of a, a row of b for each k. */                               \
    TESSERA_DEVICE static void rows_columns(float (&d)[N / 2], unsigned long long a, unsigned long long b,   \
                                            bool accumulate) {                                               \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #n2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N        \
                   "k16.f32." name "." name " {" TESSERA_TEXTS_##chunks "}, %" #n0 ", %" #n1                 \
                                                                        ", p, 1, 1, 0, 1; }"                 \
                   : TESSERA_CHUNKS_##chunks                                                                 \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                     \
    }                                                                                                        \
    /* a in registers as m16n8k16 has it, b in shared memory, k along its rows. */                           \
    TESSERA_DEVICE static void registers_rows(float (&d)[N / 2], const unsigned* a, unsigned long long b,    \
                                              bool accumulate) {                                             \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #n5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N        \
                   "k16.f32." name "." name " {" TESSERA_TEXTS_##chunks                                      \
                   "}, {%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", p, 1, 1, 0; }"                    \
                   : TESSERA_CHUNKS_##chunks                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate))); \
    }                                                                                                        \
    /* a in registers as m16n8k16 has it, b in shared memory, a row for each k. */                           \
    TESSERA_DEVICE static void registers_columns(float (&d)[N / 2], const unsigned* a, unsigned long long b, \
                                                 bool accumulate) {                                          \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #n5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N        \
                   "k16.f32." name "." name " {" TESSERA_TEXTS_##chunks                                      \
                   "}, {%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", p, 1, 1, 1; }"                    \
                   : TESSERA_CHUNKS_##chunks                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate))); \
    }                                                                                                        \
  };
#define TESSERA_WGMMA_OF_BOTH(...)         \
  TESSERA_WGMMA(bf16, "bf16", __VA_ARGS__) \
  TESSERA_WGMMA(f16, "f16", __VA_ARGS__)
TESSERA_WGMMA_OF_BOTH(16, 1, 8, 9, 10, 11, 12, 13)
TESSERA_WGMMA_OF_BOTH(32, 2, 16, 17, 18, 19, 20, 21)
TESSERA_WGMMA_OF_BOTH(48, 3, 24, 25, 26, 27, 28, 29)
TESSERA_WGMMA_OF_BOTH(64, 4, 32, 33, 34, 35, 36, 37)
TESSERA_WGMMA_OF_BOTH(80, 5, 40, 41, 42, 43, 44, 45)
TESSERA_WGMMA_OF_BOTH(96, 6, 48, 49, 50, 51, 52, 53)
TESSERA_WGMMA_OF_BOTH(112, 7, 56, 57, 58, 59, 60, 61)
TESSERA_WGMMA_OF_BOTH(128, 8, 64, 65, 66, 67, 68, 69)
TESSERA_WGMMA_OF_BOTH(144, 9, 72, 73, 74, 75, 76, 77)
TESSERA_WGMMA_OF_BOTH(160, 10, 80, 81, 82, 83, 84, 85)
TESSERA_WGMMA_OF_BOTH(176, 11, 88, 89, 90, 91, 92, 93)
TESSERA_WGMMA_OF_BOTH(192, 12, 96, 97, 98, 99, 100, 101)
TESSERA_WGMMA_OF_BOTH(208, 13, 104, 105, 106, 107, 108, 109)
TESSERA_WGMMA_OF_BOTH(224, 14, 112, 113, 114, 115, 116, 117)
TESSERA_WGMMA_OF_BOTH(240, 15, 120, 121, 122, 123, 124, 125)
TESSERA_WGMMA_OF_BOTH(256, 16, 128, 129, 130, 131, 132, 133)

// The same of e4m3, which the tensor cores take with k along the rows only.
#define TESSERA_WGMMA_E4M3(N, chunks, n0, n1, n2, n3, n4, n5)                                                \
  template <>                                                                                                \
  struct Wgmma<f8e4m3, N> {                                                                                  \
    /* Both in shared memory. */                                                                             \
    TESSERA_DEVICE static void rows_rows(float (&d)[N / 2], unsigned long long a, unsigned long long b,      \
                                         bool accumulate) {                                                  \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #n2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N        \
                   "k32.f32.e4m3.e4m3 {" TESSERA_TEXTS_##chunks "}, %" #n0 ", %" #n1 ", p, 1, 1; }"          \
                   : TESSERA_CHUNKS_##chunks                                                                 \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                     \
    }                                                                                                        \
    /* a in registers as m16n8k32 has it, b in shared memory. */                                             \
    TESSERA_DEVICE static void registers_rows(float (&d)[N / 2], const unsigned* a, unsigned long long b,    \
                                              bool accumulate) {                                             \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #n5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N        \
                   "k32.f32.e4m3.e4m3 {" TESSERA_TEXTS_##chunks "}, {%" #n0 ", %" #n1 ", %" #n2 ", %" #n3    \
                                                                "}, %" #n4 ", p, 1, 1; }"                    \
                   : TESSERA_CHUNKS_##chunks                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate))); \
    }                                                                                                        \
  };
TESSERA_WGMMA_E4M3(16, 1, 8, 9, 10, 11, 12, 13)
TESSERA_WGMMA_E4M3(32, 2, 16, 17, 18, 19, 20, 21)
TESSERA_WGMMA_E4M3(48, 3, 24, 25, 26, 27, 28, 29)
TESSERA_WGMMA_E4M3(64, 4, 32, 33, 34, 35, 36, 37)
TESSERA_WGMMA_E4M3(80, 5, 40, 41, 42, 43, 44, 45)
TESSERA_WGMMA_E4M3(96, 6, 48, 49, 50, 51, 52, 53)
TESSERA_WGMMA_E4M3(112, 7, 56, 57, 58, 59, 60, 61)
TESSERA_WGMMA_E4M3(128, 8, 64, 65, 66, 67, 68, 69)
TESSERA_WGMMA_E4M3(144, 9, 72, 73, 74, 75, 76, 77)
TESSERA_WGMMA_E4M3(160, 10, 80, 81, 82, 83, 84, 85)
TESSERA_WGMMA_E4M3(176, 11, 88, 89, 90, 91, 92, 93)
TESSERA_WGMMA_E4M3(192, 12, 96, 97, 98, 99, 100, 101)
TESSERA_WGMMA_E4M3(208, 13, 104, 105, 106, 107, 108, 109)
TESSERA_WGMMA_E4M3(224, 14, 112, 113, 114, 115, 116, 117)
TESSERA_WGMMA_E4M3(240, 15, 120, 121, 122, 123, 124, 125)
TESSERA_WGMMA_E4M3(256, 16, 128, 129, 130, 131, 132, 133)

}  // namespace tessera::kernels
