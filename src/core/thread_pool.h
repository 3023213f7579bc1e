#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace tessera {

/// Threads that are started once and wait for work. The caller of run() always works on its own tasks, so
/// that every call ends even if no thread could be started.
class ThreadPool {
 public:
  /// `num_threads` counts the callers of run() as one: one fewer is started, or as many as the system allows.
  /// Never throws. With more threads than `num_processors` waiting threads sleep at once.
  ThreadPool(int num_threads, int num_processors) noexcept;
  /// No run() may be in progress.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// That there are, the caller's included.
  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// As parallel_for says.
  void run(std::size_t num_tasks, const std::function<void(std::size_t task)>& body);

 private:
  /// A call of run(). Jobs belong to the pool and are used again and again, so that a worker that comes late
  /// looks at one that is closed, never at one that is gone.
  struct alignas(64) Job {
    std::atomic<bool> taken{false};
    /// kOpen while workers may join, plus the number of workers that look at the job. Only who saw kOpen
    /// when it was counted reads the rest; the caller closes the job and waits until it is 0.
    std::atomic<std::uint32_t> state{0};
    const std::function<void(std::size_t)>* body = nullptr;
    std::atomic<std::size_t> num_tasks{0};
    std::atomic<bool> failed{false};
    std::exception_ptr failure;  ///< written by whoever set `failed`
    alignas(64) std::atomic<std::size_t> next{0};

    void run_tasks() noexcept;
  };
  static constexpr std::uint32_t kOpen = std::uint32_t{1} << 31;

  void work() noexcept;
  void help(Job& job) noexcept;
  Job* take_job() noexcept;
  void wake_workers(std::size_t count) noexcept;
  template <class Done>
  bool spin_until(const Done& done) const noexcept;

  /// More calls than that at a time run on their own threads alone.
  std::array<Job, 16> jobs_;
  /// Counts jobs that were opened; workers with nothing to do wait for it to change.
  alignas(64) std::atomic<std::uint32_t> num_opened_{0};
  std::atomic<bool> stopping_{false};
  std::chrono::microseconds spin_time_;
  std::vector<std::thread> workers_;
};

}  // namespace tessera
