#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backends/gpu/attention/attention_kernel.h"

// What the choices of several kernels share: how a problem's rows, heads and keys are cut into blocks, and
// what their modules are compiled with.

namespace tessera::gpu {

using kernels::kMaxSplits;

/// kernels::ScoreTermFlags of what the scores need beyond a positive scale and the diagonal.
int term_flags(const ScoreTerms& scores);

/// The same without a modifier that is a mask alone: kernels that hide what it hides leave products in their
/// own units (kMasksOnly).
int scoring_flags(const ScoreTerms& scores);

/// kernels::MaskDType of the additive mask; 0 without one, so that it makes no further modules.
int mask_dtype_flag(const ScoreTerms& scores);

/// What every kernel of a tensor core is compiled with: dtype, padded head_dims, terms (of term_flags() or
/// scoring_flags()), storage.
std::vector<std::string> common_defines(const AttentionProblem& problem, int terms,
                                        int head_dim_multiple = 16);

/// "TESSERA_<name>=<value>".
std::string define(std::string_view name, int value);

/// Queries times heads of a kv head.
std::int64_t packed_rows(const AttentionProblem& problem);

/// Bytes of a key and its value, of one kv head.
std::int64_t key_bytes(const AttentionProblem& problem);

/// head_dims as the kernels pad them, to a multiple of what an mma takes at least.
int padded_head_dim_qk(const AttentionProblem& problem, int multiple = 16);
int padded_head_dim_v(const AttentionProblem& problem, int multiple = 16);

/// How many bytes of a row can be moved at a time: 16, 8, 4, 2 or 1.
int row_alignment(const AttentionProblem& problem);
/// Likewise of o's rows alone.
int output_alignment(const AttentionProblem& problem);
/// Whether row_alignment() is 16.
bool has_aligned_rows(const AttentionProblem& problem);

/// Says in which pieces a module copies rows that aren't aligned (TESSERA_PIECE_BYTES).
void add_piece_define(const AttentionProblem& problem, ModuleSpec& module);

/// Throws Error{kInvalidArgument} for more forced splits than are merged.
void require_mergeable(const AttentionConfig& forced);

[[noreturn]] void reject_forced(const char* field, int value, std::string_view expected);
void reject_large_tiles(std::size_t shared_bytes, const DeviceProperties& device);

/// Why the kernels of tensor cores don't take a problem's head_dims; empty if they do.
std::string reason_against_head_dims(const AttentionProblem& problem);

/// Packing lets a short prompt's heads fill a tile; a long one fills it anyway.
int pack_short_prompts(const AttentionProblem& problem, int block_m);

/// Fills in num_row_tiles and num_head_blocks from block_m and pack_heads.
void cut_rows(const AttentionProblem& problem, KernelChoice& choice);

/// How fast a batch-invariant kernel's blocks read keys and values, in bytes a us.
struct BlockRates {
  double alone = 19e3;   ///< at most, of a block that has a multiprocessor for itself
  double of_two = 19e3;  ///< at most, of one of two
  double share = 24e3;   ///< a multiprocessor's, where all read
};

/// Of a batch-invariant problem's segments, in whole key tiles (common/attention_segments.cuh).
std::int64_t keys_per_segment(std::int64_t key_tile);

/// Splits for a choice whose rows are cut: as many as keep a device busy that these would not.
std::int64_t wanted_splits(const AttentionProblem& problem, const DeviceProperties& device,
                           std::int64_t key_tile, const KernelChoice& choice, const BlockRates& rates = {});

/// Cuts the keys into `wanted` parts of whole key tiles, of a batch-invariant problem of whole segments, or
/// as `forced` says.
void cut_keys(const AttentionProblem& problem, const AttentionConfig& forced, std::int64_t key_tile,
              std::int64_t wanted, KernelChoice& choice);

/// Numbers of splits of at most `key_tiles` tiles that are worth measuring beside `modelled`.
std::vector<AttentionConfig> splits_around(std::int64_t modelled, std::int64_t key_tiles);

/// Head blocks whose row tiles start in turn, for a choice whose rows and keys are cut.
int choose_heads_at_once(const AttentionProblem& problem, const DeviceProperties& device,
                         const KernelChoice& choice);

/// Cuts the work of a tiled kernel, whose config but for the splits and whose pack_heads are filled in.
void cut_for_tiles(const AttentionProblem& problem, const DeviceProperties& device,
                   const AttentionConfig& forced, KernelChoice& choice);

}  // namespace tessera::gpu
