#include "core/parallel.h"

#include <fmt/core.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "tessera/error.h"

// The scheduler's own synchronisation lives in a library that ThreadSanitizer does not see; these tell it
// that a task starts after the call that made it and that the call returns after all its tasks.
#if defined(__SANITIZE_THREAD__)
#define TESSERA_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TESSERA_TSAN 1
#endif
#endif
#ifdef TESSERA_TSAN
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#endif

namespace tessera {
namespace {

void tsan_acquire([[maybe_unused]] void* address) {
#ifdef TESSERA_TSAN
  __tsan_acquire(address);
#endif
}

void tsan_release([[maybe_unused]] void* address) {
#ifdef TESSERA_TSAN
  __tsan_release(address);
#endif
}

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

void parallel_for(std::size_t num_tasks, const std::function<void(std::size_t)>& body) {
  if (num_tasks == 0) return;
  if (num_tasks == 1) {
    body(0);
    return;
  }
  const std::shared_ptr<oneapi::tbb::task_arena> threads = current_arena();
  // Each worker takes the next task from a counter: a shared order with no stealing keeps neighbours' tiles
  // in cache.
  std::atomic<std::size_t> next{0};
  const std::size_t workers =
      std::min<std::size_t>(num_tasks, static_cast<std::size_t>(threads->max_concurrency()));
  tsan_release(&next);
  threads->execute([&] {
    oneapi::tbb::parallel_for(
        std::size_t{0}, workers,
        [&](std::size_t) {
          tsan_acquire(&next);
          for (std::size_t task = next.fetch_add(1); task < num_tasks; task = next.fetch_add(1)) body(task);
          tsan_release(&next);
        },
        oneapi::tbb::simple_partitioner());
  });
  tsan_acquire(&next);
}

int thread_index() {
  const int index = oneapi::tbb::this_task_arena::current_thread_index();
  return index == oneapi::tbb::task_arena::not_initialized ? 0 : index;
}

}  // namespace tessera
