#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tessera/engine.h"
#include "tessera/model.h"

namespace tessera {

/// Makes constraints that hold a request's text to a form. Knows a model's tokens, which takes some
/// 0.1 s for 128,000 of them: one a model is enough. Forms that were asked for lately are kept, with the
/// masks that requests have made. Copies share everything; all calls may come from several threads at once.
///
/// A constraint is for one request. Where its text is complete it allows nothing but the tokens that end a
/// text, so that a request needs stop_at_eos.
class StructuredOutput {
 public:
  /// Throws Error{kUnsupported} if the model has no tokenizer.
  explicit StructuredOutput(const Model& model);

  /// JSON that fits a JSON Schema (docs/structured_output.md), properties in its order. Throws
  /// Error{kInvalidArgument} if it is no schema or nothing fits, Error{kUnsupported} that names keyword and
  /// path for what can't be guaranteed, or is too large.
  std::shared_ptr<TokenConstraint> json_schema(std::string_view schema) const;
  /// Any text, but what follows `open` is JSON that fits a schema, and then `close`, which may be empty,
  /// before the text may go on or end. `open` is found where a token completes it, be it text or a control
  /// token of this name. Throws like json_schema, and Error{kInvalidArgument} if `open` is empty.
  std::shared_ptr<TokenConstraint> json_between(std::string_view open, std::string_view schema,
                                                std::string_view close) const;
  /// Any JSON object.
  std::shared_ptr<TokenConstraint> json_object() const;
  /// Text that all of a regular expression matches, in the syntax of ECMA-262. Throws like json_schema.
  std::shared_ptr<TokenConstraint> regex(std::string_view pattern) const;

 private:
  class Implementation;
  std::shared_ptr<Implementation> implementation_;
};

}  // namespace tessera
