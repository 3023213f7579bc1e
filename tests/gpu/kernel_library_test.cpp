// The kernel library with a compiler and a driver that only pretend: what it compiles, when and how often.

#include "backends/gpu/runtime/kernel_library.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "backends/gpu/runtime/code_archive.h"
#include "core/parallel.h"
#include "gpu/packed_code.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

/// Calls on_compile; its code is the source's name.
class FakeCompiler final : public KernelCompiler {
 public:
  std::function<void(const std::string& source)> on_compile = [](const std::string&) {};
  std::string reason;

  std::string unavailable_reason() const override { return reason; }
  std::string version() const override { return "fake 1"; }
  std::vector<std::byte> compile(const SourceFile& source, std::span<const SourceFile>,
                                 std::span<const std::string> defines, const std::string&) const override {
    {
      const std::lock_guard lock(mutex_);
      ++counts_[std::string(source.name)];
      defines_.assign(defines.begin(), defines.end());
    }
    on_compile(std::string(source.name));
    std::vector<std::byte> image(source.name.size() + 1);
    std::memcpy(image.data(), source.name.data(), source.name.size());
    return image;
  }

  int count(const std::string& source) const {
    const std::lock_guard lock(mutex_);
    return counts_[source];
  }
  std::vector<std::string> last_defines() const {
    const std::lock_guard lock(mutex_);
    return defines_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::map<std::string, int> counts_;
  mutable std::vector<std::string> defines_;
};

/// A GPU of architecture fake_2, which also runs fake_1 and translates fake_0. A module is what its code
/// says.
class FakeLoader final : public ModuleLoader {
 public:
  CodeFit fit_of(std::string_view architecture) const override {
    if (architecture == "fake_2") return CodeFit::kExact;
    if (architecture == "fake_1") return CodeFit::kRuns;
    return architecture == "fake_0" ? CodeFit::kTranslated : CodeFit::kNone;
  }
  void* load_module(std::span<const std::byte> image, std::string_view) override {
    const std::lock_guard lock(mutex_);
    return &loaded_.emplace_back(reinterpret_cast<const char*>(image.data()));
  }
  Kernel find_function(void* module, const std::string& entry, CodeFit, std::string_view) override {
    Kernel kernel;
    kernel.name = *static_cast<std::string*>(module) + ":" + entry;
    return kernel;
  }
  void allow_shared(Kernel& kernel, std::size_t dynamic_bytes, std::string_view) override {
    kernel.dynamic_shared_bytes = dynamic_bytes;
  }

 private:
  std::mutex mutex_;
  std::deque<std::string> loaded_;
};

/// Something that threads wait for, not for ever.
class Latch {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return opened_.wait_for(lock, std::chrono::seconds(20), [&] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

constexpr std::array<SourceFile, 3> kSources = {
    {{"a.cu", "kernel a"}, {"b.cu", "kernel b"}, {"c.cu", "kernel c"}}};

class KernelLibraryTest : public testing::Test {
 protected:
  KernelLibrary make_library(std::filesystem::path cache = {}) {
    return {loader_, compiler_, {"fake_2", 64, kSources, built_}, BinaryCache(std::move(cache))};
  }
  void add_built(std::string_view source, std::string_view architecture, std::string_view code,
                 std::string_view defines = "") {
    packed_.push_back(xz_of(tar_of({{"module", std::string(code)}})));
    archives_.emplace_back(packed_.back());
    built_.push_back({source, defines, architecture, &archives_.back(), "module"});
  }

  FakeLoader loader_;
  FakeCompiler compiler_;
  std::deque<std::vector<std::byte>> packed_;
  std::deque<CodeArchive> archives_;
  std::vector<EmbeddedModule> built_;
};

// Only what a module is made of: a change of one kernel must not cost the time of all others.
TEST_F(KernelLibraryTest, CachedCodeServesUntilSomethingThatItsSourceIncludesChanges) {
  const std::filesystem::path cache = std::filesystem::path(testing::TempDir()) / "kernel_library_closure";
  std::filesystem::remove_all(cache);
  const auto compilations_with = [&](std::string_view inner, std::string_view other) {
    const std::array<SourceFile, 4> sources = {{{"a.cu", "#include \"outer.h\"\nkernel"},
                                                {"outer.h", "#pragma once\n#include \"inner.h\"\n"},
                                                {"inner.h", inner},
                                                {"other.h", other}}};
    const int before = compiler_.count("a.cu");
    KernelLibrary library(loader_, compiler_, {"fake_2", 64, sources, {}}, BinaryCache(cache));
    library.find({"a.cu", {}}, "entry");
    return compiler_.count("a.cu") - before;
  };
  EXPECT_EQ(compilations_with("1", "1"), 1);
  EXPECT_EQ(compilations_with("1", "1"), 0);
  EXPECT_EQ(compilations_with("1", "2"), 0) << "other.h is not included";
  EXPECT_EQ(compilations_with("2", "2"), 1) << "inner.h is, by outer.h";
  std::filesystem::remove_all(cache);
}

TEST_F(KernelLibraryTest, OneModuleCompilesWhileOthersAreFound) {
  Latch slow_has_begun, quick_was_found;
  bool slow_saw_quick = false;
  compiler_.on_compile = [&](const std::string& source) {
    if (source != "a.cu") return;
    slow_has_begun.open();
    slow_saw_quick = quick_was_found.wait();
  };
  KernelLibrary library = make_library();
  std::thread slow([&] { library.find({"a.cu", {}}, "slow"); });
  ASSERT_TRUE(slow_has_begun.wait());
  EXPECT_EQ(library.find({"b.cu", {}}, "quick").name, "b.cu:quick");
  quick_was_found.open();
  slow.join();
  EXPECT_TRUE(slow_saw_quick) << "finding a kernel waited for another module's compilation";
}

TEST_F(KernelLibraryTest, ThreadsThatNeedOneModuleCompileItOnce) {
  KernelLibrary library = make_library();
  std::array<const Kernel*, 8> found = {};
  std::vector<std::thread> threads;
  for (const Kernel*& kernel : found) {
    threads.emplace_back([&] { kernel = &library.find({"a.cu", {}}, "entry"); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiler_.count("a.cu"), 1);
  for (const Kernel* kernel : found) EXPECT_EQ(kernel, found[0]);
}

TEST_F(KernelLibraryTest, AnErrorIsThrownToEachWhoAsks) {
  compiler_.on_compile = [](const std::string&) { throw Error(ErrorCode::kDevice, "does not compile"); };
  KernelLibrary library = make_library();
  EXPECT_THROW(library.find({"a.cu", {}}, "entry"), Error);
  EXPECT_THROW(library.find({"a.cu", {}}, "entry"), Error);
  compiler_.on_compile = [](const std::string&) {};
  EXPECT_EQ(library.find({"a.cu", {}}, "entry").name, "a.cu:entry");
  EXPECT_THROW(library.find({"no_such.cu", {}}, "entry"), Error);
}

TEST_F(KernelLibraryTest, PreparesModulesAheadOfNeedSideBySide) {
  if (num_threads() < 2) GTEST_SKIP() << "one thread";
  Latch first, second;
  std::atomic<int> begun = 0;
  std::atomic<bool> met = true;
  compiler_.on_compile = [&](const std::string& source) {
    if (source == "c.cu") throw Error(ErrorCode::kDevice, "does not compile");
    (begun.fetch_add(1) == 0 ? first : second).open();
    if (!first.wait() || !second.wait()) met = false;
  };
  KernelLibrary library = make_library();
  const std::vector<ModuleSpec> specs = {
      {"a.cu", {}}, {"b.cu", {}}, {"c.cu", {}}, {"a.cu", {}}, {"no_such.cu", {}}};
  library.prepare(specs);
  EXPECT_TRUE(met) << "modules were compiled one after the other";
  EXPECT_EQ(compiler_.count("a.cu"), 1);
  library.find({"a.cu", {}}, "entry");
  EXPECT_EQ(compiler_.count("a.cu"), 1) << "compiled again";
  EXPECT_THROW(library.find({"c.cu", {}}, "entry"), Error)
      << "what failed must be reported when it is needed";
}

TEST_F(KernelLibraryTest, TakesTheBestCodeThatTheBuildMade) {
  add_built("a.cu", "fake_1", "runs");
  add_built("a.cu", "fake_2", "exact");
  add_built("a.cu", "fake_3", "none");
  add_built("b.cu", "fake_0", "translated");
  KernelLibrary library = make_library();
  EXPECT_EQ(library.find({"a.cu", {"TESSERA_ONLY=2"}}, "entry").name, "exact:entry");
  EXPECT_EQ(library.describe_origin({"a.cu", {}}), "built ahead for fake_2");
  EXPECT_EQ(library.find({"b.cu", {}}, "entry").name, "b.cu:entry") << "compiling is better than translating";
  EXPECT_EQ(library.describe_origin({"b.cu", {}}), "compiled by fake 1 when first used");
  compiler_.reason = "there is no compiler";
  KernelLibrary without = make_library();
  EXPECT_EQ(without.find({"b.cu", {}}, "entry").name, "translated:entry");
  EXPECT_EQ(without.describe_origin({"b.cu", {}}), "built ahead as fake_0, which the driver translates");
  EXPECT_EQ(without.describe_origin({"c.cu", {}}),
            "missing: it was not built ahead for fake_2, and there is no compiler");
}

TEST_F(KernelLibraryTest, CodeThatWasBuiltOfAPartIsThatPartsAlone) {
  add_built("a.cu", "fake_2", "part", "TESSERA_BLOCKS=Q4_K TESSERA_ONLY=3");
  KernelLibrary library = make_library();
  EXPECT_EQ(library.find({"a.cu", {"TESSERA_BLOCKS=Q4_K", "TESSERA_ONLY=3"}}, "entry").name, "part:entry");
  EXPECT_EQ(library.find({"a.cu", {"TESSERA_BLOCKS=Q4_K", "TESSERA_ONLY=2"}}, "entry").name, "a.cu:entry");
  EXPECT_EQ(library.find({"a.cu", {"TESSERA_BLOCKS=Q4_K"}}, "entry").name, "a.cu:entry");
  EXPECT_EQ(library.describe_origin({"a.cu", {"TESSERA_BLOCKS=Q4_K", "TESSERA_ONLY=3"}}),
            "built ahead for fake_2");
}

TEST_F(KernelLibraryTest, TellsSourcesTheWarpSizeAndKeepsWhatItCompiles) {
  const std::filesystem::path folder = testing::TempDir() + "kernel_library_test";
  std::filesystem::remove_all(folder);
  const ModuleSpec spec{"a.cu", {"TESSERA_DTYPE=f16"}};
  make_library(folder).find(spec, "entry");
  EXPECT_EQ(compiler_.last_defines(),
            (std::vector<std::string>{"TESSERA_DTYPE=f16", "TESSERA_WARP_SIZE=64"}));
  KernelLibrary again = make_library(folder);
  EXPECT_EQ(again.find(spec, "entry").name, "a.cu:entry");
  EXPECT_EQ(compiler_.count("a.cu"), 1) << "the cache was not read";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera::gpu
