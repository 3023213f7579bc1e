#include "timing.h"

#include <algorithm>
#include <chrono>

#include "core/parallel.h"
#include "machine.h"

namespace tessera::cli {

namespace {

constexpr int kMinSamples = 3;
constexpr int kMaxSamples = 1000;
constexpr std::size_t kFlushBlockBytes = std::size_t{1} << 20;
constexpr std::size_t kCacheLineBytes = 64;

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

Timing summarize(std::vector<double> samples_ms) {
  std::sort(samples_ms.begin(), samples_ms.end());
  const std::size_t n = samples_ms.size();
  const double median = n % 2 == 1 ? samples_ms[n / 2] : (samples_ms[n / 2 - 1] + samples_ms[n / 2]) / 2;
  return {median, samples_ms.front(), samples_ms.back(), static_cast<int>(n)};
}

CacheFlusher::CacheFlusher() {
  // A virtual machine may report the cache of a whole socket.
  const std::size_t size = std::min(2 * last_level_cache_bytes(), std::size_t{1} << 30);
  blocks_.resize(std::max<std::size_t>(1, size / kFlushBlockBytes));
  parallel_for(blocks_.size(), [&](std::size_t b) { blocks_[b].resize(kFlushBlockBytes); });
}

void CacheFlusher::flush() {
  parallel_for(blocks_.size(), [&](std::size_t b) {
    std::byte* const block = blocks_[b].data();
    for (std::size_t i = 0; i < kFlushBlockBytes; i += kCacheLineBytes) block[i] ^= std::byte{1};
  });
}

Timing time_calls(const std::function<void()>& call, const TimingOptions& options) {
  CacheFlusher flusher;
  call();
  std::vector<double> samples_ms;
  double total_ms = 0;
  const int most = options.repeat > 0 ? options.repeat : kMaxSamples;
  while (static_cast<int>(samples_ms.size()) < most) {
    const bool enough = static_cast<int>(samples_ms.size()) >= kMinSamples;
    if (options.repeat == 0 && enough && total_ms >= options.seconds * 1e3) break;
    const Clock::time_point flush_start = Clock::now();
    flusher.flush();
    const Clock::time_point start = Clock::now();
    call();
    samples_ms.push_back(milliseconds_since(start));
    total_ms += milliseconds_since(flush_start);
  }
  return summarize(std::move(samples_ms));
}

}  // namespace tessera::cli
