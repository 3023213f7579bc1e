#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "child_process.h"
#include "tessera/error.h"

namespace tessera {
namespace {

class ParallelFor : public testing::Test {
 protected:
  void TearDown() override { set_num_threads(0); }
};

/// Whether each of `count` tasks runs exactly once.
bool runs_every_task_once(std::size_t count) {
  std::vector<std::atomic<int>> runs(count);
  parallel_for(count, [&](std::size_t task) { runs[task].fetch_add(1); });
  for (const auto& r : runs) {
    if (r.load() != 1) return false;
  }
  return true;
}

TEST_F(ParallelFor, RunsEveryTaskOnceOnAtMostTheThreadsAskedFor) {
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    EXPECT_EQ(num_threads(), threads);
    std::mutex mutex;
    std::set<std::thread::id> ids;  // guarded by mutex
    std::vector<std::atomic<int>> runs(1000);
    parallel_for(runs.size(), [&](std::size_t task) {
      runs[task].fetch_add(1);
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
    for (const auto& r : runs) EXPECT_EQ(r.load(), 1);
    EXPECT_LE(ids.size(), static_cast<std::size_t>(threads));
  }
  EXPECT_TRUE(runs_every_task_once(0));
  EXPECT_TRUE(runs_every_task_once(1));
}

TEST_F(ParallelFor, TasksThatWaitForOneAnotherRunSideBySide) {
  set_num_threads(3);
  for (int round = 0; round < 200; ++round) {  // with idle threads awake, and asleep after a pause
    if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> arrived{0};
    parallel_for(3, [&](std::size_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 3) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 3);
  }
}

TEST_F(ParallelFor, PassesOnTheFirstExceptionAndGoesOnWorking) {
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    for (int round = 0; round < 50; ++round) {
      EXPECT_THROW(parallel_for(10,
                                [](std::size_t task) {
                                  if (task >= 7) throw std::runtime_error("seven");
                                }),
                   std::runtime_error);
      EXPECT_TRUE(runs_every_task_once(20));
    }
  }
}

TEST_F(ParallelFor, CallsMayNestAndOverlap) {
  set_num_threads(4);
  std::atomic<int> runs{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 20; ++caller) {  // more than the pool has jobs for
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        parallel_for(4, [&](std::size_t) { parallel_for(5, [&](std::size_t) { runs.fetch_add(1); }); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(runs.load(), 20 * 20 * 4 * 5);
}

TEST_F(ParallelFor, TheNumberOfThreadsMayChangeWhileWorkRuns) {
  std::atomic<int> changes{0};
  std::thread changing([&] {
    for (; changes.load() < 200; changes.fetch_add(1)) set_num_threads(changes.load() % 6);
  });
  while (changes.load() < 200) EXPECT_TRUE(runs_every_task_once(50));
  changing.join();
  parallel_for(8, [](std::size_t task) { set_num_threads(static_cast<int>(task)); });
}

TEST_F(ParallelFor, RefusesNumbersOfThreadsThatMakeNoSense) {
  EXPECT_THROW(set_num_threads(-1), Error);
  EXPECT_THROW(set_num_threads(1 << 30), Error);
}

TEST_F(ParallelFor, AChildProcessHasThreadsOfItsOwn) {
#ifdef TESSERA_SANITIZE_THREAD
  GTEST_SKIP() << "ThreadSanitizer ends a child that starts threads";
#endif
  set_num_threads(3);
  ASSERT_TRUE(runs_every_task_once(100));
  std::atomic<bool> stop{false};
  std::thread busy([&] {  // a fork may come at any moment of another thread's call
    while (!stop.load()) runs_every_task_once(100);
  });
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(in_child_process([] {
                std::atomic<int> arrived{0};
                parallel_for(3, [&](std::size_t) {
                  arrived.fetch_add(1);
                  while (arrived.load() < 3) std::this_thread::yield();
                });
                return arrived.load();
              }),
              3);
  }
  stop.store(true);
  busy.join();
}

TEST_F(ParallelFor, WorksWithTheThreadsThatTheSystemAllows) {
  const auto work = [] {
    set_num_threads(8);
    for (int round = 0; round < 100; ++round) {
      if (!runs_every_task_once(100)) return 100;
    }
    return num_threads();
  };
  const int alone = with_thread_limit(1, work);
  if (alone >= kNoThreadLimit) GTEST_SKIP() << "the number of threads can't be limited here: " << alone;
  EXPECT_EQ(alone, 1);
  const int few = with_thread_limit(3, work);
  EXPECT_GE(few, 1);  // other processes of that user count, too
  EXPECT_LE(few, 3);
}

}  // namespace
}  // namespace tessera
