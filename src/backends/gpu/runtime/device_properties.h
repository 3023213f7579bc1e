#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::gpu {

/// What a GPU has, as its driver says.
struct DeviceProperties {
  std::string name;
  int compute_capability = 0;  ///< NVIDIA's, 10 * major + minor: 80, 90, 120; 0 for others
  int num_multiprocessors = 0;
  std::size_t total_memory_bytes = 0;
  std::size_t l2_bytes = 0;
  std::size_t shared_per_multiprocessor_bytes = 0;
  std::size_t shared_per_block_bytes = 0;  ///< most that one block may ask for
  int clock_khz = 0;                       ///< highest of the multiprocessors
  double memory_bytes_per_us = 0;          ///< by the memory's clock and width; 0: not known
  int warp_size = 0;                       ///< threads that run as one
  std::string architecture{};              ///< that kernels are compiled for: "sm_90a", "gfx942"
  std::string same_isa{};                  ///< another whose machine code it runs as its own; empty: none
  bool has_tensor_maps = true;             ///< NVIDIA: whether the driver can make them, for Hopper and later
};

inline constexpr std::int64_t kMaxGridYz = 65535;  // of a grid's second and third dimension

}  // namespace tessera::gpu
