#pragma once

#include <cstddef>

// The part of NVRTC's API that Tessera calls, declared here so that building needs no CUDA toolkit. Where a
// toolkit is present a test compares every line with its nvrtc.h.

struct _nvrtcProgram;

namespace tessera::cuda::rtc {

using Result = int;
using Program = ::_nvrtcProgram*;

inline constexpr Result kSuccess = 0;

/// X(name, result, parameters)
#define TESSERA_NVRTC_FUNCTIONS(X)                                                                         \
  X(nvrtcVersion, Result, (int* major, int* minor))                                                        \
  X(nvrtcCreateProgram, Result,                                                                            \
    (Program * program, const char* source, const char* name, int num_headers, const char* const* headers, \
     const char* const* include_names))                                                                    \
  X(nvrtcDestroyProgram, Result, (Program * program))                                                      \
  X(nvrtcCompileProgram, Result, (Program program, int num_options, const char* const* options))           \
  X(nvrtcGetCUBINSize, Result, (Program program, std::size_t * size))                                      \
  X(nvrtcGetCUBIN, Result, (Program program, char* cubin))                                                 \
  X(nvrtcGetProgramLogSize, Result, (Program program, std::size_t * size))                                 \
  X(nvrtcGetProgramLog, Result, (Program program, char* log))                                              \
  X(nvrtcGetErrorString, const char*, (Result result))

/// The library's functions, found at run time.
struct Api {
#define TESSERA_DECLARE(name, result, parameters) result(*name) parameters = nullptr;
  TESSERA_NVRTC_FUNCTIONS(TESSERA_DECLARE)
#undef TESSERA_DECLARE
};

}  // namespace tessera::cuda::rtc
