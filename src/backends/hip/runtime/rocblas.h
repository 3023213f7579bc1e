#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backends/gpu/ops/library_products.h"
#include "backends/hip/runtime/hip_gpu.h"

namespace tessera::hip {

/// What loading rocBLAS came to, found out once a process.
struct RocBlasState {
  std::string unavailable_reason;  ///< empty: usable
  std::string library;
  std::string kernels_folder;  ///< where its kernels lie, a file or more for an architecture
};
const RocBlasState& rocblas_state();

/// Empty if `folder` has a file for `architecture`; otherwise what is missing. rocBLAS ends the process when
/// it is used on a GPU that it has no kernels for, so this is asked before.
std::string no_kernels_reason(const std::string& folder, const std::string& architecture);

/// Empty if rocBLAS can multiply on such a GPU.
std::string rocblas_reason_against(const std::string& architecture);

/// A product as rocBLAS takes it: column-major d (m, n) = a (m, k) b (k, n) + beta d, each matrix `batch`
/// times at its distance.
struct BlasGemm {
  int transpose_a;
  std::int32_t m, n, k, batch;
  const void* a;
  const void* b;
  void* d;
  std::int32_t lda, ldb, ldd;
  std::int64_t stride_a, stride_b, stride_d;
  float beta;
};

/// Nothing for products that rocBLAS does not take: with a bias, or sizes beyond 31 bits.
std::optional<BlasGemm> blas_gemm(const gpu::LibraryProduct& product);

/// rocBLAS on the calling thread's GPU, whose products are the same bits each time.
class RocBlasHandle {
 public:
  /// rocblas_state().unavailable_reason must be empty. Throws Error{kDevice} if rocBLAS fails.
  RocBlasHandle();
  ~RocBlasHandle();
  RocBlasHandle(const RocBlasHandle&) = delete;
  RocBlasHandle& operator=(const RocBlasHandle&) = delete;

  /// False if rocBLAS does not take the product. workspace: LibraryProducts::kWorkspaceBytes. Throws
  /// Error{kDevice} if it fails. For one thread at a time.
  bool multiply(const gpu::LibraryProduct& product, StreamHandle stream, void* workspace);

 private:
  void* handle_ = nullptr;
};

/// Products by rocBLAS on a GPU.
class RocBlas final : public gpu::LibraryProducts {
 public:
  /// rocblas_reason_against() the GPU must be empty.
  explicit RocBlas(HipGpu& device);

  bool multiply(const gpu::LibraryProduct& product, Stream stream) override;

 private:
  HipGpu& device_;
  std::optional<RocBlasHandle> handle_;
  std::shared_ptr<std::byte> workspace_;  // of products that bring none
  std::mutex mutex_;
};

}  // namespace tessera::hip
