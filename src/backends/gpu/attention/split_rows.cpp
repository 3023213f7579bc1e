#include "backends/gpu/attention/split_rows.h"

#include <fmt/core.h>

#include <algorithm>

#include "backends/gpu/attention/problem_params.h"
#include "core/aligned_memory.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

constexpr std::size_t kAlignment = 256;

/// One of q, k and v.
struct Part {
  TensorExtents extents;
  std::int64_t longest;  // sequence
  int rows_of_tile;

  int row_elements() const {
    return 2 * static_cast<int>(round_up(extents.head_dim, std::int64_t{kernels::kSplitPanel}));
  }
  std::int64_t tiles_of_head() const { return divide_up(longest, std::int64_t{rows_of_tile}); }
  std::size_t data_bytes() const {
    const std::size_t bytes = checked_product(
        {extents.outer, extents.tokens, extents.heads, row_elements(), 2}, "the halves of q, k and v");
    return round_up(bytes, kAlignment);
  }
  std::int64_t num_tiles(std::int64_t batch) const { return batch * extents.heads * tiles_of_head(); }
  std::size_t tiles_bytes(std::int64_t batch) const {
    return round_up(static_cast<std::size_t>(num_tiles(batch)) * sizeof(kernels::SplitTile), kAlignment);
  }
};

std::array<Part, 3> parts_of(const AttentionProblem& p, const AttentionConfig& config) {
  TensorExtents keys = key_extents(p);
  if (p.paged_kv) keys = {p.batch, p.seq_len_kv, p.num_kv_heads, p.head_dim_qk};
  const TensorExtents values = {keys.outer, keys.tokens, keys.heads, p.head_dim_v};
  return {{{query_extents(p), p.seq_len_q, kernels::kSplitQueries},
           {keys, p.seq_len_kv, config.block_n},
           {values, p.seq_len_kv, config.block_n}}};
}

}  // namespace

std::array<SplitTensor, 3> split_tensors(const AttentionProblem& p, const AttentionConfig& config,
                                         std::byte* copies) {
  std::array<SplitTensor, 3> tensors = {};
  std::size_t begin = 0;
  const auto take = [&](std::size_t bytes) {
    std::byte* const at = copies != nullptr ? copies + begin : nullptr;
    begin += bytes;
    return at;
  };
  const std::array<Part, 3> parts = parts_of(p, config);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    tensors[i].extents = parts[i].extents;
    tensors[i].data = take(parts[i].data_bytes());
    tensors[i].tiles = reinterpret_cast<kernels::SplitTile*>(take(parts[i].tiles_bytes(p.batch)));
    tensors[i].tiles_of_head = static_cast<int>(parts[i].tiles_of_head());
    tensors[i].row_elements = parts[i].row_elements();
  }
  return tensors;
}

std::size_t split_rows_bytes(const AttentionProblem& p, const AttentionConfig& config) {
  std::size_t bytes = 0;
  for (const Part& part : parts_of(p, config)) bytes += part.data_bytes() + part.tiles_bytes(p.batch);
  return bytes;
}

std::int64_t num_split_blocks(const AttentionProblem& p, const AttentionConfig& config) {
  std::int64_t most = 0;
  for (const Part& part : parts_of(p, config)) most = std::max(most, part.num_tiles(p.batch));
  return most;
}

SplitRowsLaunch split_rows_launch(const kernels::AttentionParams& params, const AttentionProblem& p,
                                  const KernelChoice& choice, std::byte* copies) {
  SplitRowsLaunch launch = {};
  launch.params.attention = params;
  const std::array<Part, 3> parts = parts_of(p, choice.config);
  const std::array<SplitTensor, 3> tensors = split_tensors(p, choice.config, copies);
  const auto fill = [&](std::size_t i, const auto& tensor) {
    kernels::RowsToSplit& r = launch.params.tensors[i];
    r.from = tensor_argument(tensor);
    r.to = tensors[i].data;
    r.tiles = tensors[i].tiles;
    r.tokens = parts[i].extents.tokens;
    r.num_heads = static_cast<int>(parts[i].extents.heads);
    r.head_dim = static_cast<int>(parts[i].extents.head_dim);
    r.row_elements = tensors[i].row_elements;
    r.rows_of_tile = parts[i].rows_of_tile;
    r.tiles_of_head = tensors[i].tiles_of_head;
    const std::uint64_t joined =
        joined_row_bytes(tensor, parts[i].extents.head_dim) | reinterpret_cast<std::uintptr_t>(tensor.data);
    r.piece = piece_bytes(joined) / static_cast<int>(dtype_bytes(tensor.dtype, 1));
    r.is_q = i == 0 ? 1 : 0;
  };
  fill(0, p.q);
  fill(1, p.k);
  fill(2, p.v);
  launch.shape = {
      {static_cast<unsigned>(num_split_blocks(p, choice.config)), 3, 1}, {kernels::kSplitThreads, 1, 1}, 0};
  return launch;
}

std::string split_rows_entry(const AttentionProblem& p, const AttentionConfig& config) {
  int rows = 4;
  for (const Part& part : parts_of(p, config))
    rows = std::max(rows, kernels::split_rows_of_thread(part.rows_of_tile, part.row_elements()));
  return fmt::format("split_rows_{}", round_up(rows, 2));
}

ModuleSpec split_rows_module() { return {"common/split_rows.cu", {}}; }

}  // namespace tessera::gpu
