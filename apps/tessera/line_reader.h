#pragma once

#include <memory>
#include <optional>
#include <string>

namespace tessera::cli {

/// Reads lines that a person types, with editing and history if standard input and output are a terminal and
/// libedit (libedit.so.2, looked for at run time) is there; else as they come, without a prompt unless it is
/// a terminal.
class LineReader {
 public:
  LineReader();
  ~LineReader();

  /// The next line without its end, or nothing at the end of the input. Bytes may be any.
  std::optional<std::string> read(const std::string& prompt);
  bool is_interactive() const;

  /// For --help and /help: whether lines can be edited here.
  bool can_edit() const;

 private:
  class Editor;
  std::unique_ptr<Editor> editor_;  // null: plain lines
};

}  // namespace tessera::cli
