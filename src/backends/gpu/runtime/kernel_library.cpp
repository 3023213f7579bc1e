#include "backends/gpu/runtime/kernel_library.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "backends/gpu/runtime/code_archive.h"
#include "core/parallel.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

std::string joined(const std::vector<std::string>& defines) {
  return fmt::format("{}", fmt::join(defines, " "));
}

/// `spec` without what only narrows a module.
ModuleSpec whole_module(const ModuleSpec& spec) {
  ModuleSpec whole = spec;
  std::erase_if(whole.defines, [](const std::string& define) { return define.starts_with("TESSERA_ONLY="); });
  return whole;
}

const SourceFile& find_source(std::span<const SourceFile> sources, const std::string& name) {
  for (const SourceFile& source : sources) {
    if (source.name == name) return source;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no kernel source '{}' in this binary", name));
}

/// `source` and all that it includes, directly or not, as far as it is among `sources`, each once.
std::vector<const SourceFile*> closure_of(std::span<const SourceFile> sources, const SourceFile& source) {
  constexpr std::string_view kInclude = "#include \"";
  std::vector<const SourceFile*> closure = {&source};
  for (std::size_t next = 0; next < closure.size(); ++next) {
    const std::string_view text = closure[next]->text;
    for (std::size_t at = text.find(kInclude); at != std::string_view::npos; at = text.find(kInclude, at)) {
      at += kInclude.size();
      const std::string_view name = text.substr(at, text.find('"', at) - at);
      const auto file = std::ranges::find(sources, name, &SourceFile::name);
      if (file != sources.end() && std::ranges::find(closure, &*file) == closure.end())
        closure.push_back(&*file);
    }
  }
  return closure;
}

}  // namespace

KernelLibrary::KernelLibrary(ModuleLoader& loader, const KernelCompiler& compiler, KernelTarget target,
                             BinaryCache cache)
    : loader_(loader), compiler_(compiler), target_(std::move(target)), cache_(std::move(cache)) {}

const EmbeddedModule* KernelLibrary::find_built(const ModuleSpec& spec) const {
  if (!spec.modifier.empty()) return nullptr;
  const std::string defines = joined(spec.defines), of_whole = joined(whole_module(spec).defines);
  const EmbeddedModule* best = nullptr;
  CodeFit best_fit = CodeFit::kNone;
  for (const EmbeddedModule& module : target_.built) {
    if (module.source != spec.source || (module.defines != defines && module.defines != of_whole)) continue;
    const CodeFit fit = loader_.fit_of(module.architecture);
    if (fit > best_fit) best = &module, best_fit = fit;
  }
  return best;
}

std::string KernelLibrary::cache_key(const ModuleSpec& spec) const {
  const std::string defines = fmt::format("{} TESSERA_WARP_SIZE={}", joined(spec.defines), target_.warp_size);
  const std::string version = compiler_.version();
  std::vector<std::string_view> parts = {spec.source, defines, target_.architecture, version};
  for (const SourceFile* file : closure_of(target_.sources, find_source(target_.sources, spec.source)))
    parts.push_back(file->text);
  if (!spec.modifier.empty()) parts.push_back(spec.modifier);
  return BinaryCache::make_key(parts);
}

std::vector<std::byte> KernelLibrary::compile(const ModuleSpec& spec) {
  const SourceFile& source = find_source(target_.sources, spec.source);
  const std::string key = cache_key(spec);
  if (auto cached = cache_.load(key)) return std::move(*cached);
  std::vector<std::string> defines = spec.defines;
  defines.push_back(fmt::format("TESSERA_WARP_SIZE={}", target_.warp_size));
  std::vector<SourceFile> sources(target_.sources.begin(), target_.sources.end());
  if (!spec.modifier.empty()) sources.push_back({kModifierHeader, spec.modifier});
  std::vector<std::byte> image = compiler_.compile(source, sources, defines, target_.architecture);
  const std::lock_guard lock(cache_mutex_);
  cache_.store(key,
               fmt::format("{} [{}] for {} by {}", spec.source, joined(spec.defines), target_.architecture,
                           compiler_.version()),
               image);
  return image;
}

std::string KernelLibrary::describe_origin(const ModuleSpec& spec) const {
  const EmbeddedModule* built = find_built(spec);
  const bool is_translated = built != nullptr && loader_.fit_of(built->architecture) == CodeFit::kTranslated;
  if (built != nullptr && !is_translated) return fmt::format("built ahead for {}", built->architecture);
  const std::string no_compiler = compiler_.unavailable_reason();
  if (no_compiler.empty()) {
    return cache_.load(cache_key(spec)) ? fmt::format("compiled earlier, in {}", cache_.folder().string())
                                        : fmt::format("compiled by {} when first used", compiler_.version());
  }
  if (is_translated)
    return fmt::format("built ahead as {}, which the driver translates", built->architecture);
  return fmt::format("missing: it was not built ahead for {}, and {}", target_.architecture, no_compiler);
}

std::string KernelLibrary::fingerprint(std::string_view name_part) const {
  std::set<const SourceFile*> files;
  for (const SourceFile& source : target_.sources) {
    if (source.name.find(name_part) == std::string_view::npos) continue;
    for (const SourceFile* file : closure_of(target_.sources, source)) files.insert(file);
  }
  std::vector<std::string_view> parts;
  for (const SourceFile* file : files) parts.insert(parts.end(), {file->name, file->text});
  return BinaryCache::make_key(parts);
}

KernelLibrary::Module& KernelLibrary::module_of(const ModuleSpec& requested) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Module>& entry = modules_[requested];
  if (entry) return *entry;
  ModuleSpec whole = whole_module(requested);
  if (const auto found = modules_.find(whole); found != modules_.end() && found->second) {
    entry = found->second;
    return *entry;
  }
  const EmbeddedModule* built = find_built(requested);
  // Compiling beats what was made for older architectures.
  if (built != nullptr && loader_.fit_of(built->architecture) == CodeFit::kTranslated &&
      compiler_.unavailable_reason().empty()) {
    built = nullptr;
  }
  if (built == nullptr) {
    entry = std::make_shared<Module>(requested);
    return *entry;
  }
  const bool is_whole = built->defines == joined(whole.defines);
  entry = std::make_shared<Module>(is_whole ? whole : requested);
  entry->built = built;
  // References into a map stay valid.
  if (is_whole && whole != requested) modules_[std::move(whole)] = entry;
  return *entry;
}

void KernelLibrary::load(Module& module) {
  if (module.handle != nullptr) return;
  const std::string what = fmt::format("{} [{}]", module.spec.source, joined(module.spec.defines));
  if (module.built != nullptr) {
    module.fit = loader_.fit_of(module.built->architecture);
    module.handle = loader_.load_module(module.built->archive->find(module.built->member), what);
  } else {
    module.compiled = compile(module.spec);
    module.fit = CodeFit::kExact;
    module.handle = loader_.load_module(module.compiled, what);
  }
}

const Kernel& KernelLibrary::find(const ModuleSpec& spec, const std::string& entry,
                                  std::size_t dynamic_shared_bytes) {
  Module& module = module_of(spec);
  const std::lock_guard lock(module.mutex);
  auto found = module.kernels.find(entry);
  if (found == module.kernels.end()) {
    load(module);
    Kernel kernel = loader_.find_function(module.handle, entry, module.fit,
                                          fmt::format("kernel {} of {}", entry, spec.source));
    found = module.kernels.emplace(entry, std::move(kernel)).first;
  }
  Kernel& kernel = found->second;
  if (dynamic_shared_bytes > kernel.dynamic_shared_bytes) {
    loader_.allow_shared(kernel, dynamic_shared_bytes, spec.source);
  }
  return kernel;
}

void KernelLibrary::prepare(std::span<const ModuleSpec> specs) {
  const std::set<ModuleSpec> distinct(specs.begin(), specs.end());
  const std::vector<ModuleSpec> modules(distinct.begin(), distinct.end());
  parallel_for(modules.size(), [&](std::size_t i) {
    try {
      Module& module = module_of(modules[i]);
      const std::lock_guard lock(module.mutex);
      load(module);
    } catch (const Error&) {
      // Whoever needs it meets the same, and can say what for.
    }
  });
}

}  // namespace tessera::gpu
