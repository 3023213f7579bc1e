#include "output_form.h"

#include <fmt/core.h>

#include <fstream>
#include <string>

#include "command.h"
#include "tessera/error.h"

namespace tessera::cli {
namespace {

/// A schema is an object or a boolean; anything else is taken for a file's name.
std::string read_schema(const std::string& file_or_text) {
  const std::size_t begin = file_or_text.find_first_not_of(" \t\r\n");
  if (begin != std::string::npos && file_or_text[begin] == '{') return file_or_text;
  if (file_or_text == "true" || file_or_text == "false") return file_or_text;
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  std::ifstream file(file_or_text, std::ios::binary);  // also a pipe, as in --json-schema <(...)
  std::string text;
  char buffer[65536];
  while (file.read(buffer, sizeof buffer) || file.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMaxBytes) {
      throw Error(ErrorCode::kIo,
                  fmt::format("the JSON schema '{}' is longer than {} MiB, the most that is read",
                              file_or_text, kMaxBytes >> 20));
    }
  }
  if (!file.is_open() || file.bad()) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("cannot read the JSON schema '{}'; expected a file, or a schema that begins with {{",
                    file_or_text));
  }
  return text;
}

}  // namespace

void add_output_form(Command& command, OutputForm& form) {
  command.add_optional_text("--json-schema", form.json_schema, "The text is JSON that fits this JSON Schema",
                            "FILE|TEXT");
  command.add_optional_text("--regex", form.regex, "The text matches this regular expression as a whole",
                            "PATTERN");
}

void check(const OutputForm& form, bool ignore_eos) {
  if (form.json_schema && form.regex) throw UsageError("--json-schema and --regex exclude each other");
  if (!form.is_free() && ignore_eos)
    throw UsageError("--ignore-eos excludes --json-schema and --regex, whose texts end");
}

FormedOutput::FormedOutput(const OutputForm& form, const Model& model) : form_(form) {
  if (form_.json_schema) form_.json_schema = read_schema(*form_.json_schema);
  if (!form_.is_free()) structured_.emplace(model);
  next();  // what is wrong with the form is told before anything is generated
}

std::shared_ptr<TokenConstraint> FormedOutput::next() const {
  if (form_.json_schema) return structured_->json_schema(*form_.json_schema);
  if (form_.regex) return structured_->regex(*form_.regex);
  return nullptr;
}

}  // namespace tessera::cli
