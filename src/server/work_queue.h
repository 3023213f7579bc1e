#pragma once

#include <fmt/core.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "tessera/error.h"

namespace tessera::server {

/// Throws Error{kOutOfMemory} where the system lets no more threads be started.
template <class Body>
std::thread start_thread(Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw Error(
        ErrorCode::kOutOfMemory,
        fmt::format("a thread of the server can't be started: {}; this user or control group may have "
                    "no more processes (ulimit -u, pids.max)",
                    error.code().message()));
  }
}

/// A thread that does one task after the other.
class WorkQueue {
 public:
  /// Tasks must not throw.
  WorkQueue() : thread_(start_thread([this] { work(); })) {}
  /// Waits for the running task; what waits is not done.
  ~WorkQueue() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      tasks_.clear();
    }
    changed_.notify_one();
    thread_.join();
  }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void add(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
        if (stopping_) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::server
