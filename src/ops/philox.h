#pragma once

#include <array>
#include <cstdint>

namespace tessera {

/// Philox 4x32-10: 128 random bits as a function of a counter and a key.  Salmon, Moraes, Dror & Shaw,
/// "Parallel Random Numbers: As Easy as 1, 2, 3" (2011).
constexpr std::array<std::uint32_t, 4> philox_4x32_10(std::array<std::uint32_t, 4> counter,
                                                      std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// Uniform in [0, 1) with 53 random bits: the sampler's random number for a sequence's seed and step.
constexpr double sampling_uniform(std::uint64_t seed, std::uint64_t step) {
  const std::array<std::uint32_t, 4> bits =
      philox_4x32_10({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), 0, 0},
                     {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t mantissa = (std::uint64_t{bits[0]} << 21) | (bits[1] >> 11);
  return static_cast<double>(mantissa) * 0x1p-53;
}

}  // namespace tessera
