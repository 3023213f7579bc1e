// What Tessera calls of rocBLAS, computed on the CPU: a library to be loaded in its place, by tests without
// an AMD GPU or whose GPU is emulated in memory that the CPU may touch. It refuses what rocBLAS's
// documentation does, and what would be a mistake of ours: products before a stream, a workspace or the mode
// of atomics are set.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/hip/runtime/rocblas_api.h"
#include "tessera/dtype.h"

namespace blas = tessera::hip::blas;

namespace {

constexpr blas::Status kInvalidHandle = 1;
constexpr blas::Status kInvalidPointer = 3;
constexpr blas::Status kInvalidSize = 4;
constexpr blas::Status kInternalError = 6;
constexpr blas::Status kInvalidValue = 11;
constexpr std::int32_t kUnknownColumns = 1013;  // m for which there is no algorithm
constexpr std::int32_t kFailingColumns = 1017;  // m for which it fails

int num_handles = 0;

}  // namespace

struct _rocblas_handle {
  bool has_stream = false;
  bool has_workspace = false;
  bool adds_in_order = false;
};

namespace {

double read(const void* data, std::int64_t at, int type) {
  if (type == blas::kReal32F) return static_cast<double>(static_cast<const float*>(data)[at]);
  if (type == blas::kReal16F)
    return static_cast<double>(static_cast<float>(static_cast<const tessera::Half*>(data)[at]));
  return static_cast<double>(static_cast<float>(static_cast<const tessera::BFloat16*>(data)[at]));
}

void write(void* data, std::int64_t at, int type, double value) {
  const auto rounded = static_cast<float>(value);
  if (type == blas::kReal32F) {
    static_cast<float*>(data)[at] = rounded;
  } else if (type == blas::kReal16F) {
    static_cast<tessera::Half*>(data)[at] = tessera::Half(rounded);
  } else {
    static_cast<tessera::BFloat16*>(data)[at] = tessera::BFloat16(rounded);
  }
}

bool is_known(int type) {
  return type == blas::kReal16F || type == blas::kReal16BF || type == blas::kReal32F;
}

}  // namespace

extern "C" {

/// Handles that exist, for tests.
int stand_in_rocblas_handles() { return num_handles; }

blas::Status rocblas_create_handle(blas::Handle* handle) {
  if (handle == nullptr) return kInvalidHandle;
  *handle = new _rocblas_handle;
  ++num_handles;
  return blas::kSuccess;
}

blas::Status rocblas_destroy_handle(blas::Handle handle) {
  if (handle == nullptr) return kInvalidHandle;
  delete handle;
  --num_handles;
  return blas::kSuccess;
}

blas::Status rocblas_set_stream(blas::Handle handle, ihipStream_t*) {
  if (handle == nullptr) return kInvalidHandle;
  handle->has_stream = true;
  return blas::kSuccess;
}

blas::Status rocblas_set_workspace(blas::Handle handle, void* data, std::size_t bytes) {
  if (handle == nullptr) return kInvalidHandle;
  if (data == nullptr || bytes == 0) return kInvalidPointer;
  handle->has_workspace = true;
  return blas::kSuccess;
}

blas::Status rocblas_set_atomics_mode(blas::Handle handle, int mode) {
  if (handle == nullptr) return kInvalidHandle;
  handle->adds_in_order = mode == blas::kAtomicsNotAllowed;
  return blas::kSuccess;
}

blas::Status rocblas_gemm_strided_batched_ex(
    blas::Handle handle, int transpose_a, int transpose_b, std::int32_t m, std::int32_t n, std::int32_t k,
    const void* alpha, const void* a, int a_type, std::int32_t lda, std::int64_t stride_a, const void* b,
    int b_type, std::int32_t ldb, std::int64_t stride_b, const void* beta, const void* c, int c_type,
    std::int32_t ldc, std::int64_t stride_c, void* d, int d_type, std::int32_t ldd, std::int64_t stride_d,
    std::int32_t batch_count, int compute_type, int algorithm, std::int32_t solution_index,
    std::uint32_t flags) {
  if (handle == nullptr) return kInvalidHandle;
  if (!handle->has_stream || !handle->has_workspace || !handle->adds_in_order) return kInternalError;
  const auto is_transpose = [](int x) { return x == blas::kNoTranspose || x == blas::kTranspose; };
  if (!is_transpose(transpose_a) || !is_transpose(transpose_b) || !is_known(a_type) || a_type != b_type ||
      !is_known(d_type) || c_type != d_type || (d_type != a_type && d_type != blas::kReal32F) ||
      compute_type != blas::kReal32F || algorithm != blas::kAlgorithmStandard || solution_index != 0 ||
      flags != 0)
    return kInvalidValue;
  const bool is_a_transposed = transpose_a == blas::kTranspose;
  const bool is_b_transposed = transpose_b == blas::kTranspose;
  if (m < 0 || n < 0 || k < 0 || batch_count < 0 || lda < std::max(1, is_a_transposed ? k : m) ||
      ldb < std::max(1, is_b_transposed ? n : k) || ldc < std::max(1, m) || ldd < std::max(1, m) ||
      ldc != ldd || stride_c != stride_d)
    return kInvalidSize;
  if (m == 0 || n == 0 || batch_count == 0) return blas::kSuccess;
  if (alpha == nullptr || beta == nullptr || c != d || d == nullptr ||
      (k > 0 && (a == nullptr || b == nullptr)))
    return kInvalidPointer;
  if (m == kUnknownColumns) return blas::kNotImplemented;
  if (m == kFailingColumns) return kInternalError;
  const double factor = *static_cast<const float*>(alpha);
  const double kept = *static_cast<const float*>(beta);
  for (std::int64_t batch = 0; batch < batch_count; ++batch) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          sum += read(a, batch * stride_a + (is_a_transposed ? i * lda + l : l * lda + i), a_type) *
                 read(b, batch * stride_b + (is_b_transposed ? l * ldb + j : j * ldb + l), b_type);
        }
        const std::int64_t at = batch * stride_d + j * ldd + i;
        // Where beta is 0, what is there does not count, not even NaN.
        const double before = kept == 0 ? 0 : kept * read(d, at, d_type);
        write(d, at, d_type, factor * sum + before);
      }
    }
  }
  return blas::kSuccess;
}

}  // extern "C"
