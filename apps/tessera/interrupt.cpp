#include "interrupt.h"

#include <signal.h>

#include <csignal>
#include <cstdlib>

namespace tessera::cli {

namespace {

volatile std::sig_atomic_t interrupt_flag = 0;

void on_interrupt(int signal) { interrupt_flag = signal; }

}  // namespace

void catch_interrupts() noexcept {
  interrupt_flag = 0;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void release_interrupts() noexcept {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

void end_interrupted() noexcept {
  const int signal = interrupt_flag;
  release_interrupts();
  std::raise(signal);
  std::_Exit(128 + signal);  // where the signal is blocked or ignored
}

bool terminated() noexcept { return interrupt_flag == SIGTERM; }
bool interrupted() noexcept { return interrupt_flag != 0; }

}  // namespace tessera::cli
