// Compares our declarations of NVRTC's and cuBLASLt's interfaces with the toolkit's. Built only where a
// toolkit is present; compiling it is most of the test.

#include <cublasLt.h>
#include <gtest/gtest.h>
#include <nvrtc.h>

#include <cstddef>
#include <cstdint>

#include "backends/cuda/runtime/cublaslt_api.h"
#include "backends/cuda/runtime/nvrtc_api.h"
#include "gpu/same_function.h"

namespace tessera::cuda {
namespace {

namespace nvrtc_functions {
using rtc::Program;
using rtc::Result;
#define TESSERA_COMPARE(name, result, parameters)                                  \
  static_assert(testing::SameFunction<result parameters, decltype(::name)>::value, \
                #name " differs from nvrtc.h");
TESSERA_NVRTC_FUNCTIONS(TESSERA_COMPARE)
#undef TESSERA_COMPARE
}  // namespace nvrtc_functions

namespace cublaslt_functions {
using namespace lt;
#define TESSERA_COMPARE(name, parameters)                                          \
  static_assert(testing::SameFunction<Status parameters, decltype(::name)>::value, \
                #name " differs from cublasLt.h");
TESSERA_CUBLASLT_FUNCTIONS(TESSERA_COMPARE)
#undef TESSERA_COMPARE
}  // namespace cublaslt_functions

static_assert(sizeof(lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(lt::HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(lt::HeuristicResult, algorithm) == offsetof(cublasLtMatmulHeuristicResult_t, algo));
static_assert(offsetof(lt::HeuristicResult, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(lt::HeuristicResult, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(lt::HeuristicResult, waves_count) ==
              offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));

TEST(LibraryApi, ConstantsAreThoseOfTheToolkit) {
  EXPECT_EQ(rtc::kSuccess, static_cast<int>(NVRTC_SUCCESS));
  EXPECT_EQ(lt::kSuccess, static_cast<int>(CUBLAS_STATUS_SUCCESS));
  EXPECT_EQ(lt::kReal32F, static_cast<int>(CUDA_R_32F));
  EXPECT_EQ(lt::kReal16F, static_cast<int>(CUDA_R_16F));
  EXPECT_EQ(lt::kReal16BF, static_cast<int>(CUDA_R_16BF));
  EXPECT_EQ(lt::kCompute32F, static_cast<int>(CUBLAS_COMPUTE_32F));
  EXPECT_EQ(lt::kTranspose, static_cast<int>(CUBLAS_OP_T));
  EXPECT_EQ(lt::kDescTransA, static_cast<int>(CUBLASLT_MATMUL_DESC_TRANSA));
  EXPECT_EQ(lt::kDescEpilogue, static_cast<int>(CUBLASLT_MATMUL_DESC_EPILOGUE));
  EXPECT_EQ(lt::kDescBiasPointer, static_cast<int>(CUBLASLT_MATMUL_DESC_BIAS_POINTER));
  EXPECT_EQ(lt::kEpilogueBias, static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
  EXPECT_EQ(lt::kLayoutBatchCount, static_cast<int>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT));
  EXPECT_EQ(lt::kLayoutStridedBatchOffset, static_cast<int>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET));
  EXPECT_EQ(lt::kPreferenceMaxWorkspaceBytes, static_cast<int>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES));
  EXPECT_EQ(lt::kPreferenceReductionSchemes, static_cast<int>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK));
  EXPECT_EQ(lt::kPreferenceMinAlignmentA, static_cast<int>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES));
  EXPECT_EQ(lt::kPreferenceMinAlignmentB, static_cast<int>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES));
  EXPECT_EQ(lt::kPreferenceMinAlignmentC, static_cast<int>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES));
  EXPECT_EQ(lt::kPreferenceMinAlignmentD, static_cast<int>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES));
}

}  // namespace
}  // namespace tessera::cuda
