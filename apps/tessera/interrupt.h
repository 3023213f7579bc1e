#pragma once

namespace tessera::cli {

/// From here on the first Ctrl-C (or SIGTERM) only sets a flag; a second one kills the process as usual.
/// What came before is forgotten.
void catch_interrupts() noexcept;
/// From here on they end the process at once, as usual.
void release_interrupts() noexcept;

bool interrupted() noexcept;
/// Whether it was SIGTERM: the program is to end.
bool terminated() noexcept;

/// Ends the process as the signal that was caught does, for who has tidied up after it.
[[noreturn]] void end_interrupted() noexcept;

/// Thrown to leave a long operation of the library after an interrupt. No std::exception, so that nothing
/// takes it for a failure.
struct Interrupted {};

}  // namespace tessera::cli
