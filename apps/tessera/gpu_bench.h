#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backends/gpu/attention/stage_tensors.h"
#include "backends/gpu/runtime/gpu.h"
#include "tessera/attention.h"
#include "timing.h"

namespace tessera::cli {

/// Copies of a problem's tensors in GPU memory.
class GpuProblem {
 public:
  /// One copy if `warm`; else as many as together are twice the size of the GPU's cache, so that a call that
  /// takes them in turn finds none of its inputs there.
  GpuProblem(const AttentionProblem& host, gpu::Gpu& device, bool warm);

  int copies() const { return static_cast<int>(copies_.size()); }
  const AttentionProblem& problem(int copy) const {
    return copies_[static_cast<std::size_t>(copy)].staged.problem;
  }
  /// Brings o and lse of the first copy into the host problem's.
  void download_outputs();
  /// Sets every byte of them to 0xff, which is NaN, so that a row that a kernel forgets shows.
  void poison_outputs();

 private:
  struct Copy {
    std::shared_ptr<std::byte> memory;
    gpu::StagedProblem staged;
  };

  gpu::Gpu& device_;
  std::vector<Copy> copies_;
};

/// `call(n)`, which puts work into `stream`, as a graph of several calls that is replayed, n counting them.
/// `period`: calls whose n is equal modulo it are the same.
class GpuReplay {
 public:
  /// replay_ms: how long a replay should at least take.
  GpuReplay(gpu::Gpu& device, Stream stream, int period, const std::function<void(int n)>& call,
            double replay_ms);

  /// A call's time: that of one replay, by events, over the number of calls.
  double sample_ms();
  /// Replays until the GPU's clocks have risen.
  void warm_up(double milliseconds);

 private:
  gpu::GpuTimer timer_;
  Stream stream_;
  int calls_;
  std::unique_ptr<gpu::Graph> graph_;
};

/// Times `call(n)`, which puts work into `stream`, as replays of a graph of several calls, n counting
/// them: a sample is a replay's time by events over the number of calls. Replays untimed ones first, until
/// the GPU's clocks have risen. `period`: calls whose n is equal modulo it are the same.
Timing time_gpu_calls(gpu::Gpu& device, Stream stream, int period, const std::function<void(int n)>& call,
                      const TimingOptions& options);

}  // namespace tessera::cli
