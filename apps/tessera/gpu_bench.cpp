#include "gpu_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tessera::cli {

namespace {

constexpr double kReplayMs = 4;    // a replay's length, so that events' own granularity does not show
constexpr int kMaxCalls = 400;     // of a graph
constexpr double kWarmUpMs = 100;  // of replays
constexpr int kMinGpuSamples = 5;
constexpr int kMaxGpuSamples = 1000;
constexpr std::size_t kMaxCopies = 256;

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

GpuProblem::GpuProblem(const AttentionProblem& host, gpu::Gpu& device, bool warm) : device_(device) {
  const std::size_t size_bytes = gpu::stage_problem(host, device.device(), nullptr).size_bytes;
  std::size_t count = 1;
  if (!warm && size_bytes > 0) {
    const std::size_t beyond_cache = 2 * device.properties().l2_bytes;
    count = std::clamp<std::size_t>((beyond_cache + size_bytes - 1) / size_bytes, 1, kMaxCopies);
  }
  for (std::size_t n = 0; n < count; ++n) {
    Copy copy;
    copy.memory = device.allocate(std::max<std::size_t>(size_bytes, 1), "the tensors of a benchmark");
    copy.staged = gpu::stage_problem(host, device.device(), copy.memory.get());
    for (const gpu::StagedProblem::Copy& part : copy.staged.copies) {
      std::byte* destination = copy.memory.get() + part.offset;
      if (n == 0) {
        device.upload(destination, part.host, part.size_bytes, {});
      } else {
        device.copy(destination, copies_.front().memory.get() + part.offset, part.size_bytes, {});
      }
    }
    copies_.push_back(std::move(copy));
  }
  device.synchronize({});
}

void GpuProblem::download_outputs() {
  const Copy& first = copies_.front();
  for (const gpu::StagedProblem::Copy& part : first.staged.copies) {
    if (!part.is_output) continue;
    device_.download(const_cast<void*>(part.host), first.memory.get() + part.offset, part.size_bytes, {});
  }
}

void GpuProblem::poison_outputs() {
  const Copy& first = copies_.front();
  for (const gpu::StagedProblem::Copy& part : first.staged.copies) {
    if (part.is_output) device_.fill(first.memory.get() + part.offset, 0xff, part.size_bytes, {});
  }
}

GpuReplay::GpuReplay(gpu::Gpu& device, Stream stream, int period, const std::function<void(int n)>& call,
                     double replay_ms)
    : timer_(device), stream_(stream) {
  call(0);  // loads the kernels
  timer_.start(stream);
  call(0);
  timer_.stop(stream);
  const double once_ms = std::max(timer_.elapsed_ms(), 1e-3);
  const int calls = std::clamp(static_cast<int>(std::ceil(replay_ms / once_ms)), 1, kMaxCalls);
  calls_ = (calls + period - 1) / period * period;
  graph_ = device.capture(stream, [&] {
    for (int n = 0; n < calls_; ++n) call(n);
  });
}

double GpuReplay::sample_ms() {
  timer_.start(stream_);
  graph_->launch(stream_);
  timer_.stop(stream_);
  return timer_.elapsed_ms() / calls_;
}

void GpuReplay::warm_up(double milliseconds) {
  const Clock::time_point start = Clock::now();
  do sample_ms();
  while (ms_since(start) < milliseconds);
}

Timing time_gpu_calls(gpu::Gpu& device, Stream stream, int period, const std::function<void(int n)>& call,
                      const TimingOptions& options) {
  GpuReplay replay(device, stream, period, call, kReplayMs);
  replay.warm_up(kWarmUpMs);
  std::vector<double> samples_ms;
  const int most = options.repeat > 0 ? options.repeat : kMaxGpuSamples;
  const Clock::time_point start = Clock::now();
  while (static_cast<int>(samples_ms.size()) < most) {
    const bool enough = static_cast<int>(samples_ms.size()) >= kMinGpuSamples;
    if (options.repeat == 0 && enough && ms_since(start) >= options.seconds * 1e3) break;
    samples_ms.push_back(replay.sample_ms());
  }
  device.synchronize(stream);
  return summarize(std::move(samples_ms));
}

}  // namespace tessera::cli
