#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/device.h"
#include "tessera/dtype.h"

namespace tessera {

// o = softmax(softmax_scale * q k^T + mask) v, described once for every backend.

/// A q, k, v or o tensor of logical shape (batch, seq, heads, head_dim) with unit stride along head_dim.
/// Strides are in elements. They may be 0 for inputs (broadcast) but not negative.
/// Ragged: (total_tokens, heads, head_dim), batch_stride is ignored.
/// Paged k or v: (num_pages, page_size, heads, head_dim): batch is the page and seq the token within it, so
/// that batch_stride is the distance between pages.
template <class Void>
struct BasicAttentionTensor {
  Void* data = nullptr;  ///< never null unless the tensor has no elements
  DType dtype = DType::kF32;
  std::int64_t batch_stride = 0;
  std::int64_t seq_stride = 0;
  std::int64_t head_stride = 0;
};
using AttentionInput = BasicAttentionTensor<const void>;
using AttentionOutput = BasicAttentionTensor<void>;

/// The usual contiguous layouts.
enum class AttentionLayout {
  kBatchSeqHeads,   ///< (batch, seq, heads, head_dim)
  kBatchHeadsSeq,   ///< (batch, heads, seq, head_dim)
  kBatchSeqPacked,  ///< (batch, seq, heads * head_dim), possibly a slice of wider rows
};

/// An input tensor in one of the usual layouts. Throws Error{kInvalidArgument} for sizes whose strides don't
/// fit in 64 bits.  row_stride: for kBatchSeqPacked, elements between two tokens when the heads are a slice
/// of a wider row such as a fused qkv projection (0: num_heads * head_dim).
AttentionInput attention_input(AttentionLayout layout, const void* data, DType dtype, std::int64_t seq_len,
                               int num_heads, int head_dim, std::int64_t row_stride = 0);
AttentionOutput attention_output(AttentionLayout layout, void* data, DType dtype, std::int64_t seq_len,
                                 int num_heads, int head_dim, std::int64_t row_stride = 0);

/// Log-sum-exp of each query's scores (natural logarithm, fp32), sinks included; -inf for a query with no
/// visible key, NaN for one with NaN or +inf among its scores. Dense: (batch, heads, seq_len_q) by strides.
/// Ragged: (heads, total_q), batch_stride is ignored.
struct LseOutput {
  float* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t seq_stride = 1;
};

/// A contiguous (batch, num_heads, seq_len_q) log-sum-exp output.
LseOutput lse_output(float* data, int num_heads, std::int64_t seq_len_q);

// ---- What happens to a score between q k^T and the softmax

/// Which corner of the (seq_len_q, seq_len_kv) rectangle the diagonal passes through.
enum class DiagonalAlignment {
  /// The last query and the last key are at the same position: key j meets query j - (len_kv - len_q).
  kBottomRight,
  /// The first query and the first key are.
  kTopLeft,
};

/// A band around the diagonal: query i sees key j iff  i + shift - window_left <= j <= i + shift +
/// window_right, shift = len_kv - len_q of its own sequence for kBottomRight, 0 for kTopLeft. Causal is
/// window_right = 0.
struct DiagonalMask {
  /// Keys before the diagonal that stay visible, and keys after it, 0 or more; none: all.
  std::optional<std::int64_t> window_left = {}, window_right = {};
  DiagonalAlignment alignment = DiagonalAlignment::kBottomRight;

  static DiagonalMask causal(DiagonalAlignment alignment = DiagonalAlignment::kBottomRight) {
    return {std::nullopt, 0, alignment};
  }
  /// `left` keys before the diagonal, the one on it, and `right` after it.
  static DiagonalMask sliding_window(std::int64_t left, std::int64_t right) {
    return {left, right, DiagonalAlignment::kBottomRight};
  }
  /// The causal window of models that say how many keys a query sees, itself included: the last `num_keys`, 1
  /// or more. sliding_window_keys(W) is sliding_window(W - 1, 0).
  static DiagonalMask sliding_window_keys(std::int64_t num_keys) { return sliding_window(num_keys - 1, 0); }

  friend bool operator==(const DiagonalMask&, const DiagonalMask&) = default;
};

/// A mask of shape (batch, heads, seq_len_q, seq_len_kv) by strides in elements; a stride of 0 broadcasts
/// that dimension. Indices count within a query's own sequence, also for ragged and paged batches.
struct ScoreMask {
  const void* data = nullptr;
  /// Additive: kF32, kF16 or kBF16 (kF64 in the reference); boolean: kBool or kU8, non-zero = visible.
  DType dtype = DType::kF32;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t q_stride = 0;
  std::int64_t kv_stride = 1;
};

/// Linear biases: adds -slope * |i + shift - j| with DiagonalMask's shift (bottom-right unless a diagonal
/// mask says otherwise).  Press et al., "Train Short, Test Long" (2022).
struct AlibiBias {
  const float* slopes = nullptr;  ///< (num_heads), or (batch, num_heads) with batch_stride
  std::int64_t batch_stride = 0;  ///< elements; 0: the same slopes for all sequences
};

/// One extra logit a head that takes part in the softmax's denominator only.  Xiao et al., "Efficient
/// Streaming Language Models with Attention Sinks" (2024); gpt-oss. A query with no visible key still gives o
/// = 0, lse = -inf.
struct AttentionSinks {
  const float* logits = nullptr;  ///< (num_heads), natural units (not multiplied by softmax_scale)
};

/// A tensor that a modifier's text reads by name. Strides are in elements, 0 (broadcast) or more.
struct CapturedTensor {
  std::string name = {};       ///< letters, digits and _, not first a digit; none of the language's names
  const void* data = nullptr;  ///< in the problem's device's memory
  DType dtype = DType::kF32;   ///< kF32, kF16, kBF16 (fp32 in texts), kI32, kU8 (int32) or kBool (bool)
  std::vector<std::int64_t> sizes = {};    ///< 0 to 4, each from 1; none: one element, read without an index
  std::vector<std::int64_t> strides = {};  ///< as many
};

/// What a model does to its scores, as two expressions in text (docs/modifiers.md has the language): the new
/// score, `cap * tanh(score / cap)`, and whether the query sees the key, `doc[q_idx] == doc[kv_idx]`.
/// A wrong text makes every function that takes the problem throw Error{kInvalidArgument} with line, column
/// and what was expected: unknown names, types, division by what may be 0, int32 that may overflow at the
/// problem's lengths, more than 256 operations, 8 tensors or 16 scalars.
struct ScoreModifier {
  std::string score = {};                    ///< fp32; may use `score`. Empty: the score stays
  std::string visible = {};                  ///< bool; may not. Empty: all keys are visible
  std::vector<CapturedTensor> tensors = {};  ///< indices are clamped into them
  /// Numbers by name, int32 or fp32 as the text uses them. Arguments like the pointers: another value needs
  /// no other plan and no compilation.
  std::vector<std::pair<std::string, double>> scalars = {};
};

/// All that is done to the scores, in this order:
///   s = softmax_scale * (q . k);  s = softcap * tanh(s / softcap);  s += alibi;  s += additive_mask;
///   s = modifier.score;
///   s = -inf where modifier.visible, diagonal or boolean_mask hides it (or the sequence ends);  softmax,
///   with sinks in the denominator.
/// An additive mask's -inf hides a key just as the boolean mask does. Elements that are finite don't, not even
/// the lowest numbers of their dtype by which some programs hide keys: a row that sees no others weighs all of
/// them alike (on GPUs lse is then a number below -2e38, and where keys are split, parts of them weigh alike).
/// Absent terms cost nothing.
struct ScoreTerms {
  std::optional<float> softmax_scale = {};  ///< none: 1 / sqrt(head_dim_qk)
  std::optional<float> softcap = {};        ///< > 0
  std::optional<AlibiBias> alibi = {};
  std::optional<ScoreMask> additive_mask = {};
  std::optional<ScoreMask> boolean_mask = {};
  std::optional<DiagonalMask> diagonal = {};
  std::optional<AttentionSinks> sinks = {};
  std::optional<ScoreModifier> modifier = {};  ///< a key that additive_mask hides stays hidden
};

/// Most elements of a query, key or value. Multi-head latent attention has keys of 576.
inline constexpr int kMaxHeadDim = 576;

// ---- Where the tokens are

/// Sequences of different lengths one after another: sequence b is tokens [cu_seqlens[b], cu_seqlens[b + 1]).
struct RaggedTokens {
  const std::int32_t* cu_seqlens = nullptr;  ///< (batch + 1), non-decreasing, first 0, last total_tokens
  std::int64_t total_tokens = 0;
};

/// Keys and values in pages: token t of sequence b is row t % page_size of page block_table[b][t /
/// page_size].
struct PagedKv {
  /// (batch, max_pages_per_seq); entries past a sequence's end are never read.
  const std::int32_t* block_table = nullptr;
  const std::int32_t* seq_lens_kv = nullptr;  ///< (batch), tokens
  std::int64_t block_table_stride = 0;        ///< elements between rows of block_table
  std::int64_t num_pages = 0;                 ///< pages in k and v
  int max_pages_per_seq = 0;
  int page_size = 0;  ///< tokens, any value >= 1
};

/// What stored keys and values of 8 bits are multiplied by: the key of page (or sequence) n and kv head h is
/// k[n * batch_stride + h * head_stride] times the stored one, and so the value by `v`. A stride of 0 gives
/// all heads, or all pages, the same scale: with both 0 there is one for the tensor. Finite numbers.
struct KvScales {
  const float* k = nullptr;       ///< null: 1
  const float* v = nullptr;       ///< null: 1
  std::int64_t batch_stride = 0;  ///< elements between sequences, between pages if paged; ignored if ragged
  std::int64_t head_stride = 0;   ///< elements
};

/// What stored queries of 8 bits are multiplied by: the queries of sequence b, of all heads that read kv head
/// h, are q[b * batch_stride + h * head_stride] times the stored ones. With both strides 0 there is one for
/// the tensor. Finite numbers.
struct QScales {
  const float* q = nullptr;       ///< null: 1
  std::int64_t batch_stride = 0;  ///< elements between sequences, ragged ones too
  std::int64_t head_stride = 0;   ///< elements between kv heads
};

/// One attention call. Every pointer, the arrays of the batch description included, points into `device`'s
/// memory.
struct AttentionProblem {
  Device device = {};

  std::int64_t batch = 0;      ///< sequences; 0 is valid, as are lengths of 0: there is nothing to do
  std::int64_t seq_len_q = 0;  ///< queries a sequence; the most of any sequence if ragged_q
  /// Keys a sequence; an upper bound for every sequence if ragged, paged or seq_lens_kv.
  std::int64_t seq_len_kv = 0;
  int num_heads = 0;
  int num_kv_heads = 0;  ///< divides num_heads; head h reads kv head h / (num_heads / num_kv_heads)
  int head_dim_qk = 0;   ///< 1 … kMaxHeadDim
  int head_dim_v = 0;    ///< 1 … kMaxHeadDim

  AttentionInput q = {};  ///< of o's dtype, or kF8E4M3 if k and v are
  /// Both of o's dtype, or both kF8E4M3. Inputs may overlap: in multi-head latent attention v is the first
  /// head_dim_v elements of k's rows (v.data == k.data, k's strides).
  AttentionInput k = {}, v = {};
  AttentionOutput o = {};  ///< kF32, kF16, kBF16 (kF64 in the reference); must not overlap an input
  std::optional<LseOutput> lse = {};
  std::optional<QScales> q_scales = {};    ///< for q of kF8E4M3 only; none: 1
  std::optional<KvScales> kv_scales = {};  ///< for k and v of kF8E4M3 only; none: 1

  ScoreTerms scores = {};

  std::optional<RaggedTokens> ragged_q = {};
  std::optional<RaggedTokens> ragged_kv = {};  ///< not together with paged_kv or seq_lens_kv
  std::optional<PagedKv> paged_kv = {};        ///< not together with ragged_kv or seq_lens_kv
  const std::int32_t* seq_lens_kv = nullptr;  ///< (batch), dense k and v padded to seq_len_kv; null: all full

  /// Asks for bits of a row that depend on nothing but that row's own query, keys and terms: not on the other
  /// sequences, on paged or contiguous storage, on seq_len_q, on the strides or on the number of threads or
  /// processors.
  bool batch_invariant = false;

  /// Promises that of what the call reads, kernels just before it in the stream may still be writing q and
  /// the last seq_len_q keys and values of each sequence only (as many as it has queries, if ragged): earlier
  /// keys and values, lengths, offsets and page tables were written by work that has ended before they start.
  /// So they are read while such a kernel still runs, where a device lets kernels overlap. A call of its own
  /// in a stream, or behind kernels that don't overlap with others, gains and risks nothing.
  bool settled_kv = false;
};

/// Throws Error{kInvalidArgument} that names the field, its value and what was expected if `problem` is not
/// one that makes sense. Reads the contents of cu_seqlens, seq_lens and block_table only when they are in CPU
/// memory. Every function below that takes a problem calls it; those that take a plan check the pointers.
void validate(const AttentionProblem& problem);

// ---- Choosing, explaining and running
//
// Every function here may be called from several threads at once; calls that run at the same time need
// outputs and workspaces of their own.

/// Tiles and resources of a kernel. A value of 0 means "chosen automatically".
struct AttentionConfig {
  int block_m = 0;     ///< query rows a tile (with the heads of a group packed in, for decode)
  int block_n = 0;     ///< keys a tile
  int num_warps = 0;   ///< GPU: warps a block; CPU: ignored
  int num_stages = 0;  ///< GPU: K/V tiles in flight; CPU: ignored
  /// Parts that a kv head's keys are split into, each its own task, merged afterwards. With batch_invariant
  /// it changes no bit; the CPU takes 0 and 1 only then.
  int num_splits = 0;
  /// Parts that all kv heads' keys together are cut into, by kernels that share them out so ("sm90/decode",
  /// "sm90/latent"); takes the place of num_splits. Others leave it alone.
  int num_parts = 0;

  friend bool operator==(const AttentionConfig&, const AttentionConfig&) = default;
};

struct AttentionOptions {
  std::string backend = "auto";  ///< "auto", or the name of a backend: "cpu", "unfused", "reference", …
  bool allow_fallback = false;  ///< a named backend that can't run the problem gives way to the best that can
  AttentionConfig config = {};  ///< values to force
};

class AttentionCall;  // what a plan runs, the library's own

/// What will run: for people, but for workspace_bytes, which a caller provides, and `call`. Copies share the
/// call.
struct AttentionPlan {
  std::string backend;
  std::string kernel;             ///< e.g. "prefill/avx512"
  AttentionConfig config;         ///< every value filled in
  std::int64_t num_q_tiles = 0;   ///< over batch and heads
  std::int64_t num_kv_tiles = 0;  ///< of the longest row of tiles, all splits together
  std::size_t shared_bytes = 0;   ///< on-chip scratch of one tile: GPU shared memory, CPU per-thread buffers
  std::size_t workspace_bytes = 0;  ///< scratch memory of the whole call
  /// The softmax's weights are rounded to kF8E4M3 for their product with v, as only kernels for q of 8 bits
  /// may: o is less exact than with wider ones.
  bool narrow_weights = false;
  std::vector<std::string> notes;  ///< what a user should know, e.g. that the scores are materialised
  std::string fallback_reason;     ///< not empty: the backend asked for could not run the problem, and why
  /// Everything about the call but its pointers, as it was planned. Nothing that is written to the members
  /// above changes it; a plan without one can't run.
  std::shared_ptr<const AttentionCall> call;
};

/// Validates and plans. Throws Error{kUnsupported} with the backend's reason if options.backend names one
/// that can't run the problem (and allow_fallback is false), Error{kInvalidArgument} with the known names if
/// there is no such backend.
AttentionPlan plan_attention(const AttentionProblem& problem, const AttentionOptions& options = {});

/// plan_attention, and loads what the plan runs (a GPU's kernels: from the library, the cache, or compiled
/// now). Running it then costs microseconds from the first time on, and may be recorded in a CUDA graph.
AttentionPlan prepare_attention(const AttentionProblem& problem, const AttentionOptions& options = {});

/// Runs `problem`. Takes plan.workspace_bytes of scratch memory on the device and gives it back.
/// Throws like plan_attention and returns the plan that ran. On a GPU it returns before the work is done.
AttentionPlan attention_forward(const AttentionProblem& problem, const AttentionOptions& options = {},
                                Stream stream = {});

/// Runs a plan as it was made, without choosing, looking up or allocating anything. The problem has the
/// description of the one that it was made for: only pointers and a modifier's scalars may differ, and on a
/// GPU q, k, v and o must be multiples of 16 bytes if those of the plan's problem all were. workspace: at
/// least plan.workspace_bytes in the device's memory, aligned to 64 bytes; calls that run at the same time
/// need one each. Throws Error{kInvalidArgument} for another description, and for pointers and scalars as
/// validate() does.
void attention_forward(const AttentionProblem& problem, const AttentionPlan& plan,
                       std::span<std::byte> workspace, Stream stream = {});

/// Refuses what attention_forward with this plan would, and runs nothing: for who writes keys and values of
/// the problem before it runs.
void validate(const AttentionProblem& problem, const AttentionPlan& plan);

/// Highest rates of a device, as measured on it.
struct Ceilings {
  double flops_per_s = 0;  ///< multiply-adds count as two; for o's dtype with fp32 accumulation
  double bytes_per_s = 0;  ///< read rate of main memory
};

struct RejectedBackend {
  std::string backend;
  std::string reason;
};

/// Why a plan is what it is and how long it must at least take.
struct AttentionExplanation {
  std::string problem;  ///< the problem in words
  AttentionPlan plan;
  std::vector<std::string> kernels;  ///< of a GPU: where each comes from, and why not the others
  /// The modifier's program, a line an operation; then which share of the tiles of 128 queries and 128 keys
  /// that the diagonal mask reaches its mask leaves empty, full and mixed; not if it reads tensors, or
  /// lengths are, in a GPU's memory.
  std::vector<std::string> modifier;
  std::vector<RejectedBackend> rejected;
  double flops = 0;         ///< 2 (head_dim_qk + head_dim_v) for each visible pair of query and key
  double bytes = 0;         ///< each needed input read once, each output written once
  Ceilings ceilings;        ///< measured now, in about a tenth of a second
  double predicted_ms = 0;  ///< the larger of flops and bytes over their ceilings
  bool compute_bound = false;

  std::string to_string() const;
};

AttentionExplanation explain(const AttentionProblem& problem, const AttentionOptions& options = {});

/// The problem in one line: "bf16, batch 2, seq_len 512/1024, heads 32/8, head_dim 128, causal, paged (16)".
std::string to_string(const AttentionProblem& problem);

/// Floating-point operations of the visible (query, key) pairs that the lengths and the diagonal mask leave:
/// 2 (head_dim_qk + head_dim_v) each. Of a modifier's mask those tiles of 128 queries and 128 keys count that
/// it leaves anything of, in large problems by a sample of them. Array contents are read only in CPU memory;
/// elsewhere the upper bounds stand in for them, and a mask that reads tensors hides nothing. Throws
/// Error{kInvalidArgument} for a modifier's text that can't be parsed.
double attention_flops(const AttentionProblem& problem);

/// Bytes that must move at least: q, the visible part of k and v, masks and outputs, once each. What is
/// visible, and errors: as of attention_flops.
double attention_bytes(const AttentionProblem& problem);

/// A backend of this library on this machine.
struct BackendInfo {
  std::string name;
  std::string description;
  std::string unavailable_reason;  ///< empty: usable here
};
std::vector<BackendInfo> attention_backends();

/// Empty if backend `name` can run `problem`; otherwise why not. Throws Error{kInvalidArgument} for an
/// unknown name.
std::string unsupported_reason(const std::string& name, const AttentionProblem& problem);

// ---- Merging partial results

/// Two attention results of the same queries over disjoint sets of keys, and where their union goes:
/// lse = log(exp(lse_a) + exp(lse_b)), o = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b.  Flash-Decoding (Dao
/// et al., 2023). Where both lse are -inf: o = 0, lse = -inf; where either is NaN: o and lse are NaN. o may
/// be o_a or o_b, lse may be lse_a or lse_b.
struct MergeStatesProblem {
  Device device = {};
  std::int64_t batch = 0;
  std::int64_t seq_len_q = 0;
  int num_heads = 0;
  int head_dim = 0;
  AttentionInput o_a = {}, o_b = {};  ///< (batch, seq_len_q, num_heads, head_dim), one dtype
  LseOutput lse_a = {}, lse_b = {};   ///< read only
  AttentionOutput o = {};             ///< the same dtype
  std::optional<LseOutput> lse = {};
};

/// Throws Error{kInvalidArgument} for null pointers, sizes or dtypes that don't fit; Error{kUnsupported} like
/// plan_attention.
void merge_states(const MergeStatesProblem& problem, const std::string& backend = "auto", Stream stream = {});

}  // namespace tessera
