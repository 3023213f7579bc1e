#include "core/parallel.h"

#include <fmt/core.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "tessera/error.h"

// ThreadSanitizer does not see how the scheduler's library synchronises. Hiding its reports would hide those
// of the tasks too, since they run on its threads; so builds with ThreadSanitizer run the tasks on plain
// threads.
#if defined(__SANITIZE_THREAD__)
#define TESSERA_PLAIN_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TESSERA_PLAIN_THREADS 1
#endif
#endif

#ifdef TESSERA_PLAIN_THREADS
#include <exception>
#include <thread>
#include <vector>
#endif

namespace tessera {
namespace {

std::mutex arena_mutex;
std::shared_ptr<oneapi::tbb::task_arena> arena;  // guarded by arena_mutex

std::shared_ptr<oneapi::tbb::task_arena> current_arena() {
  const std::lock_guard lock(arena_mutex);
  if (!arena) arena = std::make_shared<oneapi::tbb::task_arena>(oneapi::tbb::info::default_concurrency());
  return arena;
}

}  // namespace

int num_threads() { return current_arena()->max_concurrency(); }

void set_num_threads(int count) {
  if (count < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the number of threads is {}; expected 0 (all cores) or more", count));
  }
  const int concurrency = count == 0 ? oneapi::tbb::info::default_concurrency() : count;
  const std::lock_guard lock(arena_mutex);
  arena = std::make_shared<oneapi::tbb::task_arena>(concurrency);
}

#ifdef TESSERA_PLAIN_THREADS

namespace {

thread_local int worker_index = 0;

/// Calls work(worker) for each worker on a thread of its own; the first one runs here.
template <class Work>
void run_workers(std::size_t workers, const Work& work) {
  std::mutex mutex;
  std::exception_ptr failure;  // guarded by mutex
  const auto run = [&](std::size_t worker) {
    const int outer_index = std::exchange(worker_index, static_cast<int>(worker));
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    worker_index = outer_index;
  };
  std::vector<std::thread> threads;
  for (std::size_t worker = 1; worker < workers; ++worker) threads.emplace_back(run, worker);
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

int thread_index() { return worker_index; }

#else

namespace {

template <class Work>
void run_workers(std::size_t workers, const Work& work) {
  current_arena()->execute([&] {
    oneapi::tbb::parallel_for(
        std::size_t{0}, workers, [&](std::size_t) { work(); }, oneapi::tbb::simple_partitioner());
  });
}

}  // namespace

int thread_index() {
  const int index = oneapi::tbb::this_task_arena::current_thread_index();
  return index == oneapi::tbb::task_arena::not_initialized ? 0 : index;
}

#endif

void parallel_for(std::size_t num_tasks, const std::function<void(std::size_t)>& body) {
  if (num_tasks == 0) return;
  if (num_tasks == 1) {
    body(0);
    return;
  }
  // Each worker takes the next task from a counter: a shared order with no stealing keeps neighbours' tiles
  // in cache.
  std::atomic<std::size_t> next{0};
  run_workers(std::min(num_tasks, static_cast<std::size_t>(num_threads())), [&] {
    for (std::size_t task = next.fetch_add(1); task < num_tasks; task = next.fetch_add(1)) body(task);
  });
}

}  // namespace tessera
