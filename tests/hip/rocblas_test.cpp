// What rocBLAS is asked for, without it: column-major products of the row-major ones that the library's users
// describe, and whether it has kernels for a GPU.

#include "backends/hip/runtime/rocblas.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "backends/hip/runtime/rocblas_api.h"

namespace tessera::hip {
namespace {

namespace fs = std::filesystem;

/// rocblas_gemm_strided_batched_ex in fp32 as its documentation has it.
void run(const BlasGemm& g) {
  for (std::int64_t batch = 0; batch < g.batch; ++batch) {
    const float* a = static_cast<const float*>(g.a) + batch * g.stride_a;
    const float* b = static_cast<const float*>(g.b) + batch * g.stride_b;
    float* d = static_cast<float*>(g.d) + batch * g.stride_d;
    for (std::int64_t i = 0; i < g.m; ++i) {
      for (std::int64_t j = 0; j < g.n; ++j) {
        float sum = 0;
        for (std::int64_t l = 0; l < g.k; ++l) {
          const bool transposed = g.transpose_a == blas::kTranspose;
          sum += (transposed ? a[i * g.lda + l] : a[l * g.lda + i]) * b[j * g.ldb + l];
        }
        float& element = d[j * g.ldd + i];
        element = sum + g.beta * element;
      }
    }
  }
}

std::vector<float> random_numbers(std::size_t count) {
  std::mt19937 generator(5);
  std::uniform_int_distribution<int> small(-4, 4);  // sums are exact
  std::vector<float> numbers(count);
  for (float& x : numbers) x = static_cast<float>(small(generator));
  return numbers;
}

TEST(RocBlas, IsAskedForTheProductThatIsMeant) {
  for (const bool transposed : {false, true}) {
    for (const bool accumulate : {false, true}) {
      gpu::LibraryProduct p;
      p.m = 5, p.n = 7, p.k = 3, p.batch = 2;
      p.x_stride = 4, p.out_stride = 9;
      p.weight_stride = transposed ? 8 : 0;  // 0: contiguous
      p.weight_is_transposed = transposed;
      p.accumulate = accumulate;
      p.x_batch_stride = 21, p.weight_batch_stride = 30, p.out_batch_stride = 50;
      const std::vector<float> x = random_numbers(64), weight = random_numbers(64);
      const std::vector<float> before = random_numbers(128);
      std::vector<float> expected = before, out = before;
      p.x = x.data(), p.weight = weight.data(), p.out = out.data();
      for (int batch = 0; batch < 2; ++batch) {
        for (int m = 0; m < 5; ++m) {
          for (int n = 0; n < 7; ++n) {
            float sum = 0;
            for (int k = 0; k < 3; ++k) {
              const int at = transposed ? k * 8 + n : n * 3 + k;
              sum += x[static_cast<std::size_t>(batch * 21 + m * 4 + k)] *
                     weight[static_cast<std::size_t>(batch * 30 + at)];
            }
            float& element = expected[static_cast<std::size_t>(batch * 50 + m * 9 + n)];
            element = sum + (accumulate ? element : 0.0f);
          }
        }
      }
      const std::optional<BlasGemm> gemm = blas_gemm(p);
      ASSERT_TRUE(gemm);
      run(*gemm);
      EXPECT_EQ(out, expected) << transposed << accumulate;
    }
  }
}

TEST(RocBlas, DoesNotTakeABiasOrSizesBeyond31Bits) {
  gpu::LibraryProduct p;
  p.m = p.n = p.k = 4;
  EXPECT_TRUE(blas_gemm(p));
  p.bias = &p;
  EXPECT_FALSE(blas_gemm(p));
  p.bias = nullptr;
  p.out_stride = std::int64_t{1} << 31;
  EXPECT_FALSE(blas_gemm(p));
}

TEST(RocBlas, IsUsedOnlyWhereItHasKernels) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("rocblas_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "TensileLibrary_lazy_gfx1100.dat");
  std::ofstream(folder / "Kernels.so-000-gfx90a-xnack+.hsaco");
  EXPECT_EQ(no_kernels_reason(folder.string(), "gfx1100"), "");
  EXPECT_EQ(no_kernels_reason(folder.string(), "gfx90a"), "");
  for (const char* architecture : {"gfx1103", "gfx90", "gfx110"}) {
    const std::string reason = no_kernels_reason(folder.string(), architecture);
    EXPECT_NE(reason.find("no kernels for " + std::string(architecture)), std::string::npos) << reason;
  }
  fs::remove_all(folder);
  EXPECT_NE(no_kernels_reason(folder.string(), "gfx1100"), "") << "the folder is gone";
  EXPECT_NE(no_kernels_reason("", "gfx1100"), "");
}

}  // namespace
}  // namespace tessera::hip
