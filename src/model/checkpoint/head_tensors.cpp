#include <fmt/core.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint/weights.h"
#include "tessera/error.h"

// What Hugging Face folders have by heads, as the tensors that Checkpoint documents:
//
//   self_attn.qkv_proj                   GPT-NeoX: rows of the first head's q, k and v, then of the second's
//   self_attn.q_layernorm.norms.7.weight StableLM: the norm of a head

namespace tessera {

/// The tensors of one layer's attention.
class WeightCollector::HeadGatherer {
 public:
  HeadGatherer(std::map<std::string, Item, std::less<>>& tensors, std::string prefix,
               const ModelConfig& config)
      : tensors_(tensors), prefix_(std::move(prefix)), config_(config) {}

  void order_qkv(const char* ending) {
    const auto found = tensors_.find(prefix_ + "qkv_proj." + ending);
    if (found == tensors_.end()) return;
    Item& item = found->second;
    const std::int64_t heads = config_.num_heads, head_dim = config_.head_dim, rows = 3 * heads * head_dim;
    if (item.tensor.shape.empty() || item.tensor.shape.front() != rows)
      fail(item, fmt::format("the shape is {}; {} rows were expected, of q, k and v of {} heads of {}",
                             shape_text(item.tensor.shape), rows, heads, head_dim));
    CheckpointTensor source = item.tensor;
    item.tensor.data = nullptr;
    item.tensor.read_part = [=, source = std::move(source)](std::int64_t row, std::byte* out) {
      const std::int64_t part = row / (heads * head_dim), in_part = row % (heads * head_dim);
      const std::int64_t from = (in_part / head_dim * 3 + part) * head_dim + in_part % head_dim;
      read_part(source, static_cast<std::size_t>(from), out);
    };
  }

  /// Buffers of masks, which the first files have.
  void drop_masks() {
    for (const char* name : {"attention.bias", "attention.masked_bias"}) {
      std::string layer = prefix_.substr(0, prefix_.size() - std::string_view("self_attn.").size());
      tensors_.erase(layer + name);
    }
  }

  void join_norms(const char* folder_name, const char* name, int num_heads) {
    const auto of_head = [&](int head) {
      return fmt::format("{}{}.norms.{}.weight", prefix_, folder_name, head);
    };
    std::vector<CheckpointTensor> heads;
    Item joined;
    for (int head = 0; head < num_heads; ++head) {
      auto node = tensors_.extract(of_head(head));
      if (node.empty()) {
        throw Error(
            ErrorCode::kCorruptFile,
            fmt::format("the tensor '{}' is missing, which the configuration calls for", of_head(head)));
      }
      if (head == 0) joined = node.mapped();
      const std::vector<std::int64_t> expected = {config_.head_dim};
      if (node.mapped().tensor.shape != expected || node.mapped().dtype_name != joined.dtype_name)
        fail(node.mapped(),
             fmt::format("it is {} {}; {} {} was expected", node.mapped().dtype_name,
                         shape_text(node.mapped().tensor.shape), joined.dtype_name, shape_text(expected)));
      heads.push_back(node.mapped().tensor);
    }
    joined.tensor.shape = {num_heads, config_.head_dim};
    joined.tensor.size_bytes *= static_cast<std::size_t>(num_heads);
    joined.tensor.data = nullptr;
    joined.tensor.read_part = [heads = std::move(heads)](std::int64_t head, std::byte* out) {
      read_parts(heads[static_cast<std::size_t>(head)], out);
    };
    tensors_.insert_or_assign(prefix_ + name, std::move(joined));
  }

 private:
  std::map<std::string, Item, std::less<>>& tensors_;
  const std::string prefix_;
  const ModelConfig& config_;
};

void WeightCollector::gather_heads(const ModelConfig& config) {
  const bool is_gpt_neox = config.architecture == Architecture::kGptNeoX;
  const bool has_norms =
      config.architecture == Architecture::kStableLm && config.qk_norm == QkNorm::kOwnEachHead;
  for (int layer = 0; layer < config.num_layers && (is_gpt_neox || has_norms); ++layer) {
    HeadGatherer heads(tensors_, fmt::format("layers.{}.self_attn.", layer), config);
    if (is_gpt_neox) {
      heads.order_qkv("weight");
      heads.order_qkv("bias");
      heads.drop_masks();
    }
    if (!has_norms) continue;
    heads.join_norms("q_layernorm", "q_norm.weight", config.num_heads);
    heads.join_norms("k_layernorm", "k_norm.weight", config.num_kv_heads);
  }
}

}  // namespace tessera
