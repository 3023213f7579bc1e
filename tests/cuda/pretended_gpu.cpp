// A libcuda.so that pretends to have an H200, whose memory is the host's and whose kernels do nothing, and
// counts the calls of it; and a libnvrtc.so whose machine code is a word. So what the library asks of a
// driver can be tested, and its own time measured, without a GPU.

#include "pretended_gpu.h"

#include <cstdlib>
#include <cstring>

#include "backends/cuda/runtime/driver_api.h"
#include "backends/cuda/runtime/nvrtc_api.h"

using namespace tessera::cuda;

namespace {

long num_calls = 0;
long num_launches = 0;
long num_loads = 0;
LaunchConfig last_launch;

/// Handles are any addresses but null.
template <class Handle>
Result give(Handle* handle) {
  *handle = reinterpret_cast<Handle>(&num_calls);
  return kSuccess;
}

Result allocate(DevicePointer* pointer, std::size_t bytes) {
  *pointer = reinterpret_cast<DevicePointer>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  return kSuccess;
}

int attribute_of_h200(int which) {
  switch (which) {
    case kAttributeComputeCapabilityMajor:
      return 9;
    case kAttributeComputeCapabilityMinor:
      return 0;
    case kAttributeMultiprocessorCount:
      return 132;
    case kAttributeL2CacheSize:
      return 60 << 20;
    case kAttributeMaxSharedPerMultiprocessor:
      return 233472;
    case kAttributeMaxSharedPerBlockOptin:
      return 232448;
    case kAttributeClockRate:
      return 1980000;
    case kAttributeMemoryClockRate:
      return 3201000;
    case kAttributeMemoryBusWidth:
      return 6144;
    case kAttributeMemoryPoolsSupported:
      return 1;
    default:
      return 32;
  }
}

}  // namespace

extern "C" PretendedGpuCalls pretended_gpu_calls() {
  return {num_calls, num_launches, num_loads, {last_launch.grid_x, last_launch.grid_y, last_launch.grid_z}};
}

// The list names each function and its parameters; those that do something are defined below, and here get
// another name.
#define cuDeviceGetCount unused_cuDeviceGetCount
#define cuDriverGetVersion unused_cuDriverGetVersion
#define cuDeviceGetAttribute unused_cuDeviceGetAttribute
#define cuDeviceGetName unused_cuDeviceGetName
#define cuDeviceTotalMem_v2 unused_cuDeviceTotalMem
#define cuDevicePrimaryCtxRetain unused_cuDevicePrimaryCtxRetain
#define cuMemAlloc_v2 unused_cuMemAlloc
#define cuMemAllocAsync unused_cuMemAllocAsync
#define cuMemFree_v2 unused_cuMemFree
#define cuMemFreeAsync unused_cuMemFreeAsync
#define cuModuleLoadDataEx unused_cuModuleLoadDataEx
#define cuModuleGetFunction unused_cuModuleGetFunction
#define cuFuncGetAttribute unused_cuFuncGetAttribute
#define cuLaunchKernelEx unused_cuLaunchKernelEx
#define COUNT(name, symbol, parameters) \
  extern "C" Result symbol parameters { \
    ++num_calls;                        \
    return kSuccess;                    \
  }
#pragma GCC diagnostic ignored "-Wunused-parameter"
TESSERA_CUDA_DRIVER_FUNCTIONS(COUNT)
#undef cuDeviceGetCount
#undef cuDriverGetVersion
#undef cuDeviceGetAttribute
#undef cuDeviceGetName
#undef cuDeviceTotalMem_v2
#undef cuDevicePrimaryCtxRetain
#undef cuMemAlloc_v2
#undef cuMemAllocAsync
#undef cuMemFree_v2
#undef cuMemFreeAsync
#undef cuModuleLoadDataEx
#undef cuModuleGetFunction
#undef cuFuncGetAttribute
#undef cuLaunchKernelEx

extern "C" {

Result cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}

Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

Result cuDeviceGetAttribute(int* value, int attribute, DeviceOrdinal) {
  *value = attribute_of_h200(attribute);
  return kSuccess;
}

Result cuDeviceGetName(char* name, int length, DeviceOrdinal) {
  std::strncpy(name, "a GPU that is not there", static_cast<std::size_t>(length));
  return kSuccess;
}

Result cuDeviceTotalMem_v2(std::size_t* bytes, DeviceOrdinal) {
  *bytes = std::size_t{141} << 30;
  return kSuccess;
}

Result cuDevicePrimaryCtxRetain(Context* context, DeviceOrdinal) { return give(context); }

Result cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) { return allocate(pointer, bytes); }
Result cuMemAllocAsync(DevicePointer* pointer, std::size_t bytes, StreamHandle) {
  return allocate(pointer, bytes);
}

Result cuMemFree_v2(DevicePointer pointer) {
  std::free(reinterpret_cast<void*>(pointer));
  return kSuccess;
}
Result cuMemFreeAsync(DevicePointer pointer, StreamHandle) { return cuMemFree_v2(pointer); }

Result cuModuleLoadDataEx(ModuleHandle* module, const void*, unsigned, int*, void**) {
  ++num_calls;
  ++num_loads;
  return give(module);
}

Result cuModuleGetFunction(FunctionHandle* function, ModuleHandle, const char*) {
  ++num_calls;
  return give(function);
}

Result cuFuncGetAttribute(int* value, int, FunctionHandle) {
  ++num_calls;
  *value = 0;
  return kSuccess;
}

Result cuLaunchKernelEx(const CUlaunchConfig_st* config, FunctionHandle, void**, void**) {
  ++num_calls;
  ++num_launches;
  std::memcpy(&last_launch, config, sizeof(last_launch));
  return kSuccess;
}

rtc::Result nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return rtc::kSuccess;
}

rtc::Result nvrtcCreateProgram(rtc::Program* program, const char*, const char*, int, const char* const*,
                               const char* const*) {
  *program = reinterpret_cast<rtc::Program>(&num_calls);
  return rtc::kSuccess;
}

rtc::Result nvrtcDestroyProgram(rtc::Program*) { return rtc::kSuccess; }
rtc::Result nvrtcCompileProgram(rtc::Program, int, const char* const*) { return rtc::kSuccess; }

rtc::Result nvrtcGetCUBINSize(rtc::Program, std::size_t* size) {
  *size = 4;
  return rtc::kSuccess;
}

rtc::Result nvrtcGetCUBIN(rtc::Program, char* cubin) {
  std::memcpy(cubin, "code", 4);
  return rtc::kSuccess;
}

rtc::Result nvrtcGetProgramLogSize(rtc::Program, std::size_t* size) {
  *size = 0;
  return rtc::kSuccess;
}

rtc::Result nvrtcGetProgramLog(rtc::Program, char*) { return rtc::kSuccess; }
const char* nvrtcGetErrorString(rtc::Result) { return "none"; }

}  // extern "C"
