#include "line_reader.h"

#include <langinfo.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "core/shared_library.h"
#include "output.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

// The interface of libedit.so.2, as its histedit.h has it.
struct EditLine;
struct History;
struct HistoryEvent {
  int number;
  const char* text;
};
constexpr int kPrompt = 0, kEditor = 2, kSignal = 3, kBind = 4, kSetTty = 8, kHistory = 10;  // EL_…
constexpr int kSetSize = 1, kEnter = 10, kSetUnique = 20;                                    // H_…
constexpr int kHistorySize = 1000;

constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;

/// A line from standard input as it comes, without its end, which Windows writes with a carriage return.
std::optional<std::string> read_plain_line() {
  std::string line;
  for (;;) {
    const int c = std::getc(stdin);
    if (c == EOF && std::ferror(stdin) != 0) {
      throw Error(ErrorCode::kIo, std::string("cannot read standard input: ") + std::strerror(errno));
    }
    if (c == EOF && line.empty()) return std::nullopt;
    if (c == EOF || c == '\n') {
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (line.size() == kMaxLineBytes)
      throw Error(ErrorCode::kIo, "a line of standard input is longer than 16 MiB");
    line += static_cast<char>(c);
  }
}

}  // namespace

class LineReader::Editor {
 public:
  /// Null if libedit is not there.
  static std::unique_ptr<Editor> open() {
    auto editor = std::unique_ptr<Editor>(new Editor);
    return editor->line_ != nullptr ? std::move(editor) : nullptr;
  }

  ~Editor() {
    if (history_ != nullptr) history_end_(history_);
    if (line_ != nullptr) end_(line_);
  }

  std::optional<std::string> read(const std::string& prompt) {
    current_prompt() = prompt;
    int size = 0;
    // The prompt may stand there before the terminal takes Ctrl-C as a character: the program goes on then,
    // too.
    const auto before = std::signal(SIGINT, SIG_IGN);
    const char* const text = gets_(line_, &size);
    std::signal(SIGINT, before);
    if (text == nullptr || size <= 0) return std::nullopt;
    std::string line(text, static_cast<std::size_t>(size));
    HistoryEvent event{};
    if (line.find_first_not_of(" \n") != line.npos) history_call_(history_, &event, kEnter, line.c_str());
    if (line.ends_with('\n')) line.pop_back();
    return line;
  }

 private:
  Editor() : library_(std::span<const char* const>(kNames)) {
    const bool complete = library_.resolve("el_init", init_) && library_.resolve("el_end", end_) &&
                          library_.resolve("el_set", set_) && library_.resolve("el_gets", gets_) &&
                          library_.resolve("history_init", history_init_) &&
                          library_.resolve("history_end", history_end_) &&
                          library_.resolve("history", history_call_);
    if (!complete) return;
    // What is typed is taken for UTF-8, as what is piped is: in a locale that can't have that, libedit drops
    // all letters but ASCII's without a word.
    std::setlocale(LC_CTYPE, "");
    if (std::string_view(::nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
    line_ = init_("tessera", stdin, stdout, stderr);
    history_ = history_init_();
    if (line_ == nullptr || history_ == nullptr) return;
    HistoryEvent event{};
    history_call_(history_, &event, kSetSize, kHistorySize);
    history_call_(history_, &event, kSetUnique, 1);
    set_(line_, kPrompt, &Editor::prompt);
    set_(line_, kEditor, "emacs");
    set_(line_, kSignal, 1);
    set_(line_, kHistory, history_call_, history_);
    // While a line is typed, Ctrl-C empties it: it is a character and no signal.
    set_(line_, kSetTty, "-d", "-isig", nullptr);
    set_(line_, kBind, "^C", "em-kill-line", nullptr);
  }

  static std::string& current_prompt() {
    static std::string prompt;
    return prompt;
  }
  static char* prompt(EditLine*) { return current_prompt().data(); }

  static constexpr const char* kNames[] = {"libedit.so.2"};
  SharedLibrary library_;
  EditLine* (*init_)(const char*, FILE*, FILE*, FILE*) = nullptr;
  void (*end_)(EditLine*) = nullptr;
  int (*set_)(EditLine*, int, ...) = nullptr;
  const char* (*gets_)(EditLine*, int*) = nullptr;
  History* (*history_init_)() = nullptr;
  void (*history_end_)(History*) = nullptr;
  int (*history_call_)(History*, HistoryEvent*, int, ...) = nullptr;
  EditLine* line_ = nullptr;
  History* history_ = nullptr;
};

LineReader::LineReader() {
  if (is_interactive()) editor_ = Editor::open();
}
LineReader::~LineReader() = default;

bool LineReader::is_interactive() const {
  return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
}
bool LineReader::can_edit() const { return editor_ != nullptr; }

std::optional<std::string> LineReader::read(const std::string& prompt) {
  if (editor_ != nullptr) return editor_->read(prompt);
  if (is_interactive()) write_stdout(prompt);
  return read_plain_line();
}

}  // namespace tessera::cli
