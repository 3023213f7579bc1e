#include "output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace tessera::cli {

namespace {

/// Returns 0 or the errno of the failure.
int write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

/// Characters of a UTF-8 string: what a terminal's columns count, close enough for names and numbers.
std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
}

}  // namespace

void write_stdout(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE) throw ReaderGone{};
  if (error != 0) {
    throw OutputError(ErrorCode::kIo,
                      fmt::format("cannot write to standard output: {}", std::strerror(error)));
  }
}

void write_stderr(std::string_view text) noexcept { write_all(STDERR_FILENO, text); }

void write_json(const nlohmann::ordered_json& document) {
  write_stdout(document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
}

bool stderr_is_terminal() noexcept { return ::isatty(STDERR_FILENO) == 1; }

std::string read_stdin() {
  constexpr std::size_t kMaxBytes = std::size_t{256} << 20;
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count == 0) return text;
    if (count < 0) {
      if (errno == EINTR) continue;
      throw Error(ErrorCode::kIo, fmt::format("cannot read standard input: {}", std::strerror(errno)));
    }
    text.append(buffer, static_cast<std::size_t>(count));
    if (text.size() > kMaxBytes) {
      throw Error(ErrorCode::kIo, fmt::format("standard input is longer than {} MiB, the most that is read",
                                              kMaxBytes >> 20));
    }
  }
}

std::string read_prompt(const std::string& prompt) {
  if (prompt != "-") return prompt;
  std::string text = read_stdin();
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

void fill_closed_streams() noexcept {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) != -1) continue;
    // open() gives the lowest number that is free, which is this one.
    if (::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) == -1) return;
  }
}

void make_failed_writes_errors() noexcept {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

std::string Table::to_string() const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(display_width(column.heading));
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < widths.size(); ++c) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  std::string text;
  const auto append_row = [&](const auto& cell_of) {
    for (std::size_t c = 0; c < widths.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string padding(widths[c] - display_width(cell), ' ');
      if (c > 0) text += "  ";
      text += columns_[c].align == Align::kLeft ? cell + padding : padding + cell;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  };
  append_row([&](std::size_t c) -> const std::string& { return columns_[c].heading; });
  for (const auto& row : rows_) append_row([&](std::size_t c) -> const std::string& { return row[c]; });
  return text;
}

std::string bytes_text(double bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = -1;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

std::string count_text(std::int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.3g} billion", value / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.3g} million", value / 1e6);
  return fmt::format("{}", count);
}

std::string counted(std::int64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

}  // namespace tessera::cli
