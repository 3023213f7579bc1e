#pragma once

namespace tessera {

/// Threads that work on the CPU is spread over, the calling one among them: one for each processor that this
/// process may use, or what set_num_threads asked for; fewer if the system's limits (ulimit -u, a cgroup's
/// pids.max) let no more be started. The others are started on the first call that needs them and kept.
int num_threads();

/// From now on work is spread over `count` threads (0: one for each processor), in the whole process. May be
/// called at any time: calls in progress end with the threads they began with. Results of attention that is
/// not batch_invariant may differ in their last bits from one number to another. Throws
/// Error{kInvalidArgument} if count is negative or more than 4096.
///
/// A child of fork() starts threads of its own when it needs them, unless it was forked by a callback of the
/// library, inside of which work may be under way.
void set_num_threads(int count);

}  // namespace tessera
