#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tessera/model.h"
#include "tessera/structured_output.h"

namespace tessera::cli {

class Command;

/// The form that a text is to have, of a command that generates.
struct OutputForm {
  std::optional<std::string> json_schema;  ///< a file, or the schema itself
  std::optional<std::string> regex;

  bool is_free() const { return !json_schema && !regex; }
};

/// --json-schema and --regex. The command keeps the reference.
void add_output_form(Command& command, OutputForm& form);

/// Throws UsageError if two forms are asked for, or one goes on past the end of the text.
void check(const OutputForm& form, bool ignore_eos);

/// Makes a constraint for each text of a command.
class FormedOutput {
 public:
  /// Reads a schema's file. Throws Error like StructuredOutput.
  FormedOutput(const OutputForm& form, const Model& model);
  std::shared_ptr<TokenConstraint> next() const;

 private:
  OutputForm form_;
  std::optional<StructuredOutput> structured_;
};

}  // namespace tessera::cli
