#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"

namespace tessera::cli {

/// Writes to standard output, unbuffered. Throws ReaderGone for a pipe that nobody reads any more,
/// OutputError for other failures, such as a full disk.
void write_stdout(std::string_view text);

/// Standard output can't be written to, and why: whatever goes on although other things fail ends here.
class OutputError : public Error {
 public:
  using Error::Error;
};

/// Thrown to leave whatever makes output: the reader has had enough (`| head`), which is no failure. No
/// std::exception, so that nothing takes it for one.
struct ReaderGone {};

/// Writes to standard error; failures are ignored, since there is nowhere left to report them.
void write_stderr(std::string_view text) noexcept;

/// The document and a newline to standard output. Strings that are not UTF-8 get U+FFFD; NaN and infinities
/// become null.
void write_json(const nlohmann::ordered_json& document);

bool stderr_is_terminal() noexcept;

/// All of standard input. Throws Error{kIo} if it can't be read or is longer than 256 MiB.
std::string read_stdin();

/// Standard input if `prompt` is "-", without the newline that `echo` and editors put at the end; else
/// `prompt` itself.
std::string read_prompt(const std::string& prompt);

/// Of standard input, output and error, fills the places of those that are closed with what can't be read or
/// written to: the next files and sockets would get their numbers, and messages would be written into them.
void fill_closed_streams() noexcept;

/// From here on writing to a pipe that nobody reads, or beyond the largest size of a file (ulimit -f), fails
/// with an errno, for an exception, instead of a signal that kills the process.
void make_failed_writes_errors() noexcept;

/// Rows under headings, padded so that columns line up.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string heading;
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// `cells` has one entry a column.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string to_string() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// "12.3 GiB".
std::string bytes_text(double bytes);

/// "1.24 billion", "12.3 million", "4711".
std::string count_text(std::int64_t count);
/// "1 token", "2 tokens".
std::string counted(std::int64_t count, std::string_view one, std::string_view many);

}  // namespace tessera::cli
