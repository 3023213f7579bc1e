#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>

extern char** environ;

namespace tessera::testing {

namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

struct Pipe {
  int read_end = -1;
  int write_end = -1;

  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe2");
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    close_read();
    close_write();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_read() { close_end(read_end); }
  void close_write() { close_end(write_end); }

 private:
  static void close_end(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
};

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Appends what can be read; false at the end of the stream.
bool read_some(int descriptor, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
  if (count < 0) return errno == EINTR || errno == EAGAIN;
  text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

}  // namespace

ProcessResult run_tessera(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  return run_process(TESSERA_EXECUTABLE, arguments, options);
}

ProcessResult run_process(const std::string& program, const std::vector<std::string>& arguments,
                          const ProcessOptions& options) {
  Pipe in, out, err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read_end, STDIN_FILENO);
  if (options.stdout_file) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, options.stdout_file->c_str(), O_WRONLY, 0);
  } else {
    posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO);
  }
  posix_spawn_file_actions_adddup2(&actions, err.write_end, STDERR_FILENO);
  // A test runner may have changed how these signals are handled; the program starts with the defaults.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGINT);
  sigaddset(&defaults, SIGPIPE);
  sigaddset(&defaults, SIGTERM);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);

  std::vector<std::string> argument_strings = {program};
  argument_strings.insert(argument_strings.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment_strings = options.environment;
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment_strings.emplace_back(*variable);
  const std::vector<char*> argv = pointers_to(argument_strings);
  const std::vector<char*> envp = pointers_to(environment_strings);
  if (options.close_stdout_at_once) out.close_read();

  pid_t pid = -1;
  const int status = posix_spawn(&pid, program.c_str(), &actions, &attributes, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (status != 0) throw std::system_error(status, std::generic_category(), "cannot start " + program);
  in.close_read();
  out.close_write();
  err.close_write();

  // Inputs here are far smaller than a pipe's buffer, so that writing can't block on the child.
  if (options.input.size() > 60000) throw std::invalid_argument("the input must fit into a pipe");
  ::signal(SIGPIPE, SIG_IGN);  // the child may end without reading
  [[maybe_unused]] const ssize_t written = ::write(in.write_end, options.input.data(), options.input.size());
  in.close_write();

  ProcessResult result;
  const auto start = std::chrono::steady_clock::now();
  bool signalled = false, acted = false;
  while (out.read_end >= 0 || err.read_end >= 0) {
    std::array<pollfd, 2> polled = {pollfd{out.read_end, POLLIN, 0}, pollfd{err.read_end, POLLIN, 0}};
    ::poll(polled.data(), polled.size(), options.action_after && !acted ? 10 : 200);
    if (polled[0].revents != 0 && !read_some(out.read_end, result.out)) out.close_read();
    if (polled[1].revents != 0 && !read_some(err.read_end, result.err)) err.close_read();
    if (options.signal_after_output && !signalled && !result.out.empty()) {
      ::kill(pid, *options.signal_after_output);
      signalled = true;
    }
    const auto elapsed = std::chrono::steady_clock::now() - start;
    if (options.signal_after && !signalled && elapsed >= options.signal_after->delay) {
      ::kill(pid, options.signal_after->signal);
      signalled = true;
    }
    if (options.action_after && !acted && elapsed >= options.action_after->delay) {
      options.action_after->action();
      acted = true;
    }
    if (elapsed > options.time_limit) {
      ::kill(pid, SIGKILL);
      result.err += "\n[killed by the test: time limit]";
      break;
    }
  }
  int wait_status = 0;
  rusage usage{};
  while (::wait4(pid, &wait_status, 0, &usage) < 0 && errno == EINTR) {
  }
  result.peak_memory_bytes = static_cast<std::size_t>(usage.ru_maxrss) * 1024;
  if (WIFEXITED(wait_status)) {
    result.exit_code = WEXITSTATUS(wait_status);
  } else if (WIFSIGNALED(wait_status)) {
    result.signal = WTERMSIG(wait_status);
  }
  return result;
}

}  // namespace tessera::testing
