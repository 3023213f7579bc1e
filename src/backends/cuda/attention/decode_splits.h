#pragma once

#include <cstdint>

namespace tessera::cuda {

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

struct DecodeSplits {
  std::int64_t splits = 1;
  double time = 0;  ///< by the model; 1 is about 1.1 us on an H200
};

/// Into how many parts to split the keys, 1 to `most`, by a model of the time it takes: rounds of blocks,
/// each with a start and its tiles, and the combination of the parts.
DecodeSplits choose_decode_splits(const DecodeWork& work, std::int64_t most);

}  // namespace tessera::cuda
