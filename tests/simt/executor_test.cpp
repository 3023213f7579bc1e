// The executor itself: what kernels may rely on, and that it notices what would be wrong on a GPU.

#include "simt/executor.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/platform.cuh"
#include "tessera/error.h"

namespace tessera::kernels {
namespace {

using simt::Grid;
using simt::run_grid;

constexpr int kThreads = 2 * kWarpSize;

Grid grid_of(int blocks, int threads = kThreads, std::size_t shared_bytes = 0) {
  return {"test", {blocks, 1, 1}, threads, shared_bytes, kWarpSize};
}

/// Expects an error with these words, and that the executor works afterwards.
void expect_caught(const Grid& grid, const std::function<void()>& kernel, const std::string& words) {
  try {
    run_grid(grid, kernel);
    ADD_FAILURE() << "nothing was noticed; expected '" << words << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_NE(error.message().find(words), std::string::npos) << error.message();
    EXPECT_EQ(error.message().rfind("kernel test, block (", 0), 0u) << error.message();
  }
  std::vector<int> sums(4);
  run_grid(grid_of(4), [&] {
    int sum = 1;
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    sync_threads();
    if (thread_x() == kThreads - 1) sums[static_cast<std::size_t>(block_x())] = sum;
  });
  EXPECT_EQ(sums, std::vector<int>(4, kWarpSize));
}

TEST(Executor, RunsEveryThreadOfEveryBlockOnce) {
  const Grid grid{"test", {3, 4, 5}, 77, 0, kWarpSize};
  std::vector<int> runs(3 * 4 * 5 * 77);
  for (const bool waits : {false, true}) {
    run_grid(grid, [&] {
      if (waits) sync_threads();
      EXPECT_EQ(block_size(), 77);
      EXPECT_EQ(grid_x(), 3);
      ++runs[static_cast<std::size_t>(((block_z() * 4 + block_y()) * 3 + block_x()) * 77 + thread_x())];
    });
  }
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 2));
}

TEST(Executor, BarriersLetEachThreadSeeWhatTheOthersWrote) {
  constexpr int kBlocks = 4;
  constexpr int kRounds = 5;
  std::vector<float> out(kBlocks * kThreads);
  run_grid(grid_of(kBlocks, kThreads, kThreads * sizeof(float)), [&] {
    TESSERA_SHARED(first, float[kThreads]);
    TESSERA_DYNAMIC_SHARED(bytes);
    float* second = reinterpret_cast<float*>(bytes);
    float value = static_cast<float>(thread_x());
    for (int round = 0; round < kRounds; ++round) {
      first[thread_x()] = value;
      sync_threads();
      second[thread_x()] = first[(thread_x() + 1) % kThreads] + first[(thread_x() + kThreads - 1) % kThreads];
      sync_threads();
      value = second[kThreads - 1 - thread_x()];
    }
    out[static_cast<std::size_t>(block_x() * kThreads + thread_x())] = value;
  });
  std::vector<float> value(kThreads), next(kThreads);
  for (int t = 0; t < kThreads; ++t) value[static_cast<std::size_t>(t)] = static_cast<float>(t);
  for (int round = 0; round < kRounds; ++round) {
    for (int t = 0; t < kThreads; ++t) {
      const int mirrored = kThreads - 1 - t;
      next[static_cast<std::size_t>(t)] =
          value[static_cast<std::size_t>((mirrored + 1) % kThreads)] +
          value[static_cast<std::size_t>((mirrored + kThreads - 1) % kThreads)];
    }
    value = next;
  }
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], value[i % kThreads]) << i;
}

TEST(Executor, ShufflesBringTheValueOfAnotherLaneOfTheWarp) {
  std::vector<double> rotated(kThreads), broadcast(kThreads);
  std::vector<int> any(kThreads), sums(kThreads);
  run_grid(grid_of(1), [&] {
    const int lane = thread_x() % kWarpSize;
    const auto t = static_cast<std::size_t>(thread_x());
    rotated[t] = shuffle(thread_x() + 0.5, (lane + 1) % kWarpSize);
    broadcast[t] = shuffle(static_cast<double>(thread_x()), 3);
    any[t] = warp_any(thread_x() == kWarpSize + 5) ? 1 : 0;
    // The lanes that are ahead must not overwrite what others still have to read.
    int sum = 0;
    for (int n = 0; n < 100; ++n) sum += shuffle(thread_x() * n, n % kWarpSize);
    sums[t] = sum;
  });
  for (int t = 0; t < kThreads; ++t) {
    const auto at = static_cast<std::size_t>(t);
    const int warp = t / kWarpSize * kWarpSize;
    EXPECT_EQ(rotated[at], warp + (t + 1) % kWarpSize + 0.5);
    EXPECT_EQ(broadcast[at], warp + 3);
    EXPECT_EQ(any[at], t >= kWarpSize ? 1 : 0);
    int sum = 0;
    for (int n = 0; n < 100; ++n) sum += (warp + n % kWarpSize) * n;
    EXPECT_EQ(sums[at], sum);
  }
}

TEST(Executor, WarpsPassTheirBarriersIndependently) {
  std::vector<int> rounds(2);
  run_grid(grid_of(1), [&] {
    const int warp = thread_x() / kWarpSize;
    for (int n = 0; n < 10 * (warp + 1); ++n) {
      sync_warp();
      if (thread_x() % kWarpSize == 0) ++rounds[static_cast<std::size_t>(warp)];
    }
    sync_threads();
    EXPECT_EQ(rounds, (std::vector<int>{10, 20}));
  });
}

TEST(Executor, AMissingBarrierShowsWhicheverWayTheDataFlows) {
  for (const int distance : {1, kThreads - 1}) {
    std::vector<float> seen(2 * kThreads);
    run_grid(grid_of(2), [&] {
      TESSERA_SHARED(values, float[kThreads]);
      values[thread_x()] = 1;
      seen[static_cast<std::size_t>(block_x() * kThreads + thread_x())] =
          values[(thread_x() + distance) % kThreads];
    });
    int nan = 0;
    for (const float value : seen) nan += std::isnan(value) ? 1 : 0;
    EXPECT_GE(nan, kThreads - 1) << distance;
  }
}

TEST(Executor, SharedMemoryIsNaNAtTheStartOfEachBlock) {
  int nan = 0;
  run_grid(grid_of(6, kThreads, 4 * sizeof(float)), [&] {
    TESSERA_SHARED(value, float);
    TESSERA_DYNAMIC_SHARED(bytes);
    float* dynamic = reinterpret_cast<float*>(bytes);
    if (thread_x() == 0) nan += std::isnan(value) && std::isnan(dynamic[0]) && std::isnan(dynamic[3]) ? 1 : 0;
    sync_threads();
    value = dynamic[0] = dynamic[3] = 1;
  });
  EXPECT_EQ(nan, 6);
}

TEST(Executor, NoticesABarrierThatNotAllThreadsReach) {
  expect_caught(
      grid_of(1),
      [] {
        if (thread_x() != 5) sync_threads();
      },
      "1 have returned");
  expect_caught(
      grid_of(1),
      [] {
        if (thread_x() < kWarpSize) sync_threads();
      },
      fmt::format("{} wait at a barrier", kWarpSize));
  // The last thread finds all others waiting and leaves.
  expect_caught(
      grid_of(2),
      [] {
        if (thread_x() != kThreads - 1) sync_threads();
      },
      "1 have returned");
  expect_caught(
      grid_of(2),
      [] {
        if (thread_x() != 0) sync_threads();
      },
      "1 have returned");
  expect_caught(
      grid_of(1),
      [] {
        for (int n = 0; n < 3 + (thread_x() == 7 ? 1 : 0); ++n) sync_threads();
      },
      "1 wait at a barrier");
  // One warp waits for the block while the other waits for a lane that waits for the block.
  expect_caught(
      grid_of(1),
      [] {
        if (thread_x() == kWarpSize) {
          sync_threads();
        } else if (thread_x() > kWarpSize) {
          sync_warp();
        } else {
          sync_threads();
        }
      },
      "");
}

TEST(Executor, NoticesThreadsAtDifferentBarriers) {
  expect_caught(
      grid_of(1),
      [] {
        if (thread_x() < kWarpSize) {
          sync_threads();
        } else {
          sync_threads();
        }
      },
      "others at that of line");
}

TEST(Executor, NoticesAShuffleWithMissingLanes) {
  expect_caught(
      grid_of(1),
      [] {
        if (thread_x() % kWarpSize != 3) shuffle_xor(1, 1);
      },
      "2 have returned");
  expect_caught(
      grid_of(1),
      [] {
        if (thread_x() % kWarpSize < kWarpSize / 2) shuffle_xor(1.0f, 1);
        sync_threads();
      },
      "stands still");
  expect_caught(
      grid_of(1),
      [] {
        if (thread_x() % 2 == 0) {
          shuffle_xor(1, 2);
        } else {
          shuffle_xor(1, 2);
        }
      },
      "others at that of line");
}

TEST(Executor, NoticesLanesThatAWarpDoesNotHave) {
  expect_caught(
      grid_of(1, kThreads - 4), [] { shuffle_xor(1, kWarpSize / 2); }, "lanes");
  expect_caught(
      grid_of(1), [] { shuffle(1, kWarpSize); }, fmt::format("reads lane {}", kWarpSize));
  expect_caught(
      grid_of(1), [] { shuffle(1, -1); }, "reads lane -1");
}

TEST(Executor, NoticesLanesThatBringValuesOfDifferentSizes) {
  const auto first_lane = [](auto value) { return shuffle(value, 0); };
  expect_caught(
      grid_of(1),
      [&] {
        if (thread_x() % 2 == 0) {
          first_lane(1.0f);
        } else {
          first_lane(1.0);
        }
      },
      "bring values of");
}

TEST(Executor, NoticesWritesPastSharedMemory) {
  for (const int at : {8, 100, -1, -200}) {
    expect_caught(
        grid_of(3),
        [at] {
          TESSERA_SHARED(values, float[8]);
          float* volatile begin = values;
          if (thread_x() == 9 && block_x() == 2) begin[at] = 1;
        },
        at < 0 ? "block (2, 0, 0)" : fmt::format("wrote {} bytes past the end of 32 bytes", 4 * at - 32));
  }
  expect_caught(
      grid_of(1, kThreads, 20),
      [] {
        TESSERA_DYNAMIC_SHARED(bytes);
        if (thread_x() == 0) bytes[20] = 0;
      },
      "wrote 0 bytes past the end of 20 bytes");
  expect_caught(
      grid_of(1, kThreads, 20),
      [] {
        TESSERA_DYNAMIC_SHARED(bytes);
        if (thread_x() == 0) bytes[-1] = 0;
      },
      "in front of");
}

TEST(Executor, BlocksOfAClusterReachEachOthersSharedMemory) {
  Grid grid = grid_of(6, kThreads, kThreads * sizeof(int));
  grid.cluster_blocks = 3;
  std::vector<int> found(6 * kThreads);
  for (int run = 0; run < 2; ++run) {  // threads in both orders
    run_grid(grid, [&] {
      const int rank = simt::cluster_rank();
      EXPECT_EQ(simt::cluster_blocks(), 3);
      EXPECT_EQ(block_x() % 3, rank);
      simt::cluster_arrive();
      TESSERA_SHARED(own, int);
      if (thread_x() == 0) own = 1000 * block_x();
      sync_threads();
      simt::cluster_wait();  // all have started
      reinterpret_cast<int*>(simt::dynamic_shared_of((rank + 1) % 3))[thread_x()] = own + thread_x();
      simt::cluster_arrive();
      simt::cluster_wait();
      found[static_cast<std::size_t>(block_x() * kThreads + thread_x())] =
          reinterpret_cast<const int*>(simt::dynamic_shared())[thread_x()];
    });
    for (int block = 0; block < 6; ++block) {
      const int from = block / 3 * 3 + (block + 2) % 3;
      for (int t = 0; t < kThreads; ++t)
        EXPECT_EQ(found[static_cast<std::size_t>(block * kThreads + t)], 1000 * from + t);
    }
  }
}

TEST(Executor, NoticesWhoMisusesAClustersBarrier) {
  Grid grid = grid_of(4);
  grid.cluster_blocks = 2;
  expect_caught(
      grid,
      [] {
        simt::cluster_arrive();
        simt::cluster_arrive();
      },
      "arrives again");
  expect_caught(
      grid, [] { simt::cluster_wait(); }, "without having arrived");
  expect_caught(
      grid,
      [] {
        if (block_x() % 2 == 1) return;
        simt::cluster_arrive();
        simt::cluster_wait();
      },
      "at their cluster's");
  grid.cluster_blocks = 3;
  expect_caught(
      grid, [] {}, "not clusters of 3");
}

TEST(Executor, KnowsABlocksLimits) {
  expect_caught(
      grid_of(1),
      [] {
        TESSERA_SHARED(values, float[12 * 1024 + 1]);
        values[0] = 1;
      },
      "static shared memory");
  expect_caught(
      grid_of(1, 1025), [] {}, "a block has 1 to 1024");
  expect_caught(
      grid_of(1, 0), [] {}, "a block has 1 to 1024");
}

TEST(Executor, LetsWhatAKernelThrowsOut) {
  const auto kernel = [] {
    if (thread_x() == 11) throw std::runtime_error("thrown inside");
    sync_threads();
  };
  try {
    run_grid(grid_of(3), kernel);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "thrown inside");
  }
  expect_caught(
      grid_of(1),
      [] {
        if (thread_x() == 0) sync_threads();
      },
      "stands still");
}

}  // namespace
}  // namespace tessera::kernels
