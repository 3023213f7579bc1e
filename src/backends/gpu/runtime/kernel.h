#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::gpu {

class CodeArchive;

/// A source text and the name that #include finds it by.
struct SourceFile {
  std::string_view name;
  std::string_view text;
};

/// Code that the build made of a kernel source: for an architecture, or for the driver to translate.
struct EmbeddedModule {
  std::string_view source;
  std::string_view defines;       ///< joined by spaces
  std::string_view architecture;  ///< "sm_90a"; "compute_80", which the driver translates
  const CodeArchive* archive;     ///< of the architecture's modules
  std::string_view member;        ///< the module's name there
};

/// What sources include as a score modifier's code (common/score_modifier.cuh).
inline constexpr std::string_view kModifierHeader = "modifier_text.cuh";

/// Which module a kernel is in: a source compiled with preprocessor definitions ("TESSERA_DTYPE=f16").
/// "TESSERA_ONLY=…" leaves out kernels that are not needed, so that run-time compilation is short; a module
/// that was built ahead of time without it has them all and serves instead.
struct ModuleSpec {
  std::string source;
  std::vector<std::string> defines;
  /// Not empty: the text of kModifierHeader, a score modifier's code. Such a module is never built ahead.
  std::string modifier = {};

  friend auto operator<=>(const ModuleSpec&, const ModuleSpec&) = default;
};

/// A kernel ready to launch.
struct Kernel {
  void* function = nullptr;  ///< the driver's
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
  /// of platform.cuh itself. Without effect where Kernel::can_wait is false.
  bool overlaps_prior = false;
  /// Consecutive blocks along x that run at the same time and may wait for one another; divides grid[0]. More
  /// than 1 from compute capability 9.0 on.
  unsigned cluster_blocks = 1;
};

}  // namespace tessera::gpu
