#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint/weights.h"
#include "tessera/error.h"

// What checkpoints have of layers without attention, and of attention whose output has a gate, as the tensors
// that Checkpoint documents:
//
//   self_attn.q_proj   rows of the first head's queries and of its gate, then of the second's
//   short_conv.conv    (channels, 1, taps), as PyTorch has it; and linear_attn.conv
//   linear_attn:
//     in_proj_qkvz     Qwen3-Next: rows of the first key head's q, k, v and z, then of the second's
//     in_proj_ba       Qwen3-Next: rows of the first key head's b and a, then of the second's
//     decay_rate       GGUF: -exp(a_log)

namespace tessera {

/// The tensors of one layer.
class WeightCollector::RecurrentGatherer {
 public:
  RecurrentGatherer(std::map<std::string, Item, std::less<>>& tensors, std::string prefix)
      : tensors_(tensors), prefix_(std::move(prefix)) {}

  /// Makes a matrix of filters of one channel each.
  void flatten_filters(const std::string& name) {
    Item* const item = find(name);
    if (item == nullptr) return;
    std::vector<std::int64_t>& shape = item->tensor.shape;
    if (shape.size() == 3 && shape[1] == 1) shape.erase(shape.begin() + 1);
  }

  /// Makes the logarithms of rates below zero.
  void take_logarithm(const std::string& name, const std::string& out) {
    auto node = tensors_.extract(prefix_ + name);
    if (node.empty()) return;
    CheckpointTensor& tensor = node.mapped().tensor;
    if (!node.mapped().has_weight_dtype || tensor.dtype != DType::kF32)
      fail(node.mapped(), fmt::format("it is {}; F32 was expected", node.mapped().dtype_name));
    tensor.read_part = [source = tensor](std::int64_t part, std::byte* bytes) {
      float rate;
      std::memcpy(&rate, source.data + static_cast<std::size_t>(part) * sizeof rate, sizeof rate);
      const float logarithm = std::log(-rate);
      std::memcpy(bytes, &logarithm, sizeof logarithm);
    };
    tensor.data = nullptr;
    node.key() = prefix_ + out;
    tensors_.insert(std::move(node));
  }

  /// Rows [first, first + count) of each of a tensor's groups of rows.
  struct Rows {
    std::int64_t first = 0, count = 0;
  };
  /// A tensor that is made of such rows of all groups, those of the first Rows before those of the next.
  struct Part {
    std::string name;
    std::vector<Rows> rows;
  };

  /// Makes parts of a tensor of `num_groups` groups of `group_rows` rows, if it is there.
  void split(const std::string& name, std::int64_t num_groups, std::int64_t group_rows,
             const std::vector<Part>& parts) {
    const auto node = tensors_.extract(prefix_ + name);
    if (node.empty()) return;
    const Item& whole = node.mapped();
    const std::vector<std::int64_t>& shape = whole.tensor.shape;
    if (shape.empty() || shape.front() != num_groups * group_rows || whole.tensor.size_bytes == 0) {
      fail(whole, fmt::format("the shape is {}; {} groups of {} rows were expected", shape_text(shape),
                              num_groups, group_rows));
    }
    for (const Part& part : parts) {
      std::int64_t num_rows = 0;
      for (const Rows& rows : part.rows) num_rows += num_groups * rows.count;
      Item item = whole;
      item.tensor = tensor_of_parts({whole.tensor}, num_rows, [=, all = part.rows](std::int64_t row) {
        std::size_t i = 0;
        for (; row >= num_groups * all[i].count; ++i) row -= num_groups * all[i].count;
        const std::int64_t group = row / all[i].count, in_group = row % all[i].count;
        return TensorPart{0, group * group_rows + all[i].first + in_group};
      });
      tensors_.insert_or_assign(prefix_ + part.name, std::move(item));
    }
  }

 private:
  Item* find(const std::string& name) {
    const auto found = tensors_.find(prefix_ + name);
    return found == tensors_.end() ? nullptr : &found->second;
  }

  std::map<std::string, Item, std::less<>>& tensors_;
  const std::string prefix_;
};

void WeightCollector::gather_recurrent(const ModelConfig& config) {
  if (!config.short_conv && !config.gated_delta && !config.attention_gate) return;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    RecurrentGatherer gatherer(tensors_, fmt::format("layers.{}.", layer));
    if (has_attention(config, layer)) {
      const std::int64_t dim = config.head_dim;
      for (const char* ending : {"weight", "bias"}) {
        if (!config.attention_gate) continue;
        gatherer.split(fmt::format("self_attn.q_proj.{}", ending), config.num_heads, 2 * dim,
                       {{fmt::format("self_attn.q_proj.{}", ending), {{0, dim}}},
                        {fmt::format("self_attn.gate_proj.{}", ending), {{dim, dim}}}});
      }
    } else if (config.short_conv) {
      gatherer.flatten_filters("short_conv.conv.weight");
    } else {
      const GatedDeltaConfig& delta = *config.gated_delta;
      gatherer.flatten_filters("linear_attn.conv.weight");
      gatherer.take_logarithm("linear_attn.decay_rate.weight", "linear_attn.a_log.weight");
      const std::int64_t heads = delta.num_value_heads / delta.num_key_heads;  // of a key head
      const std::int64_t keys = delta.key_dim, values = heads * delta.value_dim;
      gatherer.split("linear_attn.in_proj_qkvz.weight", delta.num_key_heads, 2 * (keys + values),
                     {{"linear_attn.qkv_proj.weight", {{0, keys}, {keys, keys}, {2 * keys, values}}},
                      {"linear_attn.z_proj.weight", {{2 * keys + values, values}}}});
      gatherer.split(
          "linear_attn.in_proj_ba.weight", delta.num_key_heads, 2 * heads,
          {{"linear_attn.b_proj.weight", {{0, heads}}}, {"linear_attn.a_proj.weight", {{heads, heads}}}});
    }
  }
}

}  // namespace tessera
