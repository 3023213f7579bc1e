// Compares our declarations of HIP and hipRTC with their headers. Built only where those are present;
// compiling it is most of the test.
#include "backends/hip/runtime/hip_api.h"

#include <gtest/gtest.h>
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>

#include <cstdio>

#include "backends/hip/runtime/hiprtc_api.h"
#include "backends/hip/runtime/targets.h"
#include "gpu/same_function.h"

// The headers overload this one in C++.
using MallocAsync = hipError_t(void** pointer, std::size_t bytes, hipStream_t stream);
static_assert(sizeof(static_cast<MallocAsync*>(&hipMallocAsync)) > 0);  // nothing that a linker looks for
MallocAsync malloc_async_of_c;
#define hipMallocAsync malloc_async_of_c

namespace tessera::hip {

#define TESSERA_COMPARE(name, result, parameters)                                           \
  static_assert(tessera::testing::SameFunction<result parameters, decltype(::name)>::value, \
                #name " differs from HIP's header");
TESSERA_HIP_FUNCTIONS(TESSERA_COMPARE)
namespace rtc {
TESSERA_HIPRTC_FUNCTIONS(TESSERA_COMPARE)
}  // namespace rtc
#undef TESSERA_COMPARE

namespace {

TEST(HipApi, ConstantsAreThoseOfTheHeaders) {
  EXPECT_EQ(kSuccess, static_cast<int>(hipSuccess));
  EXPECT_EQ(kErrorOutOfMemory, static_cast<int>(hipErrorOutOfMemory));
  EXPECT_EQ(kErrorNoDevice, static_cast<int>(hipErrorNoDevice));
  EXPECT_EQ(kErrorInvalidDevice, static_cast<int>(hipErrorInvalidDevice));
  EXPECT_EQ(kAttributeClockRate, static_cast<int>(hipDeviceAttributeClockRate));
  EXPECT_EQ(kAttributeL2CacheSize, static_cast<int>(hipDeviceAttributeL2CacheSize));
  EXPECT_EQ(kAttributeMultiprocessorCount, static_cast<int>(hipDeviceAttributeMultiprocessorCount));
  EXPECT_EQ(kAttributeMaxSharedPerBlock, static_cast<int>(hipDeviceAttributeMaxSharedMemoryPerBlock));
  EXPECT_EQ(kAttributeWarpSize, static_cast<int>(hipDeviceAttributeWarpSize));
  EXPECT_EQ(kAttributeMemoryPoolsSupported, static_cast<int>(hipDeviceAttributeMemoryPoolsSupported));
  EXPECT_EQ(kAttributeMaxSharedPerMultiprocessor,
            static_cast<int>(hipDeviceAttributeMaxSharedMemoryPerMultiprocessor));
  EXPECT_EQ(kFunctionSharedBytes, static_cast<int>(HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  EXPECT_EQ(kFunctionLocalBytes, static_cast<int>(HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  EXPECT_EQ(kFunctionNumRegisters, static_cast<int>(HIP_FUNC_ATTRIBUTE_NUM_REGS));
  EXPECT_EQ(kMemPoolReleaseThreshold, static_cast<int>(hipMemPoolAttrReleaseThreshold));
  EXPECT_EQ(kCopyHostToDevice, static_cast<int>(hipMemcpyHostToDevice));
  EXPECT_EQ(kCopyDeviceToHost, static_cast<int>(hipMemcpyDeviceToHost));
  EXPECT_EQ(kCopyDeviceToDevice, static_cast<int>(hipMemcpyDeviceToDevice));
  EXPECT_EQ(kStreamNonBlocking, static_cast<unsigned>(hipStreamNonBlocking));
  EXPECT_EQ(kEventDisableTiming, static_cast<unsigned>(hipEventDisableTiming));
  EXPECT_EQ(kCaptureModeThreadLocal, static_cast<int>(hipStreamCaptureModeThreadLocal));
  EXPECT_EQ(rtc::kSuccess, static_cast<int>(HIPRTC_SUCCESS));
}

TEST(HipApi, PropertiesFitAndNameTheArchitecture) {
  static_assert(sizeof(hipDeviceProp_t) <= kMaxPropertiesBytes);
  hipDeviceProp_t properties = {};
  std::snprintf(properties.name, sizeof properties.name, "gfx1 is not it");
  std::snprintf(properties.gcnArchName, sizeof properties.gcnArchName, "gfx1100:xnack-");
  EXPECT_EQ(target_id_in({reinterpret_cast<const char*>(&properties), sizeof properties}), "gfx1100:xnack-");
}

}  // namespace
}  // namespace tessera::hip
