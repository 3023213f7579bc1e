#include "core/binary_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera {
namespace {

namespace fs = std::filesystem;

class BinaryCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("tessera_cache_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::vector<std::byte> payload(std::size_t size, unsigned seed) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed);
    return bytes;
  }
  fs::path only_file() const { return fs::directory_iterator(folder_)->path(); }

  fs::path folder_;
};

std::string key_of(std::string_view a, std::string_view b) {
  const std::array parts = {a, b};
  return BinaryCache::make_key(parts);
}

TEST(BinaryCacheKey, DependsOnEveryByteAndOnWherePartsEnd) {
  EXPECT_EQ(key_of("ab", "c"), key_of("ab", "c"));
  EXPECT_NE(key_of("ab", "c"), key_of("a", "bc"));
  EXPECT_NE(key_of("ab", "c"), key_of("ab", "d"));
  EXPECT_EQ(key_of("ab", "c").size(), 32u);
}

TEST_F(BinaryCacheTest, GivesBackWhatWasStored) {
  BinaryCache cache(folder_);
  EXPECT_FALSE(cache.load("k1"));
  ASSERT_TRUE(cache.store("k1", "first", payload(1000, 1))) << cache.write_problem();
  ASSERT_TRUE(cache.store("k2", "second", payload(0, 2)));
  EXPECT_EQ(cache.load("k1"), payload(1000, 1));
  EXPECT_EQ(cache.load("k2"), payload(0, 2));
  ASSERT_EQ(cache.list().size(), 2u);
  EXPECT_EQ(cache.list()[0].description, "first");
  EXPECT_EQ(cache.list()[0].damage, "");
  EXPECT_EQ(cache.clear(), 2);
  EXPECT_FALSE(cache.load("k1"));
}

TEST_F(BinaryCacheTest, NoticesEveryTruncationAndEveryFlippedByteAndRebuilds) {
  BinaryCache cache(folder_);
  ASSERT_TRUE(cache.store("key", "text", payload(64, 3)));
  std::ifstream in(only_file(), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const fs::path path = only_file();
  const auto write = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    ASSERT_NE(cache.list().at(0).damage, "") << size;
    ASSERT_FALSE(cache.load("key")) << size;
    ASSERT_FALSE(fs::exists(path)) << "a damaged entry is removed";
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
    write(bytes);
    ASSERT_FALSE(cache.load("key")) << at;
  }
  ASSERT_TRUE(cache.store("key", "text", payload(64, 3)));
  EXPECT_EQ(cache.load("key"), payload(64, 3));
}

TEST_F(BinaryCacheTest, DoesNotReadAFileLargerThanAnyKernel) {
  BinaryCache cache(folder_);
  ASSERT_TRUE(cache.store("key", "text", payload(64, 3)));
  fs::resize_file(only_file(), std::uintmax_t{1} << 40);  // a hole: it takes no space on the disk
  EXPECT_NE(cache.list().at(0).damage.find("more than any kernel"), std::string::npos);
  EXPECT_FALSE(cache.load("key"));
}

TEST_F(BinaryCacheTest, AFolderThatCannotBeWrittenIsSaidAndNotFatal) {
  std::ofstream(folder_) << "a file where the folder should be";
  BinaryCache cache(folder_);
  EXPECT_FALSE(cache.store("key", "", payload(8, 0)));
  EXPECT_NE(cache.write_problem().find("cannot write"), std::string::npos);
  EXPECT_FALSE(cache.load("key"));
  EXPECT_TRUE(cache.list().empty());
  BinaryCache nowhere{fs::path()};
  EXPECT_FALSE(nowhere.store("key", "", payload(8, 0)));
  EXPECT_NE(nowhere.write_problem().find("XDG_CACHE_HOME"), std::string::npos);
}

TEST_F(BinaryCacheTest, AFullDiskLeavesNoEntry) {
  // A limit on file sizes fails a write half-way through, as a full disk does.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    BinaryCache cache(folder_);
    ::_exit(cache.store("key", "", payload(100000, 0)) ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(BinaryCacheTest, ManyProcessesMayFillItAndAnyMayBeKilled) {
  std::vector<pid_t> children;
  for (int n = 0; n < 8; ++n) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      BinaryCache cache(folder_);
      for (;;) cache.store("shared", "everyone's", payload(200000, 7));
    }
    children.push_back(child);
  }
  const BinaryCache reader(folder_);
  int seen = 0;
  for (int n = 0; n < 400 || (seen == 0 && n < 100000); ++n) {
    if (const auto found = reader.load("shared")) {
      ++seen;
      ASSERT_EQ(*found, payload(200000, 7));
    }
  }
  for (const pid_t child : children) ::kill(child, SIGKILL);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  EXPECT_GT(seen, 0);
  EXPECT_EQ(reader.load("shared"), payload(200000, 7));
  EXPECT_EQ(reader.list().size(), 1u) << "leftovers of the killed are too young to count";
  BinaryCache(folder_).clear();
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace tessera
