#include "backends/cuda/attention/wgmma_prefill.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "attention/sequence.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "core/rounding.h"
#include "sm90/attention_wgmma_traits.h"

namespace tessera::cuda {

using namespace gpu;

namespace {

constexpr std::int64_t kMostTiles = std::int64_t{1} << 29;  // kernels count them in 32 bits
constexpr std::size_t kTicketBytes = 16;                    // the counter, and what keeps the rest aligned

int panel_columns(DType dtype) { return kernels::kPanelRowBytes / static_cast<int>(dtype_bytes(dtype, 1)); }

/// q, k or v: boxes of `rows` rows of one panel.
template <class Tensor>
MappedTensor mapped(const Tensor& t, const TensorExtents& extents, int head_dim, int rows) {
  return {t.data,
          t.dtype,
          {head_dim, extents.tokens, extents.heads, extents.outer},
          {t.seq_stride, t.head_stride, t.batch_stride},
          panel_columns(t.dtype),
          rows};
}

/// q of packed heads, whose rows are those of all heads of a query, then those of the next: `rows` at most.
MappedTensor mapped_pack(const AttentionInput& q, const TensorExtents& extents, int head_dim, int pack_heads,
                         int rows) {
  return {q.data,
          q.dtype,
          {head_dim, extents.heads, extents.tokens, extents.outer},
          {q.head_stride, q.seq_stride, q.batch_stride},
          panel_columns(q.dtype),
          pack_heads,
          rows / pack_heads};
}

/// Of tickets and lists of tiles.
std::size_t ticket_bytes(const KernelChoice& c, std::int64_t batch, int column_groups) {
  const int warps = c.config.block_m / kernels::kWgmmaWarpRows * column_groups;
  return kTicketBytes +
         static_cast<std::size_t>(num_tiles(c, batch)) * static_cast<std::size_t>(warps) * sizeof(int);
}

/// Where partial results are, behind these of whichever kernel.
std::size_t partials_begin(const KernelChoice& c, std::int64_t batch) {
  constexpr int kMostColumnGroups = 2;
  return round_up(ticket_bytes(c, batch, kMostColumnGroups), std::size_t{256});
}

}  // namespace

std::int64_t num_tiles(const KernelChoice& c, std::int64_t batch) {
  const std::int64_t heads = c.num_head_blocks * batch;
  return round_up(heads, c.heads_at_once) * c.num_row_tiles * c.config.num_splits;
}

bool packs_rows(const KernelChoice& c) { return c.pack_heads > 1 || c.config.num_splits > 1; }

bool always_whole_keys(const AttentionProblem&) { return true; }

double share_of_pairs(const AttentionProblem& p) {
  constexpr std::int64_t kSamples = 16;
  constexpr std::int64_t kHiddenKeys = 128;  // of the tiles at a diagonal
  const Diagonal diagonal = resolve_diagonal(p.scores, p.seq_len_q, p.seq_len_kv);
  std::int64_t taken = 0;
  for (std::int64_t n = 0; n < kSamples; ++n) {
    const std::int64_t seen = diagonal.keys_of_query((2 * n + 1) * p.seq_len_q / (2 * kSamples)).size();
    taken += std::min(seen + kHiddenKeys, p.seq_len_kv);
  }
  const auto filled = [&](const auto& ragged, std::int64_t longest) {
    return ragged ? static_cast<double>(ragged->total_tokens) / static_cast<double>(longest * p.batch) : 1.0;
  };
  return static_cast<double>(taken) / static_cast<double>(kSamples * p.seq_len_kv) *
         filled(p.ragged_q, p.seq_len_q) * filled(p.ragged_kv, p.seq_len_kv);
}

void cut_query_rows(const AttentionProblem& p, KernelChoice& c) {
  cut_rows(p, c);
  if (c.pack_heads > 1)  // whole queries
    c.num_row_tiles = divide_up(p.seq_len_q, std::int64_t{c.config.block_m / c.pack_heads});
}

void cut_query_tiles(const AttentionProblem& p, const DeviceProperties& device, KernelChoice& c,
                     int column_groups) {
  cut_query_rows(p, c);
  if (c.config.num_splits == 1) c.keys_per_split = p.seq_len_kv;
  c.heads_at_once = choose_heads_at_once(p, device, c);
  // Tiles of one length are shared out evenly, and a few of a diagonal's, whose lengths follow from their
  // order. Of others each block takes the next when it has finished one, if there are more than blocks.
  const bool varies = p.scores.modifier || has_length_arrays(p);
  const int few_of_block = varies || column_groups > 1 ? 1 : 4;
  const bool draws = (varies || p.scores.diagonal) &&
                     num_tiles(c, p.batch) > std::int64_t{few_of_block} * device.num_multiprocessors;
  c.zeroed_bytes = draws ? sizeof(int) : 0;
  if (c.config.num_splits == 1) {
    c.partial_bytes = ticket_bytes(c, p.batch, column_groups);
  } else {
    c.partial_bytes += partials_begin(c, p.batch);
  }
}

std::string reason_against_tensors(const AttentionProblem& p) {
  const TensorExtents kv = key_extents(p);
  if (has_aligned_rows(p) && has_map(p.q, query_extents(p)) && has_map(p.k, kv) && has_map(p.v, kv))
    return {};
  return "it takes tensors that are not empty, of rows aligned to 16 bytes, with strides above 0";
}

std::string reason_against_pages(const AttentionProblem& p, int block_n) {
  if (!p.paged_kv || has_whole_pages(p.paged_kv->page_size, block_n)) return {};
  return fmt::format("it takes pages of a multiple of 8 keys that divides or is a multiple of {}, not of {}",
                     block_n, p.paged_kv->page_size);
}

std::string reason_against_tiles(const AttentionProblem& p, const DeviceProperties& device,
                                 const KernelChoice& c) {
  if (num_tiles(c, p.batch) > kMostTiles)
    return fmt::format("it takes at most {} tiles of queries", kMostTiles);
  if (c.shared_bytes > device.shared_per_block_bytes) return "its tiles do not fit into shared memory";
  return {};
}

std::int64_t all_sequences_at_once(const KernelChoice& c) {
  return c.combine_entry.empty() ? kMostTiles : kMaxGridYz;
}

LaunchShape staying_shape(const KernelChoice& choice, std::int64_t sequences, unsigned warp_size) {
  LaunchShape shape;
  const std::int64_t blocks =
      std::min<std::int64_t>(num_tiles(choice, sequences), choice.num_multiprocessors);
  shape.grid = {static_cast<unsigned>(blocks), 1, 1};
  shape.block = {static_cast<unsigned>(choice.config.num_warps) * warp_size, 1, 1};
  shape.shared_bytes = choice.shared_bytes;
  return shape;
}

void encode_map(kernels::TensorMap& map, const MappedTensor& t) {
  const auto element_bytes = static_cast<std::int64_t>(dtype_bytes(t.dtype, 1));
  const std::array<std::int64_t, 4> box = {t.box_columns, t.box_rows, t.box_depth, 1};
  TensorMapShape shape{.data = t.data, .dtype = t.dtype};
  for (std::size_t i = 0; i < box.size(); ++i)
    shape.add(t.sizes[i], i == 0 ? 0 : t.strides[i - 1] * element_bytes, box[i]);
  shape.l2_promotion = kTensorMapL2Promotion128B;  // larger units cost rows between two of them 8 %
  map = encode_tensor_map(shape);
}

void set_workspace(kernels::WgmmaArguments& a, const KernelChoice& choice, std::byte* workspace) {
  if (choice.zeroed_bytes > 0) a.tickets = reinterpret_cast<int*>(workspace);
  a.spoilt = reinterpret_cast<int*>(workspace + kTicketBytes);
}

kernels::AttentionParams with_partials(kernels::AttentionParams params, const AttentionProblem& p,
                                       const KernelChoice& c, std::byte* workspace) {
  if (c.config.num_splits == 1) return params;
  const std::int64_t rows = p.batch * p.num_heads * p.seq_len_q;
  params.o_partial = reinterpret_cast<float*>(workspace + partials_begin(c, p.batch));
  params.omits_splits = 1;
  params.lse_partial = params.o_partial + c.config.num_splits * rows * p.head_dim_v;
  return params;
}

kernels::WgmmaArguments wgmma_arguments(const kernels::AttentionParams& params, const AttentionProblem& p,
                                        const KernelChoice& choice, std::byte* workspace) {
  kernels::WgmmaArguments a = {};
  a.params = with_partials(params, p, choice, workspace);
  const TensorExtents kv = key_extents(p);
  const int key_rows =
      p.paged_kv ? std::min(p.paged_kv->page_size, choice.config.block_n) : choice.config.block_n;
  encode_map(a.q, packs_rows(choice) ? mapped_pack(p.q, query_extents(p), p.head_dim_qk, choice.pack_heads,
                                                   choice.config.block_m)
                                     : mapped(p.q, query_extents(p), p.head_dim_qk, choice.config.block_m));
  encode_map(a.k, mapped(p.k, kv, p.head_dim_qk, key_rows));
  encode_map(a.v, mapped(p.v, kv, p.head_dim_v, key_rows));
  set_workspace(a, choice, workspace);
  return a;
}

CombineLaunch combine_splits(const kernels::AttentionParams& params, const AttentionProblem& p,
                             const KernelChoice& choice, std::byte* workspace, std::int64_t sequences) {
  constexpr unsigned kWarpSize = 32;
  return {combine_shape(p, choice, sequences, kWarpSize),
          KernelArguments(with_partials(params, p, choice, workspace))};
}

}  // namespace tessera::cuda
