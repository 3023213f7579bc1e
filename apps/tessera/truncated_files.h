#pragma once

namespace tessera::cli {

/// From here on, if another process truncates a file of weights that is in use, the program says so and ends
/// with kExitFailed, where the system would end it without a word (SIGBUS).
void explain_truncated_files() noexcept;

}  // namespace tessera::cli
