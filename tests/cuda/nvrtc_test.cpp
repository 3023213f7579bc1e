// The run-time compiler: every kernel source compiles from what is embedded in the library, and an error can
// be read. Needs NVRTC but no GPU.

#include "backends/cuda/runtime/nvrtc.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "backends/cuda/runtime/embedded.h"
#include "core/parallel.h"
#include "modifier/kernel_text.h"
#include "modifier/parse.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera::cuda {
namespace {

struct Module {
  std::string source;
  std::vector<std::string> defines;
};

/// The build's list: lines "source|defines|tuned".
std::vector<Module> all_modules() {
  std::vector<Module> modules;
  std::ifstream file(TESSERA_CUDA_MODULES_FILE);
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    const std::size_t first = line.find('|');
    std::istringstream defines(line.substr(first + 1, line.rfind('|') - first - 1));
    Module module{line.substr(0, first), {}};
    for (std::string define; defines >> define;) module.defines.push_back(define);
    module.defines.push_back("TESSERA_WARP_SIZE=32");
    modules.push_back(module);
  }
  return modules;
}

gpu::SourceFile embedded_source(const std::string& name) {
  for (const gpu::SourceFile& source : embedded_sources()) {
    if (source.name == name) return source;
  }
  ADD_FAILURE() << name << " is not embedded";
  return {};
}

bool is_elf(const std::vector<std::byte>& image) {
  return image.size() > 4 && std::memcmp(image.data(), "\177ELF", 4) == 0;
}

/// Empty, or why there is nothing to test.
std::string reason_to_skip() {
#if defined(TESSERA_SANITIZE_ADDRESS) || defined(TESSERA_SANITIZE_THREAD)
  return "the compiler is not instrumented: the other builds test it";
#else
  const std::string& reason = nvrtc_state().unavailable_reason;
  return reason.empty() ? "" : "no NVRTC: " + reason;
#endif
}

#define SKIP_WITHOUT_NVRTC() \
  if (const std::string reason = reason_to_skip(); !reason.empty()) GTEST_SKIP() << reason

TEST(Nvrtc, SourcesIncludeOnlyWhatIsEmbedded) {
  std::set<std::string_view> names;
  for (const gpu::SourceFile& source : embedded_sources()) names.insert(source.name);
  EXPECT_GT(names.size(), 15u);
  for (const gpu::SourceFile& source : embedded_sources()) {
    EXPECT_EQ(source.text.find("#include <"), std::string_view::npos) << source.name;
    constexpr std::string_view kInclude = "#include \"";
    for (std::size_t at = source.text.find(kInclude); at != std::string_view::npos;
         at = source.text.find(kInclude, at)) {
      at += kInclude.size();
      const std::string_view name = source.text.substr(at, source.text.find('"', at) - at);
      EXPECT_TRUE(names.contains(name) || name == "host_executor.h" || name == gpu::kModifierHeader)
          << source.name << " includes " << name;
    }
  }
}

TEST(NvrtcDeathTest, WithoutItAnErrorSaysWhatToInstall) {
  // In a process of its own: the compiler is looked for once.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto compile_without = [] {
    ::setenv("TESSERA_NVRTC_LIBRARY", "/there/is/no/libnvrtc.so", 1);
    try {
      nvrtc_compiler().compile({"a.cu", ""}, {}, {}, "sm_80");
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.message());
      std::exit(error.code() == ErrorCode::kUnsupported ? 3 : 4);
    }
    std::exit(0);
  };
  EXPECT_EXIT(compile_without(), testing::ExitedWithCode(3), "kernel a.cu .* for sm_80 .* cuda-nvrtc");
}

/// What a module shows of its source that others may not: its definitions, whose sizes all count as one.
/// Formats of blocks are the same text in every source: one will do for each.
std::set<std::string> traits_of(const Module& module) {
  std::set<std::string> traits{module.source};
  for (const std::string& define : module.defines) {
    if (define.starts_with("TESSERA_BLOCKS=")) {
      traits.insert(define);
      continue;
    }
    const std::size_t value = define.find('=') + 1;
    const bool is_size =
        define.find_first_not_of("0123456789", value) == define.npos && define.substr(value) > "1";
    traits.insert(module.source + " " + (is_size ? define.substr(0, value) : define));
  }
  return traits;
}

/// Few modules that have among them every trait of any: the others are compiled by the build, from the same
/// texts.
std::vector<Module> modules_with_every_definition() {
  const std::vector<Module> all = all_modules();
  std::set<std::string> missing;
  for (const Module& module : all) missing.merge(traits_of(module));
  std::vector<Module> some;
  while (!missing.empty()) {
    const auto gain = [&](const Module& module) {
      std::size_t count = 0;
      for (const std::string& trait : traits_of(module)) count += missing.count(trait);
      return count;
    };
    some.push_back(*std::max_element(all.begin(), all.end(),
                                     [&](const Module& a, const Module& b) { return gain(a) < gain(b); }));
    for (const std::string& trait : traits_of(some.back())) missing.erase(trait);
  }
  return some;
}

// Common modules for the oldest architecture that is supported, tuned ones for the one that their tiles were
// chosen for.
TEST(Nvrtc, CompilesEverySourceWithEveryDefinition) {
  SKIP_WITHOUT_NVRTC();
  const std::vector<Module> modules = modules_with_every_definition();
  ASSERT_GT(modules.size(), 10u);
  parallel_for(modules.size(), [&](std::size_t n) {
    const Module& module = modules[n];
    const std::string architecture = module.source.starts_with("common/") ? "sm_80" : "sm_90a";
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<std::byte> image = nvrtc_compiler().compile(
        embedded_source(module.source), embedded_sources(), module.defines, architecture);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_TRUE(is_elf(image)) << module.source;
    fmt::print("{:6.2f} s  {} {} {}\n", s, architecture, module.source, fmt::join(module.defines, " "));
  });
  fmt::print("{} modules by {}\n", modules.size(), nvrtc_state().library);
}

// Of head_dim 128, the first of each attention kernel of 16 bits and fp32 with all terms, and with softcap
// alone: few modules with terms are built ahead.
TEST(Nvrtc, CompilesScoreTerms) {
  SKIP_WITHOUT_NVRTC();
  std::vector<Module> modules;
  std::set<std::string> sources;
  for (const Module& module : all_modules()) {
    const auto has = [&](const char* define) { return std::ranges::count(module.defines, define) > 0; };
    const bool takes_terms =
        (module.source.starts_with("sm80/attention_") || module.source.starts_with("sm90/attention_")) &&
        module.source != "sm90/attention_e4m3.cu";
    if (!takes_terms || !has("TESSERA_TERMS=0") || has("TESSERA_INVARIANT=1") ||
        !has("TESSERA_HEAD_DIM_V=128") || !sources.insert(module.source).second)
      continue;
    for (const auto& [terms, mask_dtype] : {std::pair{15, 2}, {1, 0}}) {
      Module with_terms = module;
      for (std::string& define : with_terms.defines) {
        if (define.starts_with("TESSERA_TERMS=")) define = fmt::format("TESSERA_TERMS={}", terms);
        if (define.starts_with("TESSERA_MASK_DTYPE="))
          define = fmt::format("TESSERA_MASK_DTYPE={}", mask_dtype);
      }
      modules.push_back(with_terms);
    }
  }
  for (const char* source :
       {"sm80/attention_mma.cu", "sm80/attention_f32.cu", "sm80/attention_decode.cu",
        "sm90/attention_decode.cu", "sm90/attention_decode_e4m3.cu", "sm90/attention_wgmma.cu"})
    EXPECT_TRUE(sources.contains(source)) << source;
  parallel_for(modules.size(), [&](std::size_t n) {
    const Module& module = modules[n];
    const std::vector<std::byte> image = nvrtc_compiler().compile(
        embedded_source(module.source), embedded_sources(), module.defines, "sm_90a");
    EXPECT_TRUE(is_elf(image)) << module.source;
  });
  fmt::print("{} modules of {}\n", modules.size(), fmt::join(sources, ", "));
}

// No module with one is built ahead, and NVRTC refuses some of what nvcc takes.
TEST(Nvrtc, CompilesScoreModifiers) {
  SKIP_WITHOUT_NVRTC();
  const float bias[2] = {};
  const std::int32_t documents[4] = {};
  ScoreModifier modifier;
  modifier.score = "cap * tanh(score / cap) + bias[h] * float(abs(q_idx + shift - kv_idx))";
  modifier.visible = "doc[q_idx] == doc[kv_idx] && (kv_idx <= q_idx || kv_idx % 3 == 0)";
  modifier.tensors = {{"bias", bias, DType::kF32, {2}, {1}}, {"doc", documents, DType::kI32, {4}, {1}}};
  modifier.scalars = {{"cap", 20}};
  const std::string text =
      modifier::kernel_text(modifier::parse(modifier).program, {.has_small_indices = true});
  std::vector<gpu::SourceFile> sources(embedded_sources().begin(), embedded_sources().end());
  sources.push_back({gpu::kModifierHeader, text});
  std::vector<Module> modules;
  for (const Module& module : all_modules()) {
    const bool takes_modifiers =
        module.source == "common/attention_generic.cu" || module.source == "sm80/attention_mma.cu" ||
        module.source == "sm90/attention_decode.cu" ||
        (module.source == "sm90/attention_wgmma.cu" &&
         std::count(module.defines.begin(), module.defines.end(), "TESSERA_BLOCK_M=128") > 0);
    const auto is_same = [&](const Module& other) { return other.source == module.source; };
    if (!takes_modifiers || std::any_of(modules.begin(), modules.end(), is_same)) continue;
    modules.push_back(module);
    modules.back().defines.emplace_back("TESSERA_MODIFIER=1");
  }
  ASSERT_EQ(modules.size(), 4u);
  parallel_for(modules.size(), [&](std::size_t n) {
    const Module& module = modules[n];
    const std::vector<std::byte> image =
        nvrtc_compiler().compile(embedded_source(module.source), sources, module.defines, "sm_90a");
    EXPECT_TRUE(is_elf(image)) << module.source;
  });
}

TEST(Nvrtc, QuotesTheLineOfAnError) {
  SKIP_WITHOUT_NVRTC();
  const gpu::SourceFile source{"wrong.cu",
                               "extern \"C\" __global__ void kernel(float* x) {\n"
                               "  x[0] = undeclared_name + 1;\n"
                               "}\n"};
  const std::vector<std::string> defines = {"TESSERA_SOMETHING=3"};
  try {
    nvrtc_compiler().compile(source, {}, defines, "sm_80");
    ADD_FAILURE() << "a wrong source compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    for (const char* part :
         {"wrong.cu", "sm_80", "-DTESSERA_SOMETHING=3", "identifier \"undeclared_name\" is undefined",
          "\n  2:   x[0] = undeclared_name + 1;"}) {
      EXPECT_NE(error.message().find(part), std::string::npos) << part << " is not in:\n" << error.message();
    }
  }
}

TEST(Nvrtc, CannotReachSystemHeaders) {
  SKIP_WITHOUT_NVRTC();
  const gpu::SourceFile source{"reaches_out.cu", "#include <stdlib.h>\n"};
  EXPECT_THROW(nvrtc_compiler().compile(source, {}, {}, "sm_80"), Error);
}

}  // namespace
}  // namespace tessera::cuda
