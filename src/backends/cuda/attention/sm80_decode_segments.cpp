#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "backends/cuda/attention/reserved_shared.h"
#include "backends/gpu/attention/built_modules.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/launch_arguments.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "core/rounding.h"
#include "sm80/attention_decode_traits.h"

// sm80/attention_decode_segments.cu: few packed rows over many keys, batch-invariant.

namespace tessera::cuda {

using namespace gpu;

namespace {

using kernels::DecodeTiles;
using kernels::kDecodeRows;
using kernels::kDecodeWarpKeys;
using kernels::kSegmentWarps;

constexpr int kMostHeadDim = 128;  // above, attention_mma.cu takes keys in another order
constexpr int kMostStages = 6;
constexpr int kKeyTile = kDecodeWarpKeys * kSegmentWarps;

std::size_t tile_bytes(int num_stages, const AttentionProblem& p) {
  const int element_bytes = static_cast<int>(dtype_bytes(p.q.dtype, 1));
  return static_cast<std::size_t>(kernels::decode_shared_bytes({kSegmentWarps, num_stages}, element_bytes,
                                                               element_bytes, padded_head_dim_qk(p),
                                                               padded_head_dim_v(p)));
}

bool fits(int num_stages, const AttentionProblem& p, const DeviceProperties& device, std::size_t blocks) {
  const std::size_t bytes = tile_bytes(num_stages, p) + kernels::kSegmentStaticBytes;
  return bytes <= device.shared_per_block_bytes &&
         blocks * (bytes + kReservedShared) <= device.shared_per_multiprocessor_bytes;
}

/// So much shared memory, beside what is static, that a multiprocessor has room for one block only.
std::size_t bytes_of_lone_block(const DeviceProperties& device) {
  return device.shared_per_multiprocessor_bytes / 2 - kernels::kSegmentStaticBytes - kReservedShared + 1;
}

/// From what a block takes for a tile on an H200 (docs/kernels/cuda_attention.md): most of it is waiting for
/// one thing after the other, and two blocks wait at once.
BlockRates block_rates(const AttentionProblem& p, const DeviceProperties& device) {
  constexpr double kUsOfTile = 0.46;
  constexpr double kUsOfKib = 0.0187;
  constexpr double kUsOfUnevenRows = 0.25;  // whose pieces of 16 bytes don't divide a warp's lanes
  constexpr double kUsOfPages = 0.24;
  constexpr double kUsOfLaterPages = 0.37;  // where a warp's keys lie in several
  constexpr double kUsOfTwo = 0.55;         // the other block's, that aren't hidden
  constexpr double kReached = 0.89;         // of the rate that the memory's clock and width say
  const auto is_uneven = [](int head_dim) { return (head_dim & (head_dim - 1)) != 0; };
  const auto tile_bytes = static_cast<double>(kKeyTile * key_bytes(p));
  double us = kUsOfTile + kUsOfKib * tile_bytes / 1024;
  if (is_uneven(padded_head_dim_qk(p)) || is_uneven(padded_head_dim_v(p))) us += kUsOfUnevenRows;
  if (p.paged_kv) us += kUsOfPages;
  if (p.paged_kv && p.paged_kv->page_size % kDecodeWarpKeys != 0) us += kUsOfLaterPages;
  BlockRates rates = {.alone = tile_bytes / us, .of_two = tile_bytes / (us + kUsOfTwo)};
  if (device.memory_bytes_per_us > 0)
    rates.share = kReached * device.memory_bytes_per_us / device.num_multiprocessors;
  return rates;
}

void check_forced(const AttentionConfig& forced) {
  if (forced.num_stages != 0 && (forced.num_stages < 2 || forced.num_stages > kMostStages))
    reject_forced("num_stages", forced.num_stages, fmt::format("2 to {} for decode", kMostStages));
  if (forced.num_warps > 0 && forced.num_warps != kSegmentWarps)
    reject_forced("num_warps", forced.num_warps, fmt::format("{} for decode", kSegmentWarps));
  if (forced.block_m > 0 && forced.block_m != kDecodeRows)
    reject_forced("block_m", forced.block_m, "16 for decode");
  if (forced.block_n > 0 && forced.block_n != kKeyTile)
    reject_forced("block_n", forced.block_n, fmt::format("{} for decode", kKeyTile));
}

/// As many as two blocks of a multiprocessor have room for. More, of one block, are hardly faster.
int choose_stages(const AttentionProblem& p, const DeviceProperties& device) {
  int num_stages = kMostStages;
  while (num_stages > 2 && !fits(num_stages, p, device, 2)) --num_stages;
  return num_stages;
}

std::string reason_against(const AttentionProblem& p, const DeviceProperties& device) {
  if (!p.batch_invariant) return "it is for batch_invariant";
  if (p.q.dtype == DType::kF32 || has_narrow_kv(p))
    return fmt::format("it takes f16 and bf16 alone, not {}",
                       dtype_name(p.q.dtype == DType::kF32 ? p.q.dtype : p.k.dtype));
  if (const int head_dim = std::max(p.head_dim_qk, p.head_dim_v); head_dim > kMostHeadDim)
    return fmt::format("it takes head_dims up to {}, not {}", kMostHeadDim, head_dim);
  const int group = p.num_heads / p.num_kv_heads;
  if (p.seq_len_q * group > kDecodeRows) {
    return fmt::format("it takes up to {} rows a kv head, not {} queries of {} head{}", kDecodeRows,
                       p.seq_len_q, group, group == 1 ? "" : "s");
  }
  if (!fits(2, p, device, 1)) {
    return fmt::format("its tiles do not fit into the {} bytes of shared memory that a block of {} has",
                       device.shared_per_block_bytes, device.name);
  }
  return {};
}

KernelChoice choose(const AttentionProblem& p, const DeviceProperties& device,
                    const AttentionConfig& forced) {
  check_forced(forced);
  KernelChoice c;
  c.config = {kDecodeRows, kKeyTile, kSegmentWarps, 0, 0};
  c.pack_heads = p.num_heads / p.num_kv_heads;
  c.entry = "attention_decode_segments";
  cut_rows(p, c);
  cut_keys(p, forced, kKeyTile, wanted_splits(p, device, kKeyTile, c, block_rates(p, device)), c);
  c.config.num_stages = forced.num_stages > 0 ? forced.num_stages : choose_stages(p, device);
  c.shared_bytes = tile_bytes(c.config.num_stages, p);
  // As many blocks as multiprocessors would share some, where kernels before them still have the others.
  if (c.num_row_tiles * c.num_head_blocks * p.batch * c.config.num_splits <= device.num_multiprocessors)
    c.shared_bytes = std::max(c.shared_bytes, bytes_of_lone_block(device));
  reject_large_tiles(c.shared_bytes + kernels::kSegmentStaticBytes, device);
  c.module = {"sm80/attention_decode_segments.cu", common_defines(p, scoring_flags(p.scores))};
  c.module.defines.push_back(define("STAGES", c.config.num_stages));
  add_piece_define(p, c.module);
  return c;
}

std::vector<BuiltProblem> built_ahead() {
  std::vector<BuiltProblem> problems;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int head_dim : {64, 128}) {
      for (const bool is_paged : {false, true}) {
        problems.push_back({usual_problem(dtype, head_dim, 1, is_paged)});
        problems.back().problem.batch_invariant = true;
      }
    }
  }
  return problems;
}

}  // namespace

extern const AttentionKernel kSm80DecodeSegments;
const AttentionKernel kSm80DecodeSegments = {
    .name = "sm80/decode_segments",
    .merit = "shares out the keys where so few rows would leave most of a tile empty",
    .is_decode = true,
    .takes_modifiers = true,
    .classifies_tiles = true,
    .reason_against = reason_against,
    .choose = choose,
    .sequences_at_once = row_sequences_at_once,
    .shape = early_row_shape,
    .built_ahead = built_ahead,
};

}  // namespace tessera::cuda
