#pragma once

#include <cstdint>

#include "backends/gpu/runtime/device_properties.h"
#include "tessera/attention.h"

namespace tessera::gpu {

/// By how many blocks memory's rate is shared where `blocks` run, up to `together` on a multiprocessor: where
/// some multiprocessors have one block fewer the others end nearly as late as if all were full.
double sharing_blocks(std::int64_t blocks, std::int64_t together, std::int64_t multiprocessors);

/// How fast a device's multiprocessors read, for the model below. The unit of time is that in which one reads
/// `unit_bytes` as its fair share of the memory's rate.
struct DecodeRates {
  double unit_bytes;
  double start;            ///< of a block, and its end
  double combine;          ///< another kernel
  double combine_of_part;  ///< for each part
  // What one multiprocessor reads in a unit of time at most, in unit_bytes.
  double rate_of_half;    ///< one block, of two that fit
  double rate_of_halves;  ///< two blocks
  double rate_of_whole;   ///< the one block that fits
  double rate_of_f32;     ///< likewise
  // Of clusters, whose blocks merge what they find themselves.
  double rate_of_cluster = 0;         ///< of a block
  double start_of_clusters = 0;       ///< and their end
  double start_of_cluster_block = 0;  ///< beside it, for each block of all clusters
};

/// A decode as the multiprocessors see it.
struct DecodeWork {
  std::int64_t blocks = 1;     ///< without splits
  std::int64_t key_tiles = 1;  ///< that each block reads
  std::int64_t tile_bytes = 1;
  std::int64_t bytes = 1;  ///< that each block reads, the last tile's part only
  std::int64_t num_multiprocessors = 1;
  std::int64_t blocks_a_multiprocessor = 1;  ///< that run at once
  bool is_f32 = false;                       ///< splitting the numbers takes as long as reading them
};

/// What a problem's keys come to in tiles of `key_tile` keys, one block a kv head of a sequence. How many run
/// at once, and whether fp32 is split, is the kernel's to say.
DecodeWork decode_work(const AttentionProblem& problem, const DeviceProperties& device,
                       std::int64_t key_tile);

struct DecodeSplits {
  std::int64_t splits = 1;
  double time = 0;  ///< by the model, in the rates' unit
};

/// The time it takes, in the rates' unit, if each one's keys are cut into `splits` parts.
double time_of_splits(const DecodeWork& work, const DecodeRates& rates, std::int64_t splits);

/// The same if `blocks` blocks of a cluster, all of which run at once, share each one's keys out.
double time_of_cluster(const DecodeWork& work, const DecodeRates& rates, std::int64_t blocks);

/// Into how many parts to split the keys, 1 to `most`, by a model of the time it takes: rounds of blocks,
/// each with a start and its tiles, and the combination of the parts.
DecodeSplits choose_decode_splits(const DecodeWork& work, const DecodeRates& rates, std::int64_t most);

}  // namespace tessera::gpu
