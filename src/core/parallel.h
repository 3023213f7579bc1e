#pragma once

#include <cstddef>
#include <functional>

#include "tessera/threads.h"

namespace tessera {

/// Calls body(task) once for every task in [0, num_tasks), on up to num_threads() threads, and returns when
/// all are done. Tasks are handed out one by one, so unequal tasks balance. The first exception a task throws
/// is rethrown here; tasks that have not begun by then are left out. Calls may overlap and nest.
void parallel_for(std::size_t num_tasks, const std::function<void(std::size_t task)>& body);

}  // namespace tessera
