#include "model/weights.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/aligned_memory.h"
#include "core/block_format.h"
#include "core/parallel.h"
#include "model/checkpoint/expected_tensors.h"
#include "tessera/error.h"

namespace tessera {
namespace {

// Progress is reported about this often while pages come from disk.
constexpr std::size_t kReadBytes = std::size_t{16} << 20;
constexpr std::size_t kTouchBytes = std::size_t{1} << 20;

/// Makes the operating system read [data, data + size_bytes) of a mapped file now. Advice only, so that a
/// failure (memory that is not a file's) is of no consequence.
void request_pages(const std::byte* data, std::size_t size_bytes) {
  const std::uintptr_t page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(data) / page_bytes * page_bytes;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(data) + size_bytes;
  posix_madvise(reinterpret_cast<void*>(begin), end - begin, POSIX_MADV_WILLNEED);
}

void touch_pages(const std::byte* data, std::size_t size_bytes) {
  const std::size_t page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  parallel_for((size_bytes + kTouchBytes - 1) / kTouchBytes, [&](std::size_t part) {
    const std::size_t end = std::min(size_bytes, (part + 1) * kTouchBytes);
    for (std::size_t i = part * kTouchBytes; i < end; i += page_bytes) {
      [[maybe_unused]] const std::byte value = *const_cast<const volatile std::byte*>(data + i);
    }
  });
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, OpsBackend& ops, const LoadProgress& on_progress)
      : checkpoint_(checkpoint), ops_(ops), on_progress_(on_progress) {
    for (const auto& [name, tensor] : checkpoint.tensors) total_ += tensor.size_bytes;
    for (ExpectedTensor& tensor : expected_tensors(checkpoint.config)) {
      std::string name = tensor.name;
      expected_.emplace(std::move(name), std::move(tensor));
    }
  }

  /// A matrix, or a vector as one row. No data if the configuration does not call for it.
  Weight weight(const std::string& name) { return expected_.contains(name) ? make(name) : Weight{}; }

  /// A linear layer of several.
  struct Part {
    std::string name;  ///< without ".weight"
    Weight* weight = nullptr;
    Weight* bias = nullptr;
  };

  /// A norm's weights, with what the configuration adds to them, times `factor`. None of one of heads that it
  /// doesn't call for.
  Weight norm(const std::string& name, std::vector<std::vector<float>>& made, float factor = 1) {
    const ModelConfig& config = checkpoint_.config;
    if (!config.norm_weights && name.find(".self_attn.") == name.npos) {
      const HostWeight ones = {.rows = 1, .columns = config.hidden_size, .name = name};
      return vector(ones, std::vector<float>(static_cast<std::size_t>(config.hidden_size), factor), made);
    }
    const float offset = config.norm_offset;
    return offset == 0 && factor == 1 ? weight(name) : floats(name, offset, made, factor);
  }

  /// A vector's numbers as fp32, whatever they are stored as, with `offset` added, times `factor`.
  Weight floats(const std::string& name, float offset, std::vector<std::vector<float>>& made,
                float factor = 1) {
    if (!expected_.contains(name)) return {};
    const HostWeight host = find(name).whole;
    std::vector<float> numbers = norm_weights(checkpoint_.tensors.find(name)->second, offset);
    for (float& number : numbers) number *= factor;
    return vector(host, std::move(numbers), made);
  }

  /// A tensor of one number; `absent` if the configuration doesn't call for it.
  float number(const std::string& name, float absent) {
    if (!expected_.contains(name)) return absent;
    find(name);  // which checks it
    return norm_weights(checkpoint_.tensors.find(name)->second, 0).front();
  }

  /// A convolution's filters, (channels, taps), as fp32, those of one tap after the other's.
  Weight filters(const std::string& name, std::vector<std::vector<float>>& made) {
    HostWeight host = find(name).whole;
    const std::vector<float> stored = norm_weights(checkpoint_.tensors.find(name)->second, 0);
    const auto channels = static_cast<std::size_t>(host.rows), taps = static_cast<std::size_t>(host.columns);
    std::vector<float> numbers(stored.size());
    for (std::size_t c = 0; c < channels; ++c)
      for (std::size_t j = 0; j < taps; ++j) numbers[j * channels + c] = stored[c * taps + j];
    std::swap(host.rows, host.columns);
    return vector(host, std::move(numbers), made);
  }

  /// Norms of heads behind RoPE, as LayerWeights has them.
  void load_norms_after_rope(const std::string& attention, LayerWeights& weights,
                             std::vector<std::vector<float>>& made) {
    const std::string names[] = {attention + "q_norm.weight", attention + "k_norm.weight"};
    const HostWeight queries = find(names[0]).whole, keys = find(names[1]).whole;
    std::vector<float> products = norm_weights(checkpoint_.tensors.find(names[0])->second, 0);
    const std::vector<float> of_keys = norm_weights(checkpoint_.tensors.find(names[1])->second, 0);
    std::ranges::transform(products, of_keys, products.begin(), std::multiplies<>());
    weights.q_norm = vector(queries, std::move(products), made);
    weights.k_norm = vector(keys, std::vector<float>(of_keys.size(), 1.0f), made);
  }

  /// A router or gate, which GGUF files have as F32 whatever it was trained as: as bf16 where that is the
  /// same numbers, since products of two types are slow.
  Weight router(const std::string& name) {
    const HostTensor tensor = find(name);
    const HostWeight& host = tensor.whole;
    const auto count = static_cast<std::size_t>(host.rows * host.columns);
    if (host.dtype != DType::kF32) return make(tensor);
    const std::shared_ptr<std::byte> memory = allocate_aligned(count * sizeof(BFloat16), host.name);
    for (std::size_t i = 0; i < count; ++i) {
      float value;
      std::memcpy(&value, host.data + i * sizeof value, sizeof value);
      const BFloat16 rounded(value);
      if (static_cast<float>(rounded) != value) return make(tensor);
      std::memcpy(memory.get() + i * sizeof rounded, &rounded, sizeof rounded);
    }
    return make({{memory.get(), DType::kBF16, host.rows, host.columns, host.name}, memory});
  }

  /// Loads what experts have in common: their matrices, one below the other, and their biases.
  void load_experts(const std::string& prefix, ExpertWeights& experts) {
    for (const bool is_bias : {false, true}) {
      const std::string ending = is_bias ? ".bias" : ".weight";
      if (!expected_.contains(prefix + "down_proj" + ending)) continue;
      const std::array<HostTensor, 2> gate_up = {find(prefix + "gate_proj" + ending),
                                                 find(prefix + "up_proj" + ending)};
      Weight& stacked = is_bias ? experts.gate_up_bias : experts.gate_up;
      // Biases only where the matrices are.
      if (!is_bias || experts.gate_up) stacked = stack_experts(gate_up, is_bias);
      if (!stacked) {
        (is_bias ? experts.gate_bias : experts.gate) = make(gate_up[0]);
        (is_bias ? experts.up_bias : experts.up) = make(gate_up[1]);
      }
      (is_bias ? experts.down_bias : experts.down) = make(find(prefix + "down_proj" + ending));
    }
  }

  /// Matrices of heads, one below the other.
  Weight heads(const std::string& name) { return make(name); }

  /// Those of several, from the first on, that the configuration calls for.
  std::size_t num_called_for(std::span<const Part> parts) const {
    std::size_t count = 0;
    while (count < parts.size() && expected_.contains(parts[count].name + ".weight")) ++count;
    return count;
  }

  /// Loads a linear layer.
  void load(const Part& part) {
    *part.weight = make(part.name + ".weight");
    if (has_bias(part)) *part.bias = make(part.name + ".bias");
  }

  /// Loads linear layers with the same input into one weight, where the device wants that; says whether. All
  /// of them have a bias, or none.
  bool stack(std::span<const Part> parts, Weight& stacked, Weight& stacked_bias) {
    std::vector<HostWeight> weights, biases;
    for (const Part& part : parts) weights.push_back(kept(part.name + ".weight").whole);
    stacked = ops_.make_stacked_weight(weights);
    for (const Part& part : parts) {
      if (stacked) kept_.erase(part.name + ".weight");
    }
    if (!stacked || !has_bias(parts.front())) return static_cast<bool>(stacked);
    for (const Part& part : parts) {
      biases.push_back(find(part.name + ".bias").whole);
      std::swap(biases.back().rows, biases.back().columns);
    }
    stacked_bias = ops_.make_stacked_weight(biases);  // a column of them all, which is a row as well
    std::swap(stacked_bias.rows, stacked_bias.columns);
    if (!stacked_bias) stacked = {};
    return static_cast<bool>(stacked);
  }
  /// Loads them each into its own.
  void load_each(std::span<const Part> parts) {
    for (const Part& part : parts) load(part);
  }

 private:
  /// `host` with other numbers.
  Weight vector(HostWeight host, std::vector<float> numbers, std::vector<std::vector<float>>& made) {
    made.push_back(std::move(numbers));
    host.data = reinterpret_cast<const std::byte*>(made.back().data());
    host.dtype = DType::kF32;
    return ops_.make_weight(host);
  }

  /// A tensor in memory.
  struct HostTensor {
    HostWeight whole;
    std::shared_ptr<std::byte> memory;  ///< null if it is the file's
  };

  /// find() that what is made of parts is made once for, until make() takes it: the weights of a stack that
  /// the device doesn't want are loaded one by one.
  const HostTensor& kept(const std::string& name) {
    const auto found = kept_.find(name);
    return found != kept_.end() ? found->second : kept_.emplace(name, find(name)).first->second;
  }

  Weight make(const std::string& name) {
    auto node = kept_.extract(name);
    return make(node.empty() ? find(name) : node.mapped());
  }

  Weight make(const HostTensor& tensor) {
    Weight weight = ops_.make_weight(tensor.whole);
    if (weight.data == tensor.memory.get()) weight.owner = tensor.memory;
    return weight;
  }

  /// Each expert's rows of both in one weight, where the device wants that; biases are rows of one number.
  Weight stack_experts(const std::array<HostTensor, 2>& gate_up, bool is_bias) {
    const int num_experts = checkpoint_.config.mixture->num_experts;
    std::vector<HostWeight> parts;
    for (int expert = 0; expert < num_experts; ++expert) {
      for (const HostTensor& tensor : gate_up) {
        HostWeight part = tensor.whole;
        if (is_bias) {
          part.rows = part.columns * part.rows;
          part.columns = 1;
        }
        part.rows /= num_experts;
        part.data += static_cast<std::size_t>(expert * part.rows) *
                     dtype_bytes(part.dtype, static_cast<std::size_t>(part.columns));
        if (expert > 0) part.name.clear();
        parts.push_back(std::move(part));
      }
    }
    Weight stacked = ops_.make_stacked_weight(parts);
    if (stacked && is_bias) {
      stacked.columns = stacked.rows / num_experts;
      stacked.rows = num_experts;
    }
    return stacked;
  }

  bool has_bias(const Part& part) const { return expected_.contains(part.name + ".bias"); }

  HostTensor find(const std::string& name) {
    const std::vector<std::int64_t>& shape = expected_.at(name).shape;
    const auto found = checkpoint_.tensors.find(name);
    if (found == checkpoint_.tensors.end()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("the checkpoint has no tensor \"{}\", which its configuration calls for", name));
    }
    const CheckpointTensor& tensor = found->second;
    if (tensor.shape != shape) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} has shape ({}); the configuration calls for ({})", tensor.source,
                              fmt::join(tensor.shape, ", "), fmt::join(shape, ", ")));
    }
    std::int64_t rows = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    HostTensor result{{tensor.data, tensor.dtype, rows, shape.back(), tensor.source}, nullptr};
    if (!tensor.read_part) {
      if (read_.insert(&tensor).second) read(tensor);
      return result;
    }
    result.memory = allocate_aligned(tensor.size_bytes, tensor.source);
    read_tensor(tensor, [&](std::span<const std::byte> bytes, std::size_t first) {
      std::memcpy(result.memory.get() + first, bytes.data(), bytes.size());
      advance(bytes.size());
    });
    result.whole.data = result.memory.get();
    return result;
  }

  void read(const CheckpointTensor& tensor) {
    for (std::size_t begin = 0; begin < tensor.size_bytes; begin += kReadBytes) {
      const std::size_t size = std::min(kReadBytes, tensor.size_bytes - begin);
      request_pages(tensor.data + begin, std::min(2 * kReadBytes, tensor.size_bytes - begin));
      touch_pages(tensor.data + begin, size);
      advance(size);
    }
  }

  void advance(std::size_t size_bytes) {
    done_ += size_bytes;
    if (on_progress_) on_progress_(done_, total_);
  }

  const Checkpoint& checkpoint_;
  OpsBackend& ops_;
  const LoadProgress& on_progress_;
  std::map<std::string, ExpectedTensor> expected_;  // by name
  std::set<const CheckpointTensor*> read_;          // so far
  std::map<std::string, HostTensor> kept_;          // by name
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

void load_latent(Loader& loader, const std::string& attention, const LatentAttentionConfig& config,
                 LayerWeights& weights, std::vector<std::vector<float>>& made) {
  LatentWeights& latent = weights.latent;
  if (config.q_rank > 0) {
    latent.q_a = loader.weight(attention + "q_a_proj.weight");
    latent.q_a_norm = loader.norm(attention + "q_a_layernorm.weight", made);
  }
  weights.q = loader.weight(attention + (config.q_rank > 0 ? "q_b_proj.weight" : "q_proj.weight"));
  latent.kv_a = loader.weight(attention + "kv_a_proj_with_mqa.weight");
  latent.kv_a_norm = loader.norm(attention + "kv_a_layernorm.weight", made);
  latent.k_b = loader.heads(attention + "k_b_proj.weight");
  latent.v_b = loader.heads(attention + "v_b_proj.weight");
}

void load_qkv(Loader& loader, const std::string& attention, const ModelConfig& config,
              LayerWeights& weights) {
  if (config.fused_qkv) return loader.load({attention + "qkv_proj", &weights.qkv, &weights.qkv_bias});
  std::vector<Loader::Part> qkv = {{attention + "q_proj", &weights.q, &weights.q_bias},
                                   {attention + "k_proj", &weights.k, &weights.k_bias},
                                   {attention + "v_proj", &weights.v, &weights.v_bias}};
  if (config.attention_gate) {
    qkv.push_back({attention + "gate_proj", &weights.attention_gate, &weights.attention_gate_bias});
    if (!loader.stack(qkv, weights.qkv, weights.qkv_bias)) loader.load_each(qkv);
    return;
  }
  // Of layers that share keys and values, or make them by one matrix, some are not there.
  const std::span<const Loader::Part> parts(qkv.data(), loader.num_called_for(qkv));
  if (parts.size() == 1) return loader.load(parts.front());
  if (parts.size() == 3 && loader.stack(parts, weights.qkv, weights.qkv_bias)) return;
  if (!loader.stack(parts.first(2), weights.qk, weights.qk_bias)) loader.load_each(parts.first(2));
  loader.load_each(parts.subspan(2));
}

void load_attention(Loader& loader, const std::string& attention, const ModelConfig& config,
                    LayerWeights& weights, std::vector<std::vector<float>>& made) {
  if (config.latent) {
    load_latent(loader, attention, *config.latent, weights, made);
  } else {
    load_qkv(loader, attention, config, weights);
  }
  if (config.qk_norm_after_rope) {
    loader.load_norms_after_rope(attention, weights, made);
  } else {
    weights.q_norm = loader.norm(attention + "q_norm.weight", made);
    weights.k_norm = loader.norm(attention + "k_norm.weight", made);
  }
  loader.load({attention + "o_proj", &weights.o, &weights.o_bias});
  weights.sinks = loader.floats(attention + "sinks.weight", 0, made);
}

void load_short_conv(Loader& loader, const std::string& prefix, RecurrentWeights& weights,
                     std::vector<std::vector<float>>& made) {
  loader.load({prefix + "in_proj", &weights.in, &weights.in_bias});
  weights.conv = loader.filters(prefix + "conv.weight", made);
  weights.conv_bias = loader.floats(prefix + "conv.bias", 0, made);
  loader.load({prefix + "out_proj", &weights.out, &weights.out_bias});
}

void load_gated_delta(Loader& loader, const std::string& prefix, RecurrentWeights& weights,
                      std::vector<std::vector<float>>& made) {
  const std::vector<Loader::Part> in = {{prefix + "qkv_proj", &weights.qkv, nullptr},
                                        {prefix + "z_proj", &weights.z, nullptr},
                                        {prefix + "b_proj", &weights.b, nullptr},
                                        {prefix + "a_proj", &weights.a, nullptr}};
  const std::span<const Loader::Part> parts = in;
  Weight no_bias;
  if (!loader.stack(in, weights.in, no_bias)) {
    loader.load_each(parts.first(1));
    if (!loader.stack(parts.last(3), weights.zba, no_bias)) loader.load_each(parts.last(3));
  }
  weights.conv = loader.filters(prefix + "conv.weight", made);
  weights.a_log = loader.floats(prefix + "a_log.weight", 0, made);
  weights.dt_bias = loader.floats(prefix + "dt.bias", 0, made);
  weights.norm = loader.weight(prefix + "norm.weight");
  loader.load({prefix + "out_proj", &weights.out, &weights.out_bias});
}

void load_gate_up(Loader& loader, const std::string& mlp, const ModelConfig& config, LayerWeights& weights) {
  if (!config.gated_mlp) return loader.load({mlp + "up_proj", &weights.up, &weights.up_bias});
  if (config.fused_gate_up)
    return loader.load({mlp + "gate_up_proj", &weights.gate_up, &weights.gate_up_bias});
  const std::vector<Loader::Part> gate_up = {{mlp + "gate_proj", &weights.gate, &weights.gate_bias},
                                             {mlp + "up_proj", &weights.up, &weights.up_bias}};
  if (!loader.stack(gate_up, weights.gate_up, weights.gate_up_bias)) loader.load_each(gate_up);
}

LayerWeights load_layer(Loader& loader, const ModelConfig& config, int layer,
                        std::vector<std::vector<float>>& made) {
  const std::string prefix = fmt::format("layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";

  LayerWeights weights;
  weights.layer_scale = loader.number(prefix + "layer_scalar.weight", 1);
  weights.input_norm = loader.norm(prefix + "input_layernorm.weight", made);
  weights.input_norm_bias = loader.weight(prefix + "input_layernorm.bias");
  if (has_attention(config, layer)) {
    load_attention(loader, attention, config, weights, made);
  } else if (config.short_conv) {
    load_short_conv(loader, prefix + "short_conv.", weights.recurrent, made);
  } else {
    load_gated_delta(loader, prefix + "linear_attn.", weights.recurrent, made);
  }
  const Weight between = loader.norm(prefix + "post_attention_layernorm.weight", made);
  if (config.norms_after) {
    weights.attention_out_norm = between;
    weights.post_attention_norm = loader.norm(prefix + "pre_feedforward_layernorm.weight", made);
    weights.mlp_out_norm = loader.norm(prefix + "post_feedforward_layernorm.weight", made,
                                       config.layer_embedding_size > 0 ? 1 : weights.layer_scale);
  } else {
    weights.post_attention_norm = between;
    weights.post_attention_norm_bias = loader.weight(prefix + "post_attention_layernorm.bias");
  }
  if (config.layer_embedding_size > 0) {
    weights.layer_gate = loader.weight(prefix + "per_layer_input_gate.weight");
    weights.layer_projection = loader.weight(prefix + "per_layer_projection.weight");
    weights.layer_out_norm =
        loader.norm(prefix + "post_per_layer_input_norm.weight", made, weights.layer_scale);
  }
  if (has_experts(config, layer)) {
    weights.router = loader.router(mlp + "router.weight");
    weights.router_bias = loader.weight(mlp + "router.bias");
    weights.score_bias = loader.floats(mlp + "e_score_correction.bias", 0, made);
    loader.load_experts(mlp + "experts.", weights.experts);
    if (config.mixture->shared_gate) weights.shared_gate = loader.router(mlp + "shared_expert_gate.weight");
    if (config.mixture->shared_intermediate_size > 0) {
      load_gate_up(loader, mlp + "shared_expert.", config, weights);
      loader.load({mlp + "shared_expert.down_proj", &weights.down, &weights.down_bias});
    }
    weights.expert_scales = loader.floats(mlp + "experts.down_proj.scale", 0, made);
    if (!config.mixture->beside_mlp) return weights;
    weights.router_norm =
        loader.floats(mlp + "router.scale", 0, made, 1 / std::sqrt(static_cast<float>(config.hidden_size)));
    weights.experts_norm = loader.norm(prefix + "pre_feedforward_layernorm_2.weight", made);
    weights.mlp_alone_out_norm = loader.norm(prefix + "post_feedforward_layernorm_1.weight", made);
    weights.experts_out_norm = loader.norm(prefix + "post_feedforward_layernorm_2.weight", made);
  }
  load_gate_up(loader, mlp, config, weights);
  loader.load({mlp + "down_proj", &weights.down, &weights.down_bias});
  return weights;
}

void count(const Checkpoint& checkpoint, const OpsBackend& ops, ModelWeights& weights) {
  std::map<DType, std::size_t> bytes_of_dtype;
  std::int64_t unread = 0;  // of experts that a token doesn't go through
  for (const auto& [name, tensor] : checkpoint.tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    weights.num_parameters += elements;
    weights.size_bytes += static_cast<std::int64_t>(tensor.size_bytes);
    bytes_of_dtype[tensor.dtype] += tensor.size_bytes;
    if (is_of_experts(name)) {
      const MixtureConfig& mixture = *checkpoint.config.mixture;
      unread += static_cast<std::int64_t>(tensor.size_bytes) / mixture.num_experts *
                (mixture.num_experts - mixture.num_experts_per_token);
    }
  }
  weights.matrix_dtype =
      std::max_element(bytes_of_dtype.begin(), bytes_of_dtype.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->first;
  weights.activation_dtype = activation_dtype_of(checkpoint, ops.multiplies_bf16());
  weights.decode_bytes = weights.size_bytes - unread;
  if (checkpoint.config.layer_embedding_size > 0)
    weights.decode_bytes -=
        static_cast<std::int64_t>(checkpoint.tensors.at("embed_tokens_per_layer.weight").size_bytes);
  if (!checkpoint.config.tied_embeddings) {
    weights.decode_bytes -=
        static_cast<std::int64_t>(checkpoint.tensors.at("embed_tokens.weight").size_bytes);
  }
}

}  // namespace

DType activation_dtype_of(const Checkpoint& checkpoint, bool multiplies_bf16) {
  std::set<DType> numbers;
  bool has_blocks = false;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (!name.starts_with("layers.") || !is_matrix(name, tensor.shape.size()) || is_router(name)) continue;
    if (block_format(tensor.dtype).elements > 1) {
      has_blocks = true;
    } else {
      numbers.insert(tensor.dtype);
    }
  }
  if (numbers.contains(DType::kF32) || (has_blocks && !multiplies_bf16)) return DType::kF32;
  if (has_blocks) return DType::kBF16;
  return numbers.size() == 1 ? *numbers.begin() : DType::kF32;
}

ModelWeights load_weights(const Checkpoint& checkpoint, OpsBackend& ops, const LoadProgress& on_progress) {
  const ModelConfig& config = checkpoint.config;
  Loader loader(checkpoint, ops, on_progress);
  ModelWeights weights;
  weights.embedding = loader.weight("embed_tokens.weight");
  if (config.layer_embedding_size > 0) {
    weights.layer_embeddings = loader.weight("embed_tokens_per_layer.weight");
    weights.layer_embeddings_projection = loader.weight("per_layer_model_projection.weight");
    weights.layer_embeddings_norm =
        loader.norm("per_layer_projection_norm.weight", weights.made, std::sqrt(0.5f));
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(load_layer(loader, config, layer, weights.made));
  }
  weights.final_norm = loader.norm("norm.weight", weights.made);
  weights.final_norm_bias = loader.weight("norm.bias");
  if (config.head_bias) {
    weights.head_bias = loader.weight("lm_head.bias");
    weights.head_bias_numbers = norm_weights(checkpoint.tensors.at("lm_head.bias"), 0);
  }
  weights.head = config.tied_embeddings ? weights.embedding : loader.weight("lm_head.weight");
  count(checkpoint, ops, weights);
  return weights;
}

}  // namespace tessera
