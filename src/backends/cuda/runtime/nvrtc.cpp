#include "backends/cuda/runtime/nvrtc.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>

#include "backends/cuda/runtime/nvrtc_api.h"
#include "backends/cuda/runtime/toolkit.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

using rtc::Program;
using rtc::Result;

struct Loaded {
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

Loaded load_nvrtc() {
  Loaded loaded;
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

const Loaded& nvrtc() {
  static const Loaded loaded = load_nvrtc();
  return loaded;
}

struct OwnedProgram {
  Program handle = nullptr;
  ~OwnedProgram() { nvrtc().api.nvrtcDestroyProgram(&handle); }
};

void check(Result result, const char* call) {
  if (result == 0) return;
  throw Error(ErrorCode::kDevice,
              fmt::format("{} failed: {}", call, nvrtc().api.nvrtcGetErrorString(result)));
}

std::string compile_log(Program program) {
  std::size_t size = 0;
  if (nvrtc().api.nvrtcGetProgramLogSize(program, &size) != 0 || size == 0) return "(no log)";
  std::string log(size, '\0');
  nvrtc().api.nvrtcGetProgramLog(program, log.data());
  log.resize(log.find('\0') == std::string::npos ? log.size() : log.find('\0'));
  return log;
}

/// The lines of `text` that the log points at ("name(12): error"), so that a message can be read without the
/// source.
std::string quoted_lines(const std::string& log, const gpu::SourceFile& source) {
  const std::string mark = std::string(source.name) + "(";
  std::string quoted;
  std::size_t at = log.find(mark);
  for (int count = 0; at != std::string::npos && count < 5; at = log.find(mark, at + 1), ++count) {
    const int wanted = std::atoi(log.c_str() + at + mark.size());
    std::size_t begin = 0;
    for (int line = 1; line < wanted && begin != std::string_view::npos; ++line) {
      begin = source.text.find('\n', begin);
      if (begin != std::string_view::npos) ++begin;
    }
    if (wanted < 1 || begin == std::string_view::npos) continue;
    quoted +=
        fmt::format("\n  {}: {}", wanted, source.text.substr(begin, source.text.find('\n', begin) - begin));
  }
  return quoted;
}

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
  const Loaded& loaded = nvrtc();
  if (!loaded.state.unavailable_reason.empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("kernel {} is not built into this binary for {} and can't be compiled: {}",
                            source.name, architecture, loaded.state.unavailable_reason));
  }
  // The interface takes C strings; the embedded texts end with a null byte, but the views' ends are what
  // counts.
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
  std::vector<std::string> options = {"--gpu-architecture=" + architecture, "--std=c++17",
                                      "--generate-line-info"};
  for (const std::string& define : defines) options.push_back("-D" + define);
  std::vector<const char*> option_pointers;
  for (const std::string& option : options) option_pointers.push_back(option.c_str());

  OwnedProgram program;
  check(loaded.api.nvrtcCreateProgram(&program.handle, std::string(source.text).c_str(),
                                      std::string(source.name).c_str(), static_cast<int>(headers.size()),
                                      text_pointers.data(), name_pointers.data()),
        "nvrtcCreateProgram");
  const Result result = loaded.api.nvrtcCompileProgram(
      program.handle, static_cast<int>(option_pointers.size()), option_pointers.data());
  if (result != 0) {
    const std::string log = compile_log(program.handle);
    throw Error(ErrorCode::kDevice,
                fmt::format("kernel {} does not compile for {} ({}; options: {}):\n{}{}", source.name,
                            architecture, loaded.api.nvrtcGetErrorString(result), fmt::join(options, " "),
                            log, quoted_lines(log, source)));
  }
  std::size_t size = 0;
  check(loaded.api.nvrtcGetCUBINSize(program.handle, &size), "nvrtcGetCUBINSize");
  std::vector<std::byte> cubin(size);
  check(loaded.api.nvrtcGetCUBIN(program.handle, reinterpret_cast<char*>(cubin.data())), "nvrtcGetCUBIN");
  return cubin;
}

}  // namespace

const NvrtcState& nvrtc_state() { return nvrtc().state; }

const gpu::KernelCompiler& nvrtc_compiler() {
  static const NvrtcCompiler compiler;
  return compiler;
}

}  // namespace tessera::cuda
