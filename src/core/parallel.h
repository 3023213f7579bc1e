#pragma once

#include <cstddef>
#include <functional>

namespace tessera {

/// Number of threads that parallel_for spreads work over: the hardware's, or what set_num_threads asked for.
int num_threads();

/// Limits parallel_for to `count` threads for the whole process (0: the hardware's number). Not to be called
/// while parallel work runs. Throws Error{kInvalidArgument} if count is negative.
void set_num_threads(int count);

/// Calls body(task) once for every task in [0, num_tasks), on up to num_threads() threads, and returns when
/// all are done. Tasks are handed out one by one, so unequal tasks balance. The first exception a task throws
/// is rethrown here.
void parallel_for(std::size_t num_tasks, const std::function<void(std::size_t task)>& body);

/// Index of the calling thread inside parallel_for, in [0, num_threads()); 0 outside it. For per-thread
/// scratch memory.
int thread_index();

}  // namespace tessera
