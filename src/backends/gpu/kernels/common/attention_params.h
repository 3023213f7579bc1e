#pragma once

// Arguments of every attention kernel, the same bytes on host and device. Nothing but the project's own is
// included: the run-time compiler has no headers.

#ifdef TESSERA_MODIFIER
#include "common/modifier_arguments.h"
#endif

namespace tessera::kernels {

using int64 = long long;

constexpr int kMaxHeadDim = 576;  // tessera/attention.h's

/// Strides in elements; unit stride along head_dim.
struct TensorArgument {
  void* data;
  int64 batch_stride;  // between pages if paged
  int64 seq_stride;
  int64 head_stride;
};

/// Log-sum-exp of rows, by strides in elements.
struct LseArgument {
  float* data;
  int64 batch_stride;
  int64 head_stride;
  int64 seq_stride;
};

/// Element (b, h, i, j); a stride of 0 broadcasts. data null: absent.
struct MaskArgument {
  const void* data;
  int64 batch_stride;
  int64 head_stride;
  int64 q_stride;
  int64 kv_stride;
  int dtype;  // MaskDType
};

enum MaskDType : int { kMaskF32 = 0, kMaskF16 = 1, kMaskBF16 = 2, kMaskU8 = 3 };

/// What stored queries of 8 bits are multiplied by, widened or not, by strides in elements.
struct QScalesArgument {
  const float* q;      // null: 1
  int64 batch_stride;  // between sequences
  int64 head_stride;   // between kv heads
};

/// What stored keys and values of 8 bits are multiplied by, by strides in elements.
struct KvScalesArgument {
  const float* k;      // null: 1
  const float* v;      // null: 1
  int64 batch_stride;  // between pages if paged
  int64 head_stride;
};

/// Which terms a kernel is compiled with; kAllTerms looks at the arguments at run time.
enum ScoreTermFlags : int {
  kTermSoftcap = 1,
  kTermAlibi = 2,
  kTermAdditiveMask = 4,
  kTermBooleanMask = 8,
  kTermScale = 16,  // a softmax_scale that is not positive: the scores' order is not that of the products
  kAllTerms = 31,
  kTermModifier = 32,  // a modifier, which wants natural units; its code is compiled in by TESSERA_MODIFIER
};

// attention_combine.cu
constexpr int kMaxSplits = 128;  // that it merges
constexpr int kMostCombineThreads = 512;
constexpr int kMostRowsSplits = 16;  // that a warp merges of a row
constexpr int kCombineRowsThreads = 128;

// attention_join.cu
constexpr int kJoinThreads = 128;
constexpr int kKeysPerSegment = 512;  // of batch-invariant problems, in whole key tiles

constexpr int kGenericWarps = 4;  // of a block of attention_generic.cu, a row each

/// Stands for "no limit" in window_left and window_right; sums with sequence lengths do not overflow.
constexpr int kUnlimitedWindow = 1 << 30;

struct AttentionParams {
  TensorArgument q, k, v, o;
  LseArgument lse;  // null data: not wanted
  QScalesArgument q_scales;
  KvScalesArgument kv_scales;

  int batch_begin;  // sequence of the grid's first z: long batches take several launches
  int batch, num_heads, num_kv_heads, head_dim_qk, head_dim_v;
  int seq_len_q;             // most queries of any sequence
  int seq_len_kv;            // most keys
  const int* cu_seqlens_q;   // (batch + 1) or null
  int fewest_q, most_q;      // sequences of fewer or more queries have no part in the launch; 0: no limit
  const int* cu_seqlens_kv;  // (batch + 1) or null
  const int* seq_lens_kv;    // (batch) or null
  const int* block_table;    // (batch, block_table_stride) or null
  int64 block_table_stride;
  int page_size;
  int page_shift;  // log2(page_size), or -1 if it is no power of two
  int settled_kv;  // 1: kernels before write no keys but each sequence's last len_q, and no lengths or tables

  float softmax_scale;
  float softcap;              // 0: none
  const float* alibi_slopes;  // null: none
  int64 alibi_batch_stride;
  MaskArgument additive_mask;
  MaskArgument boolean_mask;
  const float* sinks;             // (num_heads) or null
  int window_left, window_right;  // kUnlimitedWindow: none
  int top_left;                   // 1: the diagonal starts at the first query and key

  int pack_heads;      // query heads that share a row tile: 1, or num_heads / num_kv_heads
  int heads_at_once;   // tiled kernels: heads (of several sequences, maybe) whose blocks start in turn
  int num_splits;      // parts that the keys are divided into
  int keys_per_split;  // a multiple of the key tile
  int omits_splits;    // 1: those behind a sequence's end have no partial results
  float* o_partial;  // (num_splits, rows, head_dim_v) if num_splits > 1; rows = batch * num_heads * seq_len_q
  float* lse_partial;  // (num_splits, rows)
  // Of batch-invariant problems (attention_segments.cuh), else 0; keys_per_split is a multiple then, and
  // o_partial and lse_partial have the segments' results, logsumexps in units of log2.
  int keys_per_segment;

#ifdef TESSERA_MODIFIER
  ModifierArguments modifier;  // the host puts it behind what it knows as this struct
#endif
};

}  // namespace tessera::kernels
