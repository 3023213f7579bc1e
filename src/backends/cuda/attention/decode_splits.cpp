#include "backends/cuda/attention/decode_splits.h"

#include <algorithm>
#include <limits>

#include "core/rounding.h"

namespace tessera::cuda {
namespace {

// The unit of time is that in which a block reads kUnitBytes while two blocks run on each multiprocessor: 2
// us on an H200. The constants are fitted to times measured there (docs/kernels/cuda_attention.md).
constexpr double kUnitBytes = 32 * 1024;
constexpr double kStart = 1.25;  // of a block, until its first tile is there
constexpr double kCombine = 2;   // another kernel
constexpr double kCombineOfPart = 0.03;
constexpr double kLeastUnitTime = 0.41;   // of a block that shares the memory with few others
constexpr double kShareOfLatency = 0.36;  // of the time of a unit when all blocks run: waiting, not transfer

constexpr std::int64_t kMostRounds = 16;

/// Of blocks that read `tiles` each.
double time_of(const DecodeWork& w, std::int64_t tiles) {
  const std::int64_t parts = divide_up(w.key_tiles, tiles);
  const std::int64_t slots = w.num_multiprocessors * w.blocks_a_multiprocessor;
  const double filled = std::min(1.0, static_cast<double>(w.blocks * parts) / static_cast<double>(slots));
  const double unit_time = std::max(kLeastUnitTime, static_cast<double>(w.blocks_a_multiprocessor) / 2 *
                                                        (kShareOfLatency + (1 - kShareOfLatency) * filled));
  const double units = static_cast<double>(tiles) * static_cast<double>(w.tile_bytes) / kUnitBytes;
  const double rounds = static_cast<double>(divide_up(w.blocks * parts, slots));
  const double combine = parts == 1 ? 0 : kCombine + kCombineOfPart * static_cast<double>(parts);
  return rounds * (kStart + units * unit_time) + combine;
}

}  // namespace

std::int64_t choose_decode_splits(const DecodeWork& work, std::int64_t most) {
  const std::int64_t slots = work.num_multiprocessors * work.blocks_a_multiprocessor;
  const std::int64_t most_useful =
      std::min({most, work.key_tiles, divide_up(kMostRounds * slots, work.blocks)});
  std::int64_t best = 1;
  double best_time = std::numeric_limits<double>::max();
  for (std::int64_t splits = 1; splits <= most_useful; ++splits) {
    const double time = time_of(work, divide_up(work.key_tiles, splits));
    if (time >= best_time) continue;
    best = splits;
    best_time = time;
  }
  return best;
}

}  // namespace tessera::cuda
