#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tessera/engine.h"

namespace tessera::server {

/// Counts of durations, as Prometheus has them.
class Histogram {
 public:
  void add(double seconds);
  /// The lines of the metric `name`.
  std::string text(const std::string& name, const std::string& help) const;

 private:
  static constexpr std::array kBounds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,
                                         1.0,   2.5,  5.0,   10.0, 30.0, 60.0, 300.0};
  std::array<std::uint64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

/// What the server counts. For the network thread.
struct Metrics {
  std::map<std::pair<std::string, int>, std::uint64_t> responses;  ///< by path and status
  std::uint64_t disconnected = 0;  ///< clients that went before the end of an answer
  Histogram first_token_time, request_time;

  /// Everything in Prometheus' text format.
  std::string text(const EngineStats& engine, std::size_t connections, std::size_t preparing,
                   double network_cpu_seconds) const;
};

}  // namespace tessera::server
