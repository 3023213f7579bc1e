#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "ops/backend.h"

namespace tessera {

/// Those of a layer's experts, one expert's rows after the other's.
struct ExpertWeights {
  Weight gate, up;  ///< (num_experts * intermediate_size, hidden_size)
  Weight gate_up;   ///< each expert's rows of both, where the device has them in one; then they have no data
  Weight gate_bias, up_bias;  ///< (num_experts, intermediate_size)
  Weight gate_up_bias;
  Weight down;       ///< (num_experts * hidden_size, intermediate_size)
  Weight down_bias;  ///< (num_experts, hidden_size)
};

/// Those of latent attention (LatentAttentionConfig).
struct LatentWeights {
  Weight q_a, q_a_norm;    ///< (q_rank, hidden_size), (1, q_rank); none if queries are made of the hidden row
  Weight kv_a, kv_a_norm;  ///< (kv_rank + rope_dim, hidden_size), (1, kv_rank)
  Weight k_b;              ///< (num_heads * kv_rank, nope_dim)
  Weight v_b;              ///< (num_heads * value_dim, kv_rank)
};

/// Those of a layer without attention: of a short convolution, or of the gated delta rule.
struct RecurrentWeights {
  /// (3 hidden_size, hidden_size): the gates of what goes in and of what comes out, and that itself; of the
  /// gated delta rule the rows of those below, where the device has them in one; then they have no data.
  Weight in;
  Weight in_bias;
  Weight qkv, z;           ///< (conv_columns, hidden_size), (value_columns, hidden_size)
  Weight b, a;             ///< (num_value_heads, hidden_size)
  Weight zba;              ///< those of z, b and a, where qkv is of another type; then they have no data
  Weight conv, conv_bias;  ///< (taps, channels), (1, channels); fp32
  Weight a_log, dt_bias;   ///< (1, num_value_heads), fp32
  Weight norm;             ///< (1, value_dim), of each head's values
  Weight out, out_bias;    ///< (hidden_size, hidden_size or value_columns)
};

/// Weights of one transformer layer. A Weight without data is one that the model doesn't have.
struct LayerWeights {
  Weight input_norm;       ///< (1, hidden_size)
  Weight input_norm_bias;  ///< (1, hidden_size)
  /// (num_heads * head_dim, hidden_size), k and v with num_kv_heads. Of latent attention q alone, of heads of
  /// query_dim, of rows of q_rank if that is not 0.
  Weight q, k, v;
  LatentWeights latent;
  RecurrentWeights recurrent;
  /// (num_heads * head_dim, hidden_size), of attention_gate; among qkv's rows if they are one.
  Weight attention_gate, attention_gate_bias;
  Weight qkv;  ///< the rows of q, k and v, where checkpoint or device has them in one; then they have no data
  Weight qk;   ///< those of q and k, where v is of another type; then q and k have no data
  Weight q_bias, k_bias, v_bias;
  Weight qkv_bias, qk_bias;
  /// (1, head_dim), or (1, num_heads * head_dim) and (1, num_kv_heads * head_dim). Of norms behind RoPE
  /// q_norm has the products of both and k_norm is 1: a score adds up products of a query's and a key's
  /// numbers, so that it is the same which of them is multiplied, and keys can be normed before RoPE turns
  /// them. Of heads with weights of their own (num_heads, head_dim) and (num_kv_heads, head_dim).
  Weight q_norm, k_norm;
  Weight o;  ///< (hidden_size, num_heads * head_dim)
  Weight o_bias;
  Weight attention_out_norm;   ///< (1, hidden_size), of what attention gives
  Weight post_attention_norm;  ///< (1, hidden_size), of what the MLP reads
  Weight post_attention_norm_bias;
  /// (intermediate_size, hidden_size), up alone of an MLP without a gate; in a layer of experts that of the
  /// expert that all tokens share, if there is one, and so are those below.
  Weight gate, up;
  Weight gate_up;  ///< the rows of both, where checkpoint or device has them in one; then they have no data
  Weight gate_bias, up_bias;
  Weight gate_up_bias;
  Weight down;  ///< (hidden_size, intermediate_size)
  Weight down_bias;
  Weight router;  ///< (num_experts, hidden_size); of a layer of experts
  Weight router_bias;
  Weight score_bias;   ///< (1, num_experts), fp32
  Weight shared_gate;  ///< (1, hidden_size), of the expert that all tokens share
  ExpertWeights experts;
  /// (1, hidden_size), of a mixture beside an MLP: of what router and experts read, and of what the MLP and
  /// the experts give before it is added up.
  Weight router_norm, experts_norm, mlp_alone_out_norm, experts_out_norm;
  Weight expert_scales;  ///< (1, num_experts), fp32
  Weight sinks;          ///< (1, num_heads), fp32
  Weight mlp_out_norm;   ///< (1, hidden_size), of what the MLP gives
  /// Of the layer's embeddings: (layer_embedding_size, hidden_size), back, and the norm of what that gives.
  Weight layer_gate, layer_projection, layer_out_norm;
  /// What the residual stream is multiplied by behind the layer. The last of the norms above has it in its
  /// weights already.
  float layer_scale = 1;
};

/// A model's weights in a device's memory.
struct ModelWeights {
  Weight embedding;  ///< (vocab_size, hidden_size)
  /// (vocab_size, num_layers * layer_embedding_size), each layer's columns together; what is made of the
  /// model's embeddings and added to them, (num_layers * layer_embedding_size, hidden_size); and the norm of
  /// that, (1, layer_embedding_size), times sqrt(1/2). Of models with embeddings of layers.
  Weight layer_embeddings, layer_embeddings_projection, layer_embeddings_norm;
  std::vector<LayerWeights> layers;
  Weight final_norm;  ///< (1, hidden_size)
  Weight final_norm_bias;
  Weight head;       ///< (vocab_size, hidden_size); the embedding itself if they are tied
  Weight head_bias;  ///< (1, vocab_size)
  std::vector<float> head_bias_numbers;

  std::vector<std::vector<float>> made;  ///< in the host's memory, what vectors may refer to

  std::int64_t num_parameters = 0;
  std::int64_t size_bytes = 0;       ///< as the checkpoint stores them
  std::int64_t decode_bytes = 0;     ///< of those that one decode step reads, for one token
  DType matrix_dtype = DType::kF32;  ///< of the most bytes
  /// As activation_dtype_of() says.
  DType activation_dtype = DType::kF32;
};

/// What the layers' matrices ask for: the 16-bit type that all of them are, else kF32, which holds them all;
/// kBF16 where some are of blocks, none is fp32 and the device multiplies blocks by bf16 quicker
/// (OpsBackend::multiplies_bf16). What blocks have lost is more than bf16 leaves out, and what activations
/// may grow to is beyond fp16. The embedding and the head, often of another type, don't count, nor do sizes.
DType activation_dtype_of(const Checkpoint& checkpoint, bool multiplies_bf16);

/// Called with the bytes of weights that are loaded and the bytes of all; may throw to cancel.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Brings the checkpoint's weights into the memory of `ops`' device. The checkpoint must outlive the result:
/// the CPU refers to its mapping. Pages of mapped files are read from disk here, so that the progress is that
/// of the disk and the first token doesn't wait for it. Throws Error{kInvalidArgument} if the checkpoint
/// lacks a tensor that its configuration calls for or has it in another shape, and what
/// OpsBackend::make_weight throws.
ModelWeights load_weights(const Checkpoint& checkpoint, OpsBackend& ops,
                          const LoadProgress& on_progress = {});

}  // namespace tessera
