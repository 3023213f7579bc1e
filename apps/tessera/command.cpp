#include "command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <utility>

#include "output.h"
#include "tessera/attention.h"
#include "tessera/dtype.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

std::string range_text(double min, double max) {
  if (max == static_cast<double>(std::numeric_limits<std::uint64_t>::max())) {
    return fmt::format("between {} and {}", min, std::numeric_limits<std::uint64_t>::max());
  }
  if (max >= 1e15) return fmt::format("at least {}", min);
  return fmt::format("between {} and {}", min, max);
}

template <class T>
ValueCheck range_check(T min, T max) {
  return [min, max](const std::string& text) -> std::string {
    T value{};
    if (!CLI::detail::lexical_cast(text, value)) return {};  // CLI11 itself reports what isn't a number
    if (value >= min && value <= max) return {};
    return fmt::format("{} is not {}", text, range_text(static_cast<double>(min), static_cast<double>(max)));
  };
}

/// Reads a whole number in base 10, whatever zeros it opens with, and leaves it in the form that CLI11 reads
/// in the same way: by itself that takes 010 as octal and wraps numbers around that are too large.
template <class T>
std::function<std::string(std::string&)> integer_reader(T min, T max) {
  return [min, max](std::string& text) -> std::string {
    T value{};
    const char* const end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data(), end, value);
    const bool is_negative = text.starts_with('-');  // of which an unsigned type reads nothing
    const bool is_integer = text.find_first_not_of("0123456789", is_negative ? 1 : 0) == text.npos &&
                            text != "-" && !text.empty();
    if (!is_integer) return fmt::format("{} is not a whole number", text);
    if (status != std::errc() || stop != end || value < min || value > max) {
      return fmt::format("{} is not {}", text,
                         range_text(static_cast<double>(min), static_cast<double>(max)));
    }
    text = fmt::format("{}", value);
    return {};
  };
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
  for (const std::string& line : lines) text += "\n  " + line;
  app_->footer(text);
}

CLI::Option* Command::finish(CLI::Option* option, const std::string& placeholder, const ValueCheck& check) {
  option->group(group_);
  if (!placeholder.empty()) option->type_name(placeholder);
  if (check) option->check(CLI::Validator([check](std::string& text) { return check(text); }, ""));
  return option;
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

void Command::add_choice(const std::string& name, std::string& value, const std::vector<std::string>& choices,
                         const std::string& help) {
  const ValueCheck check = [choices](const std::string& text) -> std::string {
    for (const std::string& choice : choices) {
      if (choice == text) return {};
    }
    return fmt::format("'{}' is not one of {}", text, fmt::join(choices, ", "));
  };
  finish(app_->add_option(name, value, help), fmt::format("{}", fmt::join(choices, "|")), check)
      ->capture_default_str();
}

void Command::add_integer(const std::string& name, std::int64_t& value, std::int64_t min, std::int64_t max,
                          const std::string& help) {
  finish(app_->add_option(name, value, help), "N", {})
      ->transform(CLI::Validator(integer_reader(min, max), ""))
      ->capture_default_str();
}

void Command::add_integer(const std::string& name, int& value, int min, int max, const std::string& help) {
  finish(app_->add_option(name, value, help), "N", {})
      ->transform(CLI::Validator(integer_reader(min, max), ""))
      ->capture_default_str();
}

void Command::add_integer(const std::string& name, std::optional<std::int64_t>& value, std::int64_t min,
                          std::int64_t max, const std::string& help) {
  finish(app_->add_option(name, value, help), "N", {})
      ->transform(CLI::Validator(integer_reader(min, max), ""));
}

void Command::add_seed(const std::string& name, std::uint64_t& value, const std::string& help) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  finish(app_->add_option(name, value, help), "N", {})
      ->transform(CLI::Validator(integer_reader(std::uint64_t{0}, kMax), ""))
      ->capture_default_str();
}

void Command::add_real(const std::string& name, double& value, double min, double max,
                       const std::string& help) {
  finish(app_->add_option(name, value, help), "X", range_check(min, max))->capture_default_str();
}

void Command::add_real(const std::string& name, float& value, float min, float max, const std::string& help) {
  finish(app_->add_option(name, value, help), "X", range_check(min, max))->capture_default_str();
}

void Command::add_real(const std::string& name, std::optional<float>& value, float min, float max,
                       const std::string& help) {
  finish(app_->add_option(name, value, help), "X", range_check(min, max));
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
  } catch (const CLI::ParseError& error) {
    const CLI::App* named = named_command(app_.get());
    const std::vector<std::string> unknown = app_->remaining(true);
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !unknown.empty()) {
      throw UsageError(fmt::format("'{} {}' is not known\nRun '{} --help' for usage.", full_name(named),
                                   unknown.front(), full_name(named)));
    }
    throw UsageError(fmt::format("{}\nRun '{} --help' for usage.", error.what(), full_name(named)));
  }
  return chosen_();
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

std::string check_dtype_name(const std::string& name) {
  try {
    parse_dtype(name);
    return {};
  } catch (const Error& error) {
    return error.message();
  }
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

std::vector<std::int32_t> parse_token_ids(const std::string& option, const std::string& text) {
  std::vector<std::int32_t> ids;
  const char* next = text.data();
  const char* const end = next + text.size();
  while (next != end) {
    if (*next == ',' || std::isspace(static_cast<unsigned char>(*next)) != 0) {
      ++next;
      continue;
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
