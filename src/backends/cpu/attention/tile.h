#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/sequence.h"
#include "backends/cpu/simd_target.h"
#include "tessera/attention.h"

namespace tessera::cpu {

/// Most rows of a tile of the decode kernel.
inline constexpr std::int64_t kMaxDecodeRows = 8;

/// Most rows that the decode kernel looks ahead.
inline constexpr std::int64_t kMaxRowsAhead = 64;

/// Sizes of a tile and of the scratch memory that one thread needs for it.
struct TileShape {
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int block_m = 0;        ///< rows: (query, head of the group) pairs, the heads of a query next to each other
  int block_n = 0;        ///< keys; a multiple of 8
  int row_block = 0;      ///< rows that the target's registers hold: KernelTable::row_block
  bool bf16_dot = false;  ///< q, k, p and v meet as pairs of bf16
  bool amx = false;       ///< tiles of many queries take amx_prefill.h's kernel
  bool segments = false;  ///< there may be TileTask::segment_keys
  bool narrow_q = false;  ///< q is of 8 bits, with scales; only if k and v are
  bool narrow_kv = false;  ///< k and v are of 8 bits, with scales: widened to fp32, or with bf16_dot to bf16
  int decode_heads = 1;    ///< key-value heads of a task of the decode kernel
};

/// Whether the decode kernel reads keys and values where they lie, in vectors of `lanes` numbers, not copies
/// of them. in_order: as a batch_invariant call does, 16 bytes of each key at a time.
inline bool decode_reads_keys(const TileShape& shape, std::int64_t lanes, std::size_t element_bytes,
                              bool in_order) {
  if (in_order) return !shape.narrow_kv && shape.head_dim_qk * element_bytes % 16 == 0;
  return shape.head_dim_qk >= lanes;
}
inline bool decode_reads_values(const TileShape& shape, std::int64_t lanes, bool in_order) {
  return shape.head_dim_v >= lanes && !(in_order && shape.narrow_kv);
}

/// Scores that the decode kernel keeps for a row: those of a block of keys, as many as start each row of them
/// at a multiple of 64 bytes, and a vector more.
inline std::int64_t decode_keys(const TileShape& shape) {
  return (std::int64_t{shape.block_n} + 15) / 16 * 16 + 16;
}

/// Where the parts of a thread's scratch memory lie, in bytes. Every part is aligned to 64 bytes.
/// Row blocks are stored transposed, so that a vector holds one dimension or key of many rows.
struct ScratchLayout {
  std::int64_t q_words = 0;   ///< 32-bit words of a packed q: head_dim_qk floats, or half as many bf16 pairs
  std::int64_t k_stride = 0;  ///< words between two keys of the packed k
  std::int64_t v_stride = 0;  ///< words between two keys, or pairs of keys, of the packed v
  std::int64_t v_padded = 0;  ///< head_dim_v rounded up to what the accumulators come in
  std::int64_t row_blocks = 0;  ///< row blocks of a tile
  std::size_t q = 0;            ///< [row_blocks][q_words][row_block]
  std::size_t o = 0;            ///< [row_blocks][v_padded][row_block] fp32
  std::size_t block_o = 0;      ///< [kMaxDecodeRows * decode_heads][v_padded to 64] fp32, a block's alone
  std::size_t row_max = 0;      ///< [row_blocks * row_block] fp32, of the scores so far
  std::size_t row_sum = 0;      ///< [row_blocks * row_block] fp32, of exp(score - row_max)
  /// Of the segments before, if there are any, like o, row_max and row_sum.
  std::size_t merged_o = 0, merged_max = 0, merged_sum = 0;
  std::size_t rescale = 0;   ///< [row_block] fp32
  std::size_t k = 0;         ///< [block_n][k_stride]
  std::size_t v = 0;         ///< [block_n][v_stride]
  std::size_t s = 0;         ///< [block_n][row_block] fp32, scores and then probabilities
  std::size_t p = 0;         ///< [block_n / 2][row_block] pairs of bf16
  std::size_t scales = 0;    ///< [2][block_n] fp32, of keys and of values, where pairs of bf16 leave them out
  std::size_t bias = 0;      ///< [block_n][row_block] fp32
  std::size_t limits = 0;    ///< [2][row_block] int32: first and past-the-end visible key in the block
  std::size_t rows = 0;      ///< [4][largest head_dim, padded] fp32
  std::size_t pointers = 0;  ///< [2][block_n + kMaxRowsAhead] addresses of rows of k and of v
  std::size_t size_bytes = 0;
};

ScratchLayout scratch_layout(const TileShape& shape);

struct ModifierCall;

/// What all tiles of a call share.
struct CallContext {
  const AttentionProblem* problem = nullptr;
  const ModifierCall* modifier = nullptr;  ///< null: the problem has none
  SimdTarget target = SimdTarget::kBaseline;
  TileShape shape;
  ScratchLayout layout;
  int group = 1;  ///< query heads of a key-value head
  float scale = 1;
  bool has_bias = false;         ///< alibi, additive or boolean mask
  bool modifier_scales = false;  ///< nothing but the modifier transforms the scores: it takes the scale along
  /// The scores are multiplied by the scale and passed through softcap, bias and the modifier's score before
  /// the softmax; otherwise the softmax takes the scale along in its multiply-add.
  bool transforms_scores = false;
};

/// One task: some rows of one key-value head of one sequence against some of the keys.
struct TileTask {
  std::int64_t sequence = 0;
  int kv_head = 0;  ///< the first, for the decode kernel
  SequenceExtent extent;
  Diagonal diagonal;
  std::int64_t row_begin = 0;  ///< of the sequence's len_q * group rows
  std::int64_t row_end = 0;
  KeyRange keys;  ///< of this task; what a row sees of them may be less
  /// For the kernels of many queries: they cut the keys at multiples of it and merge what comes of each; 0:
  /// the keys are of one segment, or the problem has none.
  std::int64_t segment_keys = 0;
  std::byte* scratch = nullptr;  ///< ScratchLayout::size_bytes
  /// Floats between the partial results of two key-value heads.
  std::int64_t partial_head_stride = 0;
  float* partial = nullptr;  ///< null: write o and lse; else [rows][partial_stride(head_dim_v)]
};

/// Rows of a tile whose results are worked on together.
struct RowBlock {
  std::int64_t begin = 0;  ///< of the task's sequence
  std::int64_t end = 0;
  std::int64_t index = 0;
  std::int64_t vectors = 0;  ///< that the rows fill
  std::int64_t lane = 0;     ///< of the first row in block `index`: not 0 if the rows are only some of it
};

/// Number `index` of a task's blocks of `block_rows` rows, for vectors of `lanes` rows.
RowBlock row_block(const TileTask& task, std::int64_t index, std::int64_t block_rows, std::int64_t lanes);

/// Floats of a row's partial result: the sum of exp(score - row_max) v, then row_max, then the sum of
/// exp(score - row_max). Of a batch_invariant call on AMX's tiles, row_max is in powers of two.
inline std::int64_t partial_stride(int head_dim_v) { return (std::int64_t{head_dim_v} + 2 + 15) / 16 * 16; }

inline std::int64_t query_of_row(const CallContext& call, std::int64_t row) { return row / call.group; }
inline int head_of_row(const CallContext& call, const TileTask& task, std::int64_t row) {
  return task.kv_head * call.group + static_cast<int>(row % call.group);
}

/// Address of the first element of a query's head in q, and in o.
const std::byte* q_row(const CallContext& call, const TileTask& task, std::int64_t query, int head);
std::byte* o_row(const CallContext& call, const TileTask& task, std::int64_t query, int head);

/// Writes a row's log-sum-exp if the problem asks for it.
void store_lse(const CallContext& call, const TileTask& task, std::int64_t query, int head, float lse);

/// Addresses of rows [begin, end) of k or v of the task's head.
void kv_rows(const CallContext& call, const TileTask& task, const AttentionInput& tensor, std::int64_t begin,
             std::int64_t end, const std::byte** rows);

/// Keys that any of the rows [row_begin, row_end) sees among the task's.
KeyRange keys_of_rows(const CallContext& call, const TileTask& task, std::int64_t row_begin,
                      std::int64_t row_end);

/// Calls visit(start, keys) for the blocks of block_n keys that some row of the task sees, in order: `start`
/// is where the block begins, a multiple of block_n, and `keys` those of it that are wanted.
template <class Visit>
void for_key_blocks(const CallContext& call, const TileTask& task, const Visit& visit) {
  const KeyRange keys = keys_of_rows(call, task, task.row_begin, task.row_end);
  const std::int64_t block_n = call.shape.block_n;
  for (std::int64_t start = keys.begin / block_n * block_n; start < keys.end; start += block_n)
    visit(start, KeyRange{std::max(start, keys.begin), std::min(start + block_n, keys.end)});
}

/// Calls attend(segment) for the segments of which some row of the task sees keys, in order, each as a task
/// of its own, and after each but the first merge().
template <class Attend, class Merge>
void for_segments(const CallContext& call, const TileTask& task, const Attend& attend, const Merge& merge) {
  const KeyRange keys = keys_of_rows(call, task, task.row_begin, task.row_end);
  if (task.segment_keys == 0 || keys.empty()) {
    attend(task);
    return;
  }
  const std::int64_t first = keys.begin / task.segment_keys * task.segment_keys;
  for (std::int64_t begin = first; begin < keys.end; begin += task.segment_keys) {
    TileTask segment = task;
    segment.keys = {std::max(begin, keys.begin), std::min(begin + task.segment_keys, keys.end)};
    attend(segment);
    if (begin > first) merge();
  }
}

/// True if each of the rows sees each of `keys` as far as lengths and diagonal go.
bool all_visible(const CallContext& call, const TileTask& task, std::int64_t row_begin, std::int64_t row_end,
                 KeyRange keys);

/// Address of element (query, key) of a mask, and of the step from key to key.
struct MaskRow {
  const std::byte* data = nullptr;
  std::int64_t step_bytes = 0;
};
MaskRow mask_row(const ScoreMask& mask, std::int64_t sequence, int head, std::int64_t query,
                 std::int64_t key);

/// A maximum in powers of two as one of natural scores.
inline float natural_maximum(float base_2) { return static_cast<float>(base_2 * 0.69314718055994530942); }

/// The factor that a row's accumulated o still needs, and its log-sum-exp, sinks included.
struct RowResult {
  float o_factor = 0;  ///< 0 for a row without visible keys
  float lse = 0;
};
RowResult finish_row(const CallContext& call, int head, float row_max, float row_sum);

/// False for a row whose scores or values left fp32's range on the way, or may have: `row_max` and `row_sum`
/// of its scores and its o, finished or not, don't say what the row is. A row without visible keys is among
/// them, since scores that overflow to -inf look the same.
bool stays_in_range(float row_max, float row_sum, const float* o, std::int64_t head_dim);

/// Writes a row's o and lse from a computation in fp64 that shares nothing with the tiles.
void attend_exactly(const CallContext& call, const TileTask& task, std::int64_t query, int head);

}  // namespace tessera::cpu
