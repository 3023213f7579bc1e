#pragma once

#include <ctime>

namespace tessera {

/// The processor time in seconds that `action` takes: other programs' load, which is part of the time on a
/// clock, is not in it. Meant to be compared with that of another action.
template <class Action>
double cpu_seconds(Action action) {
  const std::clock_t start = std::clock();
  action();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

}  // namespace tessera
