#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/gpu/runtime/compiler.h"
#include "backends/gpu/runtime/kernel.h"
#include "backends/gpu/runtime/module_loader.h"
#include "core/binary_cache.h"

namespace tessera::gpu {

/// What the kernels of one GPU are made from and for.
struct KernelTarget {
  std::string architecture;               ///< that sources are compiled for: "sm_90a"
  int warp_size = 0;                      ///< the sources' TESSERA_WARP_SIZE
  std::span<const SourceFile> sources;    ///< kernels and all that they include
  std::span<const EmbeddedModule> built;  ///< ahead of time; may be for other GPUs
};

/// Finds or makes the kernels of one GPU: machine code from the build, else from the disk cache, else
/// compiled now and cached, else what the driver translates. Safe to use from several threads: one compiles a
/// module while the others go on, and wait only if they need the same.
class KernelLibrary {
 public:
  /// `loader` and `compiler` outlive the library.
  KernelLibrary(ModuleLoader& loader, const KernelCompiler& compiler, KernelTarget target, BinaryCache cache);

  /// Throws Error{kUnsupported} if there is neither code for this GPU nor a compiler, saying what to install;
  /// Error{kDevice} with the compiler's log for a source that does not compile. The result lives as long as
  /// the library.
  const Kernel& find(const ModuleSpec& spec, const std::string& entry, std::size_t dynamic_shared_bytes = 0);

  /// Loads modules ahead of need, on all threads. One that fails is left for find(), which says why.
  void prepare(std::span<const ModuleSpec> specs);

  /// Where find() takes a module from, or would: "built ahead for sm_90a". For users; reads the disk cache.
  std::string describe_origin(const ModuleSpec& spec) const;

  /// 32 hexadecimal digits that depend on the text of all sources whose names contain `name_part`, and of
  /// what they include.
  std::string fingerprint(std::string_view name_part) const;

  const KernelTarget& target() const { return target_; }
  const BinaryCache& cache() const { return cache_; }

 private:
  /// A module and whoever is loading it.
  struct Module {
    explicit Module(ModuleSpec of) : spec(std::move(of)) {}

    const ModuleSpec spec;
    const EmbeddedModule* built = nullptr;  ///< null: it is compiled
    std::mutex mutex;                       // what follows is guarded by it
    std::vector<std::byte> compiled;        ///< empty: built ahead, or not loaded yet
    void* handle = nullptr;                 ///< null: not loaded yet
    CodeFit fit = CodeFit::kNone;
    std::map<std::string, Kernel> kernels;  // nodes never move
  };

  const EmbeddedModule* find_built(const ModuleSpec& spec) const;
  std::string cache_key(const ModuleSpec& spec) const;
  Module& module_of(const ModuleSpec& requested);
  void load(Module& module);
  std::vector<std::byte> compile(const ModuleSpec& spec);

  ModuleLoader& loader_;
  const KernelCompiler& compiler_;
  const KernelTarget target_;
  BinaryCache cache_;
  std::mutex cache_mutex_;  // of writing
  std::mutex mutex_;
  std::map<ModuleSpec, std::shared_ptr<Module>> modules_;  // guarded by mutex_; several specs may share one
};

}  // namespace tessera::gpu
