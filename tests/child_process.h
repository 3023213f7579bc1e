#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <system_error>
#include <thread>

namespace tessera {

/// What `body` returns in a child process, or -1 if it does not end by itself.
inline int in_child_process(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // a child that hangs fails
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// From here on results of with_thread_limit say why the number of threads can't be limited.
inline constexpr int kNoThreadLimit = 200;

/// What `body` returns in a child process that may have `limit` threads in all, as far as this user is let.
inline int with_thread_limit(rlim_t limit, const std::function<int()>& body) {
  return in_child_process([&] {
    // Limits on processes don't hold for root.
    const uid_t nobody = 65534;
    if (::getuid() == 0 && ::setresuid(nobody, nobody, nobody) != 0) return kNoThreadLimit;
    const rlimit limits{limit, limit};
    if (::setrlimit(RLIMIT_NPROC, &limits) != 0) return kNoThreadLimit + 1;
    try {
      std::thread([] {}).join();
      if (limit == 1) return kNoThreadLimit + 2;  // this system has no such limit
    } catch (const std::system_error&) {
    }
    return body();
  });
}

}  // namespace tessera
