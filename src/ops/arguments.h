#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ops/rope.h"
#include "tessera/dtype.h"

namespace tessera {

// Arguments of the kernels in ops/backend.h. Pointers are in the device's memory; strides are in elements;
// rows are contiguous (unit stride along the last dimension). "Activation dtype" is kF32, kF16 or kBF16;
// arithmetic is fp32. On a GPU, kernels may read weights, positions, sequences, block tables and frequencies
// before the kernel ahead of them in the stream has ended: none but copies write those.

/// A tensor of activations, (rows, columns) with unit column stride.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;  ///< >= columns
};

/// Rows [begin, begin + count) of `matrix`.
inline Matrix rows_of(Matrix matrix, std::int64_t begin, std::int64_t count) {
  matrix.data = static_cast<std::byte*>(matrix.data) +
                dtype_bytes(matrix.dtype, static_cast<std::size_t>(begin * matrix.row_stride));
  matrix.rows = count;
  return matrix;
}

/// Columns [begin, begin + count) of `matrix`.
inline Matrix columns_of(Matrix matrix, std::int64_t begin, std::int64_t count) {
  matrix.data =
      static_cast<std::byte*>(matrix.data) + dtype_bytes(matrix.dtype, static_cast<std::size_t>(begin));
  matrix.columns = count;
  return matrix;
}

/// A weight where the checkpoint has it: row-major (rows, columns) = (out_features, in_features), or (1, n)
/// for a vector. One of weight_dtypes(), with columns a multiple of its blocks. No alignment is
/// promised.
struct HostWeight {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::string name;  ///< for error messages
};

/// A weight as a device's kernels take it.
struct Weight {
  const void* data = nullptr;  ///< row-major, contiguous, in the device's memory
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::shared_ptr<const void> owner;  ///< keeps data alive; null when it refers to the checkpoint's mapping

  explicit operator bool() const { return data != nullptr; }
};

/// out[t] = table[tokens[t]], converted to out's dtype. A token outside [0, table.rows) gives a row of zeros
/// on a GPU and Error{kInvalidArgument} on the CPU.
struct EmbeddingArguments {
  const std::int32_t* tokens = nullptr;  ///< (out.rows)
  Weight table;                          ///< (vocab_size, hidden_size)
  Matrix out;                            ///< (num_tokens, hidden_size)
};

/// y = x / sqrt(mean(x^2) + eps) * weight, over rows.  Zhang & Sennrich, "Root Mean Square Layer
/// Normalization" (2019). With a residual first: residual += x (rounded to residual's dtype), then y from the
/// sum. The rows may be heads: (tokens, heads, head_dim) with heads > 1 takes row (t, h) at t * row_stride +
/// h * head_stride.
struct RmsNormArguments {
  Matrix x;       ///< (tokens, columns); columns = head_dim if heads > 1
  Matrix out;     ///< the same shape; may be x
  Weight weight;  ///< (1, columns)
  float eps = 1e-5f;
  std::optional<Matrix> residual;  ///< (tokens, columns), read and written; heads must be 1
  int heads = 1;
  std::int64_t head_stride = 0;  ///< elements between heads in x and out; unused if heads is 1
};

/// y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight (+ bias), over rows.  Ba, Kiros & Hinton,
/// "Layer Normalization" (2016). With a residual first, and of heads, as RmsNormArguments has it, but each
/// head has weights of its own.
struct LayerNormArguments {
  Matrix x;                    ///< (tokens, columns); columns = head_dim if heads > 1
  Matrix out;                  ///< the same shape; may be x
  Weight weight;               ///< (heads, columns)
  std::optional<Weight> bias;  ///< (heads, columns)
  float eps = 1e-5f;
  std::optional<Matrix> residual;  ///< (tokens, columns), read and written; heads must be 1
  int heads = 1;
  std::int64_t head_stride = 0;  ///< elements between heads in x and out; unused if heads is 1
};

/// out = x w^T (+ bias) (+ out).  x: (m, k), w: (n, k), out: (m, n). fp32 accumulation.
/// batch_invariant: a row's bits don't depend on m or on the number of threads.
struct GemmArguments {
  Matrix x;
  Weight weight;
  std::optional<Weight> bias;  ///< (1, n)
  Matrix out;
  bool accumulate = false;  ///< adds to what out holds
  bool batch_invariant = false;
};

/// Rotates heads in place: for pair i at position p, angle a = p * inverse_frequencies[i],
/// (x, y) -> attention_factor * (x cos a - y sin a, x sin a + y cos a). Elements past 2 * num_pairs stay.
struct RopeArguments {
  Matrix x;  ///< (num_tokens, heads * head_dim) or wider rows
  int heads = 0;
  int head_dim = 0;
  const std::int32_t* positions = nullptr;     ///< (num_tokens)
  const float* inverse_frequencies = nullptr;  ///< (num_pairs), from rope_frequencies()
  int num_pairs = 0;
  float attention_factor = 1;
  RopePairing pairing = RopePairing::kHalves;
};

/// A layer's cache: row (page, slot, head) of k at page * page_stride + slot * token_stride + head *
/// head_stride. Token p of sequence s is slot p % page_size of page block_table[s][p / page_size]; contiguous
/// storage is the same with block_table null: page s, page_size = the capacity in tokens.
struct KvCacheView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kF32;
  std::int64_t page_stride = 0, token_stride = 0, head_stride = 0;  ///< elements, the same for k and v
  int page_size = 0;
  std::int64_t num_pages = 0;
  const std::int32_t* block_table = nullptr;  ///< (num_sequences, block_table_stride) or null
  std::int64_t block_table_stride = 0;
};

/// Rotates q and k by RoPE, leaves q in place and writes k and v into the cache at each token's position, in
/// one pass.
struct RopeAppendArguments {
  Matrix q;  ///< (num_tokens, num_heads * head_dim), rotated in place
  Matrix k;  ///< (num_tokens, num_kv_heads * head_dim), read only
  Matrix v;  ///< (num_tokens, num_kv_heads * head_dim), read only
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  const std::int32_t* positions =
      nullptr;  ///< (num_tokens), in the token's own sequence; also its place in the cache
  const std::int32_t* sequences = nullptr;  ///< (num_tokens), row of the block table
  const float* inverse_frequencies = nullptr;
  int num_pairs = 0;
  float attention_factor = 1;
  RopePairing pairing = RopePairing::kHalves;
  KvCacheView cache;
};

enum class GatedActivation {
  kSwiGlu,     ///< silu(gate) * up.  Shazeer, "GLU Variants Improve Transformer" (2020)
  kGeGlu,      ///< gelu(gate) * up with the error function
  kGeGluTanh,  ///< with gelu's tanh approximation
  /// gpt-oss's: g sigmoid(1.702 g) (u + 1) with g = min(gate, 7) and u = min(max(up, -7), 7). Of
  /// gated_activation alone, not of products.
  kClampedSwiGlu,
  kReluSquared,  ///< max(gate, 0)^2 * up.  So et al., "Primer" (2021). Of gated_activation alone, too
  kSigmoid,      ///< sigmoid(gate) * up.  Dauphin et al. (2017). Of gated_activation alone, too
};
inline constexpr float kClampedSwiGluAlpha = 1.702f, kClampedSwiGluLimit = 7.0f;

/// out = activation(gate) * up, or activation(gate) where there is no up. Packed input: gate and up are
/// column ranges of the same rows.
struct GatedActivationArguments {
  GatedActivation activation = GatedActivation::kSwiGlu;
  Matrix gate;  ///< (rows, columns)
  std::optional<Matrix> up;
  Matrix out;  ///< may be gate or up
};

/// Rows below a weight's, of a type of their own, and their bias.
struct LowerRows {
  Weight weight;
  std::optional<Weight> bias;  ///< (1, weight.rows)
};

/// gemm, gated_gemm or the projections of an attention layer from the residual stream: what is multiplied is
/// rms_norm(x) (RmsNormArguments), rounded to out's dtype.
struct NormedGemmArguments {
  GemmArguments gemm;  ///< x: (m, k), fp32, not normed yet
  /// Where rows of w are of two types: out's last columns are theirs. Not with an activation.
  std::optional<LowerRows> lower;
  Weight norm_weight;  ///< (1, k)
  float eps = 1e-5f;
  std::optional<GatedActivation> activation;  ///< as gated_gemm: out has half as many columns as w has rows
  /// As rope_append of the result, where q, k and v are out's columns, in this order; which of k and v are
  /// written to out is not defined.
  std::optional<RopeAppendArguments> rope;
  /// With rope: the head of q's, k's and v's that out's first column is of. w may have some of the heads.
  int first_head = 0;
};

/// The part of a product that gemm.weight makes.
inline NormedGemmArguments without_lower_rows(NormedGemmArguments arguments) {
  arguments.lower.reset();
  arguments.gemm.out.columns = arguments.gemm.weight.rows;
  return arguments;
}

/// The part that `lower` makes, which must be there.
inline NormedGemmArguments only_lower_rows(NormedGemmArguments arguments) {
  GemmArguments& gemm = arguments.gemm;
  const std::int64_t first = gemm.weight.rows;
  gemm.weight = std::move(arguments.lower->weight);
  gemm.bias = std::move(arguments.lower->bias);
  gemm.out = columns_of(gemm.out, first, gemm.weight.rows);
  if (arguments.rope) arguments.first_head += static_cast<int>(first / arguments.rope->head_dim);
  arguments.lower.reset();
  return arguments;
}

/// Which experts each row of a mixture goes to: it has a slot for each of its experts, the likeliest first.
/// In the device's memory.  Shazeer et al., "Outrageously Large Neural Networks" (2017).
struct ExpertRouting {
  int num_experts = 0;
  int num_slots = 0;                ///< of a row, at most num_experts
  std::int32_t* experts = nullptr;  ///< (rows, num_slots), distinct within a row
  float* weights = nullptr;         ///< (rows, num_slots): what experts' results are multiplied by
  /// (rows * num_slots): numbers row * num_slots + slot, those of one expert together and rising.
  std::int32_t* order = nullptr;
  std::int32_t* offsets = nullptr;  ///< (num_experts + 1): where each expert's begin in `order`
};

/// What an expert's score is.
enum class ExpertScoring {
  kSoftmax,  ///< softmax's over the logits of all experts
  kSigmoid,  ///< the sigmoid of its own logit
};

/// Fills routing with the num_slots best experts of each row, the lower expert first among equals: those of
/// the largest scores + score_bias, of which a NaN counts as -inf. With several groups, which have experts
/// that follow one another, only those of the num_groups_used best count, a group being as good as its two
/// best experts together (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.1.2) or as its best
/// (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.2.2).
///
/// Weights are the scores, without the bias, times weight_scale and the expert's own scale; normalized: first
/// divided by their sum over the row's slots, or by 1e-20 if it is less.
struct RouteExpertsArguments {
  Matrix logits;  ///< (rows, num_experts)
  ExpertRouting routing;
  bool normalized = false;
  ExpertScoring scoring = ExpertScoring::kSoftmax;
  const float* score_bias = nullptr;  ///< (num_experts), in the device's memory; null: none
  int num_groups = 1;                 ///< a divisor of num_experts
  int num_groups_used = 1;            ///< with num_slots experts at least
  float weight_scale = 1;
  const float* expert_scales = nullptr;  ///< (num_experts), in the device's memory; null: all are 1
  int num_experts_of_group = 2;          ///< whose scores together are a group's: 1 or 2
};
inline constexpr float kLeastSumOfScores = 1e-20f;

/// Whether scores are as their logits, so that the largest of them need no scores to be found.
inline bool chooses_by_logits(const RouteExpertsArguments& a) {
  return a.scoring == ExpertScoring::kSoftmax && a.score_bias == nullptr && a.num_groups == 1;
}

/// out[t] = x[t] w_e^T (+ bias_e) for each slot t of routing, e being its expert. fp32 accumulation. A row's
/// bits don't depend on the other rows if batch_invariant.
struct ExpertGemmArguments {
  Matrix x;                    ///< (rows, k), which all slots of a row share, or (rows * num_slots, k)
  Weight weight;               ///< (num_experts * n, k), an expert's rows together
  std::optional<Weight> bias;  ///< (num_experts, n), f32, f16 or bf16
  Matrix out;                  ///< (rows * num_slots, n)
  ExpertRouting routing;
  bool batch_invariant = false;
  /// An expert's first n / 2 rows are w1, the others w2, and out (rows * num_slots, n / 2) is
  /// activation(x w1^T (+ bias)) * (x w2^T (+ bias)).
  std::optional<GatedActivation> activation = {};
  /// out (rows, n) is what combine_experts would make of the products. x has a row for each slot.
  bool combines = false;
  bool accumulate = false;  ///< adds to what out holds; only where it combines
};

/// Slots of all rows.
inline std::int64_t num_slots_in_all(const ExpertGemmArguments& a) {
  return a.combines ? a.x.rows : a.out.rows;
}

/// The weight's rows of one expert.
inline std::int64_t rows_of_expert(const ExpertGemmArguments& a) {
  return a.weight.rows / a.routing.num_experts;
}

/// out[r] = sum of weights[r][s] x[r * num_slots + s] over a row's slots, in their order (+ out).
struct CombineExpertsArguments {
  Matrix x;                        ///< (rows * num_slots, columns)
  const float* weights = nullptr;  ///< (rows, num_slots)
  Matrix out;                      ///< (rows, columns); may be x if num_slots is 1
  int num_slots = 0;
  bool accumulate = false;
};

/// Rows of several sequences, one sequence's after the other's, of kernels that bring a state from a
/// sequence's rows to its next ones. In the device's memory.
struct SequenceRows {
  const std::int32_t* cu_seqlens = nullptr;  ///< (batch + 1): first rows, from 0 to the number of rows
  /// (batch): tokens of the sequence, these included. Where they are all it has, it begins: its state counts
  /// as zeros, whatever it holds.
  const std::int32_t* seq_lens = nullptr;
  const std::int32_t* slots = nullptr;  ///< (batch), distinct: which of the states is the sequence's
  std::int64_t batch = 0;
  std::int64_t seq_len_q = 0;  ///< most rows of any sequence
  std::int64_t num_slots = 0;  ///< states that there are
};

/// A short convolution over the rows of each sequence, channel by channel: with u = x (* x_gate),
/// y[t][c] = sum of weight[j][c] u[t - (taps - 1) + j][c] over j (+ bias[c]), silu(y) if activated, then
/// (* out_gate[t][c]). The sequence's earlier rows are those that the state holds.
struct CausalConvArguments {
  Matrix x;                        ///< (rows, channels)
  std::optional<Matrix> x_gate;    ///< the same shape
  std::optional<Matrix> out_gate;  ///< the same shape
  Weight weight;                   ///< (taps, channels), f32; 2 to kMostConvTaps taps
  std::optional<Weight> bias;      ///< (1, channels), f32
  bool is_activated = false;
  Matrix out;              ///< (rows, channels), apart from the others
  float* state = nullptr;  ///< (slots, taps - 1, channels): u of the last rows, the oldest first
  SequenceRows sequences;
};
inline constexpr int kMostConvTaps = 8;

/// The gated delta rule.  Yang, Kautz & Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule"
/// (2024). Each head's state is a matrix S that keys turn into values; a token's is
///   S = exp(g) S;  S += (beta (v - S k)) k^T;  out = S q
/// with k and q divided by their lengths, sqrt(sum of squares + kDeltaLengthEps), and q also by
/// sqrt(key_dim), g = -exp(a_log) softplus(a + dt_bias) and beta = sigmoid(b). A head of keys and queries
/// serves num_value_heads / num_key_heads heads of values, which follow one another or, if takes_turns,
/// stand num_key_heads apart.
struct GatedDeltaArguments {
  Matrix q, k;     ///< (rows, num_key_heads * key_dim)
  Matrix v;        ///< (rows, num_value_heads * value_dim)
  Matrix a, b;     ///< (rows, num_value_heads)
  Weight a_log;    ///< (1, num_value_heads), f32
  Weight dt_bias;  ///< (1, num_value_heads), f32
  int num_key_heads = 0;
  int num_value_heads = 0;
  bool takes_turns = false;
  int key_dim = 0;  ///< at most kMostDeltaKeyDim
  int value_dim = 0;
  Matrix out;              ///< (rows, num_value_heads * value_dim), apart from the others
  float* state = nullptr;  ///< (slots, num_value_heads, value_dim, key_dim)
  SequenceRows sequences;
};
inline constexpr int kMostDeltaKeyDim = 256;
/// The head of keys that serves a head of values.
inline int key_head_of(const GatedDeltaArguments& a, int head) {
  return a.takes_turns ? head % a.num_key_heads : head / (a.num_value_heads / a.num_key_heads);
}
inline constexpr float kDeltaLengthEps = 1e-6f;

/// Row softmax: out = exp(x - max) / sum. A row of -inf gives zeros. May be in place.
struct SoftmaxArguments {
  Matrix x;
  Matrix out;
};

/// x *= factor, in place.
struct ScaleArguments {
  Matrix x;
  float factor = 1;
};

/// x = cap tanh(x / cap), in place. -inf, the logit of what may not be drawn, stays.
struct SoftcapArguments {
  Matrix x;
  float cap = 1;  ///< > 0
};

/// x[i][j] = -inf where j > i + shift: rows are queries, columns keys; shift = columns - rows aligns
/// bottom-right.
struct CausalMaskArguments {
  Matrix x;
  std::int64_t shift = 0;
};

/// What is added to one token's logit.
struct LogitBias {
  std::int32_t token = 0;
  float bias = 0;
};

/// out[s][i] = logits[s][i] + the bias of token i, or -inf where sequence s has a mask without bit i: bit i %
/// 32 of word i / 32. Bits beyond the last column are ignored.
struct AdjustLogitsArguments {
  Matrix logits;                            ///< (batch, vocab_size)
  Matrix out;                               ///< the same shape, kF32; may be logits
  const std::uint32_t* masks = nullptr;     ///< (masks, mask_stride) words; may be null if mask_rows is
  const std::int32_t* mask_rows = nullptr;  ///< (batch) row of masks, -1: no mask; null: no sequence has one
  std::int64_t mask_stride = 0;             ///< words, at least vocab_size / 32 rounded up
  const LogitBias* biases = nullptr;        ///< (bias_offsets[batch]); finite, a sequence's tokens distinct
  const std::int32_t* bias_offsets =
      nullptr;  ///< (batch + 1) rising: sequence s has [s] to [s + 1]; null: none
};

/// Natural logarithms of softmax(logits[s]): of tokens[s], and of the num_top likeliest tokens, the likeliest
/// first and the lower id first among equals. A row that is no distribution (NaN, +inf, or all -inf) and a
/// token outside the vocabulary have NaN; such a row's likeliest tokens are -1.
struct LogprobsArguments {
  Matrix logits;                         ///< (batch, vocab_size)
  const std::int32_t* tokens = nullptr;  ///< (batch)
  float* logprobs = nullptr;             ///< (batch), out
  int num_top = 0;                       ///< 0 to vocab_size
  std::int32_t* top_tokens = nullptr;    ///< (batch, num_top), out
  float* top_logprobs = nullptr;         ///< (batch, num_top), out
};

/// How one sequence's next token is drawn. The order is Hugging Face's: repetition penalty, temperature,
/// top-k, top-p, min-p.
struct SamplingParameters {
  float temperature = 0;   ///< 0: greedy (the lowest id among equal maxima)
  std::int32_t top_k = 0;  ///< 0: all
  float top_p = 1;         ///< smallest set of the most likely tokens whose probability reaches top_p
  float min_p = 0;         ///< drops tokens less likely than min_p times the most likely one
  float repetition_penalty =
      1;  ///< logits of tokens in the history: divided if positive, multiplied if negative
  std::uint64_t seed = 0;
};

/// tokens[s] is drawn from logits[s]. The random number of sequence s is a counter-based function of (seed,
/// step), so the same seed gives the same tokens whatever else is in the batch and on every device. Logits
/// that are NaN or +inf, or all -inf: Error{kInvalidArgument} on the CPU, token -1 on a GPU.
struct SampleArguments {
  Matrix logits;                                   ///< (batch, vocab_size), not changed
  const SamplingParameters* parameters = nullptr;  ///< (batch), in the device's memory
  const std::int64_t* steps = nullptr;             ///< (batch), how many tokens were drawn before
  const std::int32_t* history =
      nullptr;  ///< (batch, history_stride) earlier tokens; null if no penalty is used
  const std::int32_t* history_lens = nullptr;  ///< (batch)
  std::int64_t history_stride = 0;
  std::int32_t* tokens = nullptr;  ///< (batch), out
};

}  // namespace tessera
