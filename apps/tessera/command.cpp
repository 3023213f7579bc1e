#include "command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <utility>

#include "output.h"
#include "tessera/attention.h"
#include "tessera/dtype.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

/// The whole of `text` as a decimal number; none if it is something else or a whole number out of T's range.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<T>) {
    // It says so of 1e50 and of 1e-50 alike; this gives infinity and 0.
    if (status == std::errc::result_out_of_range)
      return static_cast<T>(std::strtod(std::string(text).c_str(), nullptr));
  }
  if (status != std::errc()) return std::nullopt;
  return value;
}

/// What a number would be that is not outside of [min, max]. Limits that only keep sums from overflowing are
/// not worth reading unless they are what is wrong.
template <class T>
std::string range_text(T min, T max, bool is_too_large) {
  constexpr double kOfInterest = 1e5, kTiny = 1e-4;
  const bool excludes_zero = min > 0 && static_cast<double>(min) < kTiny;
  if (static_cast<double>(max) < kOfInterest) {
    return excludes_zero ? fmt::format("between 0 (excluded) and {}", max)
                         : fmt::format("between {} and {}", min, max);
  }
  if (is_too_large) return fmt::format("at most {}", max);
  return excludes_zero ? "above 0" : fmt::format("at least {}", min);
}

/// Checks a number and leaves it in the form that CLI11 reads as what it says: by itself that takes 010 as
/// octal and wraps whole numbers around that are too large.
template <class T>
CLI::Validator number_between(T min, T max) {
  const auto check = [min, max](std::string& text) -> std::string {
    const std::optional<T> value = parse_number<T>(text);
    const bool is_negative = text.starts_with('-');
    if (!value) {
      const std::string_view digits = std::string_view(text).substr(is_negative ? 1 : 0);
      const bool is_whole = !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos;
      if (is_whole) return fmt::format("{} is not {}", text, range_text(min, max, !is_negative));
      return fmt::format("{} is not a {}number", text, std::is_floating_point_v<T> ? "" : "whole ");
    }
    if (!(*value >= min && *value <= max)) {
      return fmt::format("{} is not {}", text, range_text(min, max, *value > max));
    }
    text = fmt::format("{}", *value);
    return {};
  };
  return {check, ""};
}

/// Letters to insert, delete, replace or swap with their neighbour to make one word of the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

/// "; did you mean X?" with the one of `known` that is nearest to `typed`; empty if none is near.
std::string suggestion(std::string_view typed, const std::vector<std::string>& known) {
  const std::string* nearest = nullptr;
  std::size_t least = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string& name : known) {
    const bool is_start = typed.size() >= 4 && name.starts_with(typed);
    const std::size_t distance = is_start ? 0 : edit_distance(typed.substr(0, 100), name);
    if (distance < least) {
      least = distance;
      nearest = &name;
    }
  }
  return nearest == nullptr ? "" : fmt::format("; did you mean {}?", *nearest);
}

/// The innermost sub-command that was named.
const CLI::App* named_command(const CLI::App* app) {
  const std::vector<CLI::App*> parsed = app->get_subcommands();
  return parsed.empty() ? app : named_command(parsed.back());
}

std::string full_name(const CLI::App* app) {
  const CLI::App* parent = app->get_parent();
  return parent == nullptr ? app->get_name() : full_name(parent) + ' ' + app->get_name();
}

std::vector<std::string> option_names(const CLI::App* app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App* app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

/// What CLI11 says of an option that is missing, or of a command behind `named`.
std::string missing_text(const std::string& message, const CLI::App* named) {
  const std::vector<std::string> commands = command_names(named);
  if (commands.empty()) return message;
  return fmt::format("'{}' needs a command behind it; expected one of {}", full_name(named),
                     fmt::join(commands, ", "));
}

/// The option as the command line has it: by its short name if only that was typed.
std::string typed_name(const CLI::Option& option, const std::vector<std::string>& arguments) {
  const std::string name = "--" + option.get_lnames().front();
  if (option.get_snames().empty()) return name;
  const std::string short_name = "-" + option.get_snames().front();
  bool is_short = false;
  for (const std::string& argument : arguments) {
    if (argument == name || argument.starts_with(name + "=")) return name;
    is_short = is_short || argument.starts_with(short_name);
  }
  return is_short ? short_name : name;
}

/// What CLI11 says of an option that came twice or without its value, in plain words.
std::string mismatch_text(const std::string& message) {
  constexpr std::string_view kRequired = ": 1 required ", kMissing = " missing";
  const std::string name = message.substr(0, message.find(':'));
  if (message.find(": At Most 1 required") != message.npos)
    return fmt::format("{} is given more than once; expected it once", name);
  const std::size_t at = message.find(kRequired);
  if (at == message.npos || !message.ends_with(kMissing)) return message;
  const std::size_t begin = at + kRequired.size();
  return fmt::format("{} has no value; expected {}", name,
                     message.substr(begin, message.size() - kMissing.size() - begin));
}

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
}

/// Whether what stands between `before` and `behind` may be a field's name: no part of a path or of another
/// quoted text, and not followed by a number, as in what describes a problem ("head_dim 128").
bool may_be_field(std::string_view before, std::string_view behind) {
  constexpr std::string_view kBefore = " (.", kBehind = " ,;:)\n";
  if (!before.empty() && kBefore.find(before.back()) == kBefore.npos) return false;
  if (behind.empty()) return true;
  if (kBehind.find(behind.front()) == kBehind.npos) return false;
  return behind.size() < 2 || std::isdigit(static_cast<unsigned char>(behind[1])) == 0;
}

}  // namespace

Command Command::add_command(const std::string& name, const std::string& description) {
  CLI::App* app = app_->add_subcommand(name, description);
  app_->require_subcommand(1);
  return {app, chosen_};
}

void Command::set_action(std::function<int()> action) {
  std::function<int()>* chosen = chosen_;
  app_->final_callback([chosen, action = std::move(action)] { *chosen = action; });
}

void Command::set_examples(const std::vector<std::string>& lines) {
  std::string text = "Examples:";
  for (const std::string& line : lines) text += line.empty() ? "\n" : "\n  " + line;
  app_->footer(text);
}

CLI::Option* Command::finish(CLI::Option* option, const std::string& placeholder, const ValueCheck& check) {
  option->group(group_);
  if (!placeholder.empty()) option->type_name(placeholder);
  if (check) option->check(CLI::Validator([check](std::string& text) { return check(text); }, ""));
  return option;
}

void Command::let_need(const std::string& option, const std::string& other) {
  app_->get_option(option)->needs(app_->get_option(other));
}

void Command::let_exclude(const std::string& option, const std::string& other) {
  app_->get_option(option)->excludes(app_->get_option(other));
}

void Command::add_text(const std::string& name, std::string& value, const std::string& help,
                       const std::string& placeholder, const ValueCheck& check) {
  CLI::Option* option = finish(app_->add_option(name, value, help), placeholder, check);
  if (!value.empty()) option->capture_default_str();
}

void Command::add_required_text(const std::string& name, std::string& value, const std::string& help,
                                const std::string& placeholder, const ValueCheck& check) {
  finish(app_->add_option(name, value, help), placeholder, check)->required();
}

void Command::add_optional_text(const std::string& name, std::optional<std::string>& value,
                                const std::string& help, const std::string& placeholder) {
  finish(app_->add_option(name, value, help), placeholder, {});
}

void Command::add_texts(const std::string& name, std::vector<std::string>& values, const std::string& help,
                        const std::string& placeholder, const ValueCheck& check) {
  finish(app_->add_option(name, values, help), placeholder, check)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Command::add_choice(const std::string& name, std::string& value, const std::vector<std::string>& choices,
                         const std::string& help, const ValueCheck& check) {
  const ValueCheck is_choice = [choices](const std::string& text) -> std::string {
    for (const std::string& choice : choices) {
      if (choice == text) return {};
    }
    return fmt::format("'{}' is not one of {}", text, fmt::join(choices, ", "));
  };
  finish(app_->add_option(name, value, help), fmt::format("{}", fmt::join(choices, "|")),
         check ? check : is_choice)
      ->capture_default_str();
}

void Command::add_integer(const std::string& name, std::int64_t& value, std::int64_t min, std::int64_t max,
                          const std::string& help) {
  finish(app_->add_option(name, value, help), "N", {})
      ->transform(number_between(min, max))
      ->capture_default_str();
}

void Command::add_integer(const std::string& name, int& value, int min, int max, const std::string& help) {
  finish(app_->add_option(name, value, help), "N", {})
      ->transform(number_between(min, max))
      ->capture_default_str();
}

void Command::add_integer(const std::string& name, std::optional<std::int64_t>& value, std::int64_t min,
                          std::int64_t max, const std::string& help) {
  finish(app_->add_option(name, value, help), "N", {})->transform(number_between(min, max));
}

void Command::add_seed(const std::string& name, std::uint64_t& value, const std::string& help) {
  finish(app_->add_option(name, value, help), "N", {})
      ->transform(number_between(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
}

void Command::add_seed(const std::string& name, std::optional<std::uint64_t>& value,
                       const std::string& help) {
  finish(app_->add_option(name, value, help), "N", {})
      ->transform(number_between(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()));
}

void Command::add_real(const std::string& name, double& value, double min, double max,
                       const std::string& help) {
  finish(app_->add_option(name, value, help), "X", {})
      ->transform(number_between(min, max))
      ->capture_default_str();
}

void Command::add_real(const std::string& name, float& value, float min, float max, const std::string& help) {
  finish(app_->add_option(name, value, help), "X", {})
      ->transform(number_between(min, max))
      ->capture_default_str();
}

void Command::add_real(const std::string& name, std::optional<float>& value, float min, float max,
                       const std::string& help) {
  finish(app_->add_option(name, value, help), "X", {})->transform(number_between(min, max));
}

void Command::add_flag(const std::string& name, bool& value, const std::string& help) {
  finish(app_->add_flag(name, value, help), "", {});
}

CommandLine::CommandLine(const std::string& description, const std::string& version)
    : app_(std::make_unique<CLI::App>(description, "tessera")) {
  app_->set_version_flag("--version", version, "Print the version and exit");
  app_->set_help_flag("-h,--help", "Print this help and exit");
  app_->get_formatter()->column_width(30);
}

CommandLine::~CommandLine() = default;

Command CommandLine::root() { return {app_.get(), &chosen_}; }

int CommandLine::run(int argc, const char* const* argv) {
  arguments_.assign(argv + std::min(argc, 1), argv + argc);
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    write_stdout(std::string(version.what()) + '\n');
    return kExitDone;
  } catch (const CLI::Success&) {  // --help
    std::string help = app_->help();
    for (std::size_t at; (at = help.find("\n\n\n")) != std::string::npos;) help.erase(at, 1);
    write_stdout(help);
    return kExitDone;
  } catch (const CLI::ArgumentMismatch& error) {
    throw UsageError(usage_error(mismatch_text(error.what())));
  } catch (const CLI::RequiredError& error) {
    throw UsageError(usage_error(missing_text(error.what(), named_command(app_.get()))));
  } catch (const CLI::ParseError& error) {
    throw UsageError(usage_error(error.what()));
  }
  return chosen_();
}

/// What is unknown is said before what is missing: the one may be the other, misspelt.
std::string CommandLine::usage_error(const std::string& message) const {
  const CLI::App* named = named_command(app_.get());
  const std::string name = full_name(named);
  std::string text = message;
  const std::vector<std::string> unknown = app_->remaining(true);
  const auto option =
      std::ranges::find_if(unknown, [](const auto& word) { return word.size() > 1 && word[0] == '-'; });
  const std::vector<std::string> commands = command_names(named);
  if (!unknown.empty() && !commands.empty() && option != unknown.begin()) {
    text =
        fmt::format("'{} {}' is not known{}", name, unknown.front(), suggestion(unknown.front(), commands));
  } else if (option != unknown.end()) {
    const std::string typed = option->substr(0, option->find('='));
    text = fmt::format("'{}' has no option {}{}", name, typed, suggestion(typed, option_names(named)));
  } else if (!unknown.empty()) {
    text = fmt::format("'{}' does not know what to do with '{}'", name, unknown.front());
  }
  return fmt::format("{}\nRun '{} --help' for usage.", text, name);
}

std::string CommandLine::as_typed(const std::string& message) const {
  // What is wrong with a modifier's text speaks that language's names.
  if (message.starts_with("scores.modifier.")) return message;
  const CLI::App* named = named_command(app_.get());
  std::string text;
  for (std::size_t begin = 0; begin < message.size();) {
    std::size_t end = begin;
    while (end < message.size() && is_name_character(message[end])) ++end;
    std::string word = message.substr(begin, std::max<std::size_t>(end - begin, 1));
    const bool is_field = may_be_field(std::string_view(message).substr(0, begin),
                                       std::string_view(message).substr(begin + word.size()));
    begin += word.size();
    std::string name = word;
    if (is_field && word.find('_') != std::string::npos && word.find('-') == std::string::npos) {
      std::ranges::replace(name, '_', '-');
      name = "--" + name;
    }
    if (name.starts_with("--")) {
      const CLI::Option* option = named->get_option_no_throw(name);
      if (option != nullptr && !option->get_lnames().empty()) {
        word = typed_name(*option, arguments_);
        // "config.num_splits": the struct that the field is in.
        while (text.size() > 1 && text.back() == '.' && is_name_character(text[text.size() - 2])) {
          do {
            text.pop_back();
          } while (!text.empty() && is_name_character(text.back()));
        }
      }
    }
    text += word;
  }
  return text;
}

std::string check_backend_name(const std::string& name) {
  if (name == "auto") return {};
  std::string known = "auto";
  for (const BackendInfo& backend : attention_backends()) {
    if (backend.name == name) return {};
    known += ", " + backend.name;
  }
  return fmt::format("there is no backend '{}'; known: {}", name, known);
}

ValueCheck taken_by(std::function<void(const std::string&)> take) {
  return [take = std::move(take)](const std::string& value) -> std::string {
    try {
      take(value);
      return {};
    } catch (const Error& error) {
      return error.message();
    }
  };
}

std::string check_dtype_name(const std::string& name) {
  return taken_by([](const std::string& value) { parse_dtype(value); })(name);
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = text.find(',', begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

std::vector<std::string> split_words(const std::string& line) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (const char c : line) {
    if (quote != 0 ? c == quote : c == '\'' || c == '"') {
      quote = quote != 0 ? 0 : c;
      if (!in_word) words.emplace_back();
      in_word = true;
    } else if (quote == 0 && std::isspace(static_cast<unsigned char>(c)) != 0) {
      in_word = false;
    } else {
      if (!in_word) words.emplace_back();
      in_word = true;
      words.back() += c;
    }
  }
  if (quote != 0) throw UsageError(fmt::format("'{}': a {} is never closed", line, quote));
  return words;
}

std::vector<std::int32_t> parse_token_ids(const std::string& option, const std::string& text) {
  std::vector<std::int32_t> ids;
  const char* next = text.data();
  const char* const end = next + text.size();
  const auto skip_spaces = [&] {
    while (next != end && std::isspace(static_cast<unsigned char>(*next)) != 0) ++next;
  };
  for (skip_spaces(); next != end; skip_spaces()) {
    if (!ids.empty() && *next == ',') {
      ++next;
      skip_spaces();
    }
    std::int32_t id = 0;
    const auto [stop, status] = std::from_chars(next, end, id);
    if (status != std::errc() || id < 0) {
      throw UsageError(fmt::format("{}: '{:.20}' is not a token id; expected integers such as 1,2,3", option,
                                   std::string_view(next, static_cast<std::size_t>(end - next))));
    }
    ids.push_back(id);
    next = stop;
  }
  if (ids.empty()) throw UsageError(fmt::format("{}: no token ids; expected integers such as 1,2,3", option));
  return ids;
}

}  // namespace tessera::cli
