#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/chat_template.h"
#include "model/config.h"
#include "tessera/dtype.h"

namespace tessera {

class MappedFile;
class Tokenizer;

/// One tensor of a checkpoint, row-major and contiguous, in memory mapped from the file.
struct CheckpointTensor {
  DType dtype = DType::kF32;  ///< one of weight_dtypes()
  std::vector<std::int64_t>
      shape;  ///< outermost dimension first; a weight matrix is (out_features, in_features)
  const std::byte* data = nullptr;  ///< valid as long as the Checkpoint lives; no alignment is promised
  /// Of a tensor that no file has as it is called for, whose data is null: writes part i along its first
  /// dimension, of size_bytes / shape[0] bytes. Valid as long; may be called from several threads.
  std::function<void(std::int64_t part, std::byte* out)> read_part;
  std::size_t size_bytes = 0;
  std::string source;  ///< file and name there, for error messages
};

/// A model's configuration, weights and tokenizer, whatever format they came in.
///
/// Tensors carry the names of Hugging Face's Llama without the leading "model." ("embed_tokens.weight",
/// "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.q_norm.weight", "layers.0.mlp.gate_proj.weight",
/// "layers.0.input_layernorm.weight", "layers.0.post_attention_layernorm.weight", "norm.weight",
/// "lm_head.weight", and ".bias" likewise; of mixtures "layers.0.mlp.router.weight" and, of all experts
/// together, "layers.0.mlp.experts.gate_proj.weight"). Every tensor that the configuration calls for is there
/// with the shape that it calls for; lm_head.weight is absent exactly when config.tied_embeddings, which is
/// false, whatever a config.json says, where a folder has a head that differs from the embedding. Files may
/// hold more: RoPE's precomputed frequencies, a tied head and what lies outside the layers are left out,
/// while an unknown tensor inside a layer is refused, since the model would compute something else without
/// it.
struct Checkpoint {
  ModelConfig config;
  std::map<std::string, CheckpointTensor, std::less<>> tensors;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null if the checkpoint has none
  ChatTemplateData chat;                       ///< its templates are empty if the checkpoint has none
  std::vector<std::shared_ptr<const MappedFile>> files;
  std::string
      quantization;  ///< how a Hugging Face folder stores matrices as codes and scales; empty: it doesn't
};

/// Calls visit(bytes, first) for the tensor's bytes in order, `first` being their number within it: all at
/// once, or what read_part writes, as many parts at a time as fit in some memory. The bytes are gone when
/// `visit` returns unless they are the tensor's data.
void read_tensor(const CheckpointTensor& tensor,
                 const std::function<void(std::span<const std::byte> bytes, std::size_t first)>& visit);

/// Elements [first, first + out.size()) of stored numbers or blocks, whole ones, as fp32.
void read_elements(DType stored, const std::byte* data, std::size_t first, std::span<float> out);

/// Which tensor of several, and which part along its first dimension.
struct TensorPart {
  std::size_t tensor = 0;
  std::int64_t part = 0;
};
/// A tensor of `num_parts` parts of others, which have the dtype and all dimensions but the first in common:
/// part i is what place(i) says.
CheckpointTensor tensor_of_parts(std::vector<CheckpointTensor> tensors, std::int64_t num_parts,
                                 std::function<TensorPart(std::int64_t part)> place);

/// Of one part along a tensor's first dimension, which isn't 0.
std::size_t bytes_of_part(const CheckpointTensor& tensor);

/// Writes the bytes of one part along a tensor's first dimension.
void read_part(const CheckpointTensor& tensor, std::size_t part, std::byte* out);

/// Writes all of a tensor's bytes, one part after the other on the thread that calls.
void read_parts(const CheckpointTensor& tensor, std::byte* out);

/// The numbers of a norm's weights, each with `offset` added.
std::vector<float> norm_weights(const CheckpointTensor& tensor, float offset);

struct CheckpointOptions {
  bool load_tokenizer = true;
};

/// Opens a Hugging Face folder (config.json, model.safetensors or sharded, tokenizer.json) or a .gguf file,
/// of parts the first.
/// Weights are mapped, not read. Throws Error{kIo} for files that can't be opened, Error{kCorruptFile} naming
/// file, tensor and offset for content that contradicts its format, Error{kUnsupported} for architectures,
/// dtypes or settings that this library does not run.
Checkpoint open_checkpoint(const std::filesystem::path& path, const CheckpointOptions& options = {});

/// The tokenizer alone: of a Hugging Face folder, a tokenizer.json or a .gguf file, whether or not there are
/// a configuration and weights. Throws like open_checkpoint; Error{kUnsupported} if there is no tokenizer.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path);

}  // namespace tessera
