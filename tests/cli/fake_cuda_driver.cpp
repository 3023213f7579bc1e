// A libcuda.so whose every call fails with the CUresult in FAKE_CUDA_RESULT; cuInit with the one in
// FAKE_CUDA_INIT. FAKE_CUDA_DEVICES says how many GPUs it counts.

#include <cstdlib>

#include "backends/cuda/runtime/driver_api.h"

namespace {

int variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : 0;
}

}  // namespace

using namespace tessera::cuda;

// The macro's list names each function and its parameters; those that succeed have other names here.
#define cuInit unused_cuInit
#define cuDeviceGetCount unused_cuDeviceGetCount
#define cuDriverGetVersion unused_cuDriverGetVersion
#define FAKE(name, symbol, parameters) \
  extern "C" Result symbol parameters { return static_cast<Result>(variable("FAKE_CUDA_RESULT")); }
#pragma GCC diagnostic ignored "-Wunused-parameter"
TESSERA_CUDA_DRIVER_FUNCTIONS(FAKE)
#undef cuInit
#undef cuDeviceGetCount
#undef cuDriverGetVersion

extern "C" Result cuInit(unsigned) { return static_cast<Result>(variable("FAKE_CUDA_INIT")); }
extern "C" Result cuDeviceGetCount(int* count) {
  *count = variable("FAKE_CUDA_DEVICES");
  return kSuccess;
}
extern "C" Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
