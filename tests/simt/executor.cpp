#include "executor.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "host_executor.h"
#include "tessera/error.h"

#if defined(TESSERA_SANITIZE_ADDRESS)
#include <sanitizer/common_interface_defs.h>
#endif

// A thread of a block runs on a worker, which is a fiber. A worker takes the block's next thread that has not
// begun as long as threads return without having waited, so that kernels without barriers are plain loops.
// Where a thread has to wait, control passes straight to the worker of one that can go on.

namespace tessera::simt {
namespace {

namespace context = boost::context;

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr int kMostThreads = 1024;
constexpr int kMostLanes = 64;
constexpr std::size_t kMostStaticBytes = 48 * 1024;
constexpr std::size_t kAlignment = 128;
constexpr std::size_t kGuardBytes = 1024;
constexpr unsigned char kPoison = 0xff;
constexpr int kMain = -1;  // stands for the caller of run_grid among the workers

/// Thrown into threads that wait when their block has failed, to clear their stacks.
struct Abort {};

enum class State { kNotStarted, kRunnable, kAtBlockBarrier, kAtClusterBarrier, kAtWarpOperation, kDone };

struct Thread {
  State state = State::kNotStarted;
  int worker = 0;
  int cluster_phase = 0;  // whose end it waits for, or has seen
  bool has_arrived = false;
};

/// Threads that meet at one line of the source.
struct Meeting {
  int members = 0;
  int arrived = 0;
  int line = 0;
};

struct Warp {
  Meeting meeting;
  int runnable = 0;  // lanes that are running, can go on or have not begun
  std::size_t value_bytes = 0;
  // Values of one exchange are read while the lanes that are ahead bring those of the next.
  int turn = 0;
  std::uint64_t values[2][kMostLanes] = {};
};

struct Worker {
  context::fiber fiber;  // while another runs
  const void* stack = nullptr;
  std::size_t stack_bytes = 0;
  int thread = 0;
};

/// Remembers where the stack is.
struct RecordedStack {
  Worker* worker;
  context::protected_fixedsize_stack allocator{kStackBytes};

  context::stack_context allocate() {
    const context::stack_context made = allocator.allocate();
    worker->stack = static_cast<const char*>(made.sp) - made.size;
    worker->stack_bytes = made.size;
    return made;
  }
  void deallocate(context::stack_context& stack) { allocator.deallocate(stack); }
};

// AddressSanitizer wants to know which stack is in use.
#if defined(TESSERA_SANITIZE_ADDRESS)
void* before_switch(const Worker& to) {
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, to.stack, to.stack_bytes);
  return fake_stack;
}
/// from: whose control this is now; fake_stack: what before_switch gave when the running one went.
void after_switch(Worker& from, void* fake_stack) {
  __sanitizer_finish_switch_fiber(fake_stack, &from.stack, &from.stack_bytes);
}
#else
void* before_switch(const Worker&) { return nullptr; }
void after_switch(Worker&, void*) {}
#endif

/// A piece of shared memory between guards.
struct SharedPiece {
  const void* identity = nullptr;
  std::size_t begin = 0;
  std::size_t size_bytes = 0;
};

/// What a block has.
struct SharedMemory {
  std::vector<unsigned char> bytes;
  std::size_t start = 0;  // the first aligned byte
  std::size_t used = 0;
  std::size_t static_bytes = 0;
  std::vector<SharedPiece> pieces;  // the dynamic one first

  unsigned char* at(std::size_t begin) { return bytes.data() + start + begin; }
};

/// Threads are counted through the blocks that run at the same time.
class Executor {
 public:
  void run(const Grid& grid, const std::function<void()>& kernel);

  void* shared_variable(const void* identity, std::size_t size_bytes);
  unsigned char* dynamic_shared(int rank) {
    SharedMemory& shared = shared_[static_cast<std::size_t>(rank)];
    return shared.at(shared.pieces.front().begin);
  }
  int cluster_blocks() const { return grid_->cluster_blocks; }
  int cluster_rank() const { return position.block[0] % grid_->cluster_blocks; }
  void cluster_arrive();
  void cluster_wait();
  void block_barrier(int line);
  void warp_barrier(int line) { meet_warp(line, 0); }
  std::uint64_t exchange(std::uint64_t value, std::size_t size_bytes, int lane, int line);

 private:
  void run_cluster();
  /// The calling thread.
  int me() const { return cluster_rank() * grid_->threads + position.thread; }
  void place(int thread);
  [[noreturn]] void work(int worker);
  std::size_t add_piece(SharedMemory& shared, const void* identity, std::size_t size_bytes) const;
  void check_guards(const SharedMemory& shared) const;

  Worker& worker_of(int index) { return index == kMain ? main_ : *workers_[static_cast<std::size_t>(index)]; }
  int warps_of_block() const { return (grid_->threads + grid_->warp_size - 1) / grid_->warp_size; }
  int warp_index(int thread) const {
    return thread / grid_->threads * warps_of_block() + thread % grid_->threads / grid_->warp_size;
  }
  Warp& warp_of(int thread) { return warps_[static_cast<std::size_t>(warp_index(thread))]; }
  int warp_begin(int warp) const {
    return warp / warps_of_block() * grid_->threads + warp % warps_of_block() * grid_->warp_size;
  }
  int warp_end(int warp) const {
    return std::min(warp_begin(warp) + grid_->warp_size, (warp / warps_of_block() + 1) * grid_->threads);
  }
  Thread& thread_of(int index) { return threads_[static_cast<std::size_t>(index)]; }
  /// True if the calling thread completes the meeting.
  bool arrive(Meeting& meeting, int line, const char* what);
  void meet_warp(int line, std::size_t value_bytes);
  /// The calling thread waits until its state is kRunnable.
  void wait(State at);
  void release(int begin, int end, State from);
  int next_thread(int after) const;
  int next_in(int begin, int end, int after) const;
  void go_to_thread(int thread);
  void resume(int worker);
  void abort_threads();
  std::string standstill() const;
  [[noreturn]] void fail(const std::string& what) const;

  const Grid* grid_ = nullptr;
  const std::function<void()>* kernel_ = nullptr;
  bool descending_ = false;
  bool aborting_ = false;
  std::exception_ptr error_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Meeting> blocks_;
  int cluster_arrived_ = 0;
  int cluster_phase_ = 0;
  int done_ = 0;

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<int> idle_workers_;
  Worker main_;
  int running_ = kMain;
  int resumed_by_ = kMain;

  std::vector<SharedMemory> shared_;  // of each block
};

void Executor::fail(const std::string& what) const {
  throw Error(ErrorCode::kDevice, fmt::format("kernel {}, block ({}, {}, {}): {}", grid_->kernel,
                                              position.block[0], position.block[1], position.block[2], what));
}

// Shared memory

std::size_t Executor::add_piece(SharedMemory& shared, const void* identity, std::size_t size_bytes) const {
  const std::size_t begin = (shared.used + kGuardBytes + kAlignment - 1) / kAlignment * kAlignment;
  shared.used = begin + size_bytes;
  const std::size_t needed = shared.start + shared.used + kGuardBytes;
  if (needed > shared.bytes.size())
    fail(fmt::format("its shared memory of {} bytes is too much", shared.used));
  shared.pieces.push_back({identity, begin, size_bytes});
  return begin;
}

void* Executor::shared_variable(const void* identity, std::size_t size_bytes) {
  SharedMemory& shared = shared_[static_cast<std::size_t>(cluster_rank())];
  for (const SharedPiece& piece : shared.pieces) {
    if (piece.identity == identity) return shared.at(piece.begin);
  }
  shared.static_bytes += size_bytes;
  if (shared.static_bytes > kMostStaticBytes) {
    fail(fmt::format("{} bytes of static shared memory; a block has {}", shared.static_bytes,
                     kMostStaticBytes));
  }
  return shared.at(add_piece(shared, identity, size_bytes));
}

void Executor::check_guards(const SharedMemory& shared) const {
  const std::vector<SharedPiece>& pieces = shared.pieces;
  std::size_t guard = 0;
  for (std::size_t n = 0; n <= pieces.size(); ++n) {
    const std::size_t end = n < pieces.size() ? pieces[n].begin : shared.used + kGuardBytes;
    for (std::size_t at = guard; at < end; ++at) {
      if (shared.bytes[shared.start + at] == kPoison) continue;
      if (n == 0) fail(fmt::format("it wrote {} bytes in front of its shared memory", end - at));
      fail(fmt::format("it wrote {} bytes past the end of {} bytes of shared memory",
                       at - pieces[n - 1].begin - pieces[n - 1].size_bytes, pieces[n - 1].size_bytes));
    }
    if (n < pieces.size()) guard = end + pieces[n].size_bytes;
  }
}

// Meetings

bool Executor::arrive(Meeting& meeting, int line, const char* what) {
  if (meeting.arrived == 0) meeting.line = line;
  if (meeting.line != line) {
    fail(fmt::format("thread {} is at the {} of line {}, others at that of line {}", position.thread, what,
                     line, meeting.line));
  }
  if (++meeting.arrived < meeting.members) return false;
  meeting.arrived = 0;
  return true;
}

void Executor::block_barrier(int line) {
  const int rank = cluster_rank();
  if (!arrive(blocks_[static_cast<std::size_t>(rank)], line, "barrier")) return wait(State::kAtBlockBarrier);
  release(rank * grid_->threads, (rank + 1) * grid_->threads, State::kAtBlockBarrier);
}

void Executor::cluster_arrive() {
  Thread& thread = thread_of(me());
  if (thread.has_arrived)
    fail(fmt::format("thread {} arrives again at its cluster's barrier", position.thread));
  thread.has_arrived = true;
  thread.cluster_phase = cluster_phase_;
  const int members = static_cast<int>(threads_.size());
  if (++cluster_arrived_ < members) return;
  cluster_arrived_ = 0;
  ++cluster_phase_;
  release(0, members, State::kAtClusterBarrier);
}

void Executor::cluster_wait() {
  Thread& thread = thread_of(me());
  if (!thread.has_arrived)
    fail(fmt::format("thread {} waits at its cluster's barrier without having arrived", position.thread));
  thread.has_arrived = false;
  if (thread.cluster_phase == cluster_phase_) wait(State::kAtClusterBarrier);
}

void Executor::meet_warp(int line, std::size_t value_bytes) {
  Warp& warp = warp_of(me());
  if (warp.meeting.arrived > 0 && warp.value_bytes != value_bytes)
    fail(fmt::format("lanes of a warp bring values of {} and {} bytes", warp.value_bytes, value_bytes));
  warp.value_bytes = value_bytes;
  if (!arrive(warp.meeting, line, "warp operation")) return wait(State::kAtWarpOperation);
  warp.turn ^= 1;
  const int index = warp_index(me());
  release(warp_begin(index), warp_end(index), State::kAtWarpOperation);
}

std::uint64_t Executor::exchange(std::uint64_t value, std::size_t size_bytes, int lane, int line) {
  Warp& warp = warp_of(me());
  if (lane < 0 || lane >= warp.meeting.members) {
    fail(fmt::format("thread {} reads lane {} of a warp with {} lanes", position.thread, lane,
                     warp.meeting.members));
  }
  auto& values = warp.values[warp.turn];
  values[position.thread % grid_->warp_size] = value;
  meet_warp(line, size_bytes);
  return values[lane];
}

void Executor::release(int begin, int end, State from) {
  for (int t = begin; t < end; ++t) {
    if (thread_of(t).state != from) continue;
    thread_of(t).state = State::kRunnable;
    ++warp_of(t).runnable;
  }
}

// Passing control

/// One that can go on among threads [begin, end), which has one.
int Executor::next_in(int begin, int end, int after) const {
  for (int t = after;;) {
    t += descending_ ? -1 : 1;
    if (t == end) t = begin;
    if (t < begin) t = end - 1;
    const State state = threads_[static_cast<std::size_t>(t)].state;
    if (state == State::kNotStarted || state == State::kRunnable) return t;
  }
}

/// A thread that can go on, those of the same warp first; -1: none.
int Executor::next_thread(int after) const {
  const int num_warps = static_cast<int>(warps_.size());
  const int warp = warp_index(after);
  for (int n = 0; n < num_warps; ++n) {
    const int w = (warp + (descending_ ? 2 * num_warps - n : n)) % num_warps;
    if (warps_[static_cast<std::size_t>(w)].runnable == 0) continue;
    const int begin = warp_begin(w);
    const int end = warp_end(w);
    return next_in(begin, end, n == 0 ? after : descending_ ? begin : end - 1);
  }
  return -1;
}

void Executor::place(int thread) {
  position.thread = thread % grid_->threads;
  position.block[0] =
      position.block[0] / grid_->cluster_blocks * grid_->cluster_blocks + thread / grid_->threads;
}

void Executor::wait(State at) {
  const int waiting = me();
  thread_of(waiting).state = at;
  --warp_of(waiting).runnable;
  const int next = next_thread(waiting);
  if (next < 0) {
    resume(kMain);
  } else {
    go_to_thread(next);
  }
  if (aborting_) throw Abort();
  place(waiting);
}

/// From a worker that is not needed now, or from the main program.
void Executor::go_to_thread(int thread) {
  Thread& next = thread_of(thread);
  if (next.state == State::kNotStarted) {
    if (idle_workers_.empty()) {
      const int index = static_cast<int>(workers_.size());
      workers_.push_back(std::make_unique<Worker>());
      Worker& worker = *workers_.back();
      worker.fiber = context::fiber(std::allocator_arg, RecordedStack{&worker},
                                    [this, index](context::fiber&& caller) -> context::fiber {
                                      after_switch(worker_of(resumed_by_), nullptr);
                                      worker_of(resumed_by_).fiber = std::move(caller);
                                      work(index);
                                    });
      idle_workers_.push_back(index);
    }
    next.worker = idle_workers_.back();
    idle_workers_.pop_back();
    workers_[static_cast<std::size_t>(next.worker)]->thread = thread;
  }
  resume(next.worker);
}

void Executor::resume(int worker) {
  resumed_by_ = running_;
  running_ = worker;
  void* const fake_stack = before_switch(worker_of(worker));
  context::fiber back = std::move(worker_of(worker).fiber).resume();
  after_switch(worker_of(resumed_by_), fake_stack);
  worker_of(resumed_by_).fiber = std::move(back);
}

/// What a worker does as long as the program runs.
void Executor::work(int index) {
  // Stacks begin at multiples of the page size; without this all of them would share a few sets of the cache.
  void* volatile shift = __builtin_alloca(static_cast<std::size_t>(index % 31 + 1) * 128);
  static_cast<void>(shift);
  Worker& me = *workers_[static_cast<std::size_t>(index)];
  for (;;) {
    for (int thread = me.thread;;) {
      place(thread);
      thread_of(thread).state = State::kRunnable;
      thread_of(thread).worker = index;
      try {
        (*kernel_)();
      } catch (const Abort&) {
      } catch (...) {
        if (!error_) error_ = std::current_exception();
      }
      thread_of(thread).state = State::kDone;
      ++done_;
      if (!aborting_) --warp_of(thread).runnable;
      const int next = aborting_ || error_ ? -1 : next_thread(thread);
      if (next >= 0 && thread_of(next).state == State::kNotStarted) {
        thread = next;
        continue;
      }
      idle_workers_.push_back(index);
      if (next < 0) {
        resume(kMain);
      } else {
        resume(thread_of(next).worker);
      }
      break;
    }
  }
}

void Executor::abort_threads() {
  aborting_ = true;
  for (Thread& thread : threads_) {
    if (thread.state != State::kNotStarted && thread.state != State::kDone) resume(thread.worker);
  }
  aborting_ = false;
}

std::string Executor::standstill() const {
  int at_block = 0, at_warp = 0, at_cluster = 0;
  int first = -1;
  for (std::size_t t = 0; t < threads_.size(); ++t) {
    at_block += threads_[t].state == State::kAtBlockBarrier;
    at_warp += threads_[t].state == State::kAtWarpOperation;
    at_cluster += threads_[t].state == State::kAtClusterBarrier;
    if (first < 0 && threads_[t].state == State::kAtWarpOperation) first = static_cast<int>(t);
  }
  std::string text =
      fmt::format("it stands still: of {} threads {} wait at a barrier", threads_.size(), at_block);
  if (at_block > 0) {
    const auto begun = std::ranges::find_if(blocks_, [](const Meeting& block) { return block.arrived > 0; });
    text += fmt::format(" (line {})", begun->line);
  }
  if (at_cluster > 0) text += fmt::format(", {} at their cluster's", at_cluster);
  text += fmt::format(", {} at a shuffle or barrier of their warp", at_warp);
  if (at_warp > 0) {
    text +=
        fmt::format(" (line {}, thread {} the first)",
                    warps_[static_cast<std::size_t>(warp_index(first))].meeting.line, first % grid_->threads);
  }
  return text + fmt::format(", and {} have returned", done_);
}

void Executor::run_cluster() {
  const int blocks = grid_->cluster_blocks;
  const int threads = grid_->threads * blocks;
  threads_.assign(static_cast<std::size_t>(threads), {});
  for (int w = 0; w < static_cast<int>(warps_.size()); ++w) {
    Warp& warp = warps_[static_cast<std::size_t>(w)];
    warp.runnable = warp_end(w) - warp_begin(w);
    warp.meeting = {warp.runnable, 0, 0};
  }
  blocks_.assign(static_cast<std::size_t>(blocks), {grid_->threads, 0, 0});
  cluster_arrived_ = cluster_phase_ = 0;
  done_ = 0;
  for (int rank = 0; rank < blocks; ++rank) {
    SharedMemory& shared = shared_[static_cast<std::size_t>(rank)];
    std::fill_n(shared.bytes.begin() + static_cast<std::ptrdiff_t>(shared.start), shared.used + kGuardBytes,
                kPoison);
    shared.pieces.clear();
    shared.used = shared.static_bytes = 0;
    add_piece(shared, nullptr, grid_->shared_bytes);
  }

  go_to_thread(descending_ ? threads - 1 : 0);
  if (error_ || done_ < threads) {
    const std::string what = error_ ? "" : standstill();
    abort_threads();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    fail(what);
  }
  for (int rank = 0; rank < blocks; ++rank) check_guards(shared_[static_cast<std::size_t>(rank)]);
}

void Executor::run(const Grid& grid, const std::function<void()>& kernel) {
  grid_ = &grid;
  kernel_ = &kernel;
  position = {};
  position.block_size = grid.threads;
  position.grid_x = grid.blocks[0];
  if (grid.threads < 1 || grid.threads > kMostThreads)
    fail(fmt::format("{} threads; a block has 1 to {}", grid.threads, kMostThreads));
  if (grid.cluster_blocks < 1 || grid.blocks[0] % grid.cluster_blocks != 0)
    fail(fmt::format("{} blocks along x are not clusters of {}", grid.blocks[0], grid.cluster_blocks));
  warps_.resize(static_cast<std::size_t>(warps_of_block() * grid.cluster_blocks));
  const std::size_t most_bytes = grid.shared_bytes + 2 * kMostStaticBytes + 16 * kGuardBytes;
  if (shared_.size() < static_cast<std::size_t>(grid.cluster_blocks))
    shared_.resize(static_cast<std::size_t>(grid.cluster_blocks));
  for (SharedMemory& shared : shared_) {
    if (shared.bytes.size() >= most_bytes) continue;
    shared.bytes.assign(most_bytes, kPoison);
    shared.start = kAlignment - reinterpret_cast<std::uintptr_t>(shared.bytes.data()) % kAlignment;
    shared.used = 0;
  }
  for (int z = 0; z < grid.blocks[2]; ++z) {
    for (int y = 0; y < grid.blocks[1]; ++y) {
      for (int x = 0; x < grid.blocks[0]; x += grid.cluster_blocks) {
        position.block[0] = x;
        position.block[1] = y;
        position.block[2] = z;
        run_cluster();
        descending_ = !descending_;
      }
    }
  }
}

/// Never destroyed: when the program ends its workers are asleep.
Executor& executor() {
  static Executor& one = *new Executor();
  return one;
}

}  // namespace

void* shared_variable(const void* identity, std::size_t size_bytes) {
  return executor().shared_variable(identity, size_bytes);
}
unsigned char* dynamic_shared() { return executor().dynamic_shared(executor().cluster_rank()); }
int cluster_blocks() { return executor().cluster_blocks(); }
int cluster_rank() { return executor().cluster_rank(); }
unsigned char* dynamic_shared_of(int rank) { return executor().dynamic_shared(rank); }
void cluster_arrive() { executor().cluster_arrive(); }
void cluster_wait() { executor().cluster_wait(); }
void block_barrier(int line) { executor().block_barrier(line); }
void warp_barrier(int line) { executor().warp_barrier(line); }
std::uint64_t exchange(std::uint64_t value, std::size_t size_bytes, int lane, int line) {
  return executor().exchange(value, size_bytes, lane, line);
}

void run_grid(const Grid& grid, const std::function<void()>& kernel) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  executor().run(grid, kernel);
}

}  // namespace tessera::simt
