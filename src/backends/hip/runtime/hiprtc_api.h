#pragma once

#include <cstddef>

// The part of hipRTC's API that Tessera calls, declared here so that building needs nothing of ROCm. Where
// HIP's headers are present a test compares every line with them.

struct _hiprtcProgram;

namespace tessera::hip::rtc {

using Result = int;
using Program = ::_hiprtcProgram*;

inline constexpr Result kSuccess = 0;

/// X(name, result, parameters)
#define TESSERA_HIPRTC_FUNCTIONS(X)                                                                  \
  X(hiprtcVersion, Result, (int* major, int* minor))                                                 \
  X(hiprtcCreateProgram, Result,                                                                     \
    (Program * program, const char* source, const char* name, int num_headers, const char** headers, \
     const char** include_names))                                                                    \
  X(hiprtcDestroyProgram, Result, (Program * program))                                               \
  X(hiprtcCompileProgram, Result, (Program program, int num_options, const char** options))          \
  X(hiprtcGetCodeSize, Result, (Program program, std::size_t * size))                                \
  X(hiprtcGetCode, Result, (Program program, char* code))                                            \
  X(hiprtcGetProgramLogSize, Result, (Program program, std::size_t * size))                          \
  X(hiprtcGetProgramLog, Result, (Program program, char* log))                                       \
  X(hiprtcGetErrorString, const char*, (Result result))

/// The library's functions, found at run time.
struct Api {
#define TESSERA_DECLARE(name, result, parameters) result(*name) parameters = nullptr;
  TESSERA_HIPRTC_FUNCTIONS(TESSERA_DECLARE)
#undef TESSERA_DECLARE
};

}  // namespace tessera::hip::rtc
