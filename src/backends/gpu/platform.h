#pragma once

#include <optional>
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

/// A library that is looked for when it is needed.
struct LibraryReport {
  std::string name;                ///< "nvrtc"
  std::string file;                ///< as it was found
  std::string version;             ///< empty if unknown
  std::string unavailable_reason;  ///< empty: found
};

/// What was found of a vendor's GPUs and of what their kernels need.
struct PlatformReport {
  std::string unavailable_reason;  ///< not empty: no GPU can be used, and what is missing
  std::string driver_version;      ///< "580.95.05"; empty if unknown
  std::string api_version;         ///< newest of CUDA's or HIP's that the driver runs: "13.0"
  int num_devices = 0;
  std::vector<LibraryReport> libraries;  ///< looked for only if there are GPUs
  std::vector<std::string> built_for;    ///< architectures that kernels were compiled for with the binary
};

/// The GPUs of one vendor, and what is there for them alone. Lives until the process ends.
class Platform {
 public:
  virtual ~Platform() = default;

  virtual DeviceKind kind() const = 0;

  virtual PlatformReport report() const = 0;

  /// Empty if this machine has a GPU that can be used; otherwise what is missing, in words for the user.
  virtual std::string unavailable_reason() const = 0;

  /// Empty, or why the kernels do not run on such a GPU.
  virtual std::string unsuitable_reason(const DeviceProperties& device) const = 0;

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

  /// Nothing for a GPU without matrix units.
  virtual std::optional<MatrixRate> matrix_rate(const DeviceProperties& device) const = 0;
};

}  // namespace tessera::gpu
