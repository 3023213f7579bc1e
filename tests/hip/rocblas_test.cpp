// What rocBLAS is asked for, without it: column-major products of the row-major ones that the library's users
// describe, and whether it has kernels for a GPU. A library that stands in for it (stand_in_rocblas.cpp) is
// found, loaded and called as it would be.

#include "backends/hip/runtime/rocblas.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tessera/dtype.h"
#include "tessera/error.h"

namespace tessera::hip {
namespace {

namespace fs = std::filesystem;

std::vector<float> random_numbers(std::size_t count) {
  std::mt19937 generator(5);
  std::uniform_int_distribution<int> small(-4, 4);  // sums are exact
  std::vector<float> numbers(count);
  for (float& x : numbers) x = static_cast<float>(small(generator));
  return numbers;
}

/// A (5, 7) product over 3 columns, twice, with gaps between rows and matrices, of numbers of type In.
struct SmallProduct {
  static constexpr std::size_t kM = 5, kN = 7, kK = 3, kBatch = 2;

  explicit SmallProduct(bool transposed, bool accumulate) {
    p.m = kM, p.n = kN, p.k = kK, p.batch = kBatch;
    p.x_stride = 4, p.out_stride = 9;
    p.weight_stride = transposed ? 8 : 0;  // 0: contiguous
    p.weight_is_transposed = transposed;
    p.accumulate = accumulate;
    p.x_batch_stride = 21, p.weight_batch_stride = 30, p.out_batch_stride = 50;
  }

  /// What `out` becomes that was `before`.
  std::vector<float> expected(const std::vector<float>& x, const std::vector<float>& weight,
                              const std::vector<float>& before) const {
    std::vector<float> out = before;
    for (std::size_t batch = 0; batch < kBatch; ++batch) {
      for (std::size_t m = 0; m < kM; ++m) {
        for (std::size_t n = 0; n < kN; ++n) {
          float sum = 0;
          for (std::size_t k = 0; k < kK; ++k)
            sum += x[batch * 21 + m * 4 + k] *
                   weight[batch * 30 + (p.weight_is_transposed ? k * 8 + n : n * 3 + k)];
          float& element = out[batch * 50 + m * 9 + n];
          element = sum + (p.accumulate ? element : 0.0f);
        }
      }
    }
    return out;
  }

  gpu::LibraryProduct p;
};

template <class To, class From>
std::vector<To> converted(const std::vector<From>& numbers) {
  std::vector<To> result;
  for (const From& x : numbers) result.push_back(To(static_cast<float>(x)));
  return result;
}

template <class In, class Out>
void expect_product(DType dtype, DType out_dtype) {
  RocBlasHandle handle;
  std::byte workspace;
  for (const bool transposed : {false, true}) {
    for (const bool accumulate : {false, true}) {
      SmallProduct product(transposed, accumulate);
      const std::vector<float> x = random_numbers(64), weight = random_numbers(64),
                               before = random_numbers(128);
      const auto stored_x = converted<In>(x), stored_weight = converted<In>(weight);
      auto out = converted<Out>(before);
      product.p.dtype = dtype, product.p.out_dtype = out_dtype;
      product.p.x = stored_x.data(), product.p.weight = stored_weight.data(), product.p.out = out.data();
      ASSERT_TRUE(handle.multiply(product.p, nullptr, &workspace));
      EXPECT_EQ(converted<float>(out), product.expected(x, weight, before)) << transposed << accumulate;
    }
  }
}

TEST(RocBlas, MultipliesWhatIsMeant) {
  ASSERT_EQ(rocblas_state().unavailable_reason, "");
  EXPECT_EQ(rocblas_state().library, TESSERA_STAND_IN_ROCBLAS);
  expect_product<float, float>(DType::kF32, DType::kF32);
  expect_product<Half, Half>(DType::kF16, DType::kF16);
  expect_product<Half, float>(DType::kF16, DType::kF32);
  expect_product<BFloat16, BFloat16>(DType::kBF16, DType::kBF16);
  expect_product<BFloat16, float>(DType::kBF16, DType::kF32);
}

TEST(RocBlas, LooksForKernelsBesideTheLibrary) {
  const fs::path folder = fs::canonical(TESSERA_STAND_IN_ROCBLAS).parent_path() / "rocblas" / "library";
  EXPECT_EQ(rocblas_state().kernels_folder, folder.string());
  EXPECT_NE(rocblas_reason_against("gfx942").find("no kernels for gfx942 in " + folder.string()),
            std::string::npos);
}

TEST(RocBlas, SaysWhetherTheLibraryHasNoAlgorithmOrFailed) {
  RocBlasHandle handle;
  std::byte workspace;
  const std::vector<float> numbers(4 * 1017);
  std::vector<float> out(2 * 1017);
  gpu::LibraryProduct p;
  p.m = 2, p.k = 4;
  p.x = numbers.data(), p.weight = numbers.data(), p.out = out.data();
  p.n = 1013;  // for which the stand-in has none
  EXPECT_FALSE(handle.multiply(p, nullptr, &workspace));
  p.n = 1017;  // for which it fails
  try {
    handle.multiply(p, nullptr, &workspace);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kDevice);
    EXPECT_NE(std::string(e.what()).find("rocblas_gemm_strided_batched_ex"), std::string::npos) << e.what();
  }
  p.n = 16;
  p.dtype = p.out_dtype = DType::kF64;
  EXPECT_THROW(handle.multiply(p, nullptr, &workspace), Error);
}

TEST(RocBlas, GivesItsHandleBack) {
  auto* const handles = reinterpret_cast<int (*)()>(
      ::dlsym(::dlopen(TESSERA_STAND_IN_ROCBLAS, RTLD_NOW | RTLD_NOLOAD), "stand_in_rocblas_handles"));
  ASSERT_NE(handles, nullptr) << "not loaded";
  {
    const RocBlasHandle handle;
    EXPECT_EQ(handles(), 1);
  }
  EXPECT_EQ(handles(), 0);
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
