#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "model/jinja/marked_text.h"
#include "model/jinja/value.h"

namespace tessera::jinja {

struct Program;

/// A template in the subset of Jinja that chat templates use, with the semantics of jinja2 as transformers
/// sets it up (trim_blocks, lstrip_blocks, loop controls, the tag `generation`, tojson without HTML escapes).
/// It reaches nothing but its variables, and ends within the Heap's limits. Immutable, safe to render from
/// several threads.
class Template {
 public:
  /// `source` is UTF-8; `name` stands in errors. Throws Error{kCorruptFile} for a syntax error and
  /// Error{kUnsupported} for what this subset lacks, with the line.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  /// The text that comes of `variables`, whose values are `heap`'s. Throws Error{kInvalidArgument} or
  /// Error{kUnsupported} with the line for what goes wrong, raise_exception() and exceeded limits included.
  MarkedText render(Heap& heap, std::span<const std::pair<std::string, Value>> variables) const;

  /// All text and strings that stand in the template, each ended by a zero byte.
  const std::string& literals() const;

 private:
  std::string name_;
  std::unique_ptr<const Program> program_;
};

}  // namespace tessera::jinja
