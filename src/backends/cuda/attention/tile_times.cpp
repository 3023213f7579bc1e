#include "backends/cuda/attention/tile_times.h"

#include <algorithm>

#include "backends/cuda/attention/wgmma_prefill.h"
#include "backends/gpu/attention/cut_work.h"
#include "core/rounding.h"

namespace tessera::cuda {

using namespace gpu;

namespace {

constexpr double kPrefillStart = 6;  // of a launch of tiles, in us, before the first and behind the last
// A tile of keys takes so long in a block that has its multiprocessor for itself, in us.
constexpr std::int64_t kSm90TileKeys = 128;
constexpr std::int64_t kSm80TileKeys = 64;

int larger_head_dim(const AttentionProblem& p) {
  return std::max(padded_head_dim_qk(p), padded_head_dim_v(p));
}

/// Tiles of keys that a block goes through, where one block follows the other on a multiprocessor.
double sm80_tiles(const AttentionProblem& p, const DeviceProperties& device, const KernelChoice& c) {
  const std::int64_t tiles = divide_up(p.seq_len_kv, kSm80TileKeys);
  return sm80_rounds(p, device, c) * static_cast<double>(divide_up(tiles, std::int64_t{c.config.num_splits}));
}

}  // namespace

double sm80_rounds(const AttentionProblem& p, const DeviceProperties& device, const KernelChoice& c,
                   double share) {
  constexpr double kShareOfTwo = 0.75;  // of a tile's time, where two blocks share a multiprocessor
  const auto blocks =
      static_cast<double>(c.num_row_tiles * c.num_head_blocks * p.batch * c.config.num_splits);
  return std::max(1.0, share * kShareOfTwo * blocks / device.num_multiprocessors);
}

double us_of_sm80_combine(const AttentionProblem& p, const KernelChoice& c) {
  constexpr double kCombine = 11.5, kCombineOfRow = 0.6e-3;
  const std::int64_t splits = c.config.num_splits;
  const auto rows = static_cast<double>(p.batch * p.num_heads * p.seq_len_q * splits);
  return splits > 1 ? kCombine + kCombineOfRow * rows * p.head_dim_v / 128.0 : 0;
}

double us_of_sm90_combine(const AttentionProblem& p, std::int64_t splits) {
  constexpr double kCombine = 4;  // a launch that another waits for
  constexpr double kBytesOfUs = 2.8e6;
  if (splits == 1) return 0;
  const auto rows = static_cast<double>(p.batch * p.num_heads * p.seq_len_q * splits);
  return kCombine + 2 * rows * p.head_dim_v * sizeof(float) / kBytesOfUs;  // written and read
}

double us_of_sm90_narrow_block(const AttentionProblem& p, const KernelChoice& c, std::int64_t splits) {
  const int head_dim = larger_head_dim(p);
  const double us_of_tile = head_dim <= 64 ? 1.4 : head_dim <= 128 ? 2.1 : 4.9;
  const std::int64_t tiles = divide_up(divide_up(p.seq_len_kv, kSm90TileKeys), splits);
  return us_of_tile * static_cast<double>(tiles) * c.config.block_m / 128;
}

double us_of_sm90_narrow_tiles(const AttentionProblem& p, const DeviceProperties& device,
                               const KernelChoice& c) {
  const auto tiles = static_cast<double>(num_tiles(c, p.batch));
  return kPrefillStart +
         std::max(1.0, tiles / device.num_multiprocessors) *
             us_of_sm90_narrow_block(p, c, c.config.num_splits) +
         us_of_sm90_combine(p, c.config.num_splits);
}

double us_of_sm80_narrow_tiles(const AttentionProblem& p, const DeviceProperties& device,
                               const KernelChoice& c) {
  const double us_of_tile = (1.2 + 2.2 * larger_head_dim(p) / 128.0) * (0.4 + 0.6 * c.config.block_m / 128.0);
  return kPrefillStart + sm80_tiles(p, device, c) * us_of_tile + us_of_sm80_combine(p, c);
}

double us_of_narrow_decode(const AttentionProblem& p, const DeviceProperties& device, const KernelChoice& c) {
  constexpr double kStart = 2, kCombine = 6;
  const int head_dim = larger_head_dim(p);
  const double us_of_tile = head_dim <= 64 ? 0.72 : head_dim <= 128 ? 0.95 : head_dim <= 192 ? 1.4 : 2.4;
  return kStart + sm80_tiles(p, device, c) * us_of_tile + (c.config.num_splits > 1 ? kCombine : 0);
}

}  // namespace tessera::cuda
