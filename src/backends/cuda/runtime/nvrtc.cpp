#include "backends/cuda/runtime/nvrtc.h"

#include <fmt/core.h>

#include <array>

#include "backends/cuda/runtime/nvrtc_api.h"
#include "backends/cuda/runtime/toolkit.h"
#include "backends/gpu/runtime/compile_program.h"

namespace tessera::cuda {
namespace {

struct LoadedNvrtc {
  rtc::Api api;
  NvrtcState state;
};

bool resolve_all(const SharedLibrary& library, rtc::Api& api) {
  bool found = true;
#define TESSERA_RESOLVE(name, result, parameters) found = library.resolve(#name, api.name) && found;
  TESSERA_NVRTC_FUNCTIONS(TESSERA_RESOLVE)
#undef TESSERA_RESOLVE
  return found;
}

LoadedNvrtc load_nvrtc() {
  LoadedNvrtc loaded;
  constexpr std::array kSonames = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"};
  const SharedLibrary library = find_toolkit_library("TESSERA_NVRTC_LIBRARY", kSonames);
  if (!library.is_open()) {
    loaded.state.unavailable_reason =
        "the run-time compiler NVRTC was not found (libnvrtc.so.13, .12 or .11.2). Install the CUDA "
        "toolkit's package cuda-nvrtc, put its folder into LD_LIBRARY_PATH, or name the file in "
        "TESSERA_NVRTC_LIBRARY";
    return loaded;
  }
  loaded.state.library = library.name();
  int major = 0;
  int minor = 0;
  if (!resolve_all(library, loaded.api) || loaded.api.nvrtcVersion(&major, &minor) != 0) {
    loaded.state.unavailable_reason = fmt::format(
        "the run-time compiler {} is older than CUDA 11.2. Install a newer cuda-nvrtc", library.name());
    return loaded;
  }
  loaded.state.version = 1000 * major + 10 * minor;
  return loaded;
}

const LoadedNvrtc& nvrtc() {
  static const LoadedNvrtc loaded = load_nvrtc();
  return loaded;
}

struct Calls {
  using Program = rtc::Program;
  static constexpr const char* kPrefix = "nvrtc";
  static constexpr auto kCreate = &rtc::Api::nvrtcCreateProgram;
  static constexpr auto kDestroy = &rtc::Api::nvrtcDestroyProgram;
  static constexpr auto kCompile = &rtc::Api::nvrtcCompileProgram;
  static constexpr auto kCodeSize = &rtc::Api::nvrtcGetCUBINSize;
  static constexpr auto kCode = &rtc::Api::nvrtcGetCUBIN;
  static constexpr auto kLogSize = &rtc::Api::nvrtcGetProgramLogSize;
  static constexpr auto kLog = &rtc::Api::nvrtcGetProgramLog;
  static constexpr auto kErrorString = &rtc::Api::nvrtcGetErrorString;
};

class NvrtcCompiler final : public gpu::KernelCompiler {
 public:
  std::string unavailable_reason() const override { return nvrtc_state().unavailable_reason; }
  std::string version() const override { return fmt::format("nvrtc {}", nvrtc_state().version); }
  std::vector<std::byte> compile(const gpu::SourceFile& source, std::span<const gpu::SourceFile> headers,
                                 std::span<const std::string> defines,
                                 const std::string& architecture) const override;
};

std::vector<std::byte> NvrtcCompiler::compile(const gpu::SourceFile& source,
                                              std::span<const gpu::SourceFile> headers,
                                              std::span<const std::string> defines,
                                              const std::string& architecture) const {
  const LoadedNvrtc& loaded = nvrtc();
  if (!loaded.state.unavailable_reason.empty())
    gpu::throw_not_compiled(source, architecture, loaded.state.unavailable_reason);
  std::vector<std::string> options = {"--gpu-architecture=" + architecture, "--std=c++17",
                                      "--generate-line-info"};
  for (const std::string& define : defines) options.push_back("-D" + define);
  return gpu::compile_program<Calls>(loaded.api, source, headers, options, architecture);
}

}  // namespace

const NvrtcState& nvrtc_state() { return nvrtc().state; }

const gpu::KernelCompiler& nvrtc_compiler() {
  static const NvrtcCompiler compiler;
  return compiler;
}

}  // namespace tessera::cuda
