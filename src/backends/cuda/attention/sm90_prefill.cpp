#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "backends/cuda/runtime/driver.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "core/rounding.h"
#include "sm90/attention_arguments.h"
#include "sm90/attention_wgmma_traits.h"

// sm90/attention_wgmma.cu: Hopper's own products and copies, for f16 and bf16.

namespace tessera::cuda {

using namespace gpu;

namespace {

constexpr std::int64_t kMostTiles = std::int64_t{1} << 29;  // kernels count them in 32 bits
constexpr std::int64_t kFewestQueries = 128;
constexpr std::int64_t kManyQueries = 1536;
constexpr std::size_t kTicketBytes = 16;  // the counter, and what keeps the rest aligned

using kernels::WgmmaTiles;

std::int64_t num_tiles(const KernelChoice& c, std::int64_t batch) {
  const std::int64_t heads = c.num_head_blocks * batch;
  return round_up(heads, c.heads_at_once) * c.num_row_tiles;
}

/// Whether a tensor map can describe distances of `stride` elements between `count` things.
bool is_mappable(std::int64_t stride, std::int64_t count) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
  return count <= 1 || (stride > 0 && stride < kMostBytes / 2);
}

template <class Tensor>
bool has_map(const Tensor& t, std::int64_t batch, std::int64_t tokens, int heads, bool is_ragged) {
  return tokens > 0 && is_mappable(t.seq_stride, tokens) && is_mappable(t.head_stride, heads) &&
         is_mappable(t.batch_stride, is_ragged ? 1 : batch);
}

/// All of a choice but its module.
KernelChoice cut(const AttentionProblem& p, const DeviceProperties& device, const WgmmaTiles& tiles) {
  KernelChoice c;
  c.config = {tiles.block_m, tiles.block_n, kernels::wgmma_warps(tiles), tiles.num_stages, 1};
  c.shared_bytes = static_cast<std::size_t>(
      kernels::wgmma_shared_bytes(tiles, padded_head_dim_qk(p), padded_head_dim_v(p)));
  cut_rows(p, c);
  c.keys_per_split = p.seq_len_kv;
  c.heads_at_once = choose_heads_at_once(p, device, c);
  // Tiles of one length are shared out evenly; of others each block takes the next when it has finished one.
  const bool varies = p.scores.diagonal || p.ragged_q || p.ragged_kv || p.seq_lens_kv != nullptr;
  c.zeroed_bytes = varies ? sizeof(int) : 0;
  c.partial_bytes = kTicketBytes + static_cast<std::size_t>(num_tiles(c, p.batch)) *
                                       static_cast<std::size_t>(tiles.block_m / kernels::kWgmmaWarpRows) *
                                       sizeof(int);
  return c;
}

WgmmaTiles choose_tiles(const AttentionProblem& p, const AttentionConfig& forced) {
  // Under a short diagonal much of a wide tile is hidden.
  const bool is_wide = !p.scores.diagonal || p.seq_len_q >= kManyQueries;
  const int head_dim_qk = padded_head_dim_qk(p), head_dim_v = padded_head_dim_v(p);
  WgmmaTiles tiles = kernels::wgmma_tiles(head_dim_qk, head_dim_v, is_wide);
  const WgmmaTiles others = kernels::wgmma_tiles(head_dim_qk, head_dim_v, !is_wide);
  if (forced.block_m == others.block_m) tiles = others;
  const auto require = [](const char* field, int value, int expected) {
    if (value > 0 && value != expected)
      reject_forced(field, value, fmt::format("{} for Hopper's kernel", expected));
  };
  require("block_m", forced.block_m, tiles.block_m);
  require("block_n", forced.block_n, tiles.block_n);
  require("num_warps", forced.num_warps, kernels::wgmma_warps(tiles));
  require("num_stages", forced.num_stages, tiles.num_stages);
  require("num_splits", forced.num_splits, 1);
  return tiles;
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  const WgmmaTiles tiles = choose_tiles(p, forced);
  KernelChoice c = cut(p, device, tiles);
  c.entry = "attention_wgmma";
  c.module = {
      "sm90/attention_wgmma.cu",
      {fmt::format("TESSERA_DTYPE={}", dtype_name(p.q.dtype)), define("HEAD_DIM_QK", padded_head_dim_qk(p)),
       define("HEAD_DIM_V", padded_head_dim_v(p)), define("BLOCK_M", tiles.block_m),
       define("BLOCK_N", tiles.block_n), define("STAGES", tiles.num_stages),
       define("Q_BUFFERS", tiles.num_q_buffers), define("TURNS", tiles.takes_turns ? 1 : 0)}};
  return c;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (device.compute_capability != 90 || !device.has_tensor_maps)
    return "it takes Hopper GPUs (compute capability 9.0) with a driver for CUDA 12.0 or later";
  if (p.q.dtype == DType::kF32) return "it takes f16 and bf16, not f32";
  if (std::string reason = reason_against_head_dims(p); !reason.empty()) return reason;
  if (term_flags(p.scores) != 0)
    return "it takes no softcap, ALiBi, additive or boolean mask, and no softmax_scale below 0";
  if (p.paged_kv) return "it takes no paged keys";
  if (p.batch_invariant) return "it isn't proven to be batch_invariant";
  if (p.seq_len_q < kFewestQueries)
    return fmt::format("it takes at least {} queries, not {}", kFewestQueries, p.seq_len_q);
  const std::int64_t tokens_q = p.ragged_q ? p.ragged_q->total_tokens : p.seq_len_q;
  const std::int64_t tokens_kv = p.ragged_kv ? p.ragged_kv->total_tokens : p.seq_len_kv;
  if (!has_aligned_rows(p) || !has_map(p.q, p.batch, tokens_q, p.num_heads, p.ragged_q.has_value()) ||
      !has_map(p.k, p.batch, tokens_kv, p.num_kv_heads, p.ragged_kv.has_value()) ||
      !has_map(p.v, p.batch, tokens_kv, p.num_kv_heads, p.ragged_kv.has_value()))
    return "it takes tensors that are not empty, of rows aligned to 16 bytes, with strides above 0";
  const KernelChoice c = cut(p, device, choose_tiles(p, {}));
  if (num_tiles(c, p.batch) > kMostTiles)
    return fmt::format("it takes at most {} tiles of queries", kMostTiles);
  if (c.shared_bytes > device.shared_per_block_bytes) return "its tiles do not fit into shared memory";
  if (splits_that_fill(p, device, c.config.block_n, c) > 1)
    return "so few tiles of queries leave most multiprocessors idle, and it doesn't split keys";
  return {};
}

std::int64_t sequences_at_once(const KernelChoice&) { return kMostTiles; }

LaunchShape shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size) {
  LaunchShape shape;
  const std::int64_t blocks =
      std::min<std::int64_t>(num_tiles(choice, sequences), choice.num_multiprocessors);
  shape.grid = {static_cast<unsigned>(blocks), 1, 1};
  shape.block = {static_cast<unsigned>(choice.config.num_warps) * warp_size, 1, 1};
  shape.shared_bytes = choice.shared_bytes;
  return shape;
}

/// A map of boxes of `rows` rows of one panel.
template <class Tensor>
void encode_map(kernels::TensorMap& map, const Tensor& t, int head_dim, std::int64_t tokens, int heads,
                std::int64_t sequences, int rows) {
  // What there is one of may have any stride, which need not be one that a map takes.
  const auto stride_bytes = [](std::int64_t stride, std::int64_t count) {
    return static_cast<unsigned long long>(count > 1 ? stride * 2 : 16);
  };
  const std::array sizes = {static_cast<unsigned long long>(head_dim),
                            static_cast<unsigned long long>(tokens), static_cast<unsigned long long>(heads),
                            static_cast<unsigned long long>(sequences)};
  const std::array strides = {stride_bytes(t.seq_stride, tokens), stride_bytes(t.head_stride, heads),
                              stride_bytes(t.batch_stride, sequences)};
  const std::array<unsigned, 4> box = {kernels::kPanelElements, static_cast<unsigned>(rows), 1, 1};
  const std::array<unsigned, 4> element_strides = {1, 1, 1, 1};
  check(driver().cuTensorMapEncodeTiled(&map, t.dtype == DType::kF16 ? kTensorMapFloat16 : kTensorMapBFloat16,
                                        box.size(), const_cast<void*>(static_cast<const void*>(t.data)),
                                        sizes.data(), strides.data(), box.data(), element_strides.data(), 0,
                                        kTensorMapSwizzle128B, kTensorMapL2Promotion256B, 0),
        "cuTensorMapEncodeTiled");
}

KernelArguments arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                          const KernelChoice& choice, std::byte* workspace) {
  kernels::WgmmaArguments a = {};
  a.params = params;
  const std::int64_t tokens_q = p.ragged_q ? p.ragged_q->total_tokens : p.seq_len_q;
  const std::int64_t tokens_kv = p.ragged_kv ? p.ragged_kv->total_tokens : p.seq_len_kv;
  const std::int64_t sequences_q = p.ragged_q ? 1 : p.batch, sequences_kv = p.ragged_kv ? 1 : p.batch;
  encode_map(a.q, p.q, p.head_dim_qk, tokens_q, p.num_heads, sequences_q, choice.config.block_m);
  encode_map(a.k, p.k, p.head_dim_qk, tokens_kv, p.num_kv_heads, sequences_kv, choice.config.block_n);
  encode_map(a.v, p.v, p.head_dim_v, tokens_kv, p.num_kv_heads, sequences_kv, choice.config.block_n);
  if (choice.zeroed_bytes > 0) a.tickets = reinterpret_cast<int*>(workspace);
  a.spoilt = reinterpret_cast<int*>(workspace + kTicketBytes);
  return KernelArguments(a);
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int head_dim : {64, 128, 256}) {
      problems.push_back({usual_problem(dtype, head_dim, kManyQueries)});
      problems.push_back({usual_problem(dtype, head_dim, kManyQueries / 2)});
      problems.back().problem.scores.diagonal = DiagonalMask::causal();
    }
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm90Prefill;
const AttentionKernel kSm90Prefill = {
    .name = "sm90/prefill",
    .merit = "multiplies tiles with Hopper's own instructions",
    .reason_against = reason_against,
    .choose = choose,
    .sequences_at_once = sequences_at_once,
    .shape = shape,
    .arguments = arguments,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
