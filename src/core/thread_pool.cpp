#include "core/thread_pool.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

namespace tessera {
namespace {

/// Tells the processor that this is a loop that waits.
void pause_processor() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void ThreadPool::Job::run_tasks() noexcept {
  const std::size_t count = num_tasks.load(std::memory_order_relaxed);
  try {
    for (std::size_t task = next.fetch_add(1); task < count; task = next.fetch_add(1)) (*body)(task);
  } catch (...) {
    if (!failed.exchange(true)) failure = std::current_exception();
    next.store(count);
  }
}

ThreadPool::ThreadPool(int num_threads, int num_processors) noexcept
    // About what it takes to wake a thread twice: work that comes in quick succession finds all awake.
    : spin_time_(num_threads <= num_processors ? 100 : 0) {
  try {
    workers_.reserve(static_cast<std::size_t>(std::max(num_threads - 1, 0)));
    for (int n = 1; n < num_threads; ++n) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // a limit on processes or memory: those that run suffice
  } catch (const std::bad_alloc&) {
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  num_opened_.fetch_add(1);
  num_opened_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

/// True as soon as done() is, false if it isn't within the time worth waiting for without sleep.
template <class Done>
bool ThreadPool::spin_until(const Done& done) const noexcept {
  constexpr int kPauses = 64;
  if (done()) return true;
  if (spin_time_.count() == 0) return false;
  for (int n = 0; n < kPauses; ++n) {
    pause_processor();
    if (done()) return true;
  }
  const auto end = std::chrono::steady_clock::now() + spin_time_;
  do {
    std::this_thread::yield();
    if (done()) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

void ThreadPool::work() noexcept {
  for (;;) {
    const std::uint32_t seen = num_opened_.load();
    if (stopping_.load()) return;
    for (Job& job : jobs_) help(job);
    if (!spin_until([&] { return num_opened_.load(std::memory_order_relaxed) != seen; })) {
      num_opened_.wait(seen);
    }
  }
}

void ThreadPool::help(Job& job) noexcept {
  // Only a hint, which may be of another job than the one that is joined: it spares those that are done.
  if (job.next.load(std::memory_order_relaxed) >= job.num_tasks.load(std::memory_order_relaxed)) return;
  if ((job.state.fetch_add(1, std::memory_order_acquire) & kOpen) != 0) job.run_tasks();
  if (job.state.fetch_sub(1, std::memory_order_release) == 1) job.state.notify_all();
}

ThreadPool::Job* ThreadPool::take_job() noexcept {
  for (Job& job : jobs_) {
    if (!job.taken.load(std::memory_order_relaxed) && !job.taken.exchange(true, std::memory_order_acquire)) {
      return &job;
    }
  }
  return nullptr;
}

void ThreadPool::wake_workers(std::size_t count) noexcept {
  num_opened_.fetch_add(1);
  if (count >= workers_.size()) {
    num_opened_.notify_all();
  } else {
    for (std::size_t n = 0; n < count; ++n) num_opened_.notify_one();
  }
}

void ThreadPool::run(std::size_t num_tasks, const std::function<void(std::size_t)>& body) {
  Job* const job = num_tasks < 2 || workers_.empty() ? nullptr : take_job();
  if (job == nullptr) {
    for (std::size_t task = 0; task < num_tasks; ++task) body(task);
    return;
  }
  job->body = &body;
  job->failed.store(false, std::memory_order_relaxed);
  job->next.store(0, std::memory_order_relaxed);
  job->num_tasks.store(num_tasks, std::memory_order_relaxed);
  job->state.fetch_or(kOpen, std::memory_order_release);
  wake_workers(num_tasks - 1);
  job->run_tasks();
  job->state.fetch_and(~kOpen, std::memory_order_relaxed);
  const auto all_left = [&] { return job->state.load(std::memory_order_acquire) == 0; };
  while (!spin_until(all_left)) {
    const std::uint32_t inside = job->state.load(std::memory_order_acquire);
    if (inside != 0) job->state.wait(inside, std::memory_order_acquire);
  }
  const std::exception_ptr failure = std::exchange(job->failure, nullptr);
  job->taken.store(false, std::memory_order_release);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera
