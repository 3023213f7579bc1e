// A libamdhip64.so with FAKE_HIP_DEVICES GPUs of architecture FAKE_HIP_ARCHITECTURE that can be described;
// all else fails with the hipError_t in FAKE_HIP_RESULT, hipInit with the one in FAKE_HIP_INIT.

#include <cstdlib>
#include <cstring>

#include "backends/hip/runtime/hip_api.h"

namespace {

int variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : 0;
}

}  // namespace

using namespace tessera::hip;

// The macro's list names each function and its parameters; those that succeed have other names here.
#define hipInit unused_hipInit
#define hipRuntimeGetVersion unused_hipRuntimeGetVersion
#define hipGetDeviceCount unused_hipGetDeviceCount
#define hipGetErrorName unused_hipGetErrorName
#define hipGetErrorString unused_hipGetErrorString
#define hipDeviceGetName unused_hipDeviceGetName
#define hipDeviceTotalMem unused_hipDeviceTotalMem
#define hipDeviceGetAttribute unused_hipDeviceGetAttribute
template <class R>
R failure() {
  if constexpr (sizeof(R) == sizeof(Result)) return static_cast<R>(variable("FAKE_HIP_RESULT"));
  return R();
}
#define FAKE(name, result, parameters) \
  extern "C" result name parameters { return failure<result>(); }
#pragma GCC diagnostic ignored "-Wunused-parameter"
TESSERA_HIP_FUNCTIONS(FAKE)
#undef hipInit
#undef hipRuntimeGetVersion
#undef hipGetDeviceCount
#undef hipGetErrorName
#undef hipGetErrorString
#undef hipDeviceGetName
#undef hipDeviceTotalMem
#undef hipDeviceGetAttribute

extern "C" {

Result hipInit(unsigned) { return variable("FAKE_HIP_INIT"); }
Result hipRuntimeGetVersion(int* version) {
  *version = 60342134;
  return kSuccess;
}
Result hipGetDeviceCount(int* count) {
  *count = variable("FAKE_HIP_DEVICES");
  return kSuccess;
}
const char* hipGetErrorName(Result) { return "hipErrorFake"; }
const char* hipGetErrorString(Result) { return "a fake error"; }
Result hipDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake Radeon", static_cast<std::size_t>(length));
  return kSuccess;
}
Result hipDeviceTotalMem(std::size_t* bytes, int) {
  *bytes = std::size_t{16} << 30;
  return kSuccess;
}
Result hipDeviceGetAttribute(int* value, int, int) {
  *value = 32;
  return kSuccess;
}
Result hipGetDevicePropertiesR0600(void* properties, int) {
  const char* architecture = std::getenv("FAKE_HIP_ARCHITECTURE");
  if (architecture != nullptr) std::strcpy(static_cast<char*>(properties) + 1160, architecture);
  return kSuccess;
}

}  // extern "C"
