#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "core/block_format.h"
#include "core/element.h"
#include "model/checkpoint/weights.h"
#include "tessera/error.h"

// Hugging Face folders and GGUF files of old converters have keys and values of latent attention in one
// matrix, each head's rows of keys and then those of values. Those of keys are needed with rows and columns
// exchanged.

namespace tessera {
namespace {

struct Heads {
  std::size_t count, nope, values, rank;

  std::size_t rows() const { return nope + values; }
};

/// Writes the rows of keys of a head, the first of which is `first`, as columns of numbers of `out_dtype`.
void exchange_rows(const CheckpointTensor& tensor, std::size_t first, const Heads& heads, DType out_dtype,
                   std::byte* out) {
  std::vector<std::byte> stored(dtype_bytes(tensor.dtype, heads.rank));
  std::vector<float> row(heads.rank);
  for (std::size_t j = 0; j < heads.nope; ++j) {
    read_part(tensor, first + j, stored.data());
    read_elements(tensor.dtype, stored.data(), 0, row);
    for (std::size_t i = 0; i < heads.rank; ++i)
      store_element(out, out_dtype, static_cast<std::int64_t>(i * heads.nope + j),
                    static_cast<double>(row[i]));
  }
}

}  // namespace

void WeightCollector::split_latent_heads(const ModelConfig& config) {
  if (!config.latent) return;
  const LatentAttentionConfig& latent = *config.latent;
  const Heads heads = {static_cast<std::size_t>(config.num_heads), static_cast<std::size_t>(latent.nope_dim),
                       static_cast<std::size_t>(latent.value_dim), static_cast<std::size_t>(latent.kv_rank)};
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.self_attn.", layer);
    auto node = tensors_.extract(prefix + "kv_b_proj.weight");
    if (node.empty() || contains(prefix + "k_b_proj.weight")) continue;  // some files have both
    const Item& whole = node.mapped();
    const CheckpointTensor tensor = whole.tensor;  // which parts are read from
    const auto num_rows = static_cast<std::int64_t>(heads.count * heads.rows());
    if (tensor.shape != std::vector<std::int64_t>{num_rows, latent.kv_rank} || !whole.has_weight_dtype) {
      fail(whole, fmt::format("it is {} {}; ({}, {}) was expected, each head's rows of keys and of values",
                              whole.dtype_name, shape_text(tensor.shape), num_rows, latent.kv_rank));
    }
    // Blocks are of neighbours in a row: where these are exchanged, numbers take their place.
    const DType exchanged = block_format(tensor.dtype).elements > 1 ? DType::kF16 : tensor.dtype;
    const auto add = [&](const char* name, DType as, std::size_t rows, std::size_t columns,
                         std::function<void(std::int64_t, std::byte*)> read_part) {
      Item item = whole;
      item.tensor.dtype = as;
      item.tensor.shape = {config.num_heads, static_cast<std::int64_t>(rows),
                           static_cast<std::int64_t>(columns)};
      item.tensor.size_bytes = dtype_bytes(as, heads.count * rows * columns);
      item.tensor.data = nullptr;
      item.tensor.read_part = std::move(read_part);
      tensors_.insert_or_assign(prefix + name, std::move(item));
    };
    const auto first_row = [=](std::int64_t head) { return static_cast<std::size_t>(head) * heads.rows(); };
    add("k_b_proj.weight", exchanged, heads.rank, heads.nope, [=](std::int64_t part, std::byte* out) {
      exchange_rows(tensor, first_row(part), heads, exchanged, out);
    });
    add("v_b_proj.weight", tensor.dtype, heads.values, heads.rank, [=](std::int64_t part, std::byte* out) {
      const std::size_t row_bytes = dtype_bytes(tensor.dtype, heads.rank);
      for (std::size_t j = 0; j < heads.values; ++j)
        read_part(tensor, first_row(part) + heads.nope + j, out + j * row_bytes);
    });
  }
}

}  // namespace tessera
