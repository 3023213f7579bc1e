#pragma once

#include "common/traits.h"

// attention_tiled.cu's tiles, and what they take of shared memory.

namespace tessera::kernels {

constexpr int kTiledAttentionThreads = 256;
constexpr int kTiledKeys = 64;       // of a tile
constexpr int kTiledDims = 64;       // of queries and keys, that are in shared memory at once
constexpr int kTiledThreadRows = 4;  // of a thread's products, next to one another
constexpr int kTiledMostRows = 64;   // of a block: a power of two
constexpr int kTiledHeadDimMultiple = 64;
constexpr int kTiledValues = 64 * 72;  // that are in shared memory at once, at most

struct TiledShape {
  int block_m;
  int head_dim_qk;  // padded
  int head_dim_v;   // padded
  int shared_kib;   // that a block may have
};

/// Threads that share the dims of the same products.
TESSERA_TRAIT int tiled_dim_groups(const TiledShape& s) { return kTiledMostRows / s.block_m; }

/// Floats between rows of queries or keys beyond their dims: 8 lanes that read 16 bytes each, some of them of
/// one row and next to one another, the others of the rows that follow, meet no bank twice.
TESSERA_TRAIT int tiled_padding(const TiledShape& s) {
  return tiled_dim_groups(s) <= 4 ? 4 * tiled_dim_groups(s) : 4;
}

/// Floats between the weights of a key and the next one's.
TESSERA_TRAIT int tiled_weight_stride(const TiledShape& s) { return s.block_m + 4; }

/// Keys whose values are in shared memory at once: a power of two.
TESSERA_TRAIT int tiled_value_keys(const TiledShape& s) {
  int keys = kTiledKeys;
  while (keys * s.head_dim_v > kTiledValues) keys /= 2;
  return keys;
}

/// Floats in shared memory.
struct TiledLayout {
  int query_stride;
  int weights_begin;
  int keys_begin;  // keys, then values in their place
  int all;
  bool keeps_queries;  // all dims of the queries stay; else some are there, and the weights in their place
};

TESSERA_TRAIT TiledLayout tiled_layout(const TiledShape& s, bool keeps_queries) {
  const int query_stride = (keeps_queries ? s.head_dim_qk : kTiledDims) + tiled_padding(s);
  const int queries = s.block_m * query_stride;
  const int weights = kTiledKeys * tiled_weight_stride(s);
  const int keys =
      larger_of(kTiledKeys * (kTiledDims + tiled_padding(s)), tiled_value_keys(s) * s.head_dim_v);
  const int weights_begin = keeps_queries ? queries : 0;
  const int keys_begin = keeps_queries ? queries + weights : larger_of(queries, weights);
  return {query_stride, weights_begin, keys_begin, keys_begin + keys, keeps_queries};
}

/// SharedStorage: rows' addresses and what belongs to rows and keys besides.
TESSERA_TRAIT int tiled_shared_bytes(const TiledLayout& layout) {
  return layout.all * 4 + kTiledKeys * 2 * (2 * 8 + 2 * 4) + kTiledMostRows * (8 + 6 * 4);
}

/// The queries stay where there is room for them.
TESSERA_TRAIT TiledLayout tiled_layout(const TiledShape& s) {
  const TiledLayout kept = tiled_layout(s, true);
  return tiled_shared_bytes(kept) <= s.shared_kib * 1024 ? kept : tiled_layout(s, false);
}

}  // namespace tessera::kernels
