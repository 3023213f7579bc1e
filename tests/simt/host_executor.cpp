#include "host_executor.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <exception>
#include <utility>
#include <vector>

#include "simt_grid.h"
#include "tessera/error.h"

namespace tessera::simt {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;

/// Threads that meet, and how often they have.
struct Barrier {
  int members = 0;
  int arrived = 0;
  long generation = 0;

  void release_if_complete() {
    if (members == 0 || arrived < members) return;
    arrived = 0;
    ++generation;
  }
};

struct Block {
  Position position;
  std::vector<boost::context::fiber> fibers;
  std::vector<boost::context::fiber> schedulers;  // where a thread's fiber passes control to
  Barrier block_barrier;
  std::vector<Barrier> warp_barriers;
  std::vector<unsigned char> slots;
  std::vector<unsigned char> shared;
  std::exception_ptr error;
};

Block* current = nullptr;

void yield() {
  const std::size_t thread = static_cast<std::size_t>(current->position.thread);
  boost::context::fiber scheduler = std::move(current->schedulers[thread]);
  scheduler = std::move(scheduler).resume();
  current->schedulers[thread] = std::move(scheduler);
}

void wait_at(Barrier& barrier) {
  const long generation = barrier.generation;
  ++barrier.arrived;
  barrier.release_if_complete();
  while (barrier.generation == generation) yield();
}

long generations(const Block& block) {
  long sum = block.block_barrier.generation;
  for (const Barrier& barrier : block.warp_barriers) sum += barrier.generation;
  return sum;
}

void run_block(Block& block, const std::function<void()>& kernel,
               boost::context::pooled_fixedsize_stack& stacks) {
  const std::size_t threads = static_cast<std::size_t>(block.position.block_size);
  const std::size_t warps = (threads + TESSERA_WARP_SIZE - 1) / TESSERA_WARP_SIZE;
  block.block_barrier = {static_cast<int>(threads), 0, 0};
  block.warp_barriers.assign(warps, {});
  for (std::size_t t = 0; t < threads; ++t) ++block.warp_barriers[t / TESSERA_WARP_SIZE].members;
  std::fill(block.shared.begin(), block.shared.end(), static_cast<unsigned char>(0xff));
  block.fibers.clear();
  block.schedulers.clear();
  block.schedulers.resize(threads);
  for (std::size_t t = 0; t < threads; ++t) {
    block.fibers.emplace_back(std::allocator_arg, stacks,
                              [&block, &kernel, t](boost::context::fiber&& scheduler) {
                                block.schedulers[t] = std::move(scheduler);
                                try {
                                  kernel();
                                } catch (...) {
                                  block.error = std::current_exception();
                                }
                                Barrier& warp = block.warp_barriers[t / TESSERA_WARP_SIZE];
                                --warp.members;
                                warp.release_if_complete();
                                --block.block_barrier.members;
                                block.block_barrier.release_if_complete();
                                return std::move(block.schedulers[t]);
                              });
  }
  for (int left = static_cast<int>(threads); left > 0;) {
    const long before = generations(block);
    const int left_before = left;
    for (std::size_t t = 0; t < threads; ++t) {
      if (!block.fibers[t]) continue;
      block.position.thread = static_cast<int>(t);
      block.fibers[t] = std::move(block.fibers[t]).resume();
      if (!block.fibers[t]) --left;
    }
    if (block.error) std::rethrow_exception(block.error);
    if (left == left_before && generations(block) == before) {
      throw Error(ErrorCode::kDevice,
                  "a block stands still: its threads wait at barriers that not all of them reach");
    }
  }
}

}  // namespace

const Position& position() { return current->position; }
unsigned char* dynamic_shared() { return current->shared.data(); }
unsigned char* exchange_slot(int thread) { return current->slots.data() + 8 * thread; }
void block_barrier() { wait_at(current->block_barrier); }
void warp_barrier() {
  wait_at(current->warp_barriers[static_cast<std::size_t>(current->position.thread / TESSERA_WARP_SIZE)]);
}

void run_grid(const Grid& grid, const std::function<void()>& kernel) {
  static boost::context::pooled_fixedsize_stack stacks(kStackBytes);
  Block block;
  block.position.block_size = grid.threads;
  block.position.grid_x = grid.blocks[0];
  block.slots.resize(8 * (static_cast<std::size_t>(grid.threads) + TESSERA_WARP_SIZE));
  block.shared.resize(grid.shared_bytes + 128);
  Block* const outer = std::exchange(current, &block);
  try {
    for (int z = 0; z < grid.blocks[2]; ++z) {
      for (int y = 0; y < grid.blocks[1]; ++y) {
        for (int x = 0; x < grid.blocks[0]; ++x) {
          block.position.block[0] = x;
          block.position.block[1] = y;
          block.position.block[2] = z;
          run_block(block, kernel, stacks);
        }
      }
    }
  } catch (...) {
    current = outer;
    throw;
  }
  current = outer;
}

}  // namespace tessera::simt
