#include "progress_bar.h"

#include <fmt/core.h>

#include <algorithm>

#include "output.h"

namespace tessera::cli {

using namespace std::chrono_literals;

ProgressBar::ProgressBar() : enabled_(stderr_is_terminal()), stage_start_(Clock::now()) {}

void ProgressBar::show(const Progress& progress) {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (progress.stage != stage_) {
    clear();
    stage_ = progress.stage;
    stage_start_ = now;
  }
  if (progress.done >= progress.total) {
    clear();
    return;
  }
  if (now - stage_start_ < 200ms || (visible_ && now - last_drawn_ < 50ms)) return;
  write_stderr("\r" + progress_line(progress) + "\x1b[K");
  visible_ = true;
  last_drawn_ = now;
}

void ProgressBar::clear() {
  if (visible_) write_stderr("\r\x1b[K");
  visible_ = false;
}

std::string progress_line(const Progress& progress) {
  constexpr int kWidth = 30;
  const double share =
      progress.total == 0
          ? 1.0
          : std::min(1.0, static_cast<double>(progress.done) / static_cast<double>(progress.total));
  const auto filled = static_cast<std::size_t>(share * kWidth);
  const bool loading = progress.stage == Progress::Stage::kLoad;
  const std::string amount =
      loading ? bytes_text(static_cast<double>(progress.total)) : fmt::format("{} tokens", progress.total);
  return fmt::format("{}  [{}{}] {:3.0f} % of {}", loading ? "loading" : "reading the prompt",
                     std::string(filled, '#'), std::string(kWidth - filled, ' '), share * 100, amount);
}

}  // namespace tessera::cli
