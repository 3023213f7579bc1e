#include "backends/hip/runtime/hiprtc.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>

#include "backends/hip/runtime/hip_library.h"
#include "backends/hip/runtime/hiprtc_api.h"
#include "backends/hip/runtime/rocm.h"
#include "tessera/error.h"

namespace tessera::hip {
namespace {

using rtc::Program;
using rtc::Result;

struct Loaded {
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

Loaded load_hiprtc() {
  Loaded loaded;
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

const Loaded& hiprtc() {
  static const Loaded loaded = load_hiprtc();
  return loaded;
}

struct OwnedProgram {
  Program handle = nullptr;
  ~OwnedProgram() { hiprtc().api.hiprtcDestroyProgram(&handle); }
};

void check_result(Result result, const char* call) {
  if (result == rtc::kSuccess) return;
  throw Error(ErrorCode::kDevice,
              fmt::format("{} failed: {}", call, hiprtc().api.hiprtcGetErrorString(result)));
}

std::string compile_log(Program program) {
  std::size_t size = 0;
  if (hiprtc().api.hiprtcGetProgramLogSize(program, &size) != rtc::kSuccess || size == 0) return "(no log)";
  std::string log(size, '\0');
  hiprtc().api.hiprtcGetProgramLog(program, log.data());
  return log.substr(0, log.find('\0'));
}

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
  const Loaded& loaded = hiprtc();
  if (!loaded.state.unavailable_reason.empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("kernel {} is not built into this binary for {} and can't be compiled: {}",
                            source.name, architecture, loaded.state.unavailable_reason));
  }
  // The interface takes C strings; views end where they say.
  std::vector<std::string> texts;
  std::vector<std::string> names;
  for (const gpu::SourceFile& header : headers) {
    texts.emplace_back(header.text);
    names.emplace_back(header.name);
  }
  std::vector<const char*> text_pointers;
  std::vector<const char*> name_pointers;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    text_pointers.push_back(texts[i].c_str());
    name_pointers.push_back(names[i].c_str());
  }
  std::vector<std::string> options = {"--offload-arch=" + architecture, "-std=c++20", "-O3"};
  for (const std::string& define : defines) options.push_back("-D" + define);
  std::vector<const char*> option_pointers;
  for (const std::string& option : options) option_pointers.push_back(option.c_str());

  OwnedProgram program;
  check_result(loaded.api.hiprtcCreateProgram(
                   &program.handle, std::string(source.text).c_str(), std::string(source.name).c_str(),
                   static_cast<int>(headers.size()), text_pointers.data(), name_pointers.data()),
               "hiprtcCreateProgram");
  const Result result = loaded.api.hiprtcCompileProgram(
      program.handle, static_cast<int>(option_pointers.size()), option_pointers.data());
  if (result != rtc::kSuccess) {
    throw Error(ErrorCode::kDevice,
                fmt::format("kernel {} does not compile for {} ({}; options: {}):\n{}", source.name,
                            architecture, loaded.api.hiprtcGetErrorString(result), fmt::join(options, " "),
                            compile_log(program.handle)));  // clang's, which quotes the lines
  }
  std::size_t size = 0;
  check_result(loaded.api.hiprtcGetCodeSize(program.handle, &size), "hiprtcGetCodeSize");
  std::vector<std::byte> code(size);
  check_result(loaded.api.hiprtcGetCode(program.handle, reinterpret_cast<char*>(code.data())),
               "hiprtcGetCode");
  return code;
}

}  // namespace

const HiprtcState& hiprtc_state() { return hiprtc().state; }

const gpu::KernelCompiler& hiprtc_compiler() {
  static const HiprtcCompiler compiler;
  return compiler;
}

}  // namespace tessera::hip
