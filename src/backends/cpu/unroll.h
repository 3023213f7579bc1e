#pragma once

// Before a loop whose trip count is a constant: unrolls it whole, so that arrays of vectors stay in
// registers.
#if defined(__clang__)
#define TESSERA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TESSERA_UNROLL _Pragma("GCC unroll 16")
#endif
