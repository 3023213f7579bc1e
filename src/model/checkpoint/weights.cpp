#include "model/checkpoint/weights.h"

#include <fmt/core.h>

#include <charconv>
#include <functional>
#include <utility>

#include "core/text.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using Shape = std::vector<std::int64_t>;
using TensorVisitor = std::function<void(const std::string& name, const Shape& shape)>;

/// Visits every tensor that `config` calls for, layer by layer.
void visit_expected_tensors(const ModelConfig& config, const TensorVisitor& visit) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q_size = std::int64_t{config.num_heads} * config.head_dim;
  const std::int64_t kv_size = std::int64_t{config.num_kv_heads} * config.head_dim;
  const std::int64_t mlp = config.intermediate_size;

  visit("embed_tokens.weight", {config.vocab_size, hidden});
  visit("norm.weight", {hidden});
  if (!config.tied_embeddings) visit("lm_head.weight", {config.vocab_size, hidden});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    const auto linear = [&](const char* name, std::int64_t out, std::int64_t in, bool bias) {
      visit(prefix + name + ".weight", {out, in});
      if (bias) visit(prefix + name + ".bias", {out});
    };
    visit(prefix + "input_layernorm.weight", {hidden});
    linear("self_attn.q_proj", q_size, hidden, config.qkv_bias);
    linear("self_attn.k_proj", kv_size, hidden, config.qkv_bias);
    linear("self_attn.v_proj", kv_size, hidden, config.qkv_bias);
    linear("self_attn.o_proj", hidden, q_size, config.o_bias);
    if (config.qk_norm) {
      visit(prefix + "self_attn.q_norm.weight", {config.head_dim});
      visit(prefix + "self_attn.k_norm.weight", {config.head_dim});
    }
    visit(prefix + "post_attention_layernorm.weight", {hidden});
    linear("mlp.gate_proj", mlp, hidden, config.mlp_bias);
    linear("mlp.up_proj", mlp, hidden, config.mlp_bias);
    linear("mlp.down_proj", hidden, mlp, config.mlp_bias);
  }
}

/// Whether `name` lies in one of the decoder's layers: "layers.3.mlp.gate_proj.scales".
bool is_in_layer(std::string_view name, int num_layers) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  int layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc() && layer < num_layers;
}

}  // namespace

void WeightCollector::add(const std::string& name, const StoredTensor& stored, std::string_view stored_name,
                          std::span<const std::byte> file, const std::string& source) {
  Item item;
  item.tensor.dtype = stored.dtype.value_or(DType::kF32);
  item.tensor.shape = stored.shape;
  item.tensor.data = file.data() + stored.offset;
  item.tensor.size_bytes = stored.size_bytes;
  item.tensor.source = fmt::format("{}: {}", source, printable(stored_name));
  item.dtype_name = stored.dtype_name;
  item.has_weight_dtype = stored.dtype.has_value();
  item.offset = stored.offset;
  if (!tensors_.emplace(name, std::move(item)).second) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: tensor '{}' (byte {}) is there twice", source,
                                                     printable(stored_name), stored.offset));
  }
}

const std::vector<std::int64_t>* WeightCollector::shape(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.tensor.shape;
}

void WeightCollector::move_to(Checkpoint& checkpoint, const std::string& source) {
  const ModelConfig& config = checkpoint.config;
  visit_expected_tensors(config, [&](const std::string& name, const Shape& shape) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: the tensor '{}' of shape {} is missing, which the configuration calls for",
                              source, name, shape_text(shape)));
    }
    Item& item = found->second;
    const std::string where = fmt::format("{} (byte {})", item.tensor.source, item.offset);
    if (item.tensor.shape != shape) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: the shape is {}, but the configuration calls for {}", where,
                              shape_text(item.tensor.shape), shape_text(shape)));
    }
    if (!item.has_weight_dtype) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: the dtype is {}; weights may be F32, F16, BF16 or, in GGUF files, Q8_0",
                              where, item.dtype_name));
    }
    if (shape.size() == 1 && item.tensor.dtype == DType::kQ8_0) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: a vector may be F32, F16 or BF16, but not Q8_0", where));
    }
    checkpoint.tensors.emplace(name, std::move(item.tensor));
    tensors_.erase(found);
  });
  for (const auto& [name, item] : tensors_) {
    if (is_in_layer(name, config.num_layers) && !name.ends_with("rotary_emb.inv_freq")) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} (byte {}): a {} layer has no such tensor under this configuration",
                              item.tensor.source, item.offset, architecture_name(config.architecture)));
    }
  }
}

}  // namespace tessera
