#pragma once

/// What pretended_gpu.cpp has counted.
struct PretendedGpuCalls {
  long calls;        ///< of all functions but those that only describe the device and its memory
  long launches;     ///< of kernels
  long loads;        ///< of modules
  unsigned grid[3];  ///< of the last launch
};

extern "C" PretendedGpuCalls pretended_gpu_calls();
