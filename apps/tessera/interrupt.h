#pragma once

namespace tessera::cli {

/// From here on the first Ctrl-C (or SIGTERM) only sets a flag; a second one kills the process as usual.
void catch_interrupts() noexcept;

bool interrupted() noexcept;

/// Thrown to leave a long operation of the library after an interrupt. No std::exception, so that nothing
/// takes it for a failure.
struct Interrupted {};

}  // namespace tessera::cli
