#include "backends/gpu/unfused/layout.h"

#include <algorithm>

#include "attention/narrow.h"
#include "backends/gpu/ops/library_products.h"
#include "backends/gpu/runtime/device_properties.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

constexpr std::int64_t kVector = 8;     // elements: 16 bytes of a 16-bit type
constexpr std::int64_t kRowTile = 128;  // of the products
constexpr std::int64_t kPartAlignment = 256;
constexpr std::int64_t kBudgetBytes = std::int64_t{512} << 20;  // of a part

}  // namespace

DType unfused_dtype(const AttentionProblem& p) { return has_narrow_kv(p) ? DType::kF32 : wide_dtype(p); }

UnfusedLayout unfused_layout(const AttentionProblem& p, std::int64_t max_rows) {
  UnfusedLayout l;
  l.num_pairs = p.batch * p.num_kv_heads;
  l.rows = std::max<std::int64_t>(p.seq_len_q, 1) * (p.num_heads / p.num_kv_heads);
  l.qk_stride = static_cast<int>(round_up(p.head_dim_qk, kVector));
  l.v_stride = static_cast<int>(round_up(p.head_dim_v, kVector));
  l.key_stride = std::max(round_up(p.seq_len_kv, kVector), kVector);

  const auto element = static_cast<std::int64_t>(dtype_bytes(unfused_dtype(p), 1));
  const std::int64_t kv_bytes = l.key_stride * (l.qk_stride + l.v_stride) * element;
  const std::int64_t row_bytes = l.qk_stride * element + 4 * (l.v_stride + l.key_stride);
  if (max_rows > 0 && max_rows < l.rows) {
    l.pairs_at_once = 1;
    l.rows_at_once = max_rows;
  } else if (kv_bytes + l.rows * row_bytes <= kBudgetBytes) {
    const std::int64_t most = std::min(kBudgetBytes / (kv_bytes + l.rows * row_bytes), kMaxGridYz);
    l.pairs_at_once = std::clamp<std::int64_t>(l.num_pairs, 1, most);
    l.rows_at_once = l.rows;
  } else {
    l.pairs_at_once = 1;
    const std::int64_t most = std::max<std::int64_t>((kBudgetBytes - kv_bytes) / row_bytes, kRowTile);
    l.rows_at_once = std::min(round_up(divide_up(l.rows, divide_up(l.rows, most)), kRowTile), l.rows);
  }

  const auto add = [&](std::int64_t size_bytes) {
    const std::size_t begin = l.total_bytes;
    l.total_bytes += static_cast<std::size_t>(round_up(size_bytes, kPartAlignment));
    return begin;
  };
  const std::int64_t rows = l.pairs_at_once * l.rows_at_once;
  l.product = add(LibraryProducts::kWorkspaceBytes);
  l.holes = add(4 * l.pairs_at_once);
  l.q = add(rows * l.qk_stride * element);
  l.k = add(l.pairs_at_once * l.key_stride * l.qk_stride * element);
  l.v = add(l.pairs_at_once * l.key_stride * l.v_stride * element);
  l.o = add(4 * rows * l.v_stride);
  l.scores = add(4 * rows * l.key_stride);
  return l;
}

}  // namespace tessera::gpu
