#include "engine/attention_view.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/floats.h"

namespace tessera {
namespace {

/// Keys of the first num_tokens tokens of a sequence in one layer, (num_kv_heads, num_tokens, head_dim).
std::vector<float> read_keys(const AttentionViewLayer& view, const KvCache& cache, OpsBackend& ops) {
  const KvCacheShape& shape = cache.shape();
  const KvCacheView& layer = cache.layers()[static_cast<std::size_t>(view.layer)];
  const int num_kv_heads = shape.layer(view.layer).num_kv_heads;
  const auto head_dim = static_cast<std::size_t>(shape.layer(view.layer).head_dim);
  const auto num_tokens = static_cast<std::size_t>(view.num_tokens);
  std::vector<float> keys(static_cast<std::size_t>(num_kv_heads) * num_tokens * head_dim);
  std::vector<std::byte> rows;
  for (std::size_t begin = 0; begin < num_tokens; begin += static_cast<std::size_t>(shape.page_size)) {
    const std::size_t count = std::min(num_tokens - begin, static_cast<std::size_t>(shape.page_size));
    const std::int64_t page = view.block_table[begin / static_cast<std::size_t>(shape.page_size)];
    for (int head = 0; head < num_kv_heads; ++head) {
      const std::int64_t offset = page * layer.page_stride + head * layer.head_stride;
      rows.resize(dtype_bytes(layer.dtype, count * head_dim));  // a head's rows of a page are contiguous
      ops.download(
          rows.data(),
          static_cast<const std::byte*>(layer.k) + dtype_bytes(layer.dtype, static_cast<std::size_t>(offset)),
          rows.size(), ops.stream());
      convert_to_floats(
          rows.data(), layer.dtype,
          std::span(keys).subspan((static_cast<std::size_t>(head) * num_tokens + begin) * head_dim,
                                  count * head_dim));
    }
  }
  return keys;
}

/// weights[begin..end) = softmax of the scores of one query. sink: a score of nothing, -inf if there is none.
void weigh(std::span<const float> query, double scale, std::optional<float> softcap, const float* keys,
           std::int64_t begin, std::int64_t end, double sink, float* weights) {
  std::vector<double> scores;
  double largest = sink, sum = 0;
  for (std::int64_t token = begin; token < end; ++token) {
    const float* key = keys + token * std::ssize(query);
    double score = 0;
    for (std::size_t d = 0; d < query.size(); ++d) score += static_cast<double>(query[d]) * key[d];
    score *= scale;
    if (softcap) score = static_cast<double>(*softcap) * std::tanh(score / static_cast<double>(*softcap));
    scores.push_back(score);
    largest = std::max(largest, scores.back());
  }
  for (double& score : scores) sum += score = std::exp(score - largest);
  sum += std::exp(sink - largest);
  for (std::int64_t token = begin; token < end; ++token) {
    weights[token] = static_cast<float>(scores[static_cast<std::size_t>(token - begin)] / sum);
  }
}

}  // namespace

std::vector<float> attention_weights(const AttentionViewLayer& view, const KvCache& cache, OpsBackend& ops) {
  const KvLayerShape shape = cache.shape().layer(view.layer);
  const std::vector<float> keys = read_keys(view, cache, ops);
  const std::int64_t num_positions = std::ssize(view.positions);
  const std::int64_t num_heads = std::ssize(view.queries) / (num_positions * shape.head_dim);
  const std::int64_t heads_per_kv_head = num_heads / shape.num_kv_heads;
  const double scale = view.softmax_scale ? static_cast<double>(*view.softmax_scale)
                                          : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  std::vector<float> sinks(static_cast<std::size_t>(num_heads), -std::numeric_limits<float>::infinity());
  if (view.sinks != nullptr)
    ops.download(sinks.data(), view.sinks, sinks.size() * sizeof(float), ops.stream());
  std::vector<float> weights(static_cast<std::size_t>(num_heads * num_positions * view.num_tokens));
  for (std::int64_t head = 0; head < num_heads; ++head) {
    const float* head_keys = keys.data() + head / heads_per_kv_head * view.num_tokens * shape.head_dim;
    for (std::int64_t i = 0; i < num_positions; ++i) {
      const std::int64_t end = view.positions[static_cast<std::size_t>(i)] + 1;
      const std::int64_t begin = std::max<std::int64_t>(0, end - view.sliding_window.value_or(end));
      const std::span<const float> query =
          view.queries.subspan(static_cast<std::size_t>((i * num_heads + head) * shape.head_dim),
                               static_cast<std::size_t>(shape.head_dim));
      weigh(query, scale, view.softcap, head_keys, begin, end, sinks[static_cast<std::size_t>(head)],
            weights.data() + (head * num_positions + i) * view.num_tokens);
    }
  }
  return weights;
}

}  // namespace tessera
