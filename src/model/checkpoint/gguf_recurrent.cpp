#include "model/checkpoint/gguf_recurrent.h"

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/block_format.h"
#include "tessera/error.h"

namespace tessera {
namespace {

/// One layer's tensors.
class LayerForm {
 public:
  LayerForm(Checkpoint& checkpoint, int layer)
      : tensors_(checkpoint.tensors), config_(checkpoint.config), prefix_(fmt::format("layers.{}.", layer)) {}

  /// A head's rows of the first tensor, then of the second.
  void join_by_heads(const char* first, const char* second, const char* out, std::int64_t num_heads) {
    auto one = tensors_.extract(prefix_ + first), other = tensors_.extract(prefix_ + second);
    if (one.empty() || other.empty()) return;
    const std::int64_t rows = one.mapped().shape.front(), of_head = rows / num_heads;
    tensors_[prefix_ + out] = tensor_of_parts(
        {std::move(one.mapped()), std::move(other.mapped())}, 2 * rows, [of_head](std::int64_t row) {
          const std::int64_t head = row / (2 * of_head), in_head = row % (2 * of_head);
          const bool is_second = in_head >= of_head;
          return TensorPart{is_second ? 1u : 0u, head * of_head + in_head - (is_second ? of_head : 0)};
        });
  }

  /// Rows of heads of values from `first` on that take turns at key heads.
  void order_rows(const char* name, std::int64_t first, std::int64_t of_head) {
    CheckpointTensor& tensor = tensors_.at(prefix_ + name);
    const std::int64_t rows = tensor.shape.front();
    tensor = tensor_of_parts({tensor}, rows, [=, order = order()](std::int64_t row) {
      if (row < first) return TensorPart{0, row};
      const std::int64_t head = (row - first) / of_head;
      return TensorPart{0, first + order[static_cast<std::size_t>(head)] * of_head + (row - first) % of_head};
    });
  }

  /// The same of a matrix's columns.
  void order_columns(const char* name) {
    CheckpointTensor& tensor = tensors_.at(prefix_ + name);
    const std::int64_t of_head = config_.gated_delta->value_dim;
    if (of_head % block_format(tensor.dtype).elements != 0) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} holds blocks of {}, which are no parts of a head's {} columns, whose order "
                              "is another in GGUF files",
                              tensor.source, block_format(tensor.dtype).name, of_head));
    }
    const std::size_t head_bytes = dtype_bytes(tensor.dtype, static_cast<std::size_t>(of_head));
    CheckpointTensor ordered = tensor;
    ordered.data = nullptr;
    ordered.read_part = [source = tensor, head_bytes, order = order()](std::int64_t row, std::byte* out) {
      std::vector<std::byte> bytes(bytes_of_part(source));
      read_part(source, static_cast<std::size_t>(row), bytes.data());
      for (std::size_t head = 0; head < order.size(); ++head)
        std::memcpy(out + head * head_bytes,
                    bytes.data() + static_cast<std::size_t>(order[head]) * head_bytes, head_bytes);
    };
    tensor = std::move(ordered);
  }

  void make_decay_rate() {
    auto node = tensors_.extract(prefix_ + "linear_attn.a_log.weight");
    const std::vector<float> logarithms = norm_weights(node.mapped(), 0);
    const auto rates = std::make_shared<std::vector<float>>();
    for (const float logarithm : logarithms) rates->push_back(-std::exp(logarithm));
    CheckpointTensor& tensor = node.mapped();
    tensor.dtype = DType::kF32;
    tensor.size_bytes = rates->size() * sizeof(float);
    tensor.data = nullptr;
    tensor.read_part = [rates](std::int64_t part, std::byte* out) {
      std::memcpy(out, &(*rates)[static_cast<std::size_t>(part)], sizeof(float));
    };
    node.key() = prefix_ + "linear_attn.decay_rate.weight";
    tensors_.insert(std::move(node));
  }

 private:
  /// The head of values that takes each head's place.
  std::vector<std::int64_t> order() const {
    const GatedDeltaConfig& delta = *config_.gated_delta;
    const int of_key = delta.num_value_heads / delta.num_key_heads;
    std::vector<std::int64_t> heads;
    for (int head = 0; head < delta.num_value_heads; ++head)
      heads.push_back(std::int64_t{head % delta.num_key_heads} * of_key + head / delta.num_key_heads);
    return heads;
  }

  std::map<std::string, CheckpointTensor, std::less<>>& tensors_;
  const ModelConfig& config_;
  const std::string prefix_;
};

}  // namespace

void make_gguf_recurrent_form(Checkpoint& checkpoint) {
  ModelConfig& config = checkpoint.config;
  if (!config.gated_delta && !config.attention_gate) return;
  const bool takes_turns = config.gated_delta && config.architecture != Architecture::kQwen3Next;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    LayerForm form(checkpoint, layer);
    if (has_attention(config, layer)) {
      for (const char* ending : {"weight", "bias"}) {
        const std::string q = fmt::format("self_attn.q_proj.{}", ending);
        const std::string gate = fmt::format("self_attn.gate_proj.{}", ending);
        form.join_by_heads(q.c_str(), gate.c_str(), q.c_str(), config.num_heads);
      }
      continue;
    }
    const GatedDeltaConfig& delta = *config.gated_delta;
    if (takes_turns) {
      form.order_rows("linear_attn.qkv_proj.weight", 2 * delta.key_columns(), delta.value_dim);
      form.order_rows("linear_attn.conv.weight", 2 * delta.key_columns(), delta.value_dim);
      form.order_rows("linear_attn.z_proj.weight", 0, delta.value_dim);
      for (const char* name : {"b_proj.weight", "a_proj.weight", "a_log.weight", "dt.bias"})
        form.order_rows(fmt::format("linear_attn.{}", name).c_str(), 0, 1);
      form.order_columns("linear_attn.out_proj.weight");
    } else {
      form.join_by_heads("linear_attn.b_proj.weight", "linear_attn.a_proj.weight",
                         "linear_attn.in_proj_ba.weight", delta.num_key_heads);
    }
    form.make_decay_rate();
  }
  if (takes_turns) config.gated_delta->takes_turns = true;
}

}  // namespace tessera
