#include "truncated_files.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "command.h"
#include "core/mapped_file.h"

namespace tessera::cli {

namespace {

/// In a signal handler nothing but system calls is allowed.
void write_to_stderr(const char* text) noexcept {
  for (std::size_t left = std::strlen(text); left > 0;) {
    const ssize_t written = ::write(STDERR_FILENO, text, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    text += written;
    left -= static_cast<std::size_t>(written);
  }
}

void on_bus_error(int, siginfo_t* info, void*) {
  const char* const path = info->si_code > 0 ? path_of_mapped_address(info->si_addr) : nullptr;
  if (path == nullptr) {
    ::signal(SIGBUS, SIG_DFL);  // not ours: what failed is tried again, and ends the process
    if (info->si_code <= 0) ::raise(SIGBUS);
    return;
  }
  // Several threads may read the file: one says it, and the others wait for the end that it brings.
  static std::atomic_flag is_said;
  while (is_said.test_and_set()) ::pause();
  write_to_stderr("error: ");
  write_to_stderr(path);
  write_to_stderr(
      ": the file became shorter, or could not be read, while the model was in use; leave a model's files "
      "alone until the program has ended (to replace one, write a new file and rename it)\n");
  ::_exit(kExitFailed);
}

}  // namespace

void explain_truncated_files() noexcept {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace tessera::cli
