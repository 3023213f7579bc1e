#pragma once

#include <cstddef>
#include <cstdint>

// The part of rocBLAS's API that Tessera calls, declared here so that building needs nothing of ROCm: the
// same in ROCm 5, 6 and 7.

struct ihipStream_t;
struct _rocblas_handle;

namespace tessera::hip::blas {

using Status = int;
using Handle = ::_rocblas_handle*;

inline constexpr Status kSuccess = 0;
inline constexpr Status kNotImplemented = 2;
inline constexpr Status kPerformanceDegraded = 7;  // done, with less memory than it would have liked
inline constexpr int kNoTranspose = 111;
inline constexpr int kTranspose = 112;
inline constexpr int kReal16F = 150;
inline constexpr int kReal32F = 151;
inline constexpr int kReal16BF = 168;
inline constexpr int kAtomicsNotAllowed = 0;
inline constexpr int kAlgorithmStandard = 0;

/// X(name, parameters). All return Status. Matrices are column-major.
#define TESSERA_ROCBLAS_FUNCTIONS(X)                                                                        \
  X(rocblas_create_handle, (Handle * handle))                                                               \
  X(rocblas_destroy_handle, (Handle handle))                                                                \
  X(rocblas_set_stream, (Handle handle, ihipStream_t * stream))                                             \
  X(rocblas_set_workspace, (Handle handle, void* data, std::size_t bytes))                                  \
  X(rocblas_set_atomics_mode, (Handle handle, int mode))                                                    \
  X(rocblas_gemm_strided_batched_ex,                                                                        \
    (Handle handle, int transpose_a, int transpose_b, std::int32_t m, std::int32_t n, std::int32_t k,       \
     const void* alpha, const void* a, int a_type, std::int32_t lda, std::int64_t stride_a, const void* b,  \
     int b_type, std::int32_t ldb, std::int64_t stride_b, const void* beta, const void* c, int c_type,      \
     std::int32_t ldc, std::int64_t stride_c, void* d, int d_type, std::int32_t ldd, std::int64_t stride_d, \
     std::int32_t batch_count, int compute_type, int algorithm, std::int32_t solution_index,                \
     std::uint32_t flags))

/// The library's functions, found at run time.
struct Api {
#define TESSERA_DECLARE(name, parameters) Status(*name) parameters = nullptr;
  TESSERA_ROCBLAS_FUNCTIONS(TESSERA_DECLARE)
#undef TESSERA_DECLARE
};

}  // namespace tessera::hip::blas
