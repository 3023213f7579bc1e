#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>

namespace tessera::simt {

/// A launch, as CUDA and HIP have it.
struct Grid {
  std::string kernel;  ///< its name, for messages
  std::array<int, 3> blocks = {1, 1, 1};
  int threads = 1;
  std::size_t shared_bytes = 0;  ///< dynamic
  int warp_size = 32;            ///< as the kernel was compiled for
  int cluster_blocks = 1;        ///< neighbours along x that run at the same time; divides blocks[0]
};

/// Runs `kernel` for every thread of every block, one block (or cluster) after the other, the threads of
/// every second one in descending order so that a missing barrier shows whichever way the data flows. Shared
/// memory is 0xff before each block, which is NaN in every float type, and stands between guards.
///
/// Throws Error{kDevice}, naming the kernel and the block,
///   - if threads stop at a barrier or a shuffle that not all of the block or of the warp reach, one that has
///     returned or stops at another line included;
///   - if a shuffle reads a lane that the warp does not have, or lanes bring values of different sizes;
///   - if a thread arrives at its cluster's barrier again before it has waited there, or waits before it has
///     arrived;
///   - if a guard around shared memory was written to;
///   - if a block has more than 1024 threads or 48 KB of static shared memory.
/// The next launch starts afresh. Safe to call from several threads: launches take turns.
void run_grid(const Grid& grid, const std::function<void()>& kernel);

}  // namespace tessera::simt
