#pragma once

#include "common/attention_constants.cuh"

// What all decode kernels of Hopper are compiled with.

namespace tessera::kernels {

constexpr int kBlockN = 128 / sizeof(Kv);  // keys of a tile

}  // namespace tessera::kernels
