#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::testing {

struct ProcessResult {
  int exit_code = -1;  ///< -1 if a signal ended it
  int signal = 0;      ///< 0 if it exited by itself
  std::string out;     ///< standard output
  std::string err;     ///< standard error
  std::size_t peak_memory_bytes = 0;
};

struct ProcessOptions {
  std::string input;                       ///< standard input
  std::optional<std::string> stdout_file;  ///< goes there instead of into the result, e.g. /dev/full
  bool close_stdout_at_once = false;       ///< the reader of the pipe goes away before anything is written
  std::optional<int> signal_after_output;  ///< sent when the first byte of standard output has come
  struct TimedSignal {
    int signal = 0;
    std::chrono::milliseconds delay{0};
  };
  std::optional<TimedSignal> signal_after;  ///< sent when the process has run for `delay`
  struct TimedAction {
    std::function<void()> action;
    std::chrono::milliseconds delay{0};
  };
  std::optional<TimedAction> action_after;  ///< done when the process has run for `delay`
  std::vector<std::string> environment;     ///< "NAME=value", beside what this process has
  std::chrono::seconds time_limit{120};     ///< then it is killed
};

/// Runs the tessera executable with `arguments` and waits for it.
ProcessResult run_tessera(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

/// Runs any program, found by path.
ProcessResult run_process(const std::string& program, const std::vector<std::string>& arguments,
                          const ProcessOptions& options = {});

}  // namespace tessera::testing
