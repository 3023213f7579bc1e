#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tessera::cli {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

/// The command line asks for something that makes no sense: main prints it and returns kExitUsage.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Says what is wrong with a value, or nothing if it is right.
using ValueCheck = std::function<std::string(const std::string& value)>;

/// A command or sub-command and its options. A thin layer over CLI11, whose header takes seconds to compile:
/// only command.cpp includes it. The variables that options are stored in must outlive the parsing.
class Command {
 public:
  /// `action` runs after parsing if this command was named, and returns the exit code.
  Command add_command(const std::string& name, const std::string& description);
  void set_action(std::function<int()> action);
  /// Shown at the end of --help.
  void set_examples(const std::vector<std::string>& lines);
  /// Options added from here on stand under this heading in --help.
  void begin_group(const std::string& heading) { group_ = heading; }

  /// Whoever gives `option` must give `other`, too, or must not.
  void let_need(const std::string& option, const std::string& other);
  void let_exclude(const std::string& option, const std::string& other);

  // Each adds an option called `name` ("--model" or "-m,--model"; without dashes: positional). The variable's
  // value is the default and shown in --help unless empty. Values outside [min, max] are usage errors.
  void add_text(const std::string& name, std::string& value, const std::string& help,
                const std::string& placeholder = "TEXT", const ValueCheck& check = {});
  void add_required_text(const std::string& name, std::string& value, const std::string& help,
                         const std::string& placeholder = "TEXT", const ValueCheck& check = {});
  void add_optional_text(const std::string& name, std::optional<std::string>& value, const std::string& help,
                         const std::string& placeholder = "TEXT");
  /// May be given several times.
  void add_texts(const std::string& name, std::vector<std::string>& values, const std::string& help,
                 const std::string& placeholder = "TEXT", const ValueCheck& check = {});
  /// With `check`, which then says what is wrong with a value: "'x' is not one of a, b" otherwise.
  void add_choice(const std::string& name, std::string& value, const std::vector<std::string>& choices,
                  const std::string& help, const ValueCheck& check = {});
  void add_integer(const std::string& name, std::int64_t& value, std::int64_t min, std::int64_t max,
                   const std::string& help);
  void add_integer(const std::string& name, int& value, int min, int max, const std::string& help);
  void add_integer(const std::string& name, std::optional<std::int64_t>& value, std::int64_t min,
                   std::int64_t max, const std::string& help);
  void add_seed(const std::string& name, std::uint64_t& value, const std::string& help);
  void add_seed(const std::string& name, std::optional<std::uint64_t>& value, const std::string& help);
  void add_real(const std::string& name, double& value, double min, double max, const std::string& help);
  void add_real(const std::string& name, float& value, float min, float max, const std::string& help);
  void add_real(const std::string& name, std::optional<float>& value, float min, float max,
                const std::string& help);
  void add_flag(const std::string& name, bool& value, const std::string& help);

 private:
  friend class CommandLine;
  Command(CLI::App* app, std::function<int()>* chosen) : app_(app), chosen_(chosen) {}
  CLI::Option* finish(CLI::Option* option, const std::string& placeholder, const ValueCheck& check);

  CLI::App* app_;
  std::function<int()>* chosen_;  ///< the action of the command that was named
  std::string group_ = "Options";
};

/// The whole command line.
class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& version);
  ~CommandLine();

  Command root();
  /// Parses and runs the chosen action; returns the exit code. --help and --version print to standard output;
  /// throws UsageError for a command line that doesn't parse.
  int run(int argc, const char* const* argv);

  /// `message` with the named command's options as they were typed: the library's max_seq_len becomes
  /// --max-seq-len, and --max-tokens -n if that was given.
  std::string as_typed(const std::string& message) const;

 private:
  std::string usage_error(const std::string& message) const;

  std::unique_ptr<CLI::App> app_;
  std::function<int()> chosen_;
  std::vector<std::string> arguments_;  ///< as given to run()
};

/// A check that passes "auto" and the names of this library's attention backends.
std::string check_backend_name(const std::string& name);

/// A check that passes what `take` takes without throwing Error, and says what that says.
ValueCheck taken_by(std::function<void(const std::string&)> take);

/// A check that passes a name that parse_dtype knows.
std::string check_dtype_name(const std::string& name);

/// "a,b,c" split at commas; empty parts are kept.
std::vector<std::string> split_at_commas(const std::string& text);

/// A line's words as a shell takes them apart: at spaces, but what stands in '…' or "…" stays together.
/// Throws UsageError if a quote isn't closed.
std::vector<std::string> split_words(const std::string& line);

/// "1,2,3" or "1 2 3" as token ids. Throws UsageError naming `option` for anything else.
std::vector<std::int32_t> parse_token_ids(const std::string& option, const std::string& text);

}  // namespace tessera::cli
