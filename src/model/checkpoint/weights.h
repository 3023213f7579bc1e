#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/stored_tensor.h"

namespace tessera {

struct HfQuantization;

/// Gathers the tensors of a checkpoint's files under the names that Checkpoint documents and picks those that
/// the configuration calls for.
class WeightCollector {
 public:
  /// `stored` of the bytes `file`, known there as `stored_name`, is the model's tensor `name`. `source` names
  /// the file. Throws Error{kCorruptFile} if there is one of that name already.
  void add(const std::string& name, const StoredTensor& stored, std::string_view stored_name,
           std::span<const std::byte> file, const std::string& source);

  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }

  /// The shape of a tensor, null if there is none of that name.
  const std::vector<std::int64_t>* shape(std::string_view name) const;

  /// Whether embedding and output head are one matrix in a model whose configuration says so: as in
  /// transformers they aren't if both are there and differ. A head without an embedding becomes the
  /// embedding.
  bool tie_head();

  /// Makes matrices of the codes and scales that a quantised Hugging Face folder has of them: of numbers of
  /// the model's dtype, or of blocks of Q4_0 where these hold them as they are. Throws Error{kCorruptFile}
  /// for parts that are missing or don't go together.
  void widen(const HfQuantization& quantization, const ModelConfig& config);

  /// Puts what some Hugging Face folders have by heads into the usual order: rows of GPT-NeoX's q, k and v,
  /// and the norms of StableLM's heads. Throws Error{kCorruptFile} for those that don't have the shape of
  /// heads.
  void gather_heads(const ModelConfig& config);

  /// Makes the tensors of layers without attention, and of gates of attention's output, from those that have
  /// parts of them in one. Throws Error{kCorruptFile} for one of another shape.
  void gather_recurrent(const ModelConfig& config);

  /// Makes the tensors of mixtures of experts from those that Hugging Face folders and old GGUF files have of
  /// them. Throws
  /// Error{kCorruptFile} for one that is missing or that has another shape than the others.
  void gather_experts(const ModelConfig& config);

  /// Makes the tensors of latent attention's heads, k_b_proj (num_heads, kv_rank, nope_dim) and v_b_proj
  /// (num_heads, value_dim, kv_rank), from kv_b_proj, which has each head's rows of keys and of values.
  void split_latent_heads(const ModelConfig& config);

  /// Moves the tensors that checkpoint.config calls for to checkpoint.tensors. Of the rest, an output head
  /// that is tied, RoPE's precomputed frequencies and what lies outside the decoder's layers are left out;
  /// anything else in a layer would change what the model computes. Throws Error{kCorruptFile} for a tensor
  /// that is missing or has another shape, Error{kUnsupported} for its dtype or for one that has no place in
  /// the model; `source` names the checkpoint.
  void move_to(Checkpoint& checkpoint, const std::string& source);

 private:
  /// Drops the tensors that layers which share keys and values have all the same in files.
  void drop_shared_kv(const ModelConfig& config);

  /// Makes gate_proj and up_proj of an MLP's gate_up_proj, if it has that.
  void cut_gate_up(const std::string& mlp);

  class ExpertGatherer;
  class HeadGatherer;
  class RecurrentGatherer;
  class Widener;
  struct Item {
    CheckpointTensor tensor;
    std::string_view dtype_name;
    bool has_weight_dtype = false;
    std::size_t offset = 0;
  };
  /// Throws Error{kCorruptFile} that names where the tensor stands.
  [[noreturn]] static void fail(const Item& item, const std::string& what);

  std::map<std::string, Item, std::less<>> tensors_;
};

}  // namespace tessera
