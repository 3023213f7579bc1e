#pragma once

#include "command.h"

namespace tessera::cli {

/// Adds --threads.
void add_threads_option(Command& command, int& threads);

/// Sets the number of threads that --threads asked for; says on standard error if there are fewer, or more
/// than this machine has processors.
void use_threads(int threads);

}  // namespace tessera::cli
