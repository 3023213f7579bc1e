#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/arguments.h"
#include "tessera/device.h"
#include "tessera/dtype.h"

namespace tessera::gpu {

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
  void* workspace = nullptr;  ///< kWorkspaceBytes for this product; null: the object's own
};

/// Products by the vendor's library with fp32 sums (true fp32 for fp32 inputs). Safe to use from several
/// threads.
class LibraryProducts {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  virtual ~LibraryProducts() = default;

  /// False if the library has no algorithm for these sizes and alignments. Throws Error{kDevice} if it fails.
  /// Calls that use one workspace must be ordered on the GPU.
  virtual bool multiply(const LibraryProduct& product, Stream stream) = 0;
};

/// The product by the library; false if it does not take these arguments.
bool library_gemm(LibraryProducts& library, const GemmArguments& arguments, Stream stream);

}  // namespace tessera::gpu
