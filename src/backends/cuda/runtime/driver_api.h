#pragma once

#include <cstddef>

// The part of the CUDA driver API that Tessera calls, declared here so that building needs no CUDA toolkit.
// Where a toolkit is present a test compares every line with its cuda.h.

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;
struct CUmemPoolHandle_st;
struct CUlaunchConfig_st;

namespace tessera::cuda {

using Result = int;                        // CUresult
using DeviceOrdinal = int;                 // CUdevice
using DevicePointer = unsigned long long;  // CUdeviceptr
using Context = CUctx_st*;
using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using ModuleHandle = CUmod_st*;
using FunctionHandle = CUfunc_st*;
using GraphHandle = CUgraph_st*;
using GraphExecHandle = CUgraphExec_st*;
using MemPoolHandle = CUmemPoolHandle_st*;

// Values of cuda.h's enumerations.
inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorOutOfMemory = 2;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr int kAttributeWarpSize = 10;
inline constexpr int kAttributeMultiprocessorCount = 16;
inline constexpr int kAttributeClockRate = 13;
inline constexpr int kAttributeMemoryClockRate = 36;
inline constexpr int kAttributeMemoryBusWidth = 37;
inline constexpr int kAttributeL2CacheSize = 38;
inline constexpr int kAttributeComputeCapabilityMajor = 75;
inline constexpr int kAttributeComputeCapabilityMinor = 76;
inline constexpr int kAttributeMaxSharedPerMultiprocessor = 81;
inline constexpr int kAttributeMaxSharedPerBlockOptin = 97;
inline constexpr int kAttributeMemoryPoolsSupported = 115;
inline constexpr int kFunctionSharedBytes = 1;
inline constexpr int kFunctionLocalBytes = 3;
inline constexpr int kFunctionNumRegisters = 4;
inline constexpr int kFunctionMaxDynamicSharedBytes = 8;
inline constexpr int kMemPoolReleaseThreshold = 4;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureModeThreadLocal = 1;
inline constexpr int kLaunchClusterDimension = 4;
inline constexpr int kLaunchProgrammaticSerialization = 6;
inline constexpr int kTensorMapUint8 = 0;
inline constexpr int kTensorMapUint64 = 4;
inline constexpr int kTensorMapFloat16 = 6;
inline constexpr int kTensorMapFloat32 = 7;
inline constexpr int kTensorMapBFloat16 = 9;
inline constexpr int kTensorMapSwizzle64B = 2;
inline constexpr int kTensorMapSwizzle128B = 3;
inline constexpr int kTensorMapL2Promotion64B = 1;
inline constexpr int kTensorMapL2Promotion128B = 2;
inline constexpr int kTensorMapL2Promotion256B = 3;
inline constexpr int kJitErrorLogBuffer = 5;
inline constexpr int kJitErrorLogBufferSizeBytes = 6;

/// CUlaunchAttribute with a value of one int.
struct LaunchAttribute {
  int id = 0;
  int padding = 0;
  int value[16] = {};
};

/// CUlaunchConfig
struct LaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  StreamHandle stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned num_attributes = 0;
};

/// X(name, symbol in libcuda, parameters). All return Result.
#define TESSERA_CUDA_DRIVER_FUNCTIONS(X)                                                                  \
  X(cuInit, cuInit, (unsigned flags))                                                                     \
  X(cuDriverGetVersion, cuDriverGetVersion, (int* version))                                               \
  X(cuGetErrorName, cuGetErrorName, (Result error, const char** name))                                    \
  X(cuGetErrorString, cuGetErrorString, (Result error, const char** text))                                \
  X(cuDeviceGetCount, cuDeviceGetCount, (int* count))                                                     \
  X(cuDeviceGet, cuDeviceGet, (DeviceOrdinal * device, int ordinal))                                      \
  X(cuDeviceGetName, cuDeviceGetName, (char* name, int length, DeviceOrdinal device))                     \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute, (int* value, int attribute, DeviceOrdinal device))        \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (std::size_t * bytes, DeviceOrdinal device))                   \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (Context * context, DeviceOrdinal device))        \
  X(cuCtxSetCurrent, cuCtxSetCurrent, (Context context))                                                  \
  X(cuMemGetInfo, cuMemGetInfo_v2, (std::size_t * free_bytes, std::size_t * total_bytes))                 \
  X(cuMemAlloc, cuMemAlloc_v2, (DevicePointer * pointer, std::size_t bytes))                              \
  X(cuMemFree, cuMemFree_v2, (DevicePointer pointer))                                                     \
  X(cuMemAllocHost, cuMemAllocHost_v2, (void** pointer, std::size_t bytes))                               \
  X(cuMemFreeHost, cuMemFreeHost, (void* pointer))                                                        \
  X(cuMemAllocAsync, cuMemAllocAsync, (DevicePointer * pointer, std::size_t bytes, StreamHandle stream))  \
  X(cuMemFreeAsync, cuMemFreeAsync, (DevicePointer pointer, StreamHandle stream))                         \
  X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (MemPoolHandle * pool, DeviceOrdinal device))   \
  X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, (MemPoolHandle pool, int attribute, void* value))       \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                                              \
    (DevicePointer destination, const void* source, std::size_t bytes, StreamHandle stream))              \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                                              \
    (void* destination, DevicePointer source, std::size_t bytes, StreamHandle stream))                    \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2,                                                              \
    (DevicePointer destination, DevicePointer source, std::size_t bytes, StreamHandle stream))            \
  X(cuMemsetD8Async, cuMemsetD8Async,                                                                     \
    (DevicePointer destination, unsigned char value, std::size_t count, StreamHandle stream))             \
  X(cuStreamCreate, cuStreamCreate, (StreamHandle * stream, unsigned flags))                              \
  X(cuStreamDestroy, cuStreamDestroy_v2, (StreamHandle stream))                                           \
  X(cuStreamSynchronize, cuStreamSynchronize, (StreamHandle stream))                                      \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (StreamHandle stream, int mode))                       \
  X(cuStreamEndCapture, cuStreamEndCapture, (StreamHandle stream, GraphHandle * graph))                   \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,                                             \
    (GraphExecHandle * exec, GraphHandle graph, unsigned long long flags))                                \
  X(cuGraphLaunch, cuGraphLaunch, (GraphExecHandle exec, StreamHandle stream))                            \
  X(cuGraphDestroy, cuGraphDestroy, (GraphHandle graph))                                                  \
  X(cuGraphExecDestroy, cuGraphExecDestroy, (GraphExecHandle exec))                                       \
  X(cuEventCreate, cuEventCreate, (EventHandle * event, unsigned flags))                                  \
  X(cuEventDestroy, cuEventDestroy_v2, (EventHandle event))                                               \
  X(cuEventRecord, cuEventRecord, (EventHandle event, StreamHandle stream))                               \
  X(cuEventSynchronize, cuEventSynchronize, (EventHandle event))                                          \
  X(cuEventElapsedTime, cuEventElapsedTime, (float* ms, EventHandle start, EventHandle end))              \
  X(cuModuleLoadDataEx, cuModuleLoadDataEx,                                                               \
    (ModuleHandle * module, const void* image, unsigned num_options, int* options, void** option_values)) \
  X(cuModuleGetFunction, cuModuleGetFunction,                                                             \
    (FunctionHandle * function, ModuleHandle module, const char* name))                                   \
  X(cuFuncGetAttribute, cuFuncGetAttribute, (int* value, int attribute, FunctionHandle function))         \
  X(cuFuncSetAttribute, cuFuncSetAttribute, (FunctionHandle function, int attribute, int value))          \
  X(cuLaunchKernelEx, cuLaunchKernelEx,                                                                   \
    (const CUlaunchConfig_st* config, FunctionHandle function, void** parameters, void** extra))

/// The same of functions that came after CUDA 11.8.
#define TESSERA_CUDA_NEWER_DRIVER_FUNCTIONS(X)                                                            \
  X(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled,                                                       \
    (void* map, int data_type, unsigned rank, void* address, const unsigned long long* sizes,             \
     const unsigned long long* strides_bytes, const unsigned* box_sizes, const unsigned* element_strides, \
     int interleave, int swizzle, int l2_promotion, int out_of_bounds_fill))

/// The driver's functions, found in libcuda at run time. None but the newer ones is null.
struct DriverApi {
#define TESSERA_DECLARE(name, symbol, parameters) Result(*name) parameters = nullptr;
  TESSERA_CUDA_DRIVER_FUNCTIONS(TESSERA_DECLARE)
  TESSERA_CUDA_NEWER_DRIVER_FUNCTIONS(TESSERA_DECLARE)
#undef TESSERA_DECLARE
};

}  // namespace tessera::cuda
