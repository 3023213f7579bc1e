#pragma once

namespace tessera {

/// Processors that this process may keep busy: those that it may run on, but no more than its control groups
/// give it time for, a part of one counted as one. At least 1.
int usable_processors();

}  // namespace tessera
