// Compares our declarations of the driver API with the toolkit's. Built only where a toolkit is present;
// compiling it is most of the test.
#include "backends/cuda/runtime/driver_api.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "gpu/same_function.h"

namespace tessera::cuda {
namespace {

#define TESSERA_COMPARE(name, symbol, parameters)                                    \
  static_assert(testing::SameFunction<Result parameters, decltype(::symbol)>::value, \
                #symbol " differs from cuda.h");
TESSERA_CUDA_DRIVER_FUNCTIONS(TESSERA_COMPARE)
TESSERA_CUDA_NEWER_DRIVER_FUNCTIONS(TESSERA_COMPARE)
#undef TESSERA_COMPARE

TEST(DriverApi, ConstantsAreThoseOfTheToolkit) {
  EXPECT_EQ(kSuccess, static_cast<int>(CUDA_SUCCESS));
  EXPECT_EQ(kErrorOutOfMemory, static_cast<int>(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_EQ(kErrorNoDevice, static_cast<int>(CUDA_ERROR_NO_DEVICE));
  EXPECT_EQ(kAttributeMultiprocessorCount, static_cast<int>(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  EXPECT_EQ(kAttributeClockRate, static_cast<int>(CU_DEVICE_ATTRIBUTE_CLOCK_RATE));
  EXPECT_EQ(kAttributeL2CacheSize, static_cast<int>(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  EXPECT_EQ(kAttributeComputeCapabilityMajor, static_cast<int>(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  EXPECT_EQ(kAttributeComputeCapabilityMinor, static_cast<int>(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  EXPECT_EQ(kAttributeMaxSharedPerMultiprocessor,
            static_cast<int>(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  EXPECT_EQ(kAttributeMaxSharedPerBlockOptin,
            static_cast<int>(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  EXPECT_EQ(kAttributeMemoryPoolsSupported, static_cast<int>(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
  EXPECT_EQ(kLaunchClusterDimension, static_cast<int>(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION));
  EXPECT_EQ(kLaunchProgrammaticSerialization,
            static_cast<int>(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION));
  EXPECT_EQ(kTensorMapFloat16, static_cast<int>(CU_TENSOR_MAP_DATA_TYPE_FLOAT16));
  EXPECT_EQ(kTensorMapBFloat16, static_cast<int>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16));
  EXPECT_EQ(kTensorMapSwizzle128B, static_cast<int>(CU_TENSOR_MAP_SWIZZLE_128B));
  EXPECT_EQ(kTensorMapL2Promotion128B, static_cast<int>(CU_TENSOR_MAP_L2_PROMOTION_L2_128B));
  EXPECT_EQ(kTensorMapL2Promotion256B, static_cast<int>(CU_TENSOR_MAP_L2_PROMOTION_L2_256B));
  EXPECT_EQ(kFunctionSharedBytes, static_cast<int>(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  EXPECT_EQ(kFunctionLocalBytes, static_cast<int>(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  EXPECT_EQ(kFunctionNumRegisters, static_cast<int>(CU_FUNC_ATTRIBUTE_NUM_REGS));
  EXPECT_EQ(kFunctionMaxDynamicSharedBytes,
            static_cast<int>(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES));
  EXPECT_EQ(kMemPoolReleaseThreshold, static_cast<int>(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
  EXPECT_EQ(kStreamNonBlocking, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(kCaptureModeThreadLocal, static_cast<int>(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT_EQ(kJitErrorLogBuffer, static_cast<int>(CU_JIT_ERROR_LOG_BUFFER));
  EXPECT_EQ(kJitErrorLogBufferSizeBytes, static_cast<int>(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES));
}

TEST(DriverApi, StructsAreThoseOfTheToolkit) {
  EXPECT_EQ(sizeof(LaunchAttribute), sizeof(CUlaunchAttribute));
  EXPECT_EQ(offsetof(LaunchAttribute, id), offsetof(CUlaunchAttribute, id));
  EXPECT_EQ(offsetof(LaunchAttribute, value), offsetof(CUlaunchAttribute, value));
  EXPECT_EQ(sizeof(LaunchConfig), sizeof(CUlaunchConfig));
  EXPECT_EQ(offsetof(LaunchConfig, grid_x), offsetof(CUlaunchConfig, gridDimX));
  EXPECT_EQ(offsetof(LaunchConfig, block_z), offsetof(CUlaunchConfig, blockDimZ));
  EXPECT_EQ(offsetof(LaunchConfig, shared_bytes), offsetof(CUlaunchConfig, sharedMemBytes));
  EXPECT_EQ(offsetof(LaunchConfig, stream), offsetof(CUlaunchConfig, hStream));
  EXPECT_EQ(offsetof(LaunchConfig, attributes), offsetof(CUlaunchConfig, attrs));
  EXPECT_EQ(offsetof(LaunchConfig, num_attributes), offsetof(CUlaunchConfig, numAttrs));
}

}  // namespace
}  // namespace tessera::cuda
