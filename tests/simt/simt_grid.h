#pragma once

#include <array>
#include <cstddef>
#include <functional>

namespace tessera::simt {

struct Grid {
  std::array<int, 3> blocks = {1, 1, 1};
  int threads = 1;
  std::size_t shared_bytes = 0;  ///< dynamic; filled with 0xff before each block
};

/// Runs `kernel` for every thread of every block. Throws Error{kDevice} if a block stops at a barrier that
/// not all of its threads, or of a warp's, can reach.
void run_grid(const Grid& grid, const std::function<void()>& kernel);

}  // namespace tessera::simt
