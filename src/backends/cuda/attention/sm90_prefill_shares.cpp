#include "backends/cuda/attention/sm90_prefill_shares.h"

#include <algorithm>
#include <cmath>

#include "attention/sequence.h"
#include "backends/cuda/attention/tile_times.h"
#include "backends/cuda/attention/wgmma_prefill.h"
#include "backends/gpu/attention/align_rows.h"
#include "backends/gpu/attention/cut_work.h"
#include "backends/gpu/attention/narrow_kv.h"
#include "core/rounding.h"

namespace tessera::cuda {

using namespace gpu;

namespace {

// Fitted to an H200's times of 17 to 128 queries (docs/kernels/hopper_attention.md).
constexpr TileUs kSm80TileUs = {64, 0.8, 1.15};
// Of batch-invariant problems, which both take in segments of 64 keys a tile.
constexpr TileUs kSegmentTileUs = {64, 0.4, 0.8};
constexpr TileUs kSm80SegmentTileUs = {64, 1.0, 2.0};
constexpr double kSm80Softcap = 1.6;  // times a tile's time

// Likewise with and without splits, and with and without copies to aligned rows.
constexpr double kBlockUs = 0.5;                          // of a tile of queries besides
constexpr double kLeastOfTile = 0.83, kMoreOfTile = 0.3;  // times the above, where few blocks or all compute
constexpr double kAlignUs = 5;
constexpr double kAlignedBytesOfUs = 2.5e6;  // read and written

/// Of a tile of `block_m` queries over all keys, or its share of them.
double us_of_block(const TileUs& tile, const AttentionProblem& p, int block_m, std::int64_t splits) {
  const double dims = std::max(padded_head_dim_qk(p), padded_head_dim_v(p)) / 128.0;
  const auto tiles = static_cast<double>(divide_up(divide_up(p.seq_len_kv, tile.keys), splits));
  return tiles * (tile.start + tile.of_128_dims * dims) * block_m / 128.0;
}

/// Of sm80/prefill's block, which copies rows that aren't aligned to 16 bytes, and writes them, by pieces.
double us_of_sm80_block(const AttentionProblem& p, const KernelChoice& c) {
  constexpr double kUsOfQueries = 10;  // of such queries and their results
  const TileUs tile = p.batch_invariant ? kSm80SegmentTileUs : kSm80TileUs;
  const double us =
      us_of_block(tile, p, c.config.block_m, c.config.num_splits) * (p.scores.softcap ? kSm80Softcap : 1);
  const int piece = row_alignment(p);
  if (piece == 16) return us;
  const double slowdown = piece == 8 ? 1.5 : piece == 4 ? 3.2 : 5;
  return slowdown * us + kUsOfQueries * c.config.block_m / 128.0;
}

}  // namespace

int packed_heads(const AttentionProblem& p, int block_m, bool has_mask_tiles) {
  const std::int64_t group = p.num_heads / p.num_kv_heads;
  if (p.batch_invariant || p.scores.modifier || group == 1 || group > block_m || p.seq_len_q == 0) return 1;
  // Where all tiles run at once anyway, fewer of them gain something only if the keys are then split.
  constexpr std::int64_t kFewTiles = 128;
  constexpr std::int64_t kFewKeys = 512;
  const std::int64_t packed = divide_up(p.seq_len_q, block_m / group);
  const std::int64_t apart = group * divide_up(p.seq_len_q, std::int64_t{block_m});
  if (apart * p.num_kv_heads * p.batch <= kFewTiles && p.seq_len_kv <= kFewKeys) return 1;
  // A packed tile takes a bit longer, and twice as long where it loads a mask's elements one by one.
  return packed * (has_mask_tiles ? 8 : 4) <= apart * 3 ? static_cast<int>(group) : 1;
}

double us_with_splits(const AttentionProblem& p, const DeviceProperties& device, const KernelChoice& c,
                      const TileUs& tile, double share, std::int64_t splits) {
  const auto tiles = static_cast<double>(c.num_row_tiles * c.num_head_blocks * p.batch * splits);
  const double rounds = share * tiles / device.num_multiprocessors;
  // All multiprocessors together draw more power than allows their highest clock.
  const double us_of_tile =
      kBlockUs + (kLeastOfTile + kMoreOfTile * std::min(rounds, 1.0)) *
                     (has_narrow_kv(p) ? us_of_sm90_narrow_block(p, c, splits)
                                       : us_of_block(tile, p, c.config.block_m, splits));
  const double bytes = static_cast<double>(p.batch * p.num_kv_heads * p.seq_len_kv * key_bytes(p));
  // Tiles of one length end together; of others the last to be drawn ends alone.
  const double us = has_length_arrays(p)
                        ? std::max(rounds, 1.0) * us_of_tile + (rounds > 1 ? us_of_tile / 2 : 0)
                        : std::max(std::ceil(rounds), 1.0) * us_of_tile;
  return std::max(us, bytes / device.memory_bytes_per_us) + us_of_sm90_combine(p, splits);
}

std::int64_t wanted_splits(const AttentionProblem& p, const DeviceProperties& device, const KernelChoice& c,
                           const TileUs& tile) {
  constexpr std::int64_t kMostWanted = 32;
  const std::int64_t most =
      std::clamp<std::int64_t>(divide_up(p.seq_len_kv, std::int64_t{c.config.block_n}) / 2, 1, kMostWanted);
  // Of sequences that may be short many splits are empty.
  const std::int64_t tiles = c.num_row_tiles * c.num_head_blocks * p.batch;
  if (has_length_arrays(p) && 2 * tiles > device.num_multiprocessors) return 1;
  constexpr double kWorthIt = 0.9;  // of the time without
  const double share = share_of_pairs(p);
  std::int64_t best = 1;
  double us = kWorthIt * us_with_splits(p, device, c, tile, share, 1);
  for (std::int64_t splits = 2; splits <= most; ++splits) {
    const double with = us_with_splits(p, device, c, tile, share, splits);
    if (with >= us) continue;
    best = splits;
    us = with;
  }
  return best;
}

double us_of_aligned_bytes(double bytes) { return kAlignUs + 2 * bytes / kAlignedBytesOfUs; }

double us_of_aligning(const AttentionProblem& p, int tensors) {
  return tensors == 0 ? 0 : us_of_aligned_bytes(static_cast<double>(aligned_rows_bytes(p, tensors)));
}

bool is_slower_than_sm80(const AttentionProblem& p, const DeviceProperties& device, const KernelChoice& c,
                         int aligned, const KernelChoice& other) {
  const std::int64_t splits = c.config.num_splits;
  if (has_narrow_kv(p)) {
    return us_of_sm90_narrow_tiles(p, device, c) > us_of_sm80_narrow_tiles(p, device, other);
  }
  const TileUs own = p.batch_invariant ? kSegmentTileUs : kSm90TileUs;
  const double share = aligned != 0 ? share_of_pairs(p) : 1;
  const double rounds =
      std::max(1.0, share * static_cast<double>(num_tiles(c, p.batch)) / device.num_multiprocessors);
  const double us = rounds * us_of_block(own, p, c.config.block_m, splits) + us_of_sm90_combine(p, splits);
  constexpr double kTie = 1.1;  // by these models
  return us + us_of_aligning(p, aligned) >
         kTie * (sm80_rounds(p, device, other, share) * us_of_sm80_block(p, other) +
                 us_of_sm80_combine(p, other));
}

}  // namespace tessera::cuda
