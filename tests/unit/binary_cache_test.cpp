#include "core/binary_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
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

std::string key_of(std::string_view a, std::string_view b = {}) {
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
  EXPECT_FALSE(cache.load(key_of("k1")));
  ASSERT_TRUE(cache.store(key_of("k1"), "first", payload(1000, 1))) << cache.write_problem();
  ASSERT_TRUE(cache.store(key_of("k2"), "second", payload(0, 2)));
  EXPECT_EQ(cache.load(key_of("k1")), payload(1000, 1));
  EXPECT_EQ(cache.load(key_of("k2")), payload(0, 2));
  ASSERT_EQ(cache.list().size(), 2u);
  std::set<std::string> descriptions;
  for (const BinaryCache::Entry& entry : cache.list()) {
    descriptions.insert(entry.description);
    EXPECT_EQ(entry.damage, "");
  }
  EXPECT_EQ(descriptions, (std::set<std::string>{"first", "second"}));
  EXPECT_EQ(cache.clear(), 2);
  EXPECT_FALSE(cache.load(key_of("k1")));
}

TEST_F(BinaryCacheTest, NoticesEveryTruncationAndEveryFlippedByteAndRebuilds) {
  BinaryCache cache(folder_);
  ASSERT_TRUE(cache.store(key_of("key"), "text", payload(64, 3)));
  std::ifstream in(only_file(), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const fs::path path = only_file();
  const auto write = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    ASSERT_NE(cache.list().at(0).damage, "") << size;
    ASSERT_FALSE(cache.load(key_of("key"))) << size;
    ASSERT_FALSE(fs::exists(path)) << "a damaged entry is removed";
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
    write(bytes);
    ASSERT_FALSE(cache.load(key_of("key"))) << at;
  }
  // The header's sizes: 4 bytes of the key's, 4 of the description's. Moving the border between the two keeps
  // their sum.
  std::string moved = whole;
  moved[16] = static_cast<char>(moved[16] - 1);
  moved[20] = static_cast<char>(moved[20] + 1);
  write(moved);
  EXPECT_EQ(cache.list().at(0).damage, "its checksum is wrong");
  ASSERT_TRUE(cache.store(key_of("key"), "text", payload(64, 3)));
  EXPECT_EQ(cache.load(key_of("key")), payload(64, 3));
}

TEST_F(BinaryCacheTest, DoesNotReadAFileLargerThanAnyKernel) {
  BinaryCache cache(folder_);
  ASSERT_TRUE(cache.store(key_of("key"), "text", payload(64, 3)));
  fs::resize_file(only_file(), std::uintmax_t{1} << 40);  // a hole: it takes no space on the disk
  EXPECT_NE(cache.list().at(0).damage.find("more than any kernel"), std::string::npos);
  EXPECT_FALSE(cache.load(key_of("key")));
}

TEST_F(BinaryCacheTest, LeavesOtherProgramsFilesAlone) {
  BinaryCache cache(folder_);
  ASSERT_TRUE(cache.store(key_of("key"), "text", payload(64, 3)));
  const std::string digits = key_of("other");
  const std::vector<std::string> foreign = {
      "session.tmp",         "linux.kernel",      digits + ".tmp",          digits + ".1.tmp",
      digits + ".1.2.3.tmp", digits + ".a.b.tmp", "0" + digits + ".kernel", digits.substr(1) + "G.kernel"};
  for (const std::string& name : foreign) std::ofstream(folder_ / name) << "something of value";
  EXPECT_EQ(cache.list().size(), 1u);
  // These have an entry's name, and nothing else of one.
  const std::vector<std::string> similar = {digits + ".kernel", digits + ".12.3.tmp"};
  for (const std::string& name : similar) std::ofstream(folder_ / name) << "something of value";
  EXPECT_FALSE(cache.load(digits));
  ASSERT_EQ(cache.list().size(), 2u) << "the temporary one is too young";
  for (const BinaryCache::Entry& entry : cache.list()) {
    EXPECT_EQ(entry.removable, entry.damage.empty()) << entry.path;
  }
  EXPECT_EQ(cache.clear(), 1);
  for (const auto& names : {foreign, similar}) {
    for (const std::string& name : names) EXPECT_TRUE(fs::exists(folder_ / name)) << name;
  }
}

TEST_F(BinaryCacheTest, LoadsNothingThatAnotherUserMayHaveWritten) {
  BinaryCache cache(folder_);
  ASSERT_TRUE(cache.store(key_of("key"), "text", payload(64, 3)));
  const fs::path path = only_file();
  for (const fs::perms others : {fs::perms::group_write, fs::perms::others_write}) {
    ASSERT_TRUE(cache.store(key_of("key"), "text", payload(64, 3)));
    fs::permissions(path, others, fs::perm_options::add);
    EXPECT_NE(cache.list().at(0).damage.find("may write"), std::string::npos);
    EXPECT_FALSE(cache.load(key_of("key")));
  }
  ASSERT_TRUE(cache.store(key_of("key"), "text", payload(64, 3)));
  const uid_t nobody = 65534;
  if (::chown(path.c_str(), nobody, nobody) != 0) GTEST_SKIP() << "only root gives files away";
  EXPECT_NE(cache.list().at(0).damage.find("another user"), std::string::npos);
  EXPECT_FALSE(cache.load(key_of("key")));
}

TEST_F(BinaryCacheTest, DoesNotWaitForDevicesPipesAndLinks) {
  fs::create_directories(folder_);
  const std::string link = key_of("link"), pipe = key_of("pipe");
  fs::create_symlink("/dev/zero", folder_ / (link + ".kernel"));
  ASSERT_EQ(::mkfifo((folder_ / (pipe + ".kernel")).c_str(), 0600), 0);
  BinaryCache cache(folder_);
  ASSERT_EQ(cache.list().size(), 2u);
  for (const BinaryCache::Entry& entry : cache.list()) EXPECT_EQ(entry.damage, "it is no regular file");
  EXPECT_FALSE(cache.load(link));
  EXPECT_FALSE(cache.load(pipe));
  EXPECT_EQ(cache.clear(), 0);
}

TEST_F(BinaryCacheTest, AFolderThatCannotBeWrittenIsSaidAndNotFatal) {
  std::ofstream(folder_) << "a file where the folder should be";
  BinaryCache cache(folder_);
  EXPECT_FALSE(cache.store(key_of("key"), "", payload(8, 0)));
  EXPECT_NE(cache.write_problem().find("cannot write"), std::string::npos);
  EXPECT_FALSE(cache.load(key_of("key")));
  EXPECT_TRUE(cache.list().empty());
  BinaryCache nowhere{fs::path()};
  EXPECT_FALSE(nowhere.store(key_of("key"), "", payload(8, 0)));
  EXPECT_NE(nowhere.write_problem().find("XDG_CACHE_HOME"), std::string::npos);
}

/// Of a process with these variables alone; empty: not set.
fs::path folder_with(const std::string& own, const std::string& xdg, const std::string& home) {
  const auto set = [](const char* name, const std::string& value) {
    if (value.empty()) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value.c_str(), 1);
    }
  };
  set("TESSERA_CACHE_DIR", own);
  set("XDG_CACHE_HOME", xdg);
  set("HOME", home);
  return BinaryCache::default_folder();
}

TEST(BinaryCacheFolder, IsTheOneThatTheEnvironmentNames) {
  const std::array<const char*, 3> names = {"TESSERA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};
  std::vector<std::string> before;
  for (const char* const name : names) {
    const char* const value = std::getenv(name);
    before.emplace_back(value == nullptr ? "" : value);
  }
  EXPECT_EQ(folder_with("own", "/xdg", "/home/who"), "own");
  EXPECT_EQ(folder_with("", "/xdg", "/home/who"), "/xdg/tessera");
  EXPECT_EQ(folder_with("", "relative", "/home/who"), "/home/who/.cache/tessera");
  EXPECT_EQ(folder_with("", "", "/home/who"), "/home/who/.cache/tessera");
  EXPECT_EQ(folder_with("", "", ""), "");
  folder_with(before[0], before[1], before[2]);
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
    ::_exit(cache.store(key_of("key"), "", payload(100000, 0)) ? 1 : 0);
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
      for (;;) cache.store(key_of("shared"), "everyone's", payload(200000, 7));
    }
    children.push_back(child);
  }
  const BinaryCache reader(folder_);
  int seen = 0;
  for (int n = 0; n < 400 || (seen == 0 && n < 100000); ++n) {
    if (const auto found = reader.load(key_of("shared"))) {
      ++seen;
      ASSERT_EQ(*found, payload(200000, 7));
    }
  }
  for (const pid_t child : children) ::kill(child, SIGKILL);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  EXPECT_GT(seen, 0);
  EXPECT_EQ(reader.load(key_of("shared")), payload(200000, 7));
  EXPECT_EQ(reader.list().size(), 1u) << "leftovers of the killed are too young to count";
  BinaryCache(folder_).clear();
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace tessera
