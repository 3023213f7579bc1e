#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/gpu/ops/library_products.h"
#include "backends/gpu/runtime/gpu.h"
#include "backends/gpu/runtime/kernel.h"
#include "tessera/attention.h"

namespace tessera::gpu {

/// A kernel (int iterations, float* sink) that keeps matrix units busy, as their ceiling is measured.
struct MatrixRate {
  ModuleSpec module;
  std::string entry;
  double flops_per_warp = 0;  ///< of one iteration, with 16-bit inputs
};

/// The GPUs of one vendor, and what is there for them alone. Lives until the process ends.
class Platform {
 public:
  virtual ~Platform() = default;

  virtual DeviceKind kind() const = 0;

  /// Empty if this machine has a GPU that can be used; otherwise what is missing, in words for the user.
  virtual std::string unavailable_reason() const = 0;

  /// GPU `index` as the driver counts them, opened on first use. Throws Error{kInvalidArgument} for an index
  /// that is not there, Error{kDevice} if the driver can't open it.
  virtual Gpu& gpu(int index) = 0;

  /// The GPU for tensors in the memory of `device`: those in CPU memory go to the first.
  Gpu& gpu_for(const Device& device) { return gpu(device.kind == kind() ? device.index : 0); }

  /// The vendor's library of products: "cuBLASLt".
  virtual std::string_view products_name() const = 0;
  /// The file it was found in; empty: not found.
  virtual std::string products_file() const = 0;
  /// Empty if it can be used.
  virtual std::string products_unavailable_reason() const = 0;
  /// Products of one GPU, shared by all calls: each brings its own workspace.
  virtual LibraryProducts& products(Gpu& gpu) = 0;

  virtual MatrixRate matrix_rate() const = 0;
};

}  // namespace tessera::gpu
