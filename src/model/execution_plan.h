#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/paged_attention.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace tessera {

/// New tokens of one sequence that go through the model in a step.
struct SequenceSlice {
  std::span<const std::int32_t> tokens;       ///< at least one
  std::int64_t first_position = 0;            ///< tokens of the sequence that the cache already holds
  std::span<const std::int32_t> block_table;  ///< pages for first_position + tokens.size() tokens or more
  std::int32_t state_slot = 0;                ///< of layers without attention, another one for each sequence
};

/// What a layer without attention keeps of sequences, fp32 in the device's memory, a slot a sequence.
struct RecurrentStateView {
  float* conv = nullptr;    ///< (max_batch, recurrent_state_size().conv)
  float* matrix = nullptr;  ///< (max_batch, recurrent_state_size().matrix)
};

/// Rows [begin, begin + count) of a step.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;

  friend bool operator==(const RowRange&, const RowRange&) = default;
};

inline Matrix first_rows(const Matrix& matrix, std::int64_t count) { return rows_of(matrix, 0, count); }

struct ExecutionPlanOptions {
  std::string attention_backend = "auto";
  DType activation_dtype = DType::kF32;  ///< kF32, kF16 or kBF16
  bool batch_invariant = false;
  std::int64_t max_tokens = 0;       ///< new tokens in a step
  std::int64_t max_batch = 0;        ///< sequences in a step
  std::int64_t max_seq_len = 0;      ///< tokens of a sequence
  std::int64_t max_logits_rows = 0;  ///< rows that the output head handles at once

  std::vector<std::int32_t> absent_tokens;  ///< ids that may not be drawn
};

/// The name of the step that computes attention of a layer, by itself whatever else is fused.
inline constexpr const char* kAttentionStep = "attention";

/// x / sqrt(mean(x^2) + kNormCopyEps) * kNormCopyWeight is x, to fp32's last bit, where the mean is far below
/// kNormCopyEps.
inline constexpr float kNormCopyEps = 0x1p60f, kNormCopyWeight = 0x1p30f;

/// The kernel of an MLP's activation.
GatedActivation gated_activation_of(Activation activation);

/// One kernel of the plan.
struct PlanStep {
  std::string name;  ///< kAttentionStep, "down_proj", …; "input_norm+qkv_proj" where one kernel does both
  int layer = 0;     ///< -1: before the first layer
  std::function<void(const StepShape&)> run;
};

/// A model as a list of kernel calls. All buffers are allocated when it is loaded and reused; a step uploads
/// what its tokens are and then runs the list:
///
///   embedding, embedding_scale, add_layer_embedding_steps
///   each layer: input_norm (with the residual add of the layer before), q/k/v_proj into one packed buffer,
///               q_norm and k_norm, rope_append (or q_norm behind it), query_scale, attention, o_proj
///               (latent attention: add_latent_steps before o_proj; layers without attention:
///               add_recurrent_steps instead of all from q/k/v_proj to o_proj),
///               attention_out_norm, post_attention_norm (with the residual add), gate_proj and up_proj,
///               activation, down_proj (stacked gate and up with the activation as one step), mlp_out_norm;
///               of a layer of experts router, route_experts, experts' gate and up, activation and down,
///               combine_experts instead, onto what the expert that all tokens share gives by the former,
///               multiplied by its gate, or beside an MLP (add_mixture_beside_mlp_steps);
///               add_layer_embedding_steps of the layer, layer_scale
///   for the rows whose logits are needed: final norm (with the residual add), output head, scale,
///   softcap
///
/// of which a model has those that its configuration asks for. Where it has no norms before attention and
/// MLP, input_norm and post_attention_norm add and copy. In parallel blocks there is no post_attention_norm:
/// the MLP reads what input_norm made, and o_proj adds to the residual; or it comes behind q/k/v_proj, before
/// anything is added. An MLP without a gate is up_proj, activation, down_proj.
///
/// Where the device has one kernel for a norm, the product behind it and RoPE or the activation, for as many
/// rows as the step has, that is one step. Then the product before adds its result to the residual itself.
/// This is decided once for a number of rows, when a step has that many for the first time.
///
/// The residual stream is fp32 whatever the activations are, and is the model's divided by
/// config.residual_scale, so that what is added needs no scaling: norms of it are those of the model's with
/// another eps. Everything a kernel reads stands at addresses
/// that never change, so that a device can record run_layers and run_head once and replay them.
class ExecutionPlan {
 public:
  /// `weights`, `ops` and the memory behind `cache` (one view a layer, block_table null) and `states` (one a
  /// layer, none if all have attention) must outlive the plan. Throws Error{kUnsupported} if the attention
  /// backend can't run the model, Error{kOutOfMemory}.
  ExecutionPlan(const ModelConfig& config, const ModelWeights& weights, std::vector<KvCacheView> cache,
                std::vector<RecurrentStateView> states, const ExecutionPlanOptions& options, OpsBackend& ops);
  ExecutionPlan(const ExecutionPlan&) = delete;  // the steps refer to it
  ExecutionPlan& operator=(const ExecutionPlan&) = delete;

  /// Uploads positions, lengths, block tables and tokens of a step. tokens_on_device: row i's token is what
  /// already stands in tokens()[i]; the slices' tokens then only say how many there are.
  StepShape begin_step(std::span<const SequenceSlice> slices, bool tokens_on_device = false);

  /// Runs everything up to the last layer for the step that begin_step announced; writes the cache.
  /// after_step, unless empty, is told how much of the list has been run, in (0, 1], whenever a kernel has;
  /// it may throw, and then the step is not whole.
  void run_layers(const StepShape& shape, const std::function<void(double share)>& after_step = {});

  /// Logits of these rows, one range after another, into logits(). Each row at most once a step, since the
  /// last residual add happens here; at most max_logits_rows in all. for_sampling: those of absent_tokens are
  /// -inf.
  void run_head(std::span<const RowRange> ranges, bool for_sampling = false);
  /// What run_head does before its product: the last norm of these rows, which it returns, (rows,
  /// hidden_size) in the type of the activations. Overwritten by the next run_head or run_final_norm.
  Matrix run_final_norm(std::span<const RowRange> ranges);

  /// The first `rows` rows of the head's output, (rows, vocab_size) fp32.
  Matrix logits(std::int64_t rows) const;
  /// (max_tokens), in the device's memory: what the embedding reads. A sampler that writes here feeds the
  /// next step without the host.
  std::int32_t* tokens() const { return tokens_.as<std::int32_t>(); }

  /// (max_tokens, num_heads * head_dim): the step's queries of the layer that runs, rotated when its
  /// attention begins.
  const Matrix& queries(int layer) const { return projections(layer).q; }
  int num_heads() const { return config_.num_heads; }
  /// Keys that a query of this layer sees, itself included; none: all up to itself.
  std::optional<std::int64_t> sliding_window(int layer) const;
  /// (num_heads), in the device's memory; null: the layer has none.
  const float* sinks(int layer) const;
  /// What scores are multiplied by; none: 1 / sqrt(head_dim).
  std::optional<float> softmax_scale() const { return config_.softmax_scale; }
  /// Scores s become cap tanh(s / cap); none: they stay.
  std::optional<float> attention_softcap() const { return config_.attention_softcap; }

  /// Whether a layer has queries and keys.
  bool attends(int layer) const { return has_attention(config_, layer); }
  /// Whether sequences have a state beside their keys and values, which can't be cut to fewer tokens.
  bool has_states() const { return !states_.empty(); }

  /// The list for steps of this shape. Valid as long as the plan.
  std::span<const PlanStep> steps(const StepShape& shape);
  const ExecutionPlanOptions& options() const { return options_; }
  /// Changes whenever an address that run_layers uses did, which makes recorded work stale.
  std::int64_t address_generation() const {
    return attention_.workspace_generation() +
           (full_attention_ ? full_attention_->workspace_generation() : 0);
  }

 private:
  using StepList = std::vector<PlanStep>;

  /// What one kernel does in a layer.
  struct LayerFusion {
    bool qkv = false;            ///< input norm and q/k/v_proj, or a layer's without attention first product
    bool rope = false;           ///< and rope_append; never if heads are normed
    bool gate_up = false;        ///< post-attention norm, gate and up_proj and activation
    bool gated = false;          ///< if not that, or of an expert that all tokens share: the latter two
    bool experts_gated = false;  ///< those of experts
    bool combined = false;       ///< experts' down_proj and the sum of what they give

    friend auto operator<=>(const LayerFusion&, const LayerFusion&) = default;
  };

  /// What q/k/v_proj and attention write: columns of layers whose heads are of one size.
  struct Projections {
    Matrix qkv;       ///< (max_tokens, (num_heads + 2 num_kv_heads) * head_dim)
    Matrix qk;        ///< its columns of queries and keys
    Matrix q, k, v;   ///< its column ranges; of latent attention there is q alone
    Matrix gate;      ///< behind them, where attention has a gate
    Matrix attended;  ///< (max_tokens, num_heads * head_dim)
  };
  /// Whether a layer's heads are of the sizes of config_.full_attention.
  bool has_full_heads(int layer) const { return config_.full_attention && !slides(config_, layer); }
  const Projections& projections(int layer) const { return has_full_heads(layer) ? full_ : usual_; }
  PagedAttention& attention_of(int layer) {
    return has_full_heads(layer) && full_attention_ ? *full_attention_ : attention_;
  }

  void allocate_buffers();
  /// Of memory that `buffer` then holds.
  Matrix allocate_matrix(DeviceBuffer& buffer, const char* what, DType dtype, std::int64_t rows,
                         std::int64_t columns);
  DeviceBuffer upload_numbers(const std::vector<float>& numbers, const char* what);
  void allocate_projections(DType dtype, std::int64_t rows);
  void allocate_layer_embedding_buffers(DType dtype, std::int64_t rows);
  void upload_frequencies();
  /// Asks the device, once for each layer.
  std::vector<LayerFusion> fusions(const StepShape& shape) const;
  StepList make_steps(const std::vector<LayerFusion>& fusions);
  void add_attention_steps(StepList& list, int layer, LayerFusion fusion);
  void add_qkv_steps(StepList& list, int layer);
  /// Norms of heads that come before rope_append, and that.
  void add_rope_steps(StepList& list, int layer, bool is_fused);
  /// Embeddings of all layers, by the tokens and by their embeddings.
  void add_layer_embedding_steps(StepList& list);
  /// What a layer makes of its own.
  void add_layer_embedding_steps(StepList& list, int layer);
  void add_layer_scale(StepList& list, int layer);
  /// The experts of a layer that has an MLP, whose result is there, and the sum of both.
  void add_mixture_beside_mlp_steps(StepList& list, int layer, LayerFusion fusion);
  /// The residual stream as products read it. A residual add first, if delta_ has something to add.
  void copy_residual(const StepShape& shape, bool add_residual);
  /// Of latent attention everything up to o_proj.
  void add_latent_steps(StepList& list, int layer);
  void allocate_latent_buffers(DType dtype, std::int64_t rows);
  /// Of a layer without attention all from the norm to the product that belongs to the residual stream.
  void add_recurrent_steps(StepList& list, int layer, LayerFusion fusion);
  void allocate_recurrent_buffers(DType dtype, std::int64_t rows);
  /// The first product of a layer without attention, of rows that are not normed yet.
  NormedGemmArguments normed_in_proj(const StepShape& shape, int layer) const;
  void short_conv(const StepShape& shape, int layer);
  void delta_conv(const StepShape& shape, int layer);
  void gated_delta(const StepShape& shape, int layer);
  SequenceRows sequence_rows(const StepShape& shape) const;
  /// Groups rows by heads as mixtures do slots by experts: a product of each head with its own matrix.
  void group_heads(std::int64_t num_tokens);
  void turn_latents(const StepShape& shape);
  ExpertGemmArguments head_product(Matrix x, const Weight& weight, Matrix out) const;
  void add_mlp_norm(StepList& list, int layer, bool add_residual);
  /// adds_residual: down_proj adds its result to the residual, as the norm behind it is in a product.
  void add_mlp_steps(StepList& list, int layer, LayerFusion fusion, bool adds_residual);
  /// Gate and up and the activation, of normed rows.
  void add_gate_up_steps(StepList& list, int layer, bool is_gated);
  /// What the expert that all tokens share gives, which the others are added to.
  void add_shared_expert_steps(StepList& list, int layer, bool adds_residual);
  /// Router and experts.
  void add_expert_steps(StepList& list, int layer, LayerFusion fusion, bool adds_residual);
  ExpertGemmArguments expert_product(const StepShape& shape, const Matrix& x, const Weight& weight,
                                     const Weight& bias, const Matrix& out) const;
  ExpertGemmArguments gated_expert_product(const StepShape& shape, int layer) const;
  ExpertGemmArguments combined_expert_product(const StepShape& shape, int layer, bool adds_residual) const;
  void add_expert_product(StepList& list, const char* name, int layer, Matrix x, const Weight& weight,
                          const Weight& bias, Matrix out);
  RouteExpertsArguments routing_arguments(const StepShape& shape, int layer) const;
  void activate(const StepShape& shape, int layer);
  /// Whether all tokens share an expert in layers of experts.
  bool shares_expert() const { return config_.mixture && config_.mixture->shared_intermediate_size > 0; }
  /// Of a layer's MLP, or of the expert that all tokens share.
  std::int64_t mlp_width(int layer) const;
  /// (max_tokens, mlp_width): gate's columns of gate_up_ and, behind them, up's.
  Matrix gate(int layer) const { return columns_of(gate_up_, 0, mlp_width(layer)); }
  Matrix up(int layer) const { return columns_of(gate_up_, mlp_width(layer), mlp_width(layer)); }
  /// Whether a product may norm what it reads, and then the one before it add to the residual.
  bool may_norm_in_products() const {
    return config_.norms_before && !config_.norms_after && !config_.parallel_blocks &&
           config_.norm == NormKind::kRms;
  }
  /// Whether queries of some positions are multiplied by more than 1.
  bool scales_queries() const {
    return config_.query_scaling && options_.max_seq_len > config_.query_scaling->original_max_seq_len;
  }
  /// What the embeddings are multiplied by in the residual stream.
  float embedding_scale() const;
  /// For norms of the residual stream.
  float residual_eps() const;
  void add_out_norm(StepList& list, const char* name, int layer, const Weight& weight);
  /// Of the residual stream, which nothing is added to, into normed_.
  void add_residual_norm(StepList& list, const char* name, int layer, const Weight& weight);
  void norm(const StepShape& shape, const Weight& weight, const Weight& bias, bool add_residual);
  /// The kind of norm that the model has. A residual is added to first, and then normed.
  void run_norm(const Matrix& x, const Matrix& out, const Weight& weight, const Weight& bias, float eps,
                const std::optional<Matrix>& residual);
  void add_head_norm(StepList& list, const char* name, int layer, const Weight& weight, Matrix heads,
                     int num_heads, int head_dim);
  GemmArguments product(const StepShape& shape, const Matrix& x, const Weight& weight, const Weight& bias,
                        const Matrix& out) const;
  void add_linear(StepList& list, const std::string& name, int layer, Matrix x, const Weight& weight,
                  const Weight& bias, Matrix out);
  /// A product whose result belongs to the residual stream: added here, or by the norm behind it.
  void add_residual_linear(StepList& list, const char* name, int layer, Matrix x, const Weight& weight,
                           const Weight& bias, bool adds_residual);
  /// The product with qkv, or with qk and v below it, of normed rows.
  NormedGemmArguments normed_qkv(const StepShape& shape, int layer, bool with_rope) const;
  bool takes_normed_qkv(const StepShape& shape, int layer, bool with_rope) const;
  NormedGemmArguments normed_gate_up(const StepShape& shape, int layer) const;
  GemmArguments gated_product(const StepShape& shape, int layer) const;
  RopeAppendArguments rope_arguments(const StepShape& shape, int layer) const;
  void scale_queries(const StepShape& shape);
  void reserve_attention();
  PagedAttentionCall attention_call(const StepShape& shape, int layer) const;
  void upload_block_table(std::size_t row, std::span<const std::int32_t> pages);

  ModelConfig config_;
  const ModelWeights& weights_;
  std::vector<KvCacheView> cache_;
  std::vector<RecurrentStateView> states_;
  ExecutionPlanOptions options_;
  OpsBackend& ops_;
  RopeFrequencies rope_, sliding_rope_;  ///< of layers, and of those that slide
  PagedAttention attention_;
  std::optional<PagedAttention> full_attention_;  ///< of layers that config_.full_attention is for
  std::map<std::vector<LayerFusion>, StepList> step_lists_;
  std::map<std::int64_t, const StepList*> step_lists_by_tokens_;

  // Activations; columns in elements.
  DeviceBuffer residual_buffer_, normed_buffer_, qkv_buffer_, attended_buffer_, delta_buffer_,
      gate_up_buffer_;
  DeviceBuffer head_input_buffer_, logits_buffer_, frequencies_;
  /// Where frequencies_ has those of layers that slide, and those of layers without RoPE.
  std::int64_t sliding_frequencies_ = 0, no_frequencies_ = 0;
  Matrix residual_;           ///< (max_tokens, hidden_size) fp32
  Matrix normed_;             ///< (max_tokens, hidden_size)
  Projections usual_, full_;  ///< in the same memory
  Matrix delta_;              ///< (max_tokens, hidden_size): what the next norm adds to the residual
  Matrix gate_up_;            ///< (max_tokens, 2 * the widest layer's mlp_width), without a gate half of it
  DeviceBuffer router_logits_buffer_, routing_buffer_, expert_gate_up_buffer_, expert_results_buffer_;
  Matrix router_logits_;            ///< (max_tokens, num_experts) fp32
  ExpertRouting routing_;           ///< of max_tokens rows
  Matrix expert_gate_up_;           ///< (max_tokens * num_slots, 2 * the experts' intermediate_size)
  Matrix expert_gate_, expert_up_;  ///< its column ranges
  Matrix expert_results_;           ///< (max_tokens * num_slots, hidden_size)
  DeviceBuffer shared_gate_buffer_, shared_routing_buffer_;
  Matrix shared_gate_logits_;    ///< (max_tokens, 1) fp32
  ExpertRouting shared_gating_;  ///< of max_tokens rows to one expert, whose weights are the gate's sigmoids
  const Weight no_bias_;
  Matrix head_input_;  ///< (max_logits_rows, hidden_size)

  // Of latent attention; columns of queries and of what attention gives are heads'.
  DeviceBuffer q_rank_buffer_, latent_q_buffer_, latent_kv_buffer_, latent_attended_buffer_;
  DeviceBuffer heads_buffer_, ones_buffer_;
  Matrix q_rank_;           ///< (max_tokens, q_rank)
  Matrix latent_q_;         ///< (max_tokens, num_heads * query_dim), what k_b has not multiplied yet
  Matrix latent_kv_;        ///< (max_tokens, head_dim): what the cache gets
  Matrix latent_attended_;  ///< (max_tokens, num_heads * kv_rank), what v_b has not multiplied yet
  ExpertRouting heads_;     ///< each row to all heads
  std::int64_t heads_of_tokens_ = 0;  ///< tokens that heads_ was made for
  std::vector<std::int32_t> host_heads_;

  // Of layers without attention.
  DeviceBuffer mix_buffer_, conv_buffer_, mixed_buffer_;
  Matrix mix_;    ///< (max_tokens, columns): what their first product gives, whose parts they are
  Matrix conv_;   ///< (max_tokens, conv_columns), of the gated delta rule
  Matrix mixed_;  ///< (max_tokens, columns): what their last product takes

  // Of a mixture beside an MLP.
  DeviceBuffer mlp_sum_buffer_;
  Matrix mlp_sum_;  ///< (max_tokens, hidden_size) fp32: what the MLP gives, and then the experts

  // Of embeddings of layers.
  DeviceBuffer layer_embeddings_buffer_, layer_embeddings_projected_buffer_, layer_gate_buffer_;
  Matrix layer_embeddings_;            ///< (max_tokens, num_layers * layer_embedding_size)
  Matrix layer_embeddings_projected_;  ///< the same shape: what is added to them
  Matrix layer_gate_;                  ///< (max_tokens, layer_embedding_size)

  DeviceBuffer copy_weights_buffer_;
  Weight copy_weights_;  ///< (1, hidden_size) of a norm that copies; no data where nothing does
  DeviceBuffer v_norm_buffer_;
  Weight v_norm_;  ///< (1, the longest head_dim) ones; no data without v_norm

  std::vector<float> host_drawable_bias_;
  Weight drawable_bias_;  ///< (1, vocab_size) -inf for absent_tokens, else 0; no data if there are none

  // What a step's tokens are. One upload brings positions, sequences, cu_seqlens, seq_lens and query scales.
  DeviceBuffer tokens_, descriptor_buffer_, block_table_buffer_;
  std::vector<std::int32_t> host_tokens_, host_descriptors_;
  StepDescriptors descriptors_;                ///< into the device's buffers
  const std::int32_t* positions_ = nullptr;    ///< (max_tokens), in the device's memory
  const std::int32_t* sequences_ = nullptr;    ///< (max_tokens), in the device's memory
  const std::int32_t* state_slots_ = nullptr;  ///< (max_batch), in the device's memory
  const float* query_scales_ = nullptr;        ///< (max_tokens), in the device's memory; null: all are 1
  std::vector<std::vector<std::int32_t>> uploaded_block_table_;  ///< (max_batch), what the device holds
};

}  // namespace tessera
