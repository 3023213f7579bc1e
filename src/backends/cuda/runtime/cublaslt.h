#pragma once

#include <array>
#include <cstddef>
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

/// out = x w^T (+ bias) (+ out), row-major; or a batch of such products, each at its distance from the last.
struct LibraryProduct {
  const void* x = nullptr;        ///< (m, k), x_stride
  const void* weight = nullptr;   ///< (n, k), or (k, n) if weight_is_transposed
  const void* bias = nullptr;     ///< (n) of out's dtype, or null; not with accumulate
  void* out = nullptr;            ///< (m, n), out_stride
  DType dtype = DType::kF32;      ///< of x and weight: kF32, kF16 or kBF16
  DType out_dtype = DType::kF32;  ///< dtype, or kF32
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t x_stride = 0, out_stride = 0;  ///< elements
  std::int64_t weight_stride = 0;             ///< elements between rows; 0: contiguous
  bool weight_is_transposed = false;
  bool accumulate = false;
  std::int64_t batch = 1;
  std::int64_t x_batch_stride = 0, weight_batch_stride = 0, out_batch_stride = 0;  ///< elements
  void* workspace = nullptr;  ///< CublasLt::kWorkspaceBytes for this product; null: the object's own
};

/// Products by cuBLASLt with fp32 sums (true fp32 for fp32 inputs). The algorithm is asked for once a shape
/// and remembered. Safe to use from several threads.
class CublasLt {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  /// Whether the object holds a workspace, for products that bring none.
  enum class Workspace { kOwn, kOfEachProduct };

  /// cublaslt_state() must be usable.
  explicit CublasLt(GpuDevice& device, Workspace workspace = Workspace::kOwn);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// False if cuBLASLt has no algorithm for these sizes and alignments. Throws Error{kDevice} if it fails.
  /// Calls that use one workspace must be ordered on the GPU.
  bool multiply(const LibraryProduct& product, StreamHandle stream);

 private:
  struct Plan;
  using Key = std::tuple<std::array<std::int64_t, 10>, DType, DType, bool, bool, bool, unsigned>;

  const Plan& plan_of(const LibraryProduct& product);

  GpuDevice& device_;
  void* handle_ = nullptr;
  std::shared_ptr<std::byte> workspace_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Plan>> plans_;  // guarded by mutex_; plans never move
};

}  // namespace tessera::cuda
