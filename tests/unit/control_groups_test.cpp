#include "core/control_groups.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/aligned_memory.h"
#include "core/processors.h"
#include "tessera/error.h"
#include "tessera/threads.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// A machine's /proc and /sys, in a folder.
class ControlGroups : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("tessera_groups_" + std::to_string(::getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  fs::path root_;
};

TEST_F(ControlGroups, WithoutAnyThereIsNoLimit) {
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_FALSE(limits.free_memory_bytes);
  EXPECT_FALSE(limits.processors);
}

TEST_F(ControlGroups, OfAContainerAreThoseOfItsRoot) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "4294967296\n");
  write("sys/fs/cgroup/memory.current", "3221225472\n");
  write("sys/fs/cgroup/memory.stat",
        "anon 1073741824\nfile 2147483648\ninactive_file 1073741824\nactive_file 1073741824\n");
  write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.free_memory_bytes, 3 * kGiB) << "the cache of files is given up before memory runs out";
  EXPECT_EQ(limits.processors, 2.5);
}

TEST_F(ControlGroups, AroundAGroupHoldToo) {
  write("proc/self/cgroup", "0::/system.slice/tessera.service\n");
  write("sys/fs/cgroup/system.slice/tessera.service/memory.max", "max\n");
  write("sys/fs/cgroup/system.slice/tessera.service/memory.current", "1073741824\n");
  write("sys/fs/cgroup/system.slice/tessera.service/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/system.slice/memory.max", "2147483648\n");
  write("sys/fs/cgroup/system.slice/memory.current", "3221225472\n");
  write("sys/fs/cgroup/system.slice/cpu.max", "max 100000\n");
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.free_memory_bytes, 0U) << "more is used than the limit, which may have been lowered";
  EXPECT_EQ(limits.processors, 4.0);
}

TEST_F(ControlGroups, OfTheFirstVersionHaveAFolderAController) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/a1\n1:cpu,cpuacct:/docker/a1\n0::/\n");
  // The container sees its own group as the outermost.
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 536870912\n");
  write("sys/fs/cgroup/cpu/docker/a1/cpu.cfs_quota_us", "50000\n");
  write("sys/fs/cgroup/cpu/docker/a1/cpu.cfs_period_us", "100000\n");
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.free_memory_bytes, kGiB + kGiB / 2);
  EXPECT_EQ(limits.processors, 0.5);
}

TEST_F(ControlGroups, WithoutALimitSaySoInManyWays) {
  write("proc/self/cgroup", "4:memory:/\n1:cpu:/../elsewhere\n0::/\nno group\n\n:\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory.max", "four gigabytes\n");
  write("sys/fs/cgroup/memory.current", "");
  write("sys/fs/cgroup/cpu.max", "0 0\n");
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_FALSE(limits.free_memory_bytes);
  EXPECT_FALSE(limits.processors);
}

TEST(UsableProcessors, AreThoseThatThereAreThreadsFor) {
  EXPECT_GE(usable_processors(), 1);
  set_num_threads(0);
  EXPECT_LE(num_threads(), usable_processors());
}

TEST(AvailableMemory, IsWithinTheProcessesLimitOfAddresses) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t addresses = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{150} << 20);
    const rlimit limit{addresses, addresses};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(2);
    if (available_memory_bytes() > (std::uint64_t{150} << 20)) ::_exit(3);
    try {
      allocate_aligned(std::size_t{200} << 20, "a test");
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::kOutOfMemory ? 0 : 4);
    }
    ::_exit(5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

}  // namespace
}  // namespace tessera
