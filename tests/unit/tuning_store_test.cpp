// Tuned shapes in the cache folder and in the library.

#include "attention/tuning_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/binary_cache.h"
#include "tessera/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDevice = "a GPU";

TuningTable table_of(const std::string& shapes, const std::string& kernel) {
  TuningTable table;
  table.entries[shapes] = {{kernel, {}}, 32, 14.25, "sm90/decode", 16.5, 9, "2026-11-23"};
  return table;
}

class TuningStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("tessera_tuning_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    ::unsetenv("TESSERA_TUNING");
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// As another process opens it.
  std::unique_ptr<TuningStore> open(std::string_view kernels = "cuda",
                                    std::span<const std::string_view> shipped = {}) const {
    const std::string_view identity[] = {kernels};
    return std::make_unique<TuningStore>(folder_, identity, kDevice, shipped);
  }
  std::map<std::string, TunedEntry, std::less<>> found() const { return open()->get().own.entries; }

  fs::path folder_;
};

TEST_F(TuningStoreTest, RemembersForLaterProcessesAndAddsToWhatIsThere) {
  const auto store = open();
  EXPECT_TRUE(store->get().own.entries.empty());
  store->remember(table_of("first", "sm80/decode"));
  open()->remember(table_of("second", "sm90/decode"));  // another process
  store->remember(table_of("third", "sm80/prefill"));
  for (const auto& entries : {found(), store->get().own.entries}) {
    ASSERT_EQ(entries.size(), 3u);
    EXPECT_EQ(entries.at("second").best.kernel, "sm90/decode");
  }
  EXPECT_EQ(store->get().own.device, kDevice);
  store->remember(table_of("second", "generic"));
  EXPECT_EQ(found().at("second").best.kernel, "generic");
  EXPECT_TRUE(open("of other kernels")->get().own.entries.empty());
}

TEST_F(TuningStoreTest, LosesNothingOfProcessesThatRememberAtOnce) {
  std::vector<std::thread> processes;  // as good as: each has a store of its own
  for (int p = 0; p < 4; ++p) {
    processes.emplace_back([this, p] {
      const auto store = open();
      for (int i = 0; i < 10; ++i) store->remember(table_of(std::to_string(10 * p + i), "sm80/decode"));
    });
  }
  for (std::thread& process : processes) process.join();
  EXPECT_EQ(found().size(), 40u);
}

TEST_F(TuningStoreTest, IsAnEntryOfTheCacheThatIsListedAndCleared) {
  open()->remember(table_of("first", "sm80/decode"));
  BinaryCache cache(folder_);
  const auto entries = cache.list();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].damage, "");
  EXPECT_EQ(entries[0].description, "tuned attention of a GPU, classes of shapes: 1");
  EXPECT_EQ(cache.clear(), 1);
  EXPECT_TRUE(found().empty());
}

TEST_F(TuningStoreTest, AnEntryThatIsBrokenCountsAsNoneAndIsReplaced) {
  const TuningTable first = table_of("first", "sm80/decode");
  open()->remember(first);
  const fs::path path = BinaryCache(folder_).list().at(0).path;
  const std::string key = path.stem();
  for (const std::string& text : {std::string(), std::string("not JSON"), std::string(1 << 23, '['),
                                  std::string("{\"tessera_tuning\":99,\"device\":\"x\",\"entries\":[]}")}) {
    ASSERT_TRUE(BinaryCache(folder_).store(key, "tuned",
                                           {reinterpret_cast<const std::byte*>(text.data()), text.size()}));
    EXPECT_TRUE(found().empty());
    open()->remember(first);
    EXPECT_EQ(found(), first.entries);
  }
  std::ofstream(path, std::ios::binary) << "TSRCACH2 and nothing more";
  EXPECT_TRUE(found().empty());
  // What others may write to is not trusted.
  open()->remember(first);
  fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
  EXPECT_TRUE(found().empty());
}

TEST_F(TuningStoreTest, ShippedTablesAreForDevicesOfTheirName) {
  const auto text_of = [](std::string_view device) {
    TuningTable table = table_of("first", "sm80/decode");
    table.device = device;
    return tuning_to_json(table);
  };
  const std::string other = text_of("another GPU"), own = text_of(kDevice);
  const std::array<std::string_view, 2> shipped = {other, own};
  EXPECT_EQ(open("cuda", shipped)->get().shipped.entries.size(), 1u);
  EXPECT_TRUE(open("cuda", std::span(shipped).first(1))->get().shipped.entries.empty());
}

TEST_F(TuningStoreTest, IsOffOnDemand) {
  open()->remember(table_of("first", "sm80/decode"));
  ::setenv("TESSERA_TUNING", "off", 1);
  const auto store = open();
  const AttentionTunings tables = store->get().tables();
  ::unsetenv("TESSERA_TUNING");
  EXPECT_EQ(tables.own, nullptr);
  EXPECT_EQ(tables.shipped, nullptr);
  EXPECT_NE(open()->get().tables().own, nullptr);
}

TEST_F(TuningStoreTest, SaysWhereItCouldNotWrite) {
  const auto store = open();
  std::ofstream(folder_) << "a file where the folder should be";
  try {
    store->remember(table_of("first", "sm80/decode"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(error.message().find(folder_.string()), std::string::npos) << error.message();
  }
  EXPECT_TRUE(store->get().own.entries.empty());
}

TEST_F(TuningStoreTest, MayBeReadWhileOthersRemember) {
  const auto store = open();
  const DeviceTuning& at_first = store->get();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      for (int i = 0; i < 10; ++i) {
        store->remember(table_of(std::to_string(10 * t + i), "sm80/decode"));
        EXPECT_GE(store->get().own.entries.size(), static_cast<std::size_t>(i + 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(at_first.own.entries.empty()) << "what was read stays as it was";
  EXPECT_EQ(store->get().own.entries.size(), 40u);
  EXPECT_EQ(found().size(), 40u);
}

}  // namespace
}  // namespace tessera
