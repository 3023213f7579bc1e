#pragma once

#include <cstddef>

// The part of the HIP API that Tessera calls, declared here so that building needs nothing of ROCm, and only
// what is the same in ROCm 5, 6 and 7: no struct is passed whose layout has changed. Where HIP's headers are
// present a test compares every line with them.

struct ihipStream_t;
struct ihipEvent_t;
struct ihipModule_t;
struct ihipModuleSymbol_t;
struct ihipGraph;
struct hipGraphExec;
struct hipGraphNode;
struct ihipMemPoolHandle_t;

namespace tessera::hip {

using Result = int;  // hipError_t
using StreamHandle = ihipStream_t*;
using EventHandle = ihipEvent_t*;
using ModuleHandle = ihipModule_t*;
using FunctionHandle = ihipModuleSymbol_t*;
using GraphHandle = ihipGraph*;
using GraphExecHandle = hipGraphExec*;
using MemPoolHandle = ihipMemPoolHandle_t*;

// Values of HIP's enumerations.
inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorOutOfMemory = 2;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr Result kErrorInvalidDevice = 101;
inline constexpr int kAttributeClockRate = 5;
inline constexpr int kAttributeL2CacheSize = 19;
inline constexpr int kAttributeMultiprocessorCount = 63;
inline constexpr int kAttributeMaxSharedPerBlock = 74;
inline constexpr int kAttributeWarpSize = 87;
inline constexpr int kAttributeMemoryPoolsSupported = 88;
inline constexpr int kAttributeMaxSharedPerMultiprocessor = 10002;
inline constexpr int kFunctionSharedBytes = 1;
inline constexpr int kFunctionLocalBytes = 3;
inline constexpr int kFunctionNumRegisters = 4;
inline constexpr int kMemPoolReleaseThreshold = 4;
inline constexpr int kCopyHostToDevice = 1;
inline constexpr int kCopyDeviceToHost = 2;
inline constexpr int kCopyDeviceToDevice = 3;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureModeThreadLocal = 1;

/// X(name, result, parameters)
#define TESSERA_HIP_FUNCTIONS(X)                                                                           \
  X(hipInit, Result, (unsigned flags))                                                                     \
  X(hipRuntimeGetVersion, Result, (int* version))                                                          \
  X(hipGetErrorName, const char*, (Result error))                                                          \
  X(hipGetErrorString, const char*, (Result error))                                                        \
  X(hipGetDeviceCount, Result, (int* count))                                                               \
  X(hipSetDevice, Result, (int device))                                                                    \
  X(hipDeviceGetName, Result, (char* name, int length, int device))                                        \
  X(hipDeviceGetAttribute, Result, (int* value, int attribute, int device))                                \
  X(hipDeviceTotalMem, Result, (std::size_t * bytes, int device))                                          \
  X(hipMemGetInfo, Result, (std::size_t * free_bytes, std::size_t * total_bytes))                          \
  X(hipMalloc, Result, (void** pointer, std::size_t bytes))                                                \
  X(hipFree, Result, (void* pointer))                                                                      \
  X(hipHostMalloc, Result, (void** pointer, std::size_t bytes, unsigned flags))                            \
  X(hipHostFree, Result, (void* pointer))                                                                  \
  X(hipMallocAsync, Result, (void** pointer, std::size_t bytes, StreamHandle stream))                      \
  X(hipFreeAsync, Result, (void* pointer, StreamHandle stream))                                            \
  X(hipDeviceGetDefaultMemPool, Result, (MemPoolHandle * pool, int device))                                \
  X(hipMemPoolSetAttribute, Result, (MemPoolHandle pool, int attribute, void* value))                      \
  X(hipMemcpyAsync, Result,                                                                                \
    (void* destination, const void* source, std::size_t bytes, int kind, StreamHandle stream))             \
  X(hipMemsetD8Async, Result,                                                                              \
    (void* destination, unsigned char value, std::size_t count, StreamHandle stream))                      \
  X(hipStreamCreateWithFlags, Result, (StreamHandle * stream, unsigned flags))                             \
  X(hipStreamDestroy, Result, (StreamHandle stream))                                                       \
  X(hipStreamSynchronize, Result, (StreamHandle stream))                                                   \
  X(hipStreamBeginCapture, Result, (StreamHandle stream, int mode))                                        \
  X(hipStreamEndCapture, Result, (StreamHandle stream, GraphHandle * graph))                               \
  X(hipGraphInstantiate, Result,                                                                           \
    (GraphExecHandle * exec, GraphHandle graph, hipGraphNode * *error_node, char* log, std::size_t bytes)) \
  X(hipGraphLaunch, Result, (GraphExecHandle exec, StreamHandle stream))                                   \
  X(hipGraphDestroy, Result, (GraphHandle graph))                                                          \
  X(hipGraphExecDestroy, Result, (GraphExecHandle exec))                                                   \
  X(hipEventCreateWithFlags, Result, (EventHandle * event, unsigned flags))                                \
  X(hipEventDestroy, Result, (EventHandle event))                                                          \
  X(hipEventRecord, Result, (EventHandle event, StreamHandle stream))                                      \
  X(hipEventSynchronize, Result, (EventHandle event))                                                      \
  X(hipEventElapsedTime, Result, (float* ms, EventHandle start, EventHandle end))                          \
  X(hipModuleLoadData, Result, (ModuleHandle * module, const void* image))                                 \
  X(hipModuleGetFunction, Result, (FunctionHandle * function, ModuleHandle module, const char* name))      \
  X(hipFuncGetAttribute, Result, (int* value, int attribute, FunctionHandle function))                     \
  X(hipModuleLaunchKernel, Result,                                                                         \
    (FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,         \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, StreamHandle stream, void** parameters,    \
     void** extra))

/// The functions that give a device's properties: of ROCm 6 and later, and of ROCm 5. One of them is there.
/// The struct differs between them and between versions, so it is only searched (targets.h).
#define TESSERA_HIP_PROPERTIES_FUNCTIONS(X)                              \
  X(hipGetDevicePropertiesR0600, Result, (void* properties, int device)) \
  X(hipGetDeviceProperties, Result, (void* properties, int device))

/// More than any version's hipDeviceProp_t has.
inline constexpr std::size_t kMaxPropertiesBytes = 8192;

/// HIP's functions, found in libamdhip64 at run time. None but one of the last two is null.
struct HipApi {
#define TESSERA_DECLARE(name, result, parameters) result(*name) parameters = nullptr;
  TESSERA_HIP_FUNCTIONS(TESSERA_DECLARE)
  TESSERA_HIP_PROPERTIES_FUNCTIONS(TESSERA_DECLARE)
#undef TESSERA_DECLARE
};

}  // namespace tessera::hip
