#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backends/gpu/runtime/device_properties.h"
#include "backends/gpu/runtime/kernel.h"
#include "common/attention_params.h"
#include "common/modifier_arguments.h"
#include "core/rounding.h"
#include "tessera/attention.h"

namespace tessera::gpu {

struct AttentionKernel;

/// A kernel, its tiles and how the work is cut for it: everything about a call but its pointers. Depends on
/// the problem's description (the alignment of its tensors included) and on the device only.
struct KernelChoice {
  const AttentionKernel* kernel = nullptr;
  ModuleSpec module;
  std::string entry;
  AttentionConfig config;  ///< every value filled in
  int pack_heads = 1;      ///< query heads that share a row tile
  /// Head blocks whose row tiles start in turn, of tiled kernels; divides num_head_blocks, or is a multiple
  /// of it and spans sequences.
  int heads_at_once = 1;
  std::int64_t keys_per_split = 0;
  /// Of a batch-invariant problem (common/attention_segments.cuh), else 0.
  std::int64_t keys_per_segment = 0;
  std::int64_t num_row_tiles = 0;
  std::int64_t num_head_blocks = 0;  ///< of a sequence
  int num_multiprocessors = 0;       ///< of the device, for grids of blocks that stay
  int fewest_queries = 0;  ///< of a ragged sequence that the launch is for; others have no part in it
  int most_queries = 0;    ///< likewise; 0: no limit
  int copied_mask = 0;     ///< the mask (of kernels::ScoreTermFlags) that a tensor map describes, or 0
  std::size_t shared_bytes = 0;
  ModuleSpec combine_module;      ///< of the kernel that merges the splits' results, if one has to
  std::string combine_entry;      ///< empty: none has to
  int cluster_blocks = 1;         ///< launched together, next to one another
  std::size_t partial_bytes = 0;  ///< of workspace: o_partial and lse_partial, or what the kernel keeps there
  std::size_t zeroed_bytes = 0;   ///< of its beginning, that are 0 when the kernel starts
  /// Of workspace, the last of partial_bytes: bounds of a modifier's tensors, which a kernel of their own
  /// fills in before this one.
  std::size_t modifier_block_bytes = 0;
  /// Of workspace, behind partial_bytes: q of 8 bits widened, for a kernel that takes none (widen_queries.h).
  std::size_t wide_queries_begin = 0;
  std::size_t wide_queries_bytes = 0;  ///< 0: nothing is widened
  /// Of workspace, behind these: copies of tensors whose rows the kernel's copies don't take (align_rows.h).
  int aligned_tensors = 0;  ///< AlignedTensors
  std::size_t aligned_rows_begin = 0;
  std::size_t aligned_rows_bytes = 0;  ///< 0: nothing is copied
  /// Of workspace, in their place: q, k and v of f32 split for a kernel that multiplies f16 (split_rows.h).
  std::size_t split_rows_begin = 0;
  std::size_t split_rows_bytes = 0;  ///< 0: nothing is split
  std::string note;                  ///< for the plan's notes: how it does what users may wonder about

  /// Parts of the keys that have partial results of their own.
  std::int64_t num_partials(std::int64_t seq_len_kv) const {
    if (keys_per_segment == 0) return config.num_splits;
    return divide_up(seq_len_kv, keys_per_segment);
  }

  /// Of workspace, all of it.
  std::size_t workspace_bytes() const {
    if (split_rows_bytes > 0) return split_rows_begin + split_rows_bytes;
    if (aligned_rows_bytes > 0) return aligned_rows_begin + aligned_rows_bytes;
    return wide_queries_bytes > 0 ? wide_queries_begin + wide_queries_bytes : partial_bytes;
  }

  friend bool operator==(const KernelChoice&, const KernelChoice&) = default;
};

/// The one parameter of a kernel, whatever its type: a struct passed by value, of at most kMostBytes.
class KernelArguments {
 public:
  static constexpr std::size_t kMostBytes = 2048;

  template <class Params>
  explicit KernelArguments(const Params& params) : size_(sizeof(Params)), params_end_(end_of_params(params)) {
    static_assert(std::is_trivially_copyable_v<Params> &&
                  sizeof(Params) + sizeof(kernels::ModifierArguments) <= kMostBytes &&
                  alignof(Params) <= kAlignment);
    std::memcpy(bytes_.data(), &params, sizeof(Params));
  }

  /// Puts a modifier's arguments at the end of the AttentionParams, where a module that is compiled with one
  /// has them.
  void add_modifier(const kernels::ModifierArguments& modifier) {
    std::byte* const place = bytes_.data() + params_end_;
    std::memmove(place + sizeof modifier, place, size_ - params_end_);
    std::memcpy(place, &modifier, sizeof modifier);
    size_ += sizeof modifier;
    params_end_ += sizeof modifier;
  }

  void* data() { return bytes_.data(); }

 private:
  static constexpr std::size_t kAlignment = 64;  // of a tensor map

  /// The AttentionParams are the argument, its member `params` or `attention`, or not there at all.
  template <class Params>
  static std::size_t end_of_params(const Params& p) {
    const auto end_of = [&](const kernels::AttentionParams& member) {
      return static_cast<std::size_t>(reinterpret_cast<const char*>(&member + 1) -
                                      reinterpret_cast<const char*>(&p));
    };
    if constexpr (requires { p.params.head_dim_qk; }) {
      return end_of(p.params);
    } else if constexpr (requires { p.attention.head_dim_qk; }) {
      return end_of(p.attention);
    } else {
      return sizeof(Params);
    }
  }

  alignas(kAlignment) std::array<std::byte, kMostBytes> bytes_;  // only what was copied is read
  std::size_t size_;
  std::size_t params_end_;
};

struct CombineLaunch {
  LaunchShape shape;
  KernelArguments arguments;
};

/// A problem whose module the build compiles ahead.
struct BuiltProblem {
  AttentionProblem problem;
  bool may_spill = false;  ///< its tiles take every register, and the compiler keeps some in memory
};

/// One way to compute attention on a GPU: what it takes, how it is cut and launched. Functions are pure, so
/// that they are tested without a GPU. docs/adding_a_kernel.md says how one is added.
struct AttentionKernel {
  std::string_view name;  ///< for the plan: "sm80/prefill"
  std::string_view
      merit;  ///< why it comes before the kernels after it, for explain: "it is preferred, which …"
  std::string_view note = {};  ///< not empty: for the plans that take it

  bool is_plain = false;  ///< without units for matrices: no match for a kernel before it

  /// Whether a block takes all keys of its rows: config.num_splits is 1. Null: never.
  bool (*has_whole_keys)(const AttentionProblem& problem) = nullptr;

  bool is_decode = false;  ///< a tile holds few rows, and the keys' way from memory is what takes time

  /// Its tiles of packed heads read keys about as fast as a decode kernel, however few of their rows exist.
  bool tiles_suit_few_rows = false;

  bool takes_modifiers = false;   ///< scores.modifier, compiled into its module
  bool classifies_tiles = false;  ///< by the modifier's mask: it wants the bounds of its tensors

  bool takes_narrow_kv = false;  ///< k and v of 8 bits beside a wider q, with their scales
  bool takes_narrow_q = false;   ///< q of 8 bits, too; others see one that was widened (widen_queries.h)
  bool splits_rows = false;      ///< q, k and v of f32 are split into numbers of f16 before (split_rows.h)
  bool narrow_weights = false;   ///< for AttentionPlan::narrow_weights of the plans that take it

  /// Empty if it takes a problem that its backend supports, on such a device; otherwise why not, for users.
  /// This and all below see problem_of_kernel(): q of 8 bits only with takes_narrow_q. Not to be asked of
  /// narrow keys that it doesn't take: reason_against_kernel() does not.
  std::string (*reason_against)(const AttentionProblem& problem, const DeviceProperties& device);

  /// Empty unless another kernel of the list is likely to be quicker for a problem that this one takes; then
  /// why, for users. A measurement of such problems decides otherwise. Null: never.
  std::string (*reason_to_yield)(const AttentionProblem& problem, const DeviceProperties& device) = nullptr;

  /// Tiles, splits and module for a problem that it takes; choose_with() fills in `kernel` and
  /// num_multiprocessors. `forced` of its own choice gives that choice again.
  /// Throws Error{kInvalidArgument} for a forced value that it doesn't have.
  KernelChoice (*choose)(const AttentionProblem& problem, const DeviceProperties& device,
                         const AttentionConfig& forced);

  /// Of q, k, v and masks those (AlignedTensors) that are to be copied to rows at multiples of 16 bytes
  /// before a problem that it takes: its launch sees these copies, all else the problem as it is. Null: none.
  int (*tensors_to_align)(const AttentionProblem& problem) = nullptr;

  /// What else may be forced of a problem's choice that is worth measuring on a device; values that it
  /// doesn't have, and those that make its own choice again, are left out there. Null: nothing.
  std::vector<AttentionConfig> (*candidates)(const AttentionProblem& problem,
                                             const DeviceProperties& device) = nullptr;

  /// Sequences that one launch may take: the dimensions of a grid are limited.
  std::int64_t (*sequences_at_once)(const KernelChoice& choice);

  /// The launch for `sequences` sequences from AttentionParams::batch_begin on.
  LaunchShape (*shape)(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size);

  /// What it is launched with instead of `params` alone; null: those. `problem` has the call's pointers,
  /// `workspace` partial_bytes.
  KernelArguments (*arguments)(const kernels::AttentionParams& params, const AttentionProblem& problem,
                               const KernelChoice& choice, std::byte* workspace) = nullptr;

  /// How the choice's combine_entry is launched; null: as attention_combine.cu, with `params`.
  CombineLaunch (*combine)(const kernels::AttentionParams& params, const AttentionProblem& problem,
                           const KernelChoice& choice, std::byte* workspace,
                           std::int64_t sequences) = nullptr;

  /// What the build compiles ahead (built_modules.h); all else is compiled when it is first used. Problems
  /// that it doesn't take on a device are left out there. Null: nothing.
  std::vector<BuiltProblem> (*built_ahead)() = nullptr;
};

/// Empty if `kernel` takes a problem that its backend supports, on such a device; otherwise why not.
std::string reason_against_kernel(const AttentionKernel& kernel, const AttentionProblem& problem,
                                  const DeviceProperties& device);

/// A vendor's kernels, the preferred first; the last takes every problem that the backend supports.
using AttentionKernels = std::span<const AttentionKernel* const>;

/// Tiles of fp32 on any GPU: before the plain kernel on every vendor's.
extern const AttentionKernel kTiledAttention;

/// The plain kernel, which takes any problem on any GPU: every vendor's last.
extern const AttentionKernel kGenericAttention;

}  // namespace tessera::gpu
