#pragma once

// Arguments of the kernels of ops/backend.h, the same bytes on host and device. No include: the run-time
// compiler has no headers. Equations stand at the structs of ops/arguments.h.

namespace tessera::kernels {

using int64 = long long;

enum ElementType : int { kElementF32 = 0, kElementF16 = 1, kElementBF16 = 2, kElementQ8 = 3 };

/// Rows of elements at a stride. A weight's rows lie one after the other.
struct RowsArgument {
  void* data;
  int64 row_stride;  // elements
  int type;          // ElementType
  int vector;        // 1: groups of kGroupSize elements of a row stand at multiples of 16 bytes
};

/// Elements that a thread takes at once: 16 bytes of a 16-bit type, twice that of fp32.
constexpr int kGroupSize = 8;

struct EmbeddingParams {
  const int* tokens;  // (rows)
  RowsArgument table;
  RowsArgument out;
  int64 vocab_size;
  int64 columns;
};

struct RmsNormParams {
  RowsArgument x, out;
  RowsArgument residual;  // data null: none
  RowsArgument weight;
  int64 columns;
  int64 head_stride;
  int heads;
  float eps;
};

struct SoftmaxParams {
  RowsArgument x, out;
  int64 columns;
};

/// Elementwise kernels: block b takes part b % blocks_per_row of row b / blocks_per_row.
struct GatedActivationParams {
  RowsArgument gate, up, out;
  int64 columns;
  int blocks_per_row;
  int activation;  // 0 SwiGLU, 1 GeGLU, 2 GeGLU with tanh
};

struct ScaleParams {
  RowsArgument x;
  int64 columns;
  int blocks_per_row;
  float factor;
};

struct CausalMaskParams {
  RowsArgument x;
  int64 columns;
  int64 shift;
  int blocks_per_row;
};

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

/// SamplingParameters of ops/arguments.h.
struct SamplerSettings {
  float temperature;
  int top_k;
  float top_p;
  float min_p;
  float repetition_penalty;
  unsigned long long seed;
};

struct SampleParams {
  RowsArgument logits;
  const SamplerSettings* settings;  // (batch)
  const int64* steps;               // (batch)
  const int* history;               // (batch, history_stride); null: no penalties
  const int* history_lens;          // (batch)
  int64 history_stride;
  int* tokens;  // (batch), -1 if a logit is NaN or +inf, or all are -inf
  int vocab_size;
  int weight_bits;  // a weight of 1 counts 2^weight_bits; the sum of all fits in 62 bits
};

}  // namespace tessera::kernels
