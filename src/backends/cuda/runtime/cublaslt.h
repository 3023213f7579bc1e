#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "backends/cuda/runtime/cuda_gpu.h"
#include "backends/gpu/ops/library_products.h"
#include "tessera/dtype.h"

namespace tessera::cuda {

/// What loading cuBLASLt came to, found out once a process.
struct CublasLtState {
  std::string unavailable_reason;  ///< empty: usable
  std::string library;
};
const CublasLtState& cublaslt_state();

/// Products by cuBLASLt. The algorithm is asked for once a shape and remembered.
class CublasLt final : public gpu::LibraryProducts {
 public:
  /// Whether the object holds a workspace, for products that bring none.
  enum class Workspace { kOwn, kOfEachProduct };

  /// cublaslt_state() must be usable.
  explicit CublasLt(CudaGpu& device, Workspace workspace = Workspace::kOwn);
  ~CublasLt() override;
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  bool multiply(const gpu::LibraryProduct& product, Stream stream) override;

 private:
  struct Plan;
  using Key = std::tuple<std::array<std::int64_t, 10>, DType, DType, bool, bool, bool, unsigned>;

  const Plan& plan_of(const gpu::LibraryProduct& product);

  CudaGpu& device_;
  void* handle_ = nullptr;
  std::shared_ptr<std::byte> workspace_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Plan>> plans_;  // guarded by mutex_; plans never move
};

}  // namespace tessera::cuda
