#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/nvrtc.h"
#include "core/binary_cache.h"

namespace tessera::cuda {

/// The kernels' sources as embedded in this binary; names are relative to the kernels folder. Defined by the
/// build.
std::span<const SourceFile> embedded_sources();

/// Machine code (or PTX, architecture "compute_…") that the build made. Defined by the build; empty without
/// nvcc.
struct EmbeddedModule {
  std::string_view source;
  std::string_view defines;  ///< joined by spaces
  std::string_view architecture;
  std::span<const std::byte> image;
};
std::span<const EmbeddedModule> embedded_modules();

/// Which module a kernel is in: a source compiled with preprocessor definitions ("kHeadDim=128").
/// "TESSERA_ONLY=…" leaves out kernels that are not needed, so that run-time compilation is short; a module
/// that was built ahead of time without it has them all and serves instead.
struct ModuleSpec {
  std::string source;
  std::vector<std::string> defines;

  friend auto operator<=>(const ModuleSpec&, const ModuleSpec&) = default;
};

/// A kernel ready to launch.
struct Kernel {
  FunctionHandle function = nullptr;
  std::string name;
  int num_registers = 0;
  int local_bytes = 0;           ///< a thread; not 0 means that registers spilled or arrays went to memory
  std::size_t shared_bytes = 0;  ///< static
  std::size_t dynamic_shared_bytes = 0;  ///< most that launches may ask for, if above the usual limit
  bool can_wait = false;  ///< compiled for an architecture on which a kernel can wait for the one before
};

struct LaunchShape {
  std::array<unsigned, 3> grid = {1, 1, 1};
  std::array<unsigned, 3> block = {1, 1, 1};
  std::size_t shared_bytes = 0;  ///< dynamic
  /// The kernel may start while the one before it in the stream still runs: it calls wait_for_prior_kernels()
  /// of platform.cuh itself. Without effect before Hopper.
  bool overlaps_prior = false;
};

/// Where a module's code came from, for `info` and `explain`.
enum class ModuleOrigin { kAheadOfTime, kPtx, kDiskCache, kCompiledNow };

/// Finds or makes the kernels of one GPU: machine code from the build, else from the disk cache, else
/// compiled now by NVRTC and cached, else PTX from the build. Safe to use from several threads.
class KernelLibrary {
 public:
  explicit KernelLibrary(GpuDevice& device);

  /// Throws Error{kUnsupported} if there is neither code for this GPU nor NVRTC, saying what to install;
  /// Error{kDevice} with the compiler's log for a source that does not compile. dynamic_shared_bytes above 48
  /// KB are asked for here.
  const Kernel& find(const ModuleSpec& spec, const std::string& entry, std::size_t dynamic_shared_bytes = 0);

  /// Launches; parameters are pointers to the kernel's arguments. `problem` says what for, in errors.
  void launch(const Kernel& kernel, const LaunchShape& shape, std::span<void* const> parameters,
              StreamHandle stream, std::string_view problem) const;

  /// Where find() takes a module from, or would: "built ahead for sm_90a". For users; reads the disk cache.
  std::string describe_origin(const ModuleSpec& spec);

  /// The architecture that modules are compiled for: "sm_90a".
  const std::string& architecture() const { return architecture_; }
  const BinaryCache& cache() const { return cache_; }

 private:
  struct Module {
    ModuleHandle handle = nullptr;
    ModuleOrigin origin = ModuleOrigin::kAheadOfTime;
    bool can_wait = false;
    std::map<std::string, Kernel> kernels;
  };

  /// What the build embedded for this GPU; null: nothing.
  struct Embedded {
    const EmbeddedModule* machine_code = nullptr;
    const EmbeddedModule* ptx = nullptr;
  };

  Embedded find_embedded(const ModuleSpec& spec) const;
  std::string cache_key(const ModuleSpec& spec) const;
  Module& load(const ModuleSpec& requested);
  std::vector<std::byte> compile(const ModuleSpec& spec, ModuleOrigin& origin);

  GpuDevice* device_;
  std::string architecture_;
  BinaryCache cache_;
  std::mutex mutex_;
  std::map<ModuleSpec, Module> modules_;  // guarded by mutex_; nodes never move
};

/// The library of gpu_device(index).
KernelLibrary& kernel_library(int index);

/// Launches with arguments as the kernel takes them; each must have exactly the parameter's type.
template <class... Arguments>
void launch_kernel(KernelLibrary& library, const Kernel& kernel, const LaunchShape& shape,
                   StreamHandle stream, std::string_view problem, Arguments... arguments) {
  std::array<void*, sizeof...(Arguments)> pointers = {static_cast<void*>(&arguments)...};
  library.launch(kernel, shape, pointers, stream, problem);
}

}  // namespace tessera::cuda
