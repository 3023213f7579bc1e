#include "core/parallel.h"

#include <fmt/core.h>
#include <pthread.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/processors.h"
#include "core/thread_pool.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr int kMaxThreads = 4096;

/// The process's pool. Never destroyed: other threads may still want it while the process ends.
struct Threads {
  std::mutex mutex;
  int wanted = 0;                    // guarded by mutex, as all that follows; 0: one for each processor
  std::shared_ptr<ThreadPool> pool;  // null until it is needed; who runs work in it shares it
  /// Of the process that this one was forked from: their threads are not here and can't be waited for.
  std::vector<std::shared_ptr<ThreadPool>> abandoned;
};

Threads& threads() {
  static Threads* const instance = [] {
    pthread_atfork([] { threads().mutex.lock(); }, [] { threads().mutex.unlock(); },
                   [] {
                     if (threads().pool != nullptr) threads().abandoned.push_back(std::move(threads().pool));
                     threads().mutex.unlock();
                   });
    return new Threads;
  }();
  return *instance;
}

/// Lets the threads end before their code is unloaded or the process's other memory goes.
struct StopAtExit {
  ~StopAtExit() {
    std::shared_ptr<ThreadPool> pool;
    const std::lock_guard lock(threads().mutex);
    pool = std::move(threads().pool);
  }
} stop_at_exit;

std::shared_ptr<ThreadPool> make_pool(int wanted) {
  const int processors = usable_processors();
  return std::make_shared<ThreadPool>(wanted == 0 ? processors : wanted, processors);
}

std::shared_ptr<ThreadPool> current_pool() {
  Threads& t = threads();
  const std::lock_guard lock(t.mutex);
  if (t.pool == nullptr) t.pool = make_pool(t.wanted);
  return t.pool;
}

}  // namespace

int num_threads() { return current_pool()->num_threads(); }

void set_num_threads(int count) {
  if (count < 0 || count > kMaxThreads) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the number of threads is {}; expected 0 (one for each processor) to {}", count,
                            kMaxThreads));
  }
  std::shared_ptr<ThreadPool> before;  // ends after the lock does, and only when nobody works in it any more
  Threads& t = threads();
  const std::lock_guard lock(t.mutex);
  before = std::move(t.pool);
  t.wanted = count;
}

void parallel_for(std::size_t num_tasks, const std::function<void(std::size_t)>& body) {
  if (num_tasks == 0) return;
  if (num_tasks == 1) {
    body(0);
    return;
  }
  current_pool()->run(num_tasks, body);
}

}  // namespace tessera
