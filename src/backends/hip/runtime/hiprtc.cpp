#include "backends/hip/runtime/hiprtc.h"

#include <fmt/core.h>

#include <array>

#include "backends/gpu/runtime/compile_program.h"
#include "backends/hip/runtime/hip_library.h"
#include "backends/hip/runtime/hiprtc_api.h"
#include "backends/hip/runtime/rocm.h"

namespace tessera::hip {
namespace {

struct LoadedHiprtc {
  rtc::Api api;
  HiprtcState state;
};

bool resolve_all(const SharedLibrary& library, rtc::Api& api) {
  bool found = true;
#define TESSERA_RESOLVE(name, result, parameters) found = library.resolve(#name, api.name) && found;
  TESSERA_HIPRTC_FUNCTIONS(TESSERA_RESOLVE)
#undef TESSERA_RESOLVE
  return found;
}

LoadedHiprtc load_hiprtc() {
  LoadedHiprtc loaded;
  constexpr std::array kSonames = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"};
  const SharedLibrary library = find_rocm_library("TESSERA_HIPRTC_LIBRARY", kSonames);
  if (!library.is_open()) {
    loaded.state.unavailable_reason =
        "the run-time compiler hipRTC was not found (libhiprtc.so.7, .6 or .5). Install ROCm's package "
        "hip-runtime-amd with its compiler comgr, put its folder into LD_LIBRARY_PATH, or name the file in "
        "TESSERA_HIPRTC_LIBRARY";
    return loaded;
  }
  loaded.state.library = library.name();
  int major = 0;
  int minor = 0;
  if (!resolve_all(library, loaded.api) || loaded.api.hiprtcVersion(&major, &minor) != rtc::kSuccess) {
    loaded.state.unavailable_reason = fmt::format(
        "the run-time compiler {} lacks functions of ROCm 5. Install a newer hipRTC", library.name());
    return loaded;
  }
  loaded.state.version = fmt::format("{}.{}", major, minor);
  return loaded;
}

const LoadedHiprtc& hiprtc() {
  static const LoadedHiprtc loaded = load_hiprtc();
  return loaded;
}

struct Calls {
  using Program = rtc::Program;
  static constexpr const char* kPrefix = "hiprtc";
  static constexpr auto kCreate = &rtc::Api::hiprtcCreateProgram;
  static constexpr auto kDestroy = &rtc::Api::hiprtcDestroyProgram;
  static constexpr auto kCompile = &rtc::Api::hiprtcCompileProgram;
  static constexpr auto kCodeSize = &rtc::Api::hiprtcGetCodeSize;
  static constexpr auto kCode = &rtc::Api::hiprtcGetCode;
  static constexpr auto kLogSize = &rtc::Api::hiprtcGetProgramLogSize;
  static constexpr auto kLog = &rtc::Api::hiprtcGetProgramLog;
  static constexpr auto kErrorString = &rtc::Api::hiprtcGetErrorString;
};

class HiprtcCompiler final : public gpu::KernelCompiler {
 public:
  std::string unavailable_reason() const override { return hiprtc_state().unavailable_reason; }
  // hipRTC's own number stays the same over versions of its compiler, which comes with the HIP runtime.
  std::string version() const override {
    return fmt::format("hiprtc {} of HIP {}", hiprtc_state().version, hip_state().version);
  }
  std::vector<std::byte> compile(const gpu::SourceFile& source, std::span<const gpu::SourceFile> headers,
                                 std::span<const std::string> defines,
                                 const std::string& architecture) const override;
};

std::vector<std::byte> HiprtcCompiler::compile(const gpu::SourceFile& source,
                                               std::span<const gpu::SourceFile> headers,
                                               std::span<const std::string> defines,
                                               const std::string& architecture) const {
  const LoadedHiprtc& loaded = hiprtc();
  if (!loaded.state.unavailable_reason.empty())
    gpu::throw_not_compiled(source, architecture, loaded.state.unavailable_reason);
  std::vector<std::string> options = {"--offload-arch=" + architecture, "-std=c++20", "-O3"};
  for (const std::string& define : defines) options.push_back("-D" + define);
  return gpu::compile_program<Calls>(loaded.api, source, headers, options, architecture);
}

}  // namespace

const HiprtcState& hiprtc_state() { return hiprtc().state; }

const gpu::KernelCompiler& hiprtc_compiler() {
  static const HiprtcCompiler compiler;
  return compiler;
}

}  // namespace tessera::hip
