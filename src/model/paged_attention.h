#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "ops/backend.h"
#include "tessera/attention.h"

namespace tessera {

/// Sizes of one step of the model: what its kernels are chosen by, whatever the tokens are.
struct StepShape {
  std::int64_t num_tokens = 0;  ///< rows: the new tokens of all sequences
  std::int64_t batch = 0;       ///< sequences that they belong to
  std::int64_t seq_len_q = 0;   ///< most new tokens of any sequence
  std::int64_t seq_len_kv = 0;  ///< upper bound of their lengths with the new tokens, but of num_decodes'
  /// Sequences of one new token that come before longer ones; 0 if there are no longer ones.
  std::int64_t num_decodes = 0;
  std::int64_t decode_len_kv = 0;  ///< upper bound of these sequences' lengths

  friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

/// Where a step's sequences are, in the device's memory.
struct StepDescriptors {
  const std::int32_t* cu_seqlens = nullptr;  ///< (batch + 1), rows of the sequences' new tokens
  /// (batch - num_decodes + 1): of those behind the decodes, counted from the first of them.
  const std::int32_t* prompt_cu_seqlens = nullptr;
  const std::int32_t* seq_lens_kv = nullptr;  ///< (batch), with the new tokens
  const std::int32_t* block_table = nullptr;  ///< (batch, block_table_stride)
  std::int64_t block_table_stride = 0;
};

/// Sizes that don't change after the model is loaded.
struct PagedAttentionOptions {
  std::string backend = "auto";
  DType dtype = DType::kF32;  ///< of q and o
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;                    ///< of queries and keys
  int head_dim_v = 0;                  ///< of values and outputs; 0: head_dim
  std::optional<float> softmax_scale;  ///< none: 1 / sqrt(head_dim)
  std::optional<float> softcap;        ///< scores s become cap tanh(s / cap)
  bool batch_invariant = false;
};

/// One layer's call.
struct PagedAttentionCall {
  StepShape shape;
  StepDescriptors descriptors;
  Matrix q;           ///< (num_tokens, num_heads * head_dim), possibly a column range of wider rows
  KvCacheView cache;  ///< the layer's; block_table is ignored for that of the descriptors
  std::optional<std::int64_t> sliding_window;  ///< keys a query sees, itself included; none: all up to itself
  const float* sinks = nullptr;                ///< (num_heads), of all layers or of none
  Matrix o;                                    ///< (num_tokens, num_heads * head_dim_v)
};

/// Causal attention of a step's new tokens (ragged) over the paged cache. Keeps the plan of each shape that
/// was seen and one workspace, so that a repeated shape neither plans nor allocates.
///
/// Decodes beside prompts are a call of their own: tiles of a prompt's kernel would be nearly empty of them.
class PagedAttention {
 public:
  PagedAttention(PagedAttentionOptions options, OpsBackend& ops);

  /// Plans a call, loads its kernels and grows the workspace to what it takes, without running it: of
  /// sequences that are all alike, with no num_decodes. Throws like prepare_attention, and
  /// Error{kOutOfMemory}.
  void prepare(const PagedAttentionCall& call);

  void run(const PagedAttentionCall& call);

  /// Changes whenever the workspace moved, which makes recorded work stale.
  std::int64_t workspace_generation() const { return workspace_generation_; }

 private:
  /// A call without num_decodes.
  void run_alike(const PagedAttentionCall& call);
  AttentionProblem describe(const PagedAttentionCall& call) const;
  const AttentionPlan& plan_of(const PagedAttentionCall& call, const AttentionProblem& problem);

  PagedAttentionOptions options_;
  OpsBackend& ops_;
  // By what the description of a model's calls varies in: shape, window, and whether the tensors are aligned.
  std::map<std::tuple<StepShape, std::optional<std::int64_t>, bool>, AttentionPlan> plans_;
  DeviceBuffer workspace_;
  std::int64_t workspace_generation_ = 0;
};

}  // namespace tessera
