#include "backends/cuda/attention/decode_splits.h"

#include <algorithm>
#include <limits>

#include "core/rounding.h"

namespace tessera::cuda {
namespace {

// The unit of time is that in which a multiprocessor reads kUnitBytes as its fair share of the memory's rate:
// 1.1 us on an H200. The constants are fitted to times measured there (docs/kernels/cuda_attention.md).
constexpr double kUnitBytes = 32 * 1024;
constexpr double kStart = 3.2;    // of a block, and its end
constexpr double kCombine = 2.2;  // another kernel
constexpr double kCombineOfPart = 0.03;
// What one multiprocessor reads in a unit of time at most, in kUnitBytes.
constexpr double kRateOfHalf = 1.04;    // one block, of two that fit
constexpr double kRateOfHalves = 1.34;  // two blocks
constexpr double kRateOfWhole = 1.65;   // the one block that fits
constexpr double kRateOfF32 = 1;        // likewise

constexpr std::int64_t kMostRounds = 16;

/// Of `blocks` blocks that run at once, each reading `units` times kUnitBytes.
double time_of_round(const DecodeWork& w, std::int64_t blocks, double units) {
  const std::int64_t together = divide_up(blocks, w.num_multiprocessors);  // in one multiprocessor
  const double most = w.is_f32                         ? kRateOfF32
                      : w.blocks_a_multiprocessor == 1 ? kRateOfWhole
                      : together == 1                  ? kRateOfHalf
                                                       : kRateOfHalves;
  const double rate = std::min(most / static_cast<double>(together),
                               static_cast<double>(w.num_multiprocessors) / static_cast<double>(blocks));
  return kStart + units / rate;
}

/// Of blocks that read `tiles` each.
double time_of(const DecodeWork& w, std::int64_t tiles) {
  const std::int64_t parts = divide_up(w.key_tiles, tiles);
  const std::int64_t slots = w.num_multiprocessors * w.blocks_a_multiprocessor;
  const std::int64_t blocks = w.blocks * parts;
  const double units = static_cast<double>(std::min(tiles * w.tile_bytes, w.bytes)) / kUnitBytes;
  double time = parts == 1 ? 0 : kCombine + kCombineOfPart * static_cast<double>(parts);
  if (blocks >= slots) time += static_cast<double>(blocks / slots) * time_of_round(w, slots, units);
  if (blocks % slots != 0) time += time_of_round(w, blocks % slots, units);
  return time;
}

}  // namespace

DecodeSplits choose_decode_splits(const DecodeWork& work, std::int64_t most) {
  const std::int64_t slots = work.num_multiprocessors * work.blocks_a_multiprocessor;
  const std::int64_t most_useful =
      std::min({most, work.key_tiles, divide_up(kMostRounds * slots, work.blocks)});
  DecodeSplits best = {1, std::numeric_limits<double>::max()};
  for (std::int64_t splits = 1; splits <= most_useful; ++splits) {
    const double time = time_of(work, divide_up(work.key_tiles, splits));
    if (time < best.time) best = {splits, time};
  }
  return best;
}

}  // namespace tessera::cuda
