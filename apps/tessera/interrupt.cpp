#include "interrupt.h"

#include <signal.h>

#include <csignal>

namespace tessera::cli {

namespace {

volatile std::sig_atomic_t interrupt_flag = 0;

void on_interrupt(int) { interrupt_flag = 1; }

}  // namespace

void catch_interrupts() noexcept {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() noexcept { return interrupt_flag != 0; }

}  // namespace tessera::cli
