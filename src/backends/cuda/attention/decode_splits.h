#pragma once

#include <cstdint>

namespace tessera::cuda {

/// A decode as the multiprocessors see it.
struct DecodeWork {
  std::int64_t blocks = 1;     ///< without splits
  std::int64_t key_tiles = 1;  ///< that each block reads
  std::int64_t tile_bytes = 1;
  std::int64_t num_multiprocessors = 1;
  std::int64_t blocks_a_multiprocessor = 1;  ///< that run at once
};

/// Into how many parts to split the keys, 1 to `most`, by a model of the time it takes: rounds of blocks,
/// each with a start and its tiles, and the combination of the parts.
std::int64_t choose_decode_splits(const DecodeWork& work, std::int64_t most);

}  // namespace tessera::cuda
