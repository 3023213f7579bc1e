#include "model/checkpoint/weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "core/block_format.h"
#include "core/parallel.h"
#include "core/text.h"
#include "model/checkpoint/expected_tensors.h"
#include "tessera/error.h"

namespace tessera {
namespace {

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

std::size_t bytes_of_part(const CheckpointTensor& tensor) {
  return tensor.size_bytes / static_cast<std::size_t>(tensor.shape.front());
}

void read_part(const CheckpointTensor& tensor, std::size_t part, std::byte* out) {
  if (tensor.read_part) return tensor.read_part(static_cast<std::int64_t>(part), out);
  const std::size_t bytes = bytes_of_part(tensor);
  std::memcpy(out, tensor.data + part * bytes, bytes);
}

CheckpointTensor tensor_of_parts(std::vector<CheckpointTensor> tensors, std::int64_t num_parts,
                                 std::function<TensorPart(std::int64_t)> place) {
  CheckpointTensor result = tensors.front();
  result.size_bytes = bytes_of_part(result) * static_cast<std::size_t>(num_parts);
  result.shape.front() = num_parts;
  result.data = nullptr;
  result.read_part = [tensors = std::move(tensors), place = std::move(place)](std::int64_t part,
                                                                              std::byte* out) {
    const TensorPart from = place(part);
    read_part(tensors[from.tensor], static_cast<std::size_t>(from.part), out);
  };
  return result;
}

void read_parts(const CheckpointTensor& tensor, std::byte* out) {
  if (!tensor.read_part) {
    std::memcpy(out, tensor.data, tensor.size_bytes);
    return;
  }
  for (std::size_t part = 0; part < static_cast<std::size_t>(tensor.shape.front()); ++part)
    read_part(tensor, part, out + part * bytes_of_part(tensor));
}

void read_tensor(const CheckpointTensor& tensor,
                 const std::function<void(std::span<const std::byte>, std::size_t)>& visit) {
  if (!tensor.read_part) return visit({tensor.data, tensor.size_bytes}, 0);
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  const auto parts = static_cast<std::size_t>(tensor.shape.front());
  const std::size_t part_bytes = bytes_of_part(tensor);
  const std::size_t step =
      std::clamp<std::size_t>(kMostBytes / std::max<std::size_t>(1, part_bytes), 1, parts);
  std::vector<std::byte> memory(step * part_bytes);
  for (std::size_t begin = 0; begin < parts; begin += step) {
    const std::size_t count = std::min(step, parts - begin);
    parallel_for(count, [&](std::size_t i) {
      tensor.read_part(static_cast<std::int64_t>(begin + i), memory.data() + i * part_bytes);
    });
    visit({memory.data(), count * part_bytes}, begin * part_bytes);
  }
}

void read_elements(DType stored, const std::byte* data, std::size_t first, std::span<float> out) {
  dispatch_weight(stored, [&]<class T>() {
    if constexpr (is_block_format<T>) {
      const auto* block = reinterpret_cast<const unsigned char*>(data) + first / T::kElements * T::kBytes;
      for (std::size_t i = 0; i < out.size(); i += T::kElements, block += T::kBytes) {
        float values[T::kElements];
        T::decode(block, 0, values);
        std::copy_n(values, T::kElements, out.begin() + static_cast<std::ptrdiff_t>(i));
      }
    } else {
      for (std::size_t i = 0; i < out.size(); ++i) {
        T value;
        std::memcpy(&value, data + (first + i) * sizeof(T), sizeof value);
        out[i] = static_cast<float>(value);
      }
    }
  });
}

std::vector<float> norm_weights(const CheckpointTensor& tensor, float offset) {
  std::vector<float> weights;
  read_tensor(tensor, [&](std::span<const std::byte> bytes, std::size_t) {
    dispatch_activation(tensor.dtype, [&]<class T>() {
      for (std::size_t i = 0; i < bytes.size(); i += sizeof(T)) {
        T value;
        std::memcpy(&value, bytes.data() + i, sizeof(T));
        weights.push_back(static_cast<float>(value) + offset);
      }
    });
  });
  return weights;
}

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

void WeightCollector::fail(const Item& item, const std::string& what) {
  throw Error(ErrorCode::kCorruptFile,
              fmt::format("{} (byte {}): {}", item.tensor.source, item.offset, what));
}

bool WeightCollector::tie_head() {
  const auto embedding = tensors_.find("embed_tokens.weight"), head = tensors_.find("lm_head.weight");
  if (head == tensors_.end()) return true;
  if (embedding == tensors_.end()) {
    auto node = tensors_.extract(head);
    node.key() = "embed_tokens.weight";
    tensors_.insert(std::move(node));
    return true;
  }
  const CheckpointTensor &a = embedding->second.tensor, &b = head->second.tensor;
  return a.data != nullptr && b.data != nullptr && embedding->second.dtype_name == head->second.dtype_name &&
         a.shape == b.shape && std::equal(a.data, a.data + a.size_bytes, b.data, b.data + b.size_bytes);
}

void WeightCollector::drop_shared_kv(const ModelConfig& config) {
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (kv_layer(config, layer) == layer) continue;
    for (const char* name : {"k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias", "k_norm.weight"})
      tensors_.erase(fmt::format("layers.{}.self_attn.{}", layer, name));
  }
}

void WeightCollector::move_to(Checkpoint& checkpoint, const std::string& source) {
  const ModelConfig& config = checkpoint.config;
  drop_shared_kv(config);
  for (const auto& [name, shape, split] : expected_tensors(config)) {
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
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("{}: the dtype is {}; weights may be {}, those of blocks in GGUF files only, or of "
                      "a quantization_config that config.json has",
                      where, item.dtype_name, stored_dtype_list("or")));
    }
    if (!is_matrix(name, shape.size()) && block_format(item.tensor.dtype).elements > 1) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: a vector may be F32, F16 or BF16, but not {}", where, item.dtype_name));
    }
    checkpoint.tensors.emplace(name, std::move(item.tensor));
    tensors_.erase(found);
  }
  for (const auto& [name, item] : tensors_) {
    if (is_in_layer(name, config.num_layers) && !name.ends_with("rotary_emb.inv_freq")) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} (byte {}): a {} layer has no such tensor under this configuration",
                              item.tensor.source, item.offset, architecture_name(config.architecture)));
    }
  }
}

}  // namespace tessera
