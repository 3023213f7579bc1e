#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "backends/cuda/runtime/device.h"
#include "tessera/dtype.h"

namespace tessera::cuda {

/// What loading cuBLASLt came to, found out once a process.
struct CublasLtState {
  std::string unavailable_reason;  ///< empty: usable
  std::string library;
};
const CublasLtState& cublaslt_state();

/// out = x w^T (+ bias) (+ out), row-major.
struct LibraryProduct {
  const void* x = nullptr;        ///< (m, k), x_stride
  const void* weight = nullptr;   ///< (n, k), contiguous
  const void* bias = nullptr;     ///< (n) of out's dtype, or null; not with accumulate
  void* out = nullptr;            ///< (m, n), out_stride
  DType dtype = DType::kF32;      ///< of x and weight: kF32, kF16 or kBF16
  DType out_dtype = DType::kF32;  ///< dtype, or kF32
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t x_stride = 0, out_stride = 0;  ///< elements
  bool accumulate = false;
};

/// Products by cuBLASLt with fp32 sums (true fp32 for fp32 inputs). The algorithm is asked for once a shape
/// and remembered. Safe to use from several threads.
class CublasLt {
 public:
  /// cublaslt_state() must be usable.
  explicit CublasLt(GpuDevice& device);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// False if cuBLASLt has no algorithm for these sizes and alignments. Throws Error{kDevice} if it fails.
  /// Calls must be ordered on the GPU, since they share a workspace.
  bool multiply(const LibraryProduct& product, StreamHandle stream);

 private:
  struct Plan;
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, DType, DType,
                         bool, bool, unsigned>;

  const Plan& plan_of(const LibraryProduct& product);

  GpuDevice& device_;
  void* handle_ = nullptr;
  std::shared_ptr<std::byte> workspace_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Plan>> plans_;  // guarded by mutex_; plans never move
};

}  // namespace tessera::cuda
