#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/kv_cache.h"
#include "ops/backend.h"

namespace tessera {

/// One layer of an attention view.
struct AttentionViewLayer {
  int layer = 0;
  std::span<const float> queries;              ///< (positions, num_heads, head_dim), rotated
  std::span<const std::int64_t> positions;     ///< of the queries
  std::int64_t num_tokens = 0;                 ///< whose keys the pages hold
  std::span<const std::int32_t> block_table;   ///< the sequence's
  std::optional<std::int64_t> sliding_window;  ///< keys a query sees, itself included; none: all up to itself
  std::optional<float> softmax_scale = {};     ///< none: 1 / sqrt(head_dim)
  std::optional<float> softcap = {};           ///< scaled scores s become cap tanh(s / cap)
  const float* sinks = nullptr;                ///< (num_heads), in the device's memory; null: none
};

/// The weights softmax(softmax_scale q k^T), of capped scores where there is a softcap, of causal attention,
/// with sinks in the denominator, (num_heads, positions, num_tokens), computed on the host in fp64 from the
/// keys in the cache. Throws Error{kUnsupported} for keys that are no floats.
std::vector<float> attention_weights(const AttentionViewLayer& view, const KvCache& cache, OpsBackend& ops);

}  // namespace tessera
