#include "model/jinja/template.h"

#include <fmt/core.h>

#include "core/text.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/lexer.h"
#include "model/jinja/parser.h"
#include "tessera/error.h"

namespace tessera::jinja {

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
  if (!is_valid_utf8(source))
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: the template is not UTF-8", name_));
  try {
    program_ = std::make_unique<const Program>(Parser(tokenize(source)).parse());
  } catch (const SyntaxError& error) {
    throw Error(error.unsupported ? ErrorCode::kUnsupported : ErrorCode::kCorruptFile,
                fmt::format("{}, line {}: {}", name_, error.line, error.message));
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

MarkedText Template::render(Heap& heap, std::span<const std::pair<std::string, Value>> variables) const {
  Interpreter interpreter(*program_, heap);
  try {
    return interpreter.run(variables);
  } catch (const Failure& failure) {
    throw Error(failure.code, fmt::format("{}, line {}: {}{}", name_, interpreter.line(), failure.message,
                                          failure.code == ErrorCode::kUnsupported ? " (not supported)" : ""));
  }
}

const std::string& Template::literals() const { return program_->literals; }

}  // namespace tessera::jinja
