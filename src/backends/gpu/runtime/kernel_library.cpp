#include "backends/gpu/runtime/kernel_library.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/error.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t kSharedBytesWithoutAsking = 48 * 1024;

std::string joined(const std::vector<std::string>& defines) {
  return fmt::format("{}", fmt::join(defines, " "));
}

/// Hopper's own instructions are only in the architecture-specific target.
std::string architecture_of(int compute_capability) {
  return compute_capability == 90 ? "sm_90a" : fmt::format("sm_{}", compute_capability);
}

const SourceFile& find_source(const std::string& name) {
  for (const SourceFile& source : embedded_sources()) {
    if (source.name == name) return source;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no kernel source '{}' in this binary", name));
}

/// Machine code runs on its own major version at the same or a later minor one; "a" targets on exactly
/// theirs.
bool runs_on(std::string_view architecture, const std::string& device_architecture, int compute_capability) {
  if (architecture == device_architecture) return true;
  if (!architecture.starts_with("sm_") || architecture.ends_with('a')) return false;
  const int built_for = std::stoi(std::string(architecture.substr(3)));
  return built_for / 10 == compute_capability / 10 && built_for <= compute_capability;
}

/// More than 48 KB of shared memory has to be asked for once.
void allow_shared(Kernel& kernel, std::size_t dynamic_bytes, const std::string& source) {
  if (dynamic_bytes <= kernel.dynamic_shared_bytes ||
      dynamic_bytes + kernel.shared_bytes <= kSharedBytesWithoutAsking)
    return;
  check(driver().cuFuncSetAttribute(kernel.function, kFunctionMaxDynamicSharedBytes,
                                    static_cast<int>(dynamic_bytes)),
        "cuFuncSetAttribute",
        fmt::format("{} bytes of shared memory of kernel {} of {}", dynamic_bytes, kernel.name, source));
  kernel.dynamic_shared_bytes = dynamic_bytes;
}

/// `spec` without what only narrows a module.
ModuleSpec whole_module(const ModuleSpec& spec) {
  ModuleSpec whole = spec;
  std::erase_if(whole.defines, [](const std::string& define) { return define.starts_with("TESSERA_ONLY="); });
  return whole;
}

bool is_ptx_for(std::string_view architecture, int compute_capability) {
  constexpr std::string_view kPrefix = "compute_";
  if (!architecture.starts_with(kPrefix) || architecture.ends_with('a')) return false;
  return std::stoi(std::string(architecture.substr(kPrefix.size()))) <= compute_capability;
}

/// Part of the cache's keys: another compiler makes other code.
std::string compiler_version() { return fmt::format("nvrtc {}", nvrtc_state().version); }

}  // namespace

KernelLibrary::KernelLibrary(GpuDevice& device)
    : device_(&device),
      architecture_(architecture_of(device.properties().compute_capability)),
      cache_(BinaryCache::default_folder()) {}

std::string KernelLibrary::cache_key(const ModuleSpec& spec) const {
  const std::string defines = joined(spec.defines);
  const std::string version = compiler_version();
  std::vector<std::string_view> parts = {spec.source, defines, architecture_, version};
  for (const SourceFile& file : embedded_sources()) parts.push_back(file.text);
  return BinaryCache::make_key(parts);
}

std::vector<std::byte> KernelLibrary::compile(const ModuleSpec& spec, ModuleOrigin& origin) {
  const SourceFile& source = find_source(spec.source);
  const std::string key = cache_key(spec);
  if (auto cached = cache_.load(key)) {
    origin = ModuleOrigin::kDiskCache;
    return std::move(*cached);
  }
  origin = ModuleOrigin::kCompiledNow;
  std::vector<std::byte> image = compile_cuda(source, embedded_sources(), spec.defines, architecture_);
  cache_.store(key,
               fmt::format("{} [{}] for {} by {}", spec.source, joined(spec.defines), architecture_,
                           compiler_version()),
               image);
  return image;
}

KernelLibrary::Embedded KernelLibrary::find_embedded(const ModuleSpec& spec) const {
  const std::string defines = joined(whole_module(spec).defines);
  const int compute_capability = device_->properties().compute_capability;
  Embedded found;
  for (const EmbeddedModule& module : embedded_modules()) {
    if (module.source != spec.source || module.defines != defines) continue;
    if (runs_on(module.architecture, architecture_, compute_capability)) {
      if (found.machine_code == nullptr || module.architecture == architecture_) found.machine_code = &module;
    } else if (is_ptx_for(module.architecture, compute_capability)) {
      found.ptx = &module;
    }
  }
  return found;
}

std::string KernelLibrary::describe_origin(const ModuleSpec& spec) {
  const Embedded embedded = find_embedded(spec);
  if (embedded.machine_code != nullptr)
    return fmt::format("built ahead for {}", embedded.machine_code->architecture);
  const std::string& no_compiler = nvrtc_state().unavailable_reason;
  if (no_compiler.empty()) {
    return cache_.load(cache_key(spec)) ? fmt::format("compiled earlier, in {}", cache_.folder().string())
                                        : fmt::format("compiled by {} when first used", compiler_version());
  }
  if (embedded.ptx != nullptr)
    return fmt::format("built ahead as {}, which the driver translates", embedded.ptx->architecture);
  return fmt::format("missing: it was not built ahead for {}, and {}", architecture_, no_compiler);
}

KernelLibrary::Module& KernelLibrary::load(const ModuleSpec& requested) {
  if (const auto found = modules_.find(requested); found != modules_.end()) return found->second;
  const ModuleSpec whole = whole_module(requested);
  if (const auto found = modules_.find(whole); found != modules_.end()) return found->second;
  const auto [machine_code, ptx] = find_embedded(requested);
  const bool is_compiled =
      machine_code == nullptr && (ptx == nullptr || nvrtc_state().unavailable_reason.empty());
  const ModuleSpec& spec = is_compiled ? requested : whole;
  Module module;
  std::vector<std::byte> compiled;
  const void* image = nullptr;
  if (is_compiled) {
    compiled = compile(spec, module.origin);
    image = compiled.data();
  } else if (machine_code != nullptr) {
    image = machine_code->image.data();
  } else {
    image = ptx->image.data();
    module.origin = ModuleOrigin::kPtx;
  }
  // PTX of the build is for older architectures.
  module.can_wait = device_->properties().compute_capability >= 90 && module.origin != ModuleOrigin::kPtx;
  std::array<char, 4096> log = {};
  std::array<int, 2> options = {kJitErrorLogBuffer, kJitErrorLogBufferSizeBytes};
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size())};
  device_->make_current();
  const Result result = driver().cuModuleLoadDataEx(
      &module.handle, image, static_cast<unsigned>(options.size()), options.data(), values.data());
  check(result, "cuModuleLoadDataEx",
        fmt::format("{} [{}] {}", spec.source, joined(spec.defines), log.data()));
  return modules_.emplace(spec, std::move(module)).first->second;
}

const Kernel& KernelLibrary::find(const ModuleSpec& spec, const std::string& entry,
                                  std::size_t dynamic_shared_bytes) {
  const std::lock_guard lock(mutex_);
  Module& module = load(spec);
  device_->make_current();
  const auto found = module.kernels.find(entry);
  if (found != module.kernels.end()) {
    allow_shared(found->second, dynamic_shared_bytes, spec.source);
    return found->second;
  }
  const std::string what = fmt::format("kernel {} of {}", entry, spec.source);
  Kernel kernel;
  kernel.name = entry;
  check(driver().cuModuleGetFunction(&kernel.function, module.handle, entry.c_str()), "cuModuleGetFunction",
        what);
  int shared_bytes = 0;
  check(driver().cuFuncGetAttribute(&shared_bytes, kFunctionSharedBytes, kernel.function),
        "cuFuncGetAttribute", what);
  check(driver().cuFuncGetAttribute(&kernel.num_registers, kFunctionNumRegisters, kernel.function),
        "cuFuncGetAttribute", what);
  check(driver().cuFuncGetAttribute(&kernel.local_bytes, kFunctionLocalBytes, kernel.function),
        "cuFuncGetAttribute", what);
  kernel.shared_bytes = static_cast<std::size_t>(shared_bytes);
  kernel.can_wait = module.can_wait;
  allow_shared(kernel, dynamic_shared_bytes, spec.source);
  return module.kernels.emplace(entry, kernel).first->second;
}

void KernelLibrary::launch(const Kernel& kernel, const LaunchShape& shape, std::span<void* const> parameters,
                           StreamHandle stream, std::string_view problem) const {
  device_->make_current();
  LaunchAttribute overlap;
  overlap.id = kLaunchProgrammaticSerialization;
  overlap.value[0] = 1;
  LaunchConfig config;
  config.grid_x = shape.grid[0];
  config.grid_y = shape.grid[1];
  config.grid_z = shape.grid[2];
  config.block_x = shape.block[0];
  config.block_y = shape.block[1];
  config.block_z = shape.block[2];
  config.shared_bytes = static_cast<unsigned>(shape.shared_bytes);
  config.stream = stream;
  config.attributes = &overlap;
  config.num_attributes = shape.overlaps_prior && kernel.can_wait ? 1 : 0;
  const Result result =
      driver().cuLaunchKernelEx(reinterpret_cast<const CUlaunchConfig_st*>(&config), kernel.function,
                                const_cast<void**>(parameters.data()), nullptr);
  if (result == kSuccess) return;
  check(result, "cuLaunchKernelEx",
        fmt::format("{} (grid {}, block {}, {} B shared): {}", kernel.name, fmt::join(shape.grid, " x "),
                    fmt::join(shape.block, " x "), shape.shared_bytes, problem));
}

KernelLibrary& kernel_library(int index) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<KernelLibrary>> libraries;
  GpuDevice& device = gpu_device(index);
  const std::lock_guard lock(mutex);
  std::unique_ptr<KernelLibrary>& library = libraries[index];
  if (!library) library = std::make_unique<KernelLibrary>(device);
  return *library;
}

}  // namespace tessera::cuda
