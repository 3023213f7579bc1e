#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "core/block_format.h"
#include "model/checkpoint/weights.h"
#include "tessera/error.h"

// What Hugging Face folders have of mixtures of experts, as the tensors that Checkpoint documents:
//
//   experts.7.gate_proj.weight         a matrix of each expert
//   experts.gate_up_proj               (experts, 2 width, hidden): rows of gate, then those of up
//   experts.gate_up_proj.weight        the same of GGUF files of Gemma 4
//   experts.gate_up_proj               gpt-oss: (experts, hidden, 2 width): columns of gate and up by turns
//   experts.gate_up_proj               Qwen3-VL: (experts, hidden, 2 width): columns of gate, then of up
//   experts.gate_up_proj_blocks        gpt-oss: (experts, 2 width, hidden / 32, 16): rows by turns, MXFP4
//   experts.gate_up_proj_scales        without their scales, which stand here
//   shared_expert.gate_up_proj         Granite: (2 width, hidden): rows of gate, then those of up
//   gate_up_proj                       the same of an MLP
//   shared_expert_gate.weight          (1, hidden), a vector
//   e_score_correction.bias            ERNIE 4.5: (1, experts), a vector

namespace tessera {
namespace {

constexpr std::size_t kMxfp4Elements = 32, kMxfp4Bytes = 17;

/// Puts the scale and the nibbles of a block together. In a folder a byte has two neighbours, the first in
/// its low half; in GGUF files it has numbers j and j + 16.
void join_mxfp4(const std::byte* nibbles, std::byte scale, std::byte* out) {
  constexpr std::size_t kHalf = kMxfp4Elements / 2;
  const auto nibble = [&](std::size_t i) {
    const auto byte = std::to_integer<unsigned>(nibbles[i / 2]);
    return i % 2 == 0 ? byte & 0xfu : byte >> 4;
  };
  out[0] = scale;
  for (std::size_t j = 0; j < kHalf; ++j)
    out[1 + j] = static_cast<std::byte>(nibble(j) | nibble(j + kHalf) << 4);
}

std::size_t extent(const CheckpointTensor& tensor, std::size_t dimension) {
  return static_cast<std::size_t>(tensor.shape[dimension]);
}

}  // namespace

/// The tensors of one layer's experts.
class WeightCollector::ExpertGatherer {
 public:
  ExpertGatherer(std::map<std::string, Item, std::less<>>& tensors, const std::string& mlp,
                 const ModelConfig& config)
      : tensors_(tensors), mlp_(mlp), prefix_(mlp + "experts."), config_(config) {}

  void run() {
    flatten("shared_expert_gate.weight");
    flatten("e_score_correction.bias");
    gather_experts();
  }

 private:
  void gather_experts() {
    const bool is_gpt_oss = config_.architecture == Architecture::kGptOss;
    if (config_.architecture == Architecture::kGemma4) rename("gate_up_proj.weight", "gate_up_proj");
    if (find("0.gate_proj.weight") != nullptr) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) gather(name);
    } else if (find("gate_up_proj_blocks") != nullptr && is_gpt_oss) {
      join_blocks("gate_up_proj", 2);
      join_blocks("down_proj", 1);
    } else if (find("gate_up_proj") != nullptr) {
      if (is_gpt_oss || config_.transposed_experts) {
        transpose("gate_up_proj", 2, is_gpt_oss);
        transpose("down_proj", 1, false);
      } else {
        cut_in_two();
        rename("down_proj", "down_proj.weight");
      }
    }
    if (!is_gpt_oss) return;
    by_turns("gate_up_proj_bias");
    rename("down_proj_bias", "down_proj.bias");
  }

  /// Makes a vector of one row.
  void flatten(const char* name) {
    const auto found = tensors_.find(mlp_ + name);
    if (found == tensors_.end()) return;
    std::vector<std::int64_t>& shape = found->second.tensor.shape;
    if (shape.size() == 2 && shape[0] == 1) shape.erase(shape.begin());
  }

  Item* find(const std::string& name) {
    const auto found = tensors_.find(prefix_ + name);
    return found == tensors_.end() ? nullptr : &found->second;
  }

  /// A tensor with so many dimensions, none of them 0.
  Item& require(const std::string& name, std::size_t dimensions) {
    Item* const item = find(name);
    if (item == nullptr) {
      throw Error(
          ErrorCode::kCorruptFile,
          fmt::format("the tensor '{}{}' is missing, which the configuration calls for", prefix_, name));
    }
    const std::vector<std::int64_t>& shape = item->tensor.shape;
    if (shape.size() != dimensions || item->tensor.size_bytes == 0) {
      fail(*item, fmt::format("the shape is {}; {} dimensions that are not 0 were expected",
                              shape_text(shape), dimensions));
    }
    return *item;
  }

  void erase(const std::string& name) { tensors_.erase(prefix_ + name); }

  void rename(const std::string& from, const std::string& to) {
    auto node = tensors_.extract(prefix_ + from);
    if (node.empty()) return;
    node.key() = prefix_ + to;
    tensors_.insert(std::move(node));
  }

  /// Adds a tensor that `like` or a part of it is read as.
  void add(const std::string& name, const Item& like, std::vector<std::int64_t> shape, std::size_t size_bytes,
           std::function<void(std::int64_t, std::byte*)> read_part) {
    Item item = like;
    item.tensor.shape = std::move(shape);
    item.tensor.size_bytes = size_bytes;
    item.tensor.data = nullptr;
    item.tensor.read_part = std::move(read_part);
    tensors_.insert_or_assign(prefix_ + name, std::move(item));
  }

  /// A matrix of each expert, all alike.
  void gather(const std::string& name) {
    const auto of_expert = [&](int expert) { return fmt::format("{}.{}.weight", expert, name); };
    const Item first = require(of_expert(0), 2);
    std::vector<CheckpointTensor> parts;
    for (int expert = 0; expert < config_.mixture->num_experts; ++expert) {
      const Item& item = require(of_expert(expert), 2);
      if (item.tensor.shape != first.tensor.shape || item.dtype_name != first.dtype_name) {
        fail(item,
             fmt::format("it is {} {}; {} {} was expected as of the first expert", item.dtype_name,
                         shape_text(item.tensor.shape), first.dtype_name, shape_text(first.tensor.shape)));
      }
      parts.push_back(item.tensor);
    }
    for (int expert = 0; expert < config_.mixture->num_experts; ++expert) erase(of_expert(expert));
    const std::size_t all_bytes = first.tensor.size_bytes * parts.size();
    add(name + ".weight", first, {config_.mixture->num_experts, first.tensor.shape[0], first.tensor.shape[1]},
        all_bytes, [parts = std::move(parts)](std::int64_t part, std::byte* out) {
          read_parts(parts[static_cast<std::size_t>(part)], out);
        });
  }

  /// Upper and lower half of each expert's rows.
  void cut_in_two() {
    const Item whole = require("gate_up_proj", 3);
    const CheckpointTensor& tensor = whole.tensor;
    if (tensor.shape[1] % 2 != 0) {
      fail(whole, fmt::format("the shape is {}; an even number of rows was expected, of gate and of up",
                              shape_text(tensor.shape)));
    }
    const std::size_t bytes = bytes_of_part(tensor), half = bytes / 2;
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
      const std::byte* const begin = tensor.data + which * half;
      add(which == 0 ? "gate_proj.weight" : "up_proj.weight", whole,
          {tensor.shape[0], tensor.shape[1] / 2, tensor.shape[2]}, tensor.size_bytes / 2,
          [=](std::int64_t part, std::byte* out) {
            std::memcpy(out, begin + static_cast<std::size_t>(part) * bytes, half);
          });
    }
    erase("gate_up_proj");
  }

  static const char* name_of(std::size_t which, std::size_t turns) {
    return turns == 1 ? "down_proj" : which == 0 ? "gate_proj" : "up_proj";
  }

  /// The columns of each of an expert's `parts` matrices, which stand by turns or one part behind the other,
  /// as rows.
  void transpose(const std::string& name, std::size_t parts, bool by_turns) {
    const Item whole = require(name, 3);
    const CheckpointTensor& tensor = whole.tensor;
    const std::size_t in = extent(tensor, 1), columns = extent(tensor, 2), out_features = columns / parts;
    if (columns % parts != 0 || !whole.has_weight_dtype)
      fail(whole, fmt::format("it is {} {}; numbers of columns of gate and as many of up were expected",
                              whole.dtype_name, shape_text(tensor.shape)));
    const std::size_t step = by_turns ? parts : 1;
    const std::size_t element = tensor.size_bytes / (extent(tensor, 0) * in * columns);
    for (std::size_t which = 0; which < parts; ++which) {
      const std::byte* const begin = tensor.data;
      const std::size_t first = by_turns ? which : which * out_features;
      add(fmt::format("{}.weight", name_of(which, parts)), whole,
          {tensor.shape[0], static_cast<std::int64_t>(out_features), tensor.shape[1]},
          tensor.size_bytes / parts, [=](std::int64_t part, std::byte* out) {
            const std::byte* const matrix = begin + static_cast<std::size_t>(part) * in * columns * element;
            for (std::size_t i = 0; i < out_features; ++i) {
              for (std::size_t j = 0; j < in; ++j) {
                std::memcpy(out + (i * in + j) * element, matrix + (j * columns + i * step + first) * element,
                            element);
              }
            }
          });
    }
    erase(name);
  }

  /// Every `turns`-th row of each expert in blocks whose scales stand elsewhere.
  void join_blocks(const std::string& name, std::size_t turns) {
    const Item blocks = require(name + "_blocks", 4);
    const Item scales = require(name + "_scales", 3);
    const std::vector<std::int64_t>& shape = blocks.tensor.shape;
    const std::vector<std::int64_t> of_scales(shape.begin(), shape.begin() + 3);
    if (blocks.dtype_name != "U8" || shape[3] != static_cast<std::int64_t>(kMxfp4Elements / 2) ||
        extent(blocks.tensor, 1) % turns != 0) {
      fail(blocks, fmt::format("it is {} {}; U8 (experts, rows, blocks, 16) was expected", blocks.dtype_name,
                               shape_text(shape)));
    }
    if (scales.dtype_name != "U8" || scales.tensor.shape != of_scales) {
      fail(scales, fmt::format("it is {} {}; U8 {} was expected as of the blocks", scales.dtype_name,
                               shape_text(scales.tensor.shape), shape_text(of_scales)));
    }
    const std::size_t rows = extent(blocks.tensor, 1), row_blocks = extent(blocks.tensor, 2);
    const std::byte* const nibbles = blocks.tensor.data;
    const std::byte* const exponents = scales.tensor.data;
    for (std::size_t which = 0; which < turns; ++which) {
      Item like = blocks;
      like.tensor.dtype = DType::kMXFP4;
      like.dtype_name = "MXFP4";
      like.has_weight_dtype = true;
      add(fmt::format("{}.weight", name_of(which, turns)), like,
          {shape[0], static_cast<std::int64_t>(rows / turns),
           static_cast<std::int64_t>(row_blocks * kMxfp4Elements)},
          extent(blocks.tensor, 0) * (rows / turns) * row_blocks * kMxfp4Bytes,
          [=](std::int64_t part, std::byte* out) {
            for (std::size_t i = 0; i < rows / turns; ++i) {
              const std::size_t row = static_cast<std::size_t>(part) * rows + i * turns + which;
              for (std::size_t b = 0; b < row_blocks; ++b, out += kMxfp4Bytes) {
                const std::size_t block = row * row_blocks + b;
                join_mxfp4(nibbles + block * kMxfp4Elements / 2, exponents[block], out);
              }
            }
          });
    }
    erase(name + "_blocks");
    erase(name + "_scales");
  }

  /// Biases of gate and up by turns.
  void by_turns(const std::string& name) {
    if (find(name) == nullptr) return;
    const Item whole = require(name, 2);
    const CheckpointTensor& tensor = whole.tensor;
    const std::size_t columns = extent(tensor, 1);
    if (columns % 2 != 0 || !whole.has_weight_dtype)
      fail(whole, fmt::format("it is {} {}; numbers of gate and of up by turns were expected",
                              whole.dtype_name, shape_text(tensor.shape)));
    const std::size_t bytes = bytes_of_part(tensor), element = bytes / columns;
    const std::byte* const begin = tensor.data;
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
      add(fmt::format("{}.bias", name_of(which, 2)), whole, {tensor.shape[0], tensor.shape[1] / 2},
          tensor.size_bytes / 2, [=](std::int64_t part, std::byte* out) {
            const std::byte* const row = begin + static_cast<std::size_t>(part) * bytes;
            for (std::size_t i = 0; i < columns / 2; ++i)
              std::memcpy(out + i * element, row + (2 * i + which) * element, element);
          });
    }
    erase(name);
  }

  std::map<std::string, Item, std::less<>>& tensors_;
  const std::string mlp_, prefix_;  ///< of what the layer's mixture has, and of its experts
  const ModelConfig& config_;
};

void WeightCollector::cut_gate_up(const std::string& mlp) {
  auto node = tensors_.extract(mlp + "gate_up_proj.weight");
  if (node.empty()) return;
  const CheckpointTensor whole = node.mapped().tensor;
  if (whole.shape.size() != 2 || whole.shape[0] % 2 != 0) {
    fail(node.mapped(), fmt::format("the shape is {}; rows of gate and as many of up were expected",
                                    shape_text(whole.shape)));
  }
  const std::int64_t rows = whole.shape[0] / 2;
  for (const std::int64_t first : {std::int64_t{0}, rows}) {
    Item half = node.mapped();
    half.tensor.shape[0] = rows;
    half.tensor.size_bytes = whole.size_bytes / 2;
    if (whole.read_part) {
      half.tensor.read_part = [whole, first](std::int64_t part, std::byte* out) {
        whole.read_part(first + part, out);
      };
    } else if (first > 0) {
      half.tensor.data += half.tensor.size_bytes;
    }
    tensors_.insert_or_assign(mlp + (first == 0 ? "gate_proj.weight" : "up_proj.weight"), std::move(half));
  }
}

void WeightCollector::gather_experts(const ModelConfig& config) {
  split_latent_heads(config);
  for (int layer = 0; layer < config.num_layers && !config.fused_gate_up; ++layer) {
    const std::string mlp = fmt::format("layers.{}.mlp.", layer);
    cut_gate_up(has_experts(config, layer) ? mlp + "shared_expert." : mlp);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (has_experts(config, layer))
      ExpertGatherer(tensors_, fmt::format("layers.{}.mlp.", layer), config).run();
  }
}

}  // namespace tessera
