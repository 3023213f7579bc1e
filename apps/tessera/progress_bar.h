#pragma once

#include <chrono>
#include <string>

#include "tessera/model.h"

namespace tessera::cli {

/// A line on standard error that shows how far loading or prefilling is; nothing unless that is a terminal.
/// Work that ends within a fifth of a second is not worth a line and shows none.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(const Progress& progress);
  /// Takes the line away.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_;
  bool visible_ = false;
  Progress::Stage stage_ = Progress::Stage::kLoad;
  Clock::time_point stage_start_;
  Clock::time_point last_drawn_;
};

/// The line itself: "loading  [#########           ]  45 %  1.2 GiB".
std::string progress_line(const Progress& progress);

}  // namespace tessera::cli
