#include "backends/gpu/attention/decode_splits.h"

#include <algorithm>
#include <limits>

#include "backends/gpu/attention/cut_work.h"
#include "core/rounding.h"

namespace tessera::gpu {
namespace {

constexpr std::int64_t kMostRounds = 16;

/// Of `blocks` blocks that run at once, each reading `units` times unit_bytes.
double time_of_round(const DecodeWork& w, const DecodeRates& r, std::int64_t blocks, double units) {
  const std::int64_t together = divide_up(blocks, w.num_multiprocessors);  // in one multiprocessor
  const double most = w.is_f32                         ? r.rate_of_f32
                      : w.blocks_a_multiprocessor == 1 ? r.rate_of_whole
                      : together == 1                  ? r.rate_of_half
                                                       : r.rate_of_halves;
  const double sharing = sharing_blocks(blocks, together, w.num_multiprocessors);
  const double rate =
      std::min(most / static_cast<double>(together), static_cast<double>(w.num_multiprocessors) / sharing);
  return r.start + units / rate;
}

/// Of blocks that read `tiles` each.
double time_of(const DecodeWork& w, const DecodeRates& r, std::int64_t tiles) {
  const std::int64_t parts = divide_up(w.key_tiles, tiles);
  const std::int64_t slots = w.num_multiprocessors * w.blocks_a_multiprocessor;
  const std::int64_t blocks = w.blocks * parts;
  const double units = static_cast<double>(std::min(tiles * w.tile_bytes, w.bytes)) / r.unit_bytes;
  double time = parts == 1 ? 0 : r.combine + r.combine_of_part * static_cast<double>(parts);
  if (blocks >= slots) time += static_cast<double>(blocks / slots) * time_of_round(w, r, slots, units);
  if (blocks % slots != 0) time += time_of_round(w, r, blocks % slots, units);
  return time;
}

}  // namespace

double sharing_blocks(std::int64_t blocks, std::int64_t together, std::int64_t multiprocessors) {
  constexpr double kUneven = 0.9;  // of the time of full ones
  const auto full = static_cast<double>(together * multiprocessors);
  const auto all = static_cast<double>(blocks);
  return 2 * all > full ? std::max(all, kUneven * full) : all;
}

DecodeWork decode_work(const AttentionProblem& p, const DeviceProperties& device, std::int64_t key_tile) {
  DecodeWork work;
  work.blocks = std::max<std::int64_t>(p.num_kv_heads * p.batch, 1);
  work.key_tiles = std::max<std::int64_t>(divide_up(p.seq_len_kv, key_tile), 1);
  work.tile_bytes = key_tile * key_bytes(p);
  work.bytes = std::max<std::int64_t>(p.seq_len_kv, 1) * key_bytes(p);
  work.num_multiprocessors = device.num_multiprocessors;
  return work;
}

double time_of_splits(const DecodeWork& work, const DecodeRates& rates, std::int64_t splits) {
  return time_of(work, rates, divide_up(work.key_tiles, std::min(splits, work.key_tiles)));
}

double time_of_cluster(const DecodeWork& work, const DecodeRates& rates, std::int64_t blocks) {
  constexpr double kPairStart = 0.5;  // of the start of larger ones' blocks
  const auto all = static_cast<double>(work.blocks * blocks);
  const double units = static_cast<double>(divide_up(work.bytes, blocks)) / rates.unit_bytes;
  const double rate = std::min(rates.rate_of_cluster, static_cast<double>(work.num_multiprocessors) / all);
  return rates.start_of_clusters + rates.start_of_cluster_block * all * (blocks == 2 ? kPairStart : 1) +
         units / rate;
}

DecodeSplits choose_decode_splits(const DecodeWork& work, const DecodeRates& rates, std::int64_t most) {
  const std::int64_t slots = work.num_multiprocessors * work.blocks_a_multiprocessor;
  const std::int64_t most_useful =
      std::min({most, work.key_tiles, divide_up(kMostRounds * slots, work.blocks)});
  DecodeSplits best = {1, std::numeric_limits<double>::max()};
  for (std::int64_t splits = 1; splits <= most_useful;) {
    const std::int64_t tiles = divide_up(work.key_tiles, splits);
    const double time = time_of(work, rates, tiles);
    if (time < best.time) best = {splits, time};
    if (tiles == 1) break;
    splits = divide_up(work.key_tiles, tiles - 1);  // the next that leaves each part fewer tiles
  }
  return best;
}

}  // namespace tessera::gpu
