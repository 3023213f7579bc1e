#include "core/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "core/control_groups.h"

namespace tessera {
namespace {

int processors_to_run_on() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

int usable_processors() {
  const int processors = std::max(1, processors_to_run_on());
  const double with_time = std::ceil(control_group_limits().processors.value_or(processors));
  return with_time < processors ? std::max(1, static_cast<int>(with_time)) : processors;
}

}  // namespace tessera
