#pragma once

#include "core/formats/list.h"

// Arguments of the kernels of ops/backend.h, the same bytes on host and device. No other include: the
// run-time compiler has no headers but ours. Equations stand at the structs of ops/arguments.h.

namespace tessera::kernels {

using int64 = long long;

/// Numbers, then the block formats of weights: kElementQ8_0 ...
#define TESSERA_ELEMENT(Format) , kElement##Format
enum ElementType : int {
  kElementF32,
  kElementF16,
  kElementBF16 TESSERA_BLOCK_FORMATS(TESSERA_ELEMENT),
  kElementF8E4M3  // of caches alone, which are only written
};
#undef TESSERA_ELEMENT

/// Rows of elements at a stride. A weight's rows lie one after the other.
struct RowsArgument {
  void* data;
  int64 row_stride;  // elements
  int type;          // ElementType
  int vector;        // 1: groups of kGroupSize elements of a row stand at multiples of 16 bytes
};

/// Elements that a thread takes at once: 16 bytes of a 16-bit type, twice that of fp32.
constexpr int kGroupSize = 8;

/// Of an elementwise kernel's block; a thread takes several groups of a row.
constexpr int kElementwiseThreads = 256;
constexpr int kElementwiseGroups = 2;

struct EmbeddingParams {
  const int* tokens;  // (rows)
  RowsArgument table;
  RowsArgument out;
  int64 vocab_size;
  int64 columns;
};

/// Of a row's block at most; typed kernels take rows of up to kNormThreads * kNormGroups groups.
constexpr int kNormThreads = 512;
constexpr int kNormGroups = 4;  // of a thread
/// rms_norm_short's blocks, and its columns: a group a lane of the smallest warps.
constexpr int kShortNormThreads = 128;
constexpr int kMostShortNormColumns = 256;

struct RmsNormParams {
  RowsArgument x, out;
  RowsArgument residual;  // data null: none
  RowsArgument weight;
  int64 rows, columns;
  int64 head_stride;
  int heads;
  float eps;
};

struct LayerNormParams {
  RowsArgument x, out;
  RowsArgument residual, bias;  // data null: none
  RowsArgument weight;          // a row a head, and so has bias
  int64 columns;
  int64 head_stride;
  int heads;
  float eps;
};

/// Likewise.
constexpr int kSoftmaxThreads = 1024;
constexpr int kSoftmaxGroups = 4;

struct SoftmaxParams {
  RowsArgument x, out;
  int64 columns;
};

/// Elementwise kernels: block b takes part b % blocks_per_row of row b / blocks_per_row.
struct GatedActivationParams {
  RowsArgument gate, up, out;  // up.data null: 1
  int64 columns;
  int blocks_per_row;
  int activation;  // 0 SwiGLU, 1 GeGLU, 2 GeGLU with tanh, 3 gpt-oss's clamped SwiGLU, 4 squared ReLU
};

/// scale and softcap.
struct TransformParams {
  RowsArgument x;
  int64 columns;
  int blocks_per_row;
  float number;  // the factor or the cap
};

struct CausalMaskParams {
  RowsArgument x;
  int64 columns;
  int64 shift;
  int blocks_per_row;
};

constexpr int kRopeThreads = 256;  // of a block at most
/// From here on tokens' blocks cover each other's waiting, and small ones do best.
constexpr int kManyTokens = 512;

struct RopeRotation {
  const int* positions;              // (tokens)
  const float* inverse_frequencies;  // (num_pairs)
  int num_pairs;
  int head_dim;
  int interleaved;  // 1: pairs are (2i, 2i + 1)
  float attention_factor;
};

struct RopeParams {
  RopeRotation rotation;
  RowsArgument x;
  int heads;
};

struct RopeAppendParams {
  RopeRotation rotation;
  RowsArgument q, k, v;
  RowsArgument cache_k, cache_v;  // row_stride: between pages
  int64 cache_token_stride, cache_head_stride;
  const int* sequences;    // (tokens)
  const int* block_table;  // (sequences, block_table_stride) or null: page = sequence
  int64 block_table_stride;
  int page_size;
  int num_heads, num_kv_heads;
};

// gemv.cu
constexpr int kGemvThreads = 256;
constexpr int kGemvRows = 4;      // of w, that a block takes
constexpr int kMostGemvRows = 8;  // of x
// gemm_tiled.cu
constexpr int kTiledThreads = 256;
constexpr int kProductTile = 64;  // rows and columns of out that a block computes

// widen_blocks.cu
constexpr int kWidenThreads = 256;

/// out = x w^T (+ bias) (+ out); gated: out = activation(x w1^T (+ bias)) * (x w2^T (+ bias)) where w has
/// w1's n / 2 rows above w2's.
struct GemmParams {
  RowsArgument x;       // (m, k)
  RowsArgument weight;  // (n, k), row_stride k
  RowsArgument bias;    // (1, n); data null: none
  RowsArgument out;     // (m, n)
  int64 m, n, k;
  int gated;  // few rows only; 0: no; else 1 + GatedActivationParams::activation
  int accumulate;
};

// experts.cu
constexpr int kRouteThreads = 64;   // a warp a row
constexpr int kGroupThreads = 256;  // a block an expert
constexpr int kRouteFewThreads = 256;
constexpr int kMostFewSlots = 128;  // of all rows, that one block routes

/// ExpertRouting of ops/arguments.h, of `slots` slots in all.
struct RoutingParams {
  int* experts;
  float* weights;
  int* order;
  int* offsets;
  int64 slots;
  int num_experts;
  int num_slots;  // of a row
};

struct RouteExpertsParams {
  RowsArgument logits;  // (rows, num_experts)
  RoutingParams routing;
  int64 rows;
  const float* score_bias;     // (num_experts); may be null
  const float* expert_scales;  // likewise
  int normalized;
  int is_sigmoid;
  int by_scores;  // experts are chosen by scores, not by logits
  int num_groups, num_groups_used, num_experts_of_group;
  float weight_scale;
};

struct CombineExpertsParams {
  RowsArgument x, out;
  const float* weights;  // (rows, num_slots)
  int64 columns;
  int blocks_per_row;
  int num_slots;
  int accumulate;
};

/// Rows of several sequences and where each one's state is.
struct SequenceRowsParams {
  const int* cu_seqlens;  // (batch + 1)
  const int* seq_lens;    // (batch)
  const int* slots;       // (batch)
};

/// Rows of a sequence that a thread of causal_conv goes through.
constexpr int kConvRows = 16;
constexpr int kConvThreads = 128;

struct CausalConvParams {
  RowsArgument x, out;
  RowsArgument x_gate, out_gate;  // data null: none
  const float* weight;            // (taps, channels)
  const float* bias;              // (channels) or null
  float* state;                   // (slots, taps - 1, channels)
  SequenceRowsParams sequences;
  int64 channels;
  int taps;
  int is_activated;
  int channel_blocks;  // of kConvThreads groups
  int row_tiles;       // of kConvRows, of the longest sequence
};

/// A block of gated_delta has this many columns of values, each by kDeltaLanes lanes that share out its keys,
/// and goes through a sequence's rows by so many at a time.
constexpr int kDeltaLanes = 8;
constexpr int kDeltaColumns = 16;
constexpr int kDeltaRows = 16;
/// Columns of a lane, and threads, of keys of up to so many numbers.
template <int kKeys>
constexpr int kDeltaOwnColumns = 1;
template <int kKeys>
constexpr int kDeltaThreads = kDeltaColumns / kDeltaOwnColumns<kKeys>* kDeltaLanes;

struct GatedDeltaParams {
  RowsArgument q, k, v, a, b, out;
  const float* a_log;    // (num_value_heads)
  const float* dt_bias;  // (num_value_heads)
  float* state;          // (slots, num_value_heads, value_dim, key_dim)
  SequenceRowsParams sequences;
  int num_value_heads;
  int num_key_heads;
  int values_of_key;  // heads of values that a head of keys serves, one after the other; 0: each so many-th
  int key_dim, value_dim;
  int column_blocks;  // of a head's values
};

/// Products of slots, each with its expert's weight.
struct ExpertGemmParams {
  GemmParams gemm;  // m, x and out of all slots; n, weight and bias of expert 0
  RoutingParams routing;
  int64 expert_bytes;  // of the weight
  int slots_of_row;    // that share a row of x
};

/// Of sm80/gemv_stream.cu: a product whose x may be the RMSNorm of its rows, and whose result may be rotated
/// and appended to the cache.
struct StreamParams {
  GemmParams gemm;
  // Group g of 4 rows of w has rows r, r + 1, r + rows_apart and r + rows_apart + 1 with r = 2 (g % 2^s) +
  // 2^(s + 2) (g / 2^s), s being group_shift, so that two rows that meet in one output are in one group.
  int group_shift;  // 0: rows one after the other; log2(head_dim / 4): of heads' halves; 31: of w1 and w2
  int rows_apart;   // 2; head_dim / 2; n / 2
  RowsArgument norm_weight;  // (1, k); data null: x is multiplied as it is
  float eps;
  // num_heads 0: none; else w has the rows of q's heads, k's and v's, p.gemm.out those of q, and rope.q,
  // rope.k and rope.v are not used. Heads are rotated whole.
  RopeAppendParams rope;
  int first_head;  // of q's, k's and v's: that of w's first row
};

/// LogitBias of ops/arguments.h.
struct LogitBiasEntry {
  int token;
  float bias;
};

/// Columns of an adjust_logits block: a group of elements a thread.
constexpr int kAdjustTile = kElementwiseThreads * kGroupSize;

struct AdjustLogitsParams {
  RowsArgument logits;
  RowsArgument out;       // fp32
  const unsigned* masks;  // (masks, mask_stride) words
  const int* mask_rows;   // (batch) row of masks or -1; null: no masks
  int64 mask_stride;
  const LogitBiasEntry* biases;  // (bias_offsets[batch])
  const int* bias_offsets;       // (batch + 1); null: none
  int64 columns;
  int blocks_per_row;
};

constexpr int kLogprobThreads = 512;

/// A block a row.
struct LogprobsParams {
  RowsArgument logits;
  const int* tokens;    // (batch)
  float* logprobs;      // (batch)
  int* top_tokens;      // (batch, num_top)
  float* top_logprobs;  // (batch, num_top)
  int64 columns;
  int num_top;
};

/// SamplingParameters of ops/arguments.h.
struct SamplerSettings {
  float temperature;
  int top_k;
  float top_p;
  float min_p;
  float repetition_penalty;
  unsigned long long seed;
};

// What the sampler's kernels (sample.cu) share: a block looks at a tile of a row at a time, and sums are kept
// by segments, which are whole tiles.
constexpr int kSampleThreads = 256;
constexpr int kSampleTile = kSampleThreads * kGroupSize;
constexpr int kMaxSegments = kSampleThreads;  // of a row
constexpr int kSampleBins = 1024;             // of tokens by how much less likely than the top one they are
constexpr int kSampleListSize = 2048;         // tokens of the bins that a cut may go through

/// The largest logit of some tokens as key_of() has it, and the lowest id that has it. A NaN or +inf among
/// them: key ~0; nothing above -inf: key 0.
struct LargestLogit {
  unsigned long long key;
  int id;
  float least;  // no token's logit but -inf is below
};

/// How a row's logits become weights, as sample_row.cuh's SampleWeights has it.
struct SampleScale {
  double top;  // NaN if there is no token to draw
  double rate;
  double bin_rate;
};

/// Where the cuts of top-k and top-p are, as far as the histogram tells.
struct SampleCutBins {
  unsigned long long mass_before_first;
  unsigned long long mass_before_top_k;  // of all bins without top-k
  int first, last;                       // top-p cuts in one of these; tokens of bins before first stay
  int top_k_bin;                         // top-k cuts there; kSampleBins - 1: nowhere
  int top_k_rank;                        // ... at this one of the bin's tokens, from 1
};

/// What the kernels of one call pass on for one row. Nothing in it outlives a call.
struct SampleScratch {
  LargestLogit largest_parts[kSampleThreads];  // (blocks_per_row)
  SampleScale scale;
  unsigned long long sums[kMaxSegments];  // weights of tokens that stay for sure
  unsigned long long masses[kSampleBins];
  unsigned counts[kSampleBins];
  SampleCutBins cut;
  unsigned long long list_keys[kSampleListSize];
  int list_ids[kSampleListSize];
  int list_size;  // may be more than fit; the list is of no use then
};

/// Blocks: row r's are those from r * blocks_per_row on, which take its segments in turn.
struct SampleParams {
  RowsArgument logits;
  const SamplerSettings* settings;  // (batch)
  const int64* steps;               // (batch)
  const int* history;               // (batch, history_stride); null: no penalties
  const int* history_lens;          // (batch)
  int64 history_stride;
  int* tokens;             // (batch), -1 if a logit is NaN or +inf, or all are -inf
  SampleScratch* scratch;  // (batch)
  unsigned* penalized;     // (batch, penalized_words) a bit a token; null if history is
  int64 penalized_words;   // of num_segments * segment_tokens bits
  int vocab_size;
  int weight_bits;  // a weight of 1 counts 2^weight_bits; the sum of all fits in 62 bits
  int blocks_per_row;
  int num_segments;
  int segment_tokens;
};

}  // namespace tessera::kernels
