#pragma once

#include <cstddef>

namespace tessera::cuda {

/// Bytes of a multiprocessor's shared memory that the driver takes for each block.
inline constexpr std::size_t kReservedShared = 1024;

}  // namespace tessera::cuda
