// Attention for any head_dim, any dtype, strides and terms: one warp a query row, lanes along
// head_dim. Online softmax: Milakov & Gimelshein (2018). Nothing is tiled: the plain kernel for what no tuned
// one takes.
//
// Grid: (row groups, heads, batch * splits); a block's warps take consecutive query rows of one head.

#include "common/attention_segments.cuh"

using namespace tessera::kernels;

constexpr int kGenericThreads = kGenericWarps * kWarpSize;

namespace tessera::kernels {

template <class T, class Kv>
TESSERA_DEVICE void attention_generic(const AttentionParams& p) {
  const int b = p.batch_begin + block_z() / p.num_splits;
  const int split = block_z() % p.num_splits;
  const int h = block_y();
  const int i = block_x() * (block_size() / kWarpSize) + thread_x() / kWarpSize;
  const Sequence s = load_sequence(p, b);
  if (i >= s.len_q) return;
  if (p.keys_per_segment > 0) return attend_row_in_segments<T, Kv>(p, s, b, h, i, split);
  KeyRange keys = keys_of_query(p, s, i);
  if (p.num_splits > 1) {
    const KeyRange share = visible_share(p, {s, b, i, i, h, h}, kPlainTileKeys, split);
    keys = {maximum(keys.begin, share.begin), minimum(keys.end, share.end)};
  }
  RowState row;
  attend_row<T, Kv>(p, s, b, h, i, keys.begin, keys.end, row);
  store_row<T>(p, s, b, h, i, split, row);
}

}  // namespace tessera::kernels

TESSERA_KERNEL(attention_generic_f32, kGenericThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_generic<float, float>(p);
}
TESSERA_KERNEL(attention_generic_f16, kGenericThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_generic<f16, f16>(p);
}
TESSERA_KERNEL(attention_generic_bf16, kGenericThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_generic<bf16, bf16>(p);
}
TESSERA_KERNEL(attention_generic_f32_f8e4m3, kGenericThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_generic<float, f8e4m3>(p);
}
TESSERA_KERNEL(attention_generic_f16_f8e4m3, kGenericThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_generic<f16, f8e4m3>(p);
}
TESSERA_KERNEL(attention_generic_bf16_f8e4m3, kGenericThreads)(TESSERA_GRID_CONSTANT AttentionParams p) {
  attention_generic<bf16, f8e4m3>(p);
}
