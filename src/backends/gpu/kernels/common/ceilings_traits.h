#pragma once

// What the kernels that measure ceilings do, for the host to count.

namespace tessera::kernels {

constexpr int kCeilingThreads = 256;  // of a block
// In each iteration:
constexpr int kCeilingFmas = 64;     // of a thread, in fp32
constexpr int kCeilingProducts = 8;  // of a warp on matrix units

}  // namespace tessera::kernels
