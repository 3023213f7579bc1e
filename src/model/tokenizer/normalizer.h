#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/regex.h"
#include "model/tokenizer/unicode.h"

namespace tessera::tokenizers {

/// Finds the non-overlapping matches of something in a text, from left to right.
using Matcher =
    std::function<void(std::string_view text, WorkBudget& budget, std::vector<TextRange>& matches)>;

Matcher literal_matcher(std::string literal);
Matcher regex_matcher(Regex regex);
Matcher character_matcher(bool (*predicate)(char32_t));  ///< each character by itself
Matcher word_matcher();  ///< runs of word characters, and runs of what is neither those nor white space

/// One step of normalisation: valid UTF-8 to valid UTF-8.
using NormalizerStep = std::function<std::string(std::string_view, WorkBudget&)>;

NormalizerStep prepend_step(std::string prefix);  ///< leaves an empty text empty
NormalizerStep replace_step(Matcher matcher, std::string content);
NormalizerStep strip_step(bool left, bool right);
NormalizerStep unicode_step(unicode::NormalizationForm form);
NormalizerStep lowercase_step();
NormalizerStep byte_level_step();

/// Replaces every match by `content`.
std::string replace_all(std::string_view text, const Matcher& matcher, std::string_view content,
                        WorkBudget& budget);

/// Steps applied one after the other.
class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps = {}) : steps_(std::move(steps)) {}
  bool empty() const { return steps_.empty(); }
  /// Throws Error{kUnsupported} if the text grows beyond kMaxGrowth times its size plus kFreeGrowth bytes,
  /// which only a hostile file makes it do.
  std::string apply(std::string_view text, WorkBudget& budget) const;

  static constexpr std::size_t kMaxGrowth = 32;
  static constexpr std::size_t kFreeGrowth = 256;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace tessera::tokenizers
