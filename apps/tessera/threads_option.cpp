#include "threads_option.h"

#include <fmt/core.h>

#include "core/processors.h"
#include "output.h"
#include "tessera/threads.h"

namespace tessera::cli {

void add_threads_option(Command& command, int& threads) {
  command.add_integer("--threads", threads, 0, 4096, "0: one for each processor");
}

void use_threads(int threads) {
  set_num_threads(threads);
  const int processors = usable_processors();
  const int wanted = threads == 0 ? processors : threads;
  const int started = num_threads();
  if (started < wanted) {
    write_stderr(
        fmt::format("warning: {} of {} threads could be started; this user or control group may have no more "
                    "processes (ulimit -u, pids.max)\n",
                    started, wanted));
  } else if (started > processors) {
    write_stderr(fmt::format(
        "warning: --threads {} is more than the {} {} that may be used: that is slower, not faster\n",
        threads, processors, processors == 1 ? "processor" : "processors"));
  }
}

}  // namespace tessera::cli
