#pragma once

#include <cstddef>
#include <cstdint>

// The part of cuBLASLt's API that Tessera calls, declared here so that building needs no CUDA toolkit. Where
// a toolkit is present a test compares every line with its cublasLt.h.

struct cublasLtContext;
struct CUstream_st;

namespace tessera::cuda::lt {

using Status = int;
using Handle = cublasLtContext*;
using Descriptor = void*;  // an opaque object that a create function makes

/// cublasLtMatmulAlgo_t
struct Algorithm {
  std::uint64_t data[8];
};

/// cublasLtMatmulHeuristicResult_t
struct HeuristicResult {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  Status state;
  float waves_count;
  int reserved[4];
};

inline constexpr Status kSuccess = 0;
inline constexpr int kReal32F = 0;    // CUDA_R_32F
inline constexpr int kReal16F = 2;    // CUDA_R_16F
inline constexpr int kReal16BF = 14;  // CUDA_R_16BF
inline constexpr int kCompute32F = 68;
inline constexpr std::int32_t kTranspose = 1;
inline constexpr int kDescTransA = 3;
inline constexpr int kDescEpilogue = 7;
inline constexpr int kDescBiasPointer = 8;
inline constexpr std::uint32_t kEpilogueBias = 4;
inline constexpr int kLayoutBatchCount = 5;
inline constexpr int kLayoutStridedBatchOffset = 6;
inline constexpr int kPreferenceMaxWorkspaceBytes = 1;
inline constexpr int kPreferenceReductionSchemes = 3;  // a mask; 0: no sums in parts
inline constexpr int kPreferenceMinAlignmentA = 5;
inline constexpr int kPreferenceMinAlignmentB = 6;
inline constexpr int kPreferenceMinAlignmentC = 7;
inline constexpr int kPreferenceMinAlignmentD = 8;

/// X(name, parameters). All return Status.
#define TESSERA_CUBLASLT_FUNCTIONS(X)                                                                      \
  X(cublasLtCreate, (Handle * handle))                                                                     \
  X(cublasLtDestroy, (Handle handle))                                                                      \
  X(cublasLtMatmulDescCreate, (Descriptor * descriptor, int compute_type, int scale_type))                 \
  X(cublasLtMatmulDescDestroy, (Descriptor descriptor))                                                    \
  X(cublasLtMatmulDescSetAttribute,                                                                        \
    (Descriptor descriptor, int attribute, const void* value, std::size_t bytes))                          \
  X(cublasLtMatrixLayoutCreate, (Descriptor * layout, int type, std::uint64_t rows, std::uint64_t columns, \
                                 std::int64_t leading_dimension))                                          \
  X(cublasLtMatrixLayoutSetAttribute,                                                                      \
    (Descriptor layout, int attribute, const void* value, std::size_t bytes))                              \
  X(cublasLtMatrixLayoutDestroy, (Descriptor layout))                                                      \
  X(cublasLtMatmulPreferenceCreate, (Descriptor * preference))                                             \
  X(cublasLtMatmulPreferenceDestroy, (Descriptor preference))                                              \
  X(cublasLtMatmulPreferenceSetAttribute,                                                                  \
    (Descriptor preference, int attribute, const void* value, std::size_t bytes))                          \
  X(cublasLtMatmulAlgoGetHeuristic,                                                                        \
    (Handle handle, Descriptor operation, Descriptor a, Descriptor b, Descriptor c, Descriptor d,          \
     Descriptor preference, int requested, HeuristicResult* results, int* found))                          \
  X(cublasLtMatmul,                                                                                        \
    (Handle handle, Descriptor operation, const void* alpha, const void* a, Descriptor a_layout,           \
     const void* b, Descriptor b_layout, const void* beta, const void* c, Descriptor c_layout, void* d,    \
     Descriptor d_layout, const Algorithm* algorithm, void* workspace, std::size_t workspace_bytes,        \
     CUstream_st* stream))

/// The library's functions, found at run time.
struct Api {
#define TESSERA_DECLARE(name, parameters) Status(*name) parameters = nullptr;
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_DECLARE)
#undef TESSERA_DECLARE
};

}  // namespace tessera::cuda::lt
