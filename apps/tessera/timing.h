#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace tessera::cli {

struct TimingOptions {
  int repeat = 0;      ///< samples; 0: as many as fit into `seconds`, at least kMinSamples
  double seconds = 2;  ///< time to sample for
};

struct Timing {
  double median_ms = 0;
  double min_ms = 0;
  double max_ms = 0;
  int samples = 0;
};

/// Median, smallest and largest of samples in milliseconds; there must be at least one.
Timing summarize(std::vector<double> samples_ms);

/// Overwrites the last-level cache, so that a call that follows finds its inputs in main memory.
class CacheFlusher {
 public:
  CacheFlusher();
  void flush();

 private:
  std::vector<std::vector<std::byte>> blocks_;  ///< twice the largest cache together
};

/// Runs `call` once untimed, then times single calls, flushing the cache before each.
Timing time_calls(const std::function<void()>& call, const TimingOptions& options);

}  // namespace tessera::cli
