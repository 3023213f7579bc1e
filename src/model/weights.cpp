#include "model/weights.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/parallel.h"
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
  }

  Weight matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    return ops_.make_weight(find(name, {rows, columns}, rows, columns));
  }
  Weight vector(const std::string& name, std::int64_t columns) {
    return ops_.make_weight(find(name, {columns}, 1, columns));
  }
  Weight bias(bool present, const std::string& name, std::int64_t columns) {
    return present ? vector(name + ".bias", columns) : Weight{};
  }

  /// A linear layer of several: the rows of each in its checkpoint.
  struct Part {
    std::string name;  ///< without ".weight"
    std::int64_t rows = 0;
    Weight* weight = nullptr;
    Weight* bias = nullptr;
  };

  /// Loads linear layers with the same input: into one weight where the device wants that, else each into its
  /// own.
  void linear_layers(std::span<const Part> parts, std::int64_t columns, bool has_bias, Weight& stacked,
                     Weight& stacked_bias) {
    std::vector<HostWeight> weights, biases;
    for (const Part& part : parts) {
      weights.push_back(find(part.name + ".weight", {part.rows, columns}, part.rows, columns));
      if (has_bias) biases.push_back(find(part.name + ".bias", {part.rows}, part.rows, 1));
    }
    stacked = ops_.make_stacked_weight(weights);
    if (stacked && has_bias) {
      stacked_bias = ops_.make_stacked_weight(biases);  // a column of them all, which is a row as well
      std::swap(stacked_bias.rows, stacked_bias.columns);
      if (!stacked_bias) stacked = {};
    }
    if (stacked) return;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      *parts[i].weight = ops_.make_weight(weights[i]);
      if (!has_bias) continue;
      std::swap(biases[i].rows, biases[i].columns);
      *parts[i].bias = ops_.make_weight(biases[i]);
    }
  }

 private:
  HostWeight find(const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t rows,
                  std::int64_t columns) {
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
    read(tensor);
    return {tensor.data, tensor.dtype, rows, columns, tensor.source};
  }

  void read(const CheckpointTensor& tensor) {
    for (std::size_t begin = 0; begin < tensor.size_bytes; begin += kReadBytes) {
      const std::size_t size = std::min(kReadBytes, tensor.size_bytes - begin);
      request_pages(tensor.data + begin, std::min(2 * kReadBytes, tensor.size_bytes - begin));
      touch_pages(tensor.data + begin, size);
      done_ += size;
      if (on_progress_) on_progress_(done_, total_);
    }
  }

  const Checkpoint& checkpoint_;
  OpsBackend& ops_;
  const LoadProgress& on_progress_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

LayerWeights load_layer(Loader& loader, const ModelConfig& config, int layer) {
  const std::string prefix = fmt::format("layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t width = config.intermediate_size;
  const std::int64_t q_columns = std::int64_t{config.num_heads} * config.head_dim;
  const std::int64_t kv_columns = std::int64_t{config.num_kv_heads} * config.head_dim;

  LayerWeights weights;
  weights.input_norm = loader.vector(prefix + "input_layernorm.weight", hidden);
  const std::vector<Loader::Part> qkv = {{attention + "q_proj", q_columns, &weights.q, &weights.q_bias},
                                         {attention + "k_proj", kv_columns, &weights.k, &weights.k_bias},
                                         {attention + "v_proj", kv_columns, &weights.v, &weights.v_bias}};
  loader.linear_layers(qkv, hidden, config.qkv_bias, weights.qkv, weights.qkv_bias);
  if (config.qk_norm) {
    weights.q_norm = loader.vector(attention + "q_norm.weight", config.head_dim);
    weights.k_norm = loader.vector(attention + "k_norm.weight", config.head_dim);
  }
  weights.o = loader.matrix(attention + "o_proj.weight", hidden, q_columns);
  weights.o_bias = loader.bias(config.o_bias, attention + "o_proj", hidden);
  weights.post_attention_norm = loader.vector(prefix + "post_attention_layernorm.weight", hidden);
  const std::vector<Loader::Part> gate_up = {{mlp + "gate_proj", width, &weights.gate, &weights.gate_bias},
                                             {mlp + "up_proj", width, &weights.up, &weights.up_bias}};
  loader.linear_layers(gate_up, hidden, config.mlp_bias, weights.gate_up, weights.gate_up_bias);
  weights.down = loader.matrix(mlp + "down_proj.weight", hidden, width);
  weights.down_bias = loader.bias(config.mlp_bias, mlp + "down_proj", hidden);
  return weights;
}

void count(const Checkpoint& checkpoint, ModelWeights& weights) {
  std::map<DType, std::size_t> bytes_of_dtype;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    weights.num_parameters += elements;
    weights.size_bytes += static_cast<std::int64_t>(tensor.size_bytes);
    bytes_of_dtype[tensor.dtype] += tensor.size_bytes;
  }
  weights.matrix_dtype =
      std::max_element(bytes_of_dtype.begin(), bytes_of_dtype.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->first;
  weights.decode_bytes = weights.size_bytes;
  if (!checkpoint.config.tied_embeddings) {
    weights.decode_bytes -=
        static_cast<std::int64_t>(checkpoint.tensors.at("embed_tokens.weight").size_bytes);
  }
}

}  // namespace

ModelWeights load_weights(const Checkpoint& checkpoint, OpsBackend& ops, const LoadProgress& on_progress) {
  const ModelConfig& config = checkpoint.config;
  Loader loader(checkpoint, ops, on_progress);
  ModelWeights weights;
  weights.embedding = loader.matrix("embed_tokens.weight", config.vocab_size, config.hidden_size);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(load_layer(loader, config, layer));
  }
  weights.final_norm = loader.vector("norm.weight", config.hidden_size);
  weights.head = config.tied_embeddings
                     ? weights.embedding
                     : loader.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  count(checkpoint, weights);
  return weights;
}

}  // namespace tessera
