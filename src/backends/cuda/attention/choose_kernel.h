#pragma once

#include <cstddef>
#include <string>

#include "backends/cuda/runtime/device.h"
#include "backends/gpu/runtime/kernel_library.h"
#include "tessera/attention.h"

namespace tessera::cuda {

/// The kernel for a problem, its tiles and how it is launched. Depends on the problem's description and the
/// device only.
struct KernelChoice {
  enum class Kind {
    kMma,      ///< tensor-core tiles, sm80/attention_mma.cu
    kDecode,   ///< few packed rows over many keys, sm80/attention_decode.cu
    kGeneric,  ///< a warp a row, common/attention_generic.cu
  };
  Kind kind = Kind::kGeneric;
  std::string name;  ///< for the plan: "sm80/prefill"
  ModuleSpec module;
  std::string entry;
  AttentionConfig config;  ///< every value filled in
  int min_blocks = 1;      ///< a multiprocessor, of kMma
  int pack_heads = 1;      ///< query heads that share a row tile
  int heads_at_once = 1;  ///< head blocks whose row tiles start in turn, of kMma; divides num_head_blocks, or
                          ///< is a multiple of it and spans sequences
  std::int64_t keys_per_split = 0;
  std::int64_t num_row_tiles = 0;
  std::int64_t num_head_blocks = 0;  ///< of a sequence
  std::size_t shared_bytes = 0;
  std::size_t partial_bytes = 0;  ///< o_partial and lse_partial
};

/// Empty, or why no kernel of this backend takes the problem on such a device.
std::string unsupported_problem(const AttentionProblem& problem, const DeviceProperties& device);

/// For a supported problem. Throws Error{kInvalidArgument} for a forced value that no kernel has.
KernelChoice choose_kernel(const AttentionProblem& problem, const DeviceProperties& device,
                           const AttentionConfig& forced);

/// Why the tensor-core kernels do not take a supported problem; empty if they do.
std::string reason_against_mma(const AttentionProblem& problem);

/// Why the kernel for few rows is not the one for a supported problem; empty if it is.
std::string reason_against_decode(const AttentionProblem& problem, const DeviceProperties& device);
/// The same without the module's name, which takes most of the time.
KernelChoice choose_without_module(const AttentionProblem& problem, const DeviceProperties& device,
                                   const AttentionConfig& forced);

/// The generic kernel, which takes every supported problem.
KernelChoice choose_generic_kernel(const AttentionProblem& problem, const DeviceProperties& device,
                                   const AttentionConfig& forced);

/// "f32", "f16" or "bf16", as the kernels' entry points end.
std::string_view dtype_suffix(DType dtype);

}  // namespace tessera::cuda
