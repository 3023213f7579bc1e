#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"

namespace tessera::tokenizers {

/// What one load of a tokenizer, or the encoding of one text, may spend on what the tokenizer's file
/// describes, and that file's name for errors. Not for several threads.
class WorkBudget {
 public:
  /// For work on texts of `text_bytes` in all. `source` must outlive the budget.
  WorkBudget(const std::string& source, std::size_t text_bytes);
  ~WorkBudget();
  WorkBudget(const WorkBudget&) = delete;
  WorkBudget& operator=(const WorkBudget&) = delete;

  const std::string& source() const { return source_; }

 private:
  friend class Regex;
  struct Matching;
  Matching& matching();

  const std::string& source_;
  std::size_t text_bytes_;
  std::unique_ptr<Matching> matching_;  // made when a regular expression is first matched
};

/// A regular expression in the syntax that tokenizer.json files use (Oniguruma's, of which the part that
/// PCRE2 reads in the same way is supported). Immutable and safe to use from several threads.
class Regex {
 public:
  /// Throws Error{kUnsupported} that begins with `where` if the pattern is not valid or not supported.
  Regex(std::string_view pattern, const std::string& where);

  /// Appends the matches in `text` (valid UTF-8), from left to right and without overlap. Throws
  /// Error{kUnsupported} if matching takes unreasonably long (a pattern may need exponential time), or if all
  /// that shares the budget does.
  void find_all(std::string_view text, WorkBudget& budget, std::vector<TextRange>& matches) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace tessera::tokenizers
