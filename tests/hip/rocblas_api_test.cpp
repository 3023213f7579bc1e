// Compares our declarations of rocBLAS with its header. Built only where that is present; compiling it is
// most of the test.
#include "backends/hip/runtime/rocblas_api.h"

#include <gtest/gtest.h>
#include <rocblas/rocblas.h>

#include "gpu/same_function.h"

namespace tessera::hip {
namespace {

namespace functions {
using namespace blas;
#define TESSERA_COMPARE(name, parameters)                                          \
  static_assert(testing::SameFunction<Status parameters, decltype(::name)>::value, \
                #name " differs from rocblas.h");
TESSERA_ROCBLAS_FUNCTIONS(TESSERA_COMPARE)
#undef TESSERA_COMPARE
}  // namespace functions

TEST(RocBlasApi, ConstantsAreThoseOfTheHeader) {
  EXPECT_EQ(blas::kSuccess, static_cast<int>(rocblas_status_success));
  EXPECT_EQ(blas::kNotImplemented, static_cast<int>(rocblas_status_not_implemented));
  EXPECT_EQ(blas::kPerformanceDegraded, static_cast<int>(rocblas_status_perf_degraded));
  EXPECT_EQ(blas::kNoTranspose, static_cast<int>(rocblas_operation_none));
  EXPECT_EQ(blas::kTranspose, static_cast<int>(rocblas_operation_transpose));
  EXPECT_EQ(blas::kReal16F, static_cast<int>(rocblas_datatype_f16_r));
  EXPECT_EQ(blas::kReal32F, static_cast<int>(rocblas_datatype_f32_r));
  EXPECT_EQ(blas::kReal16BF, static_cast<int>(rocblas_datatype_bf16_r));
  EXPECT_EQ(blas::kAtomicsNotAllowed, static_cast<int>(rocblas_atomics_not_allowed));
  EXPECT_EQ(blas::kAlgorithmStandard, static_cast<int>(rocblas_gemm_algo_standard));
}

}  // namespace
}  // namespace tessera::hip
