#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "attention/backend.h"

namespace tessera::cli {

/// What a measurement needs beside it to be understood: version, commit, device, threads, SIMD target.
nlohmann::ordered_json bench_environment_json();

/// The same in one line.
std::string bench_environment_text();

/// The ceilings of a device over a whole run: each look at them may meet other work on the machine, so that
/// the best of several is closest to what the device can do.
class CeilingWatch {
 public:
  explicit CeilingWatch(DType dtype) : dtype_(dtype) {}
  /// Measures now, in about a third of a second.
  void look(const AttentionBackend& backend);
  const Ceilings& best() const { return best_; }

 private:
  DType dtype_;
  bool looked_ = false;
  Ceilings best_;
};

}  // namespace tessera::cli
